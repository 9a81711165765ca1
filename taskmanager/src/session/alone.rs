//! What a task manager does without a session (F4).
//!
//! Owns: how long it has been alone, when it looks into the head, and how often it calls.

use std::time::Duration;

use streamforge_core::frame;
use streamforge_core::manifest::{self, HEAD_KEY, Head};
use streamforge_store::ObjectStore;
use tokio::time::Instant;

use crate::upload::with_causes;

/// A time without a session.
#[derive(Debug)]
pub(super) struct Loneliness {
    since: Instant,
    /// When the head was read last; before that the session told whose attempt is the newest.
    seen: Instant,
    looked: Option<Instant>,
    calls_n: u32,
    /// Answers in a row of others than the coordinator.
    others_n: u32,
    met_another: bool,
}

impl Loneliness {
    pub(super) fn begin(now: Instant) -> Self {
        Self {
            since: now,
            seen: now,
            looked: None,
            calls_n: 0,
            others_n: 0,
            met_another: false,
        }
    }

    pub(super) fn lasts(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    pub(super) fn saw_head(&mut self, now: Instant) {
        self.seen = now;
    }

    /// How long nothing has told whose attempt is the newest.
    pub(super) fn unseen(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.seen)
    }

    /// Whether the head is to be read now: at once, because a newer coordinator may be why the
    /// session is over, then once per heartbeat timeout.
    pub(super) fn looks_now(&mut self, now: Instant, every: Duration) -> bool {
        let looked = self.looked;
        let due = looked.is_none_or(|at| now.saturating_duration_since(at) >= every);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Somebody answered who is not the coordinator: where several stand behind one address, another call
    /// may reach it.
    pub(super) fn meet_another(&mut self) {
        self.met_another = true;
    }

    /// Whether the next call follows at once, at most so often in a row.
    pub(super) fn calls_another(&mut self, max: u32) -> bool {
        let met = std::mem::take(&mut self.met_another);
        self.others_n = if met { self.others_n + 1 } else { 0 };
        met && self.others_n <= max
    }

    /// How long the next call may take to be connected; doubles. For a while after an operator's death its
    /// Service leads to an address that nobody has any more, and drops what is sent there.
    pub(super) fn connect_within(&self, initial: Duration, max: Duration) -> Duration {
        initial.saturating_mul(1 << self.calls_n.min(10)).min(max)
    }

    /// The pause before the next call; doubles.
    pub(super) fn next_pause(&mut self, initial: Duration, max: Duration) -> Duration {
        let pause = initial.saturating_mul(1 << self.calls_n.min(10));
        self.calls_n = self.calls_n.saturating_add(1);
        pause.min(max)
    }
}

/// The head; `None`: there is none.
pub(super) async fn read_head(store: &dyn ObjectStore) -> Result<Option<Head>, String> {
    let object = store.get(HEAD_KEY).await;
    let Some(object) = object.map_err(|error| with_causes(&error))? else {
        return Ok(None);
    };
    let head = manifest::decode(frame::HEAD, &object.bytes);
    head.map(Some).map_err(|error| with_causes(&error))
}

/// Whether a coordinator can be called there; one within a task manager's process names no address.
pub(super) fn is_address(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    matches!(port, Some(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_read_once_per_heartbeat_timeout_f4() {
        let begin = Instant::now();
        let mut lonely = Loneliness::begin(begin);
        let every = Duration::from_secs(5);
        let looks: Vec<bool> = (0..=11)
            .map(|second| lonely.looks_now(begin + Duration::from_secs(second), every))
            .collect();

        let at: Vec<usize> = (0..looks.len()).filter(|idx| looks[*idx]).collect();
        assert_eq!(at, [0, 5, 10]);
        assert_eq!(lonely.lasts(begin + every), every);
    }

    #[test]
    fn head_is_unseen_since_the_session_or_since_it_was_read_last_f4() {
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        let mut lonely = Loneliness::begin(begin);

        assert_eq!(lonely.unseen(begin + 3 * second), 3 * second);
        lonely.saw_head(begin + 4 * second);
        assert_eq!(lonely.unseen(begin + 6 * second), 2 * second);
        assert_eq!(lonely.lasts(begin + 6 * second), 6 * second);
    }

    #[test]
    fn calls_come_more_and_more_seldom_up_to_a_limit() {
        let mut lonely = Loneliness::begin(Instant::now());
        let ms = Duration::from_millis;

        let pauses: Vec<Duration> = (0..4).map(|_| lonely.next_pause(ms(20), ms(100))).collect();

        assert_eq!(pauses, [ms(20), ms(40), ms(80), ms(100)]);
    }

    #[test]
    fn connections_get_more_and_more_time_up_to_a_limit() {
        let mut lonely = Loneliness::begin(Instant::now());
        let ms = Duration::from_millis;
        let times: Vec<Duration> = (0..4)
            .map(|_| {
                let within = lonely.connect_within(ms(250), ms(1_000));
                lonely.next_pause(ms(20), ms(100));
                within
            })
            .collect();

        assert_eq!(times, [ms(250), ms(500), ms(1_000), ms(1_000)]);
    }

    #[test]
    fn another_one_is_called_at_once_until_it_is_no_chance_any_more() {
        let mut lonely = Loneliness::begin(Instant::now());
        let mut answers = |met: bool| {
            if met {
                lonely.meet_another();
            }
            lonely.calls_another(2)
        };

        let calls = [true, true, true, true, false, true].map(&mut answers);

        assert_eq!(calls, [true, true, false, false, false, true]);
    }

    #[test]
    fn only_what_can_be_called_is_an_address() {
        assert!(is_address("127.0.0.1:7000"));
        assert!(is_address("[::1]:7000"));
        assert!(!is_address("pid 17"));
        assert!(!is_address("host:port"));
    }
}
