//! What a slot has published, and what is to be done about it. Pure.
//!
//! Owns: the marker, an offset with metadata that the slot's own consumer group keeps and that every
//! publishing transaction commits together with its rows; and the decisions made of it.
//! Start at: [`next_step`], [`take_over`].
//!
//! Invariant X1: of the listed intervals those above the marker, and the rest of the one at it, are
//! published, in ascending order; everything else is done. Invariant X2: who finds a marker of
//! somebody newer is a zombie. Invariant X3: no marker where intervals are listed is never a new start.

use std::fmt;
use std::str::FromStr;

use streamforge_core::ids::{CheckpointId, Epoch, Generation};
use streamforge_core::manifest::StagedInterval;

/// Who publishes. A newer one is higher in one of the three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// Term of the coordinator.
    pub generation: Generation,
    /// Attempt of the job.
    pub epoch: Epoch,
    /// Version of the table that says who owns which slot.
    pub table: u64,
}

impl Author {
    /// Whether the other is newer in any respect (X2).
    pub fn is_older_than(&self, other: &Author) -> bool {
        other.generation > self.generation || other.epoch > self.epoch || other.table > self.table
    }
}

/// What a slot has published last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The interval; the committed offset.
    pub interval: CheckpointId,
    /// Parts of it that are visible.
    pub part: u32,
    /// Parts it has.
    pub parts: u32,
    /// Who wrote it.
    pub author: Author,
}

/// The metadata beside the offset is not one of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no marker of StreamForge: another program commits to this group")]
pub struct NoMarker(pub String);

/// First word of the metadata; another one is another format.
const FORMAT: &str = "streamforge-1";

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Author {
            generation,
            epoch,
            table,
        } = self.author;
        let (part, parts) = (self.part, self.parts);
        write!(f, "{FORMAT} g{generation} e{epoch} t{table} {part}/{parts}")
    }
}

impl Marker {
    /// All of this interval and everything before it is published.
    pub fn after(interval: CheckpointId, author: Author) -> Self {
        Marker {
            interval,
            part: 0,
            parts: 0,
            author,
        }
    }

    /// The same place, by another author.
    #[must_use]
    pub fn by(self, author: Author) -> Self {
        Marker { author, ..self }
    }

    /// Whether the interval is visible as a whole.
    pub fn is_whole(&self) -> bool {
        self.part >= self.parts
    }

    /// From an offset and its metadata.
    pub fn decode(offset: i64, metadata: &str) -> Result<Self, NoMarker> {
        let no = || NoMarker(metadata.to_owned());
        let interval = u64::try_from(offset).map_err(|_| no())?;
        let mut words = metadata.split(' ');
        if words.next() != Some(FORMAT) {
            return Err(no());
        }
        let mut number = |mark: char| number(words.next(), mark);
        let (generation, epoch, table) = (number('g'), number('e'), number('t'));
        let author = Author {
            generation: Generation::from_stored(generation.ok_or_else(no)?),
            epoch: Epoch::from_stored(epoch.ok_or_else(no)?),
            table: table.ok_or_else(no)?,
        };
        let counts = words.next().and_then(|counts| counts.split_once('/'));
        let (part, parts) = counts.ok_or_else(no)?;
        Ok(Marker {
            interval: CheckpointId::from_stored(interval),
            part: part.parse().map_err(|_| no())?,
            parts: parts.parse().map_err(|_| no())?,
            author,
        })
    }
}

fn number<T: FromStr>(word: Option<&str>, mark: char) -> Option<T> {
    word?.strip_prefix(mark)?.parse().ok()
}

/// What to do with a listed interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All of it is visible.
    Done,
    /// Write this part next, counted from 0, and the rest after it.
    Publish(u32),
    /// An older interval is half published and must be finished first.
    OlderUnfinished(CheckpointId),
    /// The interval was cut into another number of parts: to go on would lose or double rows.
    OtherCut {
        /// Parts by the marker.
        marker: u32,
        /// Parts by the manifest.
        listed: u32,
    },
}

