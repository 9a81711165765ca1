//! What keeps a reader from reading, and what it says of itself.
//!
//! Owns: which trouble is told, in the status at once, in the log once when it has lasted and once when it is
//! over, and what is known of the lag meanwhile: of a partition that nothing is heard of, nothing.

use std::time::{Duration, Instant};

use streamforge_engine::source::Health;

use super::KafkaReader;
use super::split::OpenSplit;
use crate::kafka::edge::Edge;

/// A trouble that is over sooner is not logged: a broker that is started anew is such a one.
const LOGGED_AFTER: Duration = Duration::from_secs(5);

/// What keeps a partition, or a reader, from being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In words.
    pub text: String,
    /// Nothing is heard of it, or it is refused: how much is there is not known.
    pub is_unreachable: bool,
}

impl Trouble {
    /// Nothing is heard of it, or it is refused.
    pub fn unreachable(text: String) -> Self {
        Trouble {
            text,
            is_unreachable: true,
        }
    }
}

/// How long a reader has had trouble, and whether that was logged.
#[derive(Debug, Default)]
pub(super) struct Lasting {
    since: Option<Instant>,
    is_logged: bool,
}

/// What is logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Saying {
    Waits,
    GoesOn,
}

impl Lasting {
    /// Whether there is trouble now, in whatever words; what is to be said of that.
    pub(super) fn look(&mut self, is_troubled: bool, now: Instant) -> Option<Saying> {
        if !is_troubled {
            let was_logged = std::mem::take(self).is_logged;
            return was_logged.then_some(Saying::GoesOn);
        }
        let since = *self.since.get_or_insert(now);
        if self.is_logged || now.saturating_duration_since(since) < LOGGED_AFTER {
            return None;
        }
        self.is_logged = true;
        Some(Saying::Waits)
    }
}

impl<E: Edge> KafkaReader<E> {
    fn set_trouble(&mut self, trouble: Option<Trouble>, now: Instant) {
        let node = &self.spec.node;
        match self.lasting.look(trouble.is_some(), now) {
            Some(Saying::Waits) => {
                let trouble = trouble.as_ref().map(|it| &it.text);
                tracing::warn!(node, trouble, "kafka source waits");
            }
            Some(Saying::GoesOn) => tracing::info!(node, "kafka source goes on"),
            None => {}
        }
        self.trouble = trouble;
    }

    /// Looks for it. What is known less of goes first.
    pub(super) fn find_trouble(&mut self, now: Instant) {
        let all = || self.splits.iter().filter_map(|split| split.trouble(now));
        let found = all().find(|it| it.is_unreachable).or_else(|| all().next());
        let found = found.map(|trouble| match &self.reason {
            Some(reason) => Trouble {
                text: format!("{} ({reason})", trouble.text),
                ..trouble
            },
            None => trouble,
        });
        let trouble = match &self.unanswered {
            Some(text) if !found.as_ref().is_some_and(|it| it.is_unreachable) => {
                Some(Trouble::unreachable(text.clone()))
            }
            _ => found,
        };
        if trouble.is_none() {
            self.reason = None;
        }
        self.set_trouble(trouble, now);
    }

    pub(super) fn told_health(&self) -> Health {
        let trouble = self.trouble.as_ref();
        let is_unreachable = trouble.is_some_and(|it| it.is_unreachable);
        let lags = self.splits.iter().map(OpenSplit::lag);
        // Of splits that wait to be checked nothing is known.
        let is_known = !is_unreachable && self.unchecked.is_empty();
        Health {
            trouble: trouble.map(|it| it.text.clone()),
            is_unreachable,
            lag_records: lags.sum::<Option<u64>>().filter(|_| is_known),
            // A split that has nothing more is not behind.
            read_up_to_ms: self
                .splits
                .iter()
                .filter(|split| split.lag() != Some(0))
                .filter_map(|split| split.written_ms)
                .min(),
            skipped_n: self.skipped_n,
        }
    }
}
