//! What a task manager does without a session (F4).
//!
//! Owns: how long it has been alone, when it looks into the head, and how often it calls.

use std::time::Duration;

use streamforge_core::causes::with_causes;
use streamforge_core::frame;
use streamforge_core::manifest::{self, HEAD_KEY, Head};
use streamforge_store::ObjectStore;
use tokio::time::Instant;

/// So often the head is read with the shortest pause between.
const LOOKS_SOON: u32 = 6;

/// Shortest pause between two looks into the head; thousands of task managers may be alone at once.
const LOOK_AGAIN: Duration = Duration::from_millis(400);

/// So many calls in a row get the same time to be connected.
const CALLS_ALIKE: u32 = 6;

/// A time without a session.
#[derive(Debug)]
pub(super) struct Loneliness {
    since: Instant,
    /// When the head was read last; before that the session told whose attempt is the newest.
    seen: Instant,
    looked: Option<Instant>,
    looks_n: u32,
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
            looks_n: 0,
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

    /// Whether the head is to be read now: at once, because a newer coordinator may be why the session is over;
    /// a few times soon, because the next one will be there in a moment, and names its address; then more and more
    /// seldom, down to once per heartbeat timeout.
    pub(super) fn looks_now(&mut self, now: Instant, every: Duration) -> bool {
        let doubled = self.looks_n.saturating_sub(LOOKS_SOON).min(10);
        let pause = LOOK_AGAIN.saturating_mul(1 << doubled).min(every);
        let looked = self.looked;
        let due = looked.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        if due {
            self.looked = Some(now);
            self.looks_n = self.looks_n.saturating_add(1);
        }
        due
    }

    /// A look takes as long as the store does: the next is as far from its end as from its beginning.
    pub(super) fn looked(&mut self, begun: Instant, now: Instant) {
        self.looked = Some(now + now.saturating_duration_since(begun));
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

    /// How long the next call may take to be connected; doubles now and then. For a while after an operator's death
    /// its Service leads to an address that nobody has any more, and drops what is sent there: calls that wait for
    /// that are not heard when it leads elsewhere.
    pub(super) fn connect_within(&self, initial: Duration, max: Duration) -> Duration {
        let doubled = (self.calls_n / CALLS_ALIKE).min(10);
        initial.saturating_mul(1 << doubled).min(max)
    }

    /// The pause before the next call; doubles.
    pub(super) fn next_pause(&mut self, initial: Duration, max: Duration) -> Duration {
        let pause = initial.saturating_mul(1 << self.calls_n.min(10));
        self.calls_n = self.calls_n.saturating_add(1);
        pause.min(max)
    }
}

/// Where a coordinator may be: where this task manager was told to call, which in a cluster is a Service, and where
/// the newest one says that it is. The way by a Service is open a second or two later only.
#[derive(Debug)]
pub(super) struct Addresses {
    home: String,
    named: Option<String>,
    next_is_named: bool,
}

impl Addresses {
    pub(super) fn new(home: String) -> Self {
        Self {
            home,
            named: None,
            next_is_named: false,
        }
    }

    /// The head names it: it is called next.
    pub(super) fn name(&mut self, address: String) {
        if self.named.as_ref() != Some(&address) {
            self.next_is_named = true;
            self.named = Some(address);
        }
    }

    /// The coordinator was there last, and may be yet: it is called after the home.
    pub(super) fn keep(&mut self, address: String) {
        if address != self.home {
            self.named = Some(address);
        }
    }

    /// Whom to call next: in turn, for either may be out of date.
    pub(super) fn next(&mut self) -> String {
        let named = self.named.as_ref().filter(|_| self.next_is_named);
        let address = named.unwrap_or(&self.home).clone();
        self.next_is_named = !self.next_is_named && self.named.is_some();
        address
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
    fn head_is_read_soon_and_at_last_once_per_heartbeat_timeout_f4() {
        let begin = Instant::now();
        let mut lonely = Loneliness::begin(begin);
        let every = Duration::from_secs(5);
        let at: Vec<u64> = (0..=250)
            .map(|tenths| tenths * 100)
            .filter(|ms| lonely.looks_now(begin + Duration::from_millis(*ms), every))
            .collect();

        let soon = [0, 400, 800, 1_200, 1_600, 2_000, 2_400];
        let seldom = [3_200, 4_800, 8_000, 13_000, 18_000, 23_000];
        assert_eq!(at, [&soon[..], &seldom[..]].concat());
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
    fn address_in_the_head_is_called_next_and_then_both_in_turn_f4() {
        let mut addresses = Addresses::new("home:1".to_owned());
        assert_eq!([addresses.next(), addresses.next()], ["home:1", "home:1"]);

        addresses.name("there:2".to_owned());
        let calls: Vec<String> = (0..3).map(|_| addresses.next()).collect();
        assert_eq!(calls, ["there:2", "home:1", "there:2"]);

        let mut addresses = Addresses::new("home:1".to_owned());
        addresses.keep("there:2".to_owned());
        assert_eq!([addresses.next(), addresses.next()], ["home:1", "there:2"]);

        // The same one again changes nothing; another one is called at once.
        addresses.name("there:2".to_owned());
        assert_eq!(addresses.next(), "home:1");
        addresses.name("elsewhere:3".to_owned());
        assert_eq!(addresses.next(), "elsewhere:3");
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
        let times: Vec<Duration> = (0..24)
            .map(|_| {
                let within = lonely.connect_within(ms(250), ms(1_000));
                lonely.next_pause(ms(20), ms(100));
                within
            })
            .collect();

        let calls = |within: u64| times.iter().filter(|time| **time == ms(within)).count();
        assert_eq!([calls(250), calls(500), calls(1_000)], [6, 6, 12]);
        assert!(times.is_sorted());
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