/// X1: what the marker says about one listed interval of so many parts.
pub fn next_step(marker: &Marker, interval: CheckpointId, parts: u32) -> Step {
    if interval < marker.interval {
        return Step::Done;
    }
    if interval > marker.interval {
        return if marker.is_whole() {
            Step::Publish(0)
        } else {
            Step::OlderUnfinished(marker.interval)
        };
    }
    if marker.is_whole() {
        Step::Done
    } else if marker.parts != parts {
        Step::OtherCut {
            marker: marker.parts,
            listed: parts,
        }
    } else {
        Step::Publish(marker.part)
    }
}

/// The marker once part number `part`, counted from 0, of `parts` is visible.
pub fn after_part(interval: CheckpointId, part: u32, parts: u32, author: Author) -> Marker {
    Marker {
        interval,
        part: part + 1,
        parts,
        author,
    }
}

/// What a slot's new owner does right after it fenced whoever published before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// Write this marker, alone, and go on from it.
    Write(Marker),
    /// Somebody newer has taken over: write nothing, ever.
    Zombie(Marker),
    /// The marker is gone, and some of these intervals may have been published before it went.
    Vanished {
        /// Oldest listed interval.
        oldest: CheckpointId,
        /// How many are listed.
        listed_n: usize,
    },
}

/// What is known of a vanished marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Nothing.
    Open,
    /// Every listed interval was staged so lately that a marker written with it would still be there.
    AllYoung,
    /// A person said that rows may come twice.
    Accepted,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doubt::Open => "nothing is known",
            Doubt::AllYoung => "all that is staged is younger than a marker becomes",
            Doubt::Accepted => "a person accepts that rows may come twice",
        })
    }
}

/// Which intervals the one who takes over knows.
#[derive(Clone, Copy, Debug)]
pub enum Listed<'a> {
    /// All that the restored manifest lists of the slot, and the manifest's id.
    All(&'a [StagedInterval], CheckpointId),
    /// The one that is to be published now: a producer was thrown away within an attempt.
    One(&'a StagedInterval),
}

impl<'a> Listed<'a> {
    fn intervals(self) -> &'a [StagedInterval] {
        match self {
            Listed::All(listed, _) => listed,
            Listed::One(interval) => std::slice::from_ref(interval),
        }
    }
}

/// X2, X3: what to do with the marker that was read after the fence.
pub fn take_over(
    marker: Option<Marker>,
    listed: Listed<'_>,
    (me, doubt): (Author, Doubt),
) -> TakeOver {
    let intervals = listed.intervals();
    let oldest = intervals.first().map(|interval| interval.id);
    match (marker, oldest) {
        (Some(marker), _) if me.is_older_than(&marker.author) => TakeOver::Zombie(marker),
        (Some(marker), _) => {
            let is_listed = intervals
                .iter()
                .any(|interval| interval.id == marker.interval);
            if marker.is_whole() || is_listed || matches!(listed, Listed::One(_)) {
                return TakeOver::Write(marker.by(me));
            }
            // The newest manifest lists what is not confirmed. This one does not, so a person has
            // asked to go back below it; what was begun then is not finished.
            TakeOver::Write(Marker::after(marker.interval, me))
        }
        (None, None) => {
            let newest = match listed {
                Listed::All(_, newest) => newest,
                Listed::One(interval) => interval.id,
            };
            TakeOver::Write(Marker::after(newest, me))
        }
        (None, Some(oldest)) if doubt != Doubt::Open => {
            let before = CheckpointId::from_stored(oldest.get().saturating_sub(1));
            TakeOver::Write(Marker::after(before, me))
        }
        (None, Some(oldest)) => TakeOver::Vanished {
            oldest,
            listed_n: intervals.len(),
        },
    }
}

#[cfg(test)]
mod tests;
