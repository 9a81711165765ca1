//! The streamforge command.
