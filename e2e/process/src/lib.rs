//! Tests that run the real binary as a process and kill it.
