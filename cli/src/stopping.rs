//! How a running job is stopped by signals, in bounded time.
//!
//! Owns: what the first signal and the second one mean, saying what a stop waits for, and the end of
//! the process when that does not come. On a thread of its own: it must work when nothing else does.
//! Start at: [`Signals::listen`].

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use streamforge_host::{JobHandle, Status};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::exit::{ABORTED, Outcome};
use crate::screen::Screen;

/// Signals closer together than this are one wish.
const ONE_WISH: Duration = Duration::from_millis(500);

/// A stop that takes longer says what it waits for. Most take less.
const TELL_AFTER: Duration = Duration::from_millis(1_500);

/// How often it says so again.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Signals of this process. Until there is a job to stop, the first one ends it: nothing has begun.
#[derive(Clone, Debug)]
pub struct Signals {
    /// Where they go once there is.
    job: Arc<Mutex<Option<Sender<()>>>>,
}

impl Signals {
    /// Listens from now on. Needs a runtime around it.
    ///
    /// # Errors
    /// When signals cannot be listened to.
    pub fn listen() -> Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let signals = Self {
            job: Arc::default(),
        };
        let heard = signals.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                heard.tell();
            }
        });
        Ok(signals)
    }

    fn job(&self) -> MutexGuard<'_, Option<Sender<()>>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        let Some(job) = &*self.job() else {
            eprintln!("stopped before the job began; run it again to begin");
            std::process::exit(i32::from(Outcome::Stopped.code()));
        };
        // A job that ended by itself hears nothing.
        let _ended = job.send(());
    }

    /// From now on the first signal asks this job for a stop, which may take so long; the second ends the
    /// process.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn stop(&self, handle: &JobHandle, screen: &Screen, within: Duration) -> Result<()> {
        let (stop, status) = (handle.stopper(), handle.status());
        let screen = screen.clone();
        let (signals, heard) = channel();
        let watching = move || {
            if heard.recv().is_err() {
                return; // the job ended by itself
            }
            screen.wipe();
            eprintln!("stopping with a checkpoint; once more to abort");
            stop();
            wait(&heard, &screen, &status, within);
        };
        *self.job() = Some(signals);
        std::thread::Builder::new()
            .name("stopping".to_owned())
            .spawn(watching)
            .context("start a thread")?;
        Ok(())
    }
}

/// Until the process ends by itself, by a second signal, or because it takes too long.
fn wait(heard: &Receiver<()>, screen: &Screen, status: &watch::Receiver<Status>, within: Duration) {
    let asked = Instant::now();
    let mut tell_at = TELL_AFTER;
    loop {
        std::thread::sleep(LOOK_EVERY);
        let lasts = asked.elapsed();
        // A supervisor may signal the process and its group at once: that is one wish.
        if heard.try_iter().count() > 0 && lasts > ONE_WISH {
            screen.wipe();
            eprintln!("aborted; the next start goes on from the newest checkpoint");
            std::process::exit(i32::from(ABORTED));
        }
        let waits_for = || {
            let status = status.borrow();
            let told = status.stop_waits_for.clone();
            told.unwrap_or_else(|| "its tasks to end".to_owned())
        };
        if lasts >= within {
            screen.wipe();
            eprintln!(
                "aborted: it did not stop within {} s and still waits for {}; the next start goes on from \
                 the newest checkpoint (--stop-timeout gives it longer)",
                within.as_secs(),
                waits_for()
            );
            std::process::exit(i32::from(ABORTED));
        }
        if lasts >= tell_at {
            tell_at += TELL_EVERY;
            screen.wipe();
            eprintln!("still stopping: waiting for {}", waits_for());
        }
    }
}
