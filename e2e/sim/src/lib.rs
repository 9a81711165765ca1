//! Seeded simulation of whole jobs in one thread.
