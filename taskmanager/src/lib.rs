//! Hosts tasks: threads, channels, uploads.
