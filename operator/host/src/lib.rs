//! Drives the coordinator with timers, a transport and the store.
