//! The one layer of retries: the SDK's own is switched off.
//!
//! Owns: how long an attempt may take, how long all of them together, and how long to wait in
//! between. Knows whether an attempt may have been done without saying so.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::failure::{Failure, IntoFailure, refused};
use super::line::Line;
use crate::{Error, Result};

const MIB: u64 = 1024 * 1024;

/// Deadlines and pauses of every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long one attempt may take, besides the time for its bytes.
    pub attempt: Duration,
    /// How much longer per MiB it carries: a mebibyte a second is a slow line.
    pub attempt_per_mib: Duration,
    /// How long all attempts of a call may take together, besides the time for its bytes.
    pub overall: Duration,
    /// First pause; doubled by each failure. Half of each pause is chance.
    pub pause_min: Duration,
    /// Longest pause.
    pub pause_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            attempt: Duration::from_secs(5),
            attempt_per_mib: Duration::from_secs(1),
            // Well below the default `checkpoint.timeout` of a minute.
            overall: Duration::from_secs(20),
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_secs(2),
        }
    }
}

/// One call with its attempts.
#[derive(Debug)]
pub(super) struct Retry<'a> {
    line: &'a Line,
    /// The client that the attempt is made with, or an earlier one.
    version: u64,
    action: &'static str,
    key: &'a str,
    started: Instant,
    bytes_n: u64,
    attempts_n: u32,
    may_have_been_done: bool,
}

impl<'a> Retry<'a> {
    /// A call that carries `bytes_n` bytes one way or the other.
    pub(super) fn new(line: &'a Line, action: &'static str, key: &'a str, bytes_n: u64) -> Self {
        Self {
            line,
            version: line.version(),
            action,
            key,
            started: Instant::now(),
            bytes_n,
            attempts_n: 0,
            may_have_been_done: false,
        }
    }

    /// The call turned out to carry this many bytes.
    pub(super) fn carries(&mut self, bytes_n: u64) {
        self.bytes_n = bytes_n;
    }

    /// Whether an attempt ended without an answer that says what became of it.
    pub(super) fn may_have_been_done(&self) -> bool {
        self.may_have_been_done
    }

    /// One attempt, or a part of one, within its deadline. The SDK's futures are large: box them.
    pub(super) async fn attempt<T, E: IntoFailure>(
        &self,
        work: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, Failure> {
        let limit = self.attempt_limit().min(self.rest());
        match timeout(limit, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(error.into_failure()),
            Err(_elapsed) => Err(Failure::Lost(format!("no answer within {limit:.1?}"))),
        }
    }

    /// After a failed attempt: waits until the next one. Who was refused with keys that were replaced
    /// since tries again with the new ones.
    ///
    /// # Errors
    /// The call's error, when the answer was definite or the time is up.
    pub(super) async fn after(&mut self, failure: Failure) -> Result<()> {
        self.attempts_n += 1;
        let reason = match failure {
            Failure::Answer(answer) => {
                if answer.may_be_of_old_keys() && self.renew().await {
                    return Ok(());
                }
                let location = self.line.location();
                return Err(refused(self.action, self.key, location, answer));
            }
            Failure::Lost(reason) => {
                self.may_have_been_done = true;
                // Certificates may have been replaced, too.
                self.renew().await;
                reason
            }
            Failure::NotNow(reason) => reason,
        };
        let pause = self.pause()?;
        if pause >= self.rest() {
            return Err(self.unavailable(&reason));
        }
        sleep(pause).await;
        Ok(())
    }

    pub(super) async fn renew(&mut self) -> bool {
        let is_new = self.line.renew(self.version).await;
        self.version = self.line.version();
        is_new
    }

    /// The error of a call that got no answer.
    pub(super) fn unavailable(&self, reason: &str) -> Error {
        let Self {
            action,
            key,
            attempts_n,
            ..
        } = self;
        let took = self.started.elapsed();
        Error::Unavailable {
            location: self.line.location().to_owned(),
            reason: format!("{action} {key:?}: {reason} ({attempts_n} attempts in {took:.1?})"),
        }
    }

    fn attempt_limit(&self) -> Duration {
        self.line.limits().attempt + self.time_for_bytes()
    }

    fn time_for_bytes(&self) -> Duration {
        let mib = u32::try_from(self.bytes_n.div_ceil(MIB)).unwrap_or(u32::MAX);
        self.line.limits().attempt_per_mib.saturating_mul(mib)
    }

    fn rest(&self) -> Duration {
        // The bytes may have to go a second time.
        let overall = self.line.limits().overall + self.time_for_bytes().saturating_mul(2);
        overall.saturating_sub(self.started.elapsed())
    }

    fn pause(&self) -> Result<Duration> {
        let doubled = self
            .line
            .limits()
            .pause_min
            .saturating_mul(1 << self.attempts_n.min(16));
        let half = doubled.min(self.line.limits().pause_max) / 2;
        // Clients that failed together must not come back together.
        let [chance, ..] = chance()?;
        Ok(half + half.mul_f64(f64::from(chance) / 255.0))
    }
}

/// Random bytes.
pub(super) fn chance() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Unavailable {
        location: "the system's random numbers".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(bytes)
}

/// A name nobody else uses: 32 hex digits.
pub(super) fn nonce() -> Result<String> {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(32);
    for byte in chance()? {
        write!(text, "{byte:02x}").expect("writing to a String never fails");
    }
    Ok(text)
}
