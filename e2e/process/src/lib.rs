//! Tests that run the real `streamforge` binary as a process and kill it.
//!
//! Owns: starting the binary in a folder of its own, waiting for something it does, killing it,
//! and looking at what it published. Knows nothing of the engine: it sees what a user sees. The
//! tests are in `tests/`, one file per kind of event; the long ledger is `kills.py`.
//! Start at: [`Workspace`].
//!
//! Invariant P1: what has been visible in an output folder once stays there, byte for byte.

mod bucket;
mod documents;
mod published;
mod random;
mod spoiler;
mod workspace;

pub use bucket::{Bucket, OwnServer};
pub use documents::every_window;
pub use published::Published;
pub use random::Random;
pub use spoiler::{Spoiler, Weather};
pub use workspace::{Ended, Running, Workspace, free_address};
