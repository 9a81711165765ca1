//! Whether an operator that leads still does its work.
//!
//! Owns: what `/livez` says. A wrong end is worse than none (F2), so it says dead only of one that has done nothing at
//! all for long: no watch has heard, failed or given up waiting, and no pass has come to its end, well or not. All of
//! these have limits of their own that are much shorter, whether the API server answers or not. And the Lease must
//! just have been renewed: then the process was not frozen, and the API server is there.

use std::time::Duration;

use streamforge_proto::metrics::http;

use crate::lease::Leadership;
use crate::watch::Pulses;

/// Longer than the limits of watches and passes together.
const STANDS_STILL: Duration = Duration::from_secs(600);

/// A Lease that was renewed since then is renewed still.
const RENEWED_WITHIN: Duration = Duration::from_secs(5);

/// For the health page.
#[must_use]
pub fn check(pulses: &Pulses, leadership: &Leadership) -> http::Ready {
    let (pulses, leadership) = (pulses.clone(), leadership.clone());
    std::sync::Arc::new(move || judge(pulses.standstill(), leadership.renewed()))
}

/// `standstill`: for how long nothing was done; `renewed`: how long ago the Lease was.
fn judge(standstill: Option<Duration>, renewed: Option<Duration>) -> Result<(), String> {
    let is_renewed = renewed.is_some_and(|since| since < RENEWED_WITHIN);
    match standstill {
        Some(since) if since > STANDS_STILL && is_renewed => {
            let seconds = since.as_secs();
            let why = format!("leads, and has heard and done nothing for {seconds} s");
            tracing::error!(seconds, "{why}");
            Err(why)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kf_o22_leader_that_does_nothing_is_dead_unless_the_api_server_is_gone_or_it_was_frozen() {
        let seconds = |n| Some(Duration::from_secs(n));
        assert!(judge(seconds(601), seconds(1)).is_err());

        assert!(judge(seconds(599), seconds(1)).is_ok(), "it may wait");
        assert!(judge(seconds(3_600), seconds(3_600)).is_ok(), "F2");
        assert!(judge(seconds(3_600), None).is_ok());
        assert!(judge(None, None).is_ok(), "another one leads");
    }

    #[tokio::test]
    async fn operator_that_does_not_lead_lives() {
        let (pulses, leadership) = (Pulses::default(), Leadership::begin());
        assert_eq!(check(&pulses, &leadership)(), Ok(()));
    }
}
