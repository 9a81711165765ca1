//! A partition of a topic as a split.
//!
//! Owns: its name, what a checkpoint must know to open it again, and what may be read from where.
//! Start at: [`Description`], [`judge`].

use serde::{Deserialize, Serialize};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::SplitId;
use streamforge_core::manifest::{SplitProgress, SplitState};

use super::config::OnOffsetOutOfRange;

/// What a checkpoint keeps of a partition beside its position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The topic's name.
    pub topic: String,
    /// The partition's number.
    pub partition: i32,
    /// The topic's identity, which a deleted and re-created one does not share; none where the
    /// brokers are too old to tell.
    pub topic_id: Option<String>,
    /// Where the job began to read.
    pub start: i64,
    /// Where it ends; none: never.
    pub end: Option<i64>,
}

/// Why a stored split cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another connector's, or a newer version's.
    #[error("split {split}: its description is not understood")]
    Description {
        /// Which.
        split: SplitId,
        /// Why.
        source: serde_json::Error,
    },
    /// Not a number.
    #[error("split {split}: `{position}` is no offset")]
    Position {
        /// Which.
        split: SplitId,
        /// What was stored.
        position: String,
    },
}

impl Description {
    /// The split's name: a topic's name has no slash.
    pub fn id(&self) -> SplitId {
        SplitId(format!("{}/{}", self.topic, self.partition))
    }

    /// The split at this offset.
    pub fn at(&self, offset: i64) -> SplitState {
        let rest = self.end.map(|end| end.saturating_sub(offset));
        SplitState {
            split: self.id(),
            progress: SplitProgress::At(offset.to_string()),
            watermark: Watermark::NONE,
            description: serde_json::to_string(self).expect("strings and numbers are JSON"),
            // Without an end nothing is known about the work left: all alike.
            weight: rest.map_or(1, |rest| u64::try_from(rest).unwrap_or(0).max(1)),
        }
    }

    /// A stored split and its offset; `None` for the offset: it is read to its end.
    pub fn open(state: &SplitState) -> Result<(Self, Option<i64>), Error> {
        let description = serde_json::from_str(&state.description).map_err(|source| {
            let split = state.split.clone();
            Error::Description { split, source }
        })?;
        let offset = match &state.progress {
            SplitProgress::End => None,
            SplitProgress::At(position) => {
                let offset: Option<i64> = position.parse().ok().filter(|offset| *offset >= 0);
                let wrong = || Error::Position {
                    split: state.split.clone(),
                    position: position.clone(),
                };
                Some(offset.ok_or_else(wrong)?)
            }
        };
        Ok((description, offset))
    }
}

/// What may be done at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is there, or the next to come.
    Read,
    /// Records from here on were deleted; the document allows to go on at the oldest one.
    GoOnAt {
        /// The oldest offset kept.
        low: i64,
        /// How many offsets are passed over; not all were records.
        skipped: i64,
    },
    /// Records that were not read were deleted.
    Lost,
    /// The partition ends before this offset: it was cut, or it is another one.
    BeyondEnd,
}

/// Whether a partition that holds `low..high` can be read from `offset` (KF-K2).
pub fn judge(offset: i64, low: i64, high: i64, policy: OnOffsetOutOfRange) -> Judgement {
    if offset > high {
        // To begin anew at the oldest record would read rows twice: never without being asked.
        return Judgement::BeyondEnd;
    }
    if offset >= low {
        return Judgement::Read;
    }
    match policy {
        OnOffsetOutOfRange::Fail => Judgement::Lost,
        OnOffsetOutOfRange::Earliest => Judgement::GoOnAt {
            low,
            skipped: low.saturating_sub(offset),
        },
    }
}

/// Whether the topic that is there now is not the one that was read (KF-K1).
pub fn is_another(stored: Option<&str>, now: Option<&str>) -> bool {
    matches!((stored, now), (Some(stored), Some(now)) if stored != now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        Description {
            topic: "clicks.eu-1".to_owned(),
            partition: 3,
            topic_id: Some("id".to_owned()),
            start: 5,
            end: Some(105),
        }
    }

    #[test]
    fn a_split_is_found_again_in_its_state() {
        let state = description().at(7);

        assert_eq!(state.split.0, "clicks.eu-1/3");
        assert_eq!(state.weight, 98);
        assert_eq!(Description::open(&state).unwrap(), (description(), Some(7)));
        let ended = SplitState {
            progress: SplitProgress::End,
            ..state.clone()
        };
        assert_eq!(Description::open(&ended).unwrap(), (description(), None));
        for wrong in ["", "-1", "-1001", "x"] {
            let state = SplitState {
                progress: SplitProgress::At(wrong.to_owned()),
                ..state.clone()
            };
            let error = Description::open(&state).unwrap_err();
            assert!(error.to_string().contains("is no offset"), "{error}");
        }
    }

    #[test]
    fn kf_k2_a_deleted_offset_is_never_passed_over_in_silence() {
        use OnOffsetOutOfRange::{Earliest, Fail};

        assert_eq!(
            judge(10, 10, 10, Fail),
            Judgement::Read,
            "an empty partition"
        );
        assert_eq!(judge(10, 0, 20, Fail), Judgement::Read);
        assert_eq!(judge(9, 10, 20, Fail), Judgement::Lost);
        let skipped = Judgement::GoOnAt {
            low: 10,
            skipped: 1,
        };
        assert_eq!(judge(9, 10, 20, Earliest), skipped);
    }

    #[test]
    fn kf_k1_an_offset_beyond_the_end_is_refused_whatever_the_policy() {
        for policy in [OnOffsetOutOfRange::Fail, OnOffsetOutOfRange::Earliest] {
            assert_eq!(judge(100, 0, 99, policy), Judgement::BeyondEnd);
        }
    }

    #[test]
    fn kf_k1_a_topic_of_the_same_name_is_another_if_its_identity_differs() {
        assert!(is_another(Some("a"), Some("b")));
        assert!(!is_another(Some("a"), Some("a")));
        assert!(
            !is_another(None, Some("b")),
            "brokers that tell no identity"
        );
    }
}
