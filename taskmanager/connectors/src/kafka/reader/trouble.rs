//! What keeps a reader from reading, and what it says of itself.
//!
//! Owns: which trouble is told, to people once when it begins and once when it is over, and what is known of
//! the lag meanwhile: of a partition that nothing is heard of, nothing.

use std::time::Instant;

use streamforge_engine::source::Health;

use super::KafkaReader;
use super::split::OpenSplit;
use crate::kafka::edge::Edge;

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

impl<E: Edge> KafkaReader<E> {
    /// People are told once when something goes wrong and once when it is over.
    fn set_trouble(&mut self, trouble: Option<Trouble>) {
        let node = &self.spec.node;
        match (&self.trouble, &trouble) {
            (None, Some(Trouble { text, .. })) => {
                tracing::warn!(node, trouble = text, "kafka source waits");
            }
            (Some(_), None) => tracing::info!(node, "kafka source goes on"),
            // The same, in newer words.
            (Some(_), Some(_)) | (None, None) => {}
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
        self.set_trouble(trouble);
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
