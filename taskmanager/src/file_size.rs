//! The limit of this process on the size of files (`ulimit -f`).
//!
//! Owns: that a write beyond it fails as one to a full disk does. Left alone, the system ends the process by a
//! signal, without a word. Start at: [`fail_writes_beyond_limit`].

use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// From now on such a write is an error of that write.
///
/// # Errors
/// When the system does not let signals be handled.
pub fn fail_writes_beyond_limit() -> std::io::Result<()> {
    // The handler stays when this runtime has ended, and nobody needs to hear of the signal.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}
