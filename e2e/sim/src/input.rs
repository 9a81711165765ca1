//! What the simulated jobs read.
//!
//! Owns: seeded rows, and where each of them lies. Start at: [`Input::new`].

use std::borrow::Cow;
use std::sync::Arc;

use streamforge_connectors::kafka::split::Description;
use streamforge_core::ids::{OperatorUid, SplitId};
use streamforge_core::manifest::{Manifest, SplitProgress, SplitState};

use crate::job::{DISORDER, SECOND, Shape};
use crate::kafka::log::Log;
use crate::rng::Rng;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Event time.
    pub ts: Option<i64>,
    /// Key.
    pub k: Option<String>,
    /// Value.
    pub v: i64,
    /// Cannot be decoded.
    pub broken: bool,
}

/// One split's records.
#[derive(Clone, Debug)]
pub struct SplitRecords {
    /// Which source.
    pub source: OperatorUid,
    /// Which split; unique over all sources.
    pub split: SplitId,
    /// In order.
    pub records: Vec<Record>,
    /// Where they lie, if they are in a topic.
    pub log: Option<Arc<Log>>,
}

impl SplitRecords {
    /// Records of a split of this number.
    fn new(
        shape: &Shape,
        (source, number): (&str, u64),
        records: Vec<Record>,
        rng: &mut Rng,
    ) -> Self {
        let log = || Arc::new(Log::new(&records, shape.unbounded, rng));
        let log = shape.kafka.then(log);
        let split = if shape.kafka {
            format!("{source}/{number}")
        } else {
            format!("{source}{number}")
        };
        Self {
            source: OperatorUid(source.to_owned()),
            split: SplitId(split),
            records,
            log,
        }
    }

    /// The records with their places.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &Record)> {
        let offsets = self.log.as_ref().map(|log| log.offsets.as_slice());
        let number = move |idx: usize| match offsets {
            Some(offsets) => offsets.get(idx).copied().unwrap_or(u64::MAX),
            None => idx as u64,
        };
        let records = self.records.iter().enumerate();
        records.map(move |(idx, record)| (number(idx), record))
    }

    /// Up to which place it is read.
    fn read_to(&self, state: &SplitState) -> u64 {
        let description = Description::open(state).map(|(description, _)| description);
        let end = description.ok().and_then(|it| it.end);
        match &state.progress {
            SplitProgress::At(position) => position.parse().expect("positions are numbers"),
            SplitProgress::End => end.and_then(|it| it.try_into().ok()).unwrap_or(u64::MAX),
        }
    }
}

/// Everything a job reads.
#[derive(Clone, Debug)]
pub struct Input {
    /// All splits.
    pub splits: Vec<SplitRecords>,
    /// Some record comes later than the bound allows.
    pub wild: bool,
}

impl Input {
    /// Seeded records for a kind of job.
    pub fn new(shape: &Shape, rng: &mut Rng) -> Self {
        let wild = rng.one_in(3);
        let keys_n = 1 + rng.below(6);
        let mut splits = Vec::new();
        for source in shape.sources() {
            for number in 0..1 + rng.below(4) {
                let records_n = 15 + rng.below(60);
                let mut clock = i64::try_from(rng.below(10)).unwrap_or(0) * SECOND - 5 * SECOND;
                let records = (0..records_n).map(|_| record(rng, &mut clock, keys_n, wild));
                let mut records: Vec<Record> = records.collect();
                records.extend(shape.last_word());
                splits.push(SplitRecords::new(shape, (*source, number), records, rng));
            }
        }
        Self { splits, wild }
    }

    /// Seeded records in order within the bound, enough for several checkpoints.
    pub fn long(shape: &Shape, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut splits = Vec::new();
        for source in shape.sources() {
            for number in 0..2 {
                let mut clock = 0;
                let records = (0..200).map(|_| record(&mut rng, &mut clock, 4, false));
                let mut records: Vec<Record> = records.collect();
                records.extend(shape.last_word());
                splits.push(SplitRecords::new(
                    shape,
                    (*source, number),
                    records,
                    &mut rng,
                ));
            }
        }
        Self {
            splits,
            wild: false,
        }
    }

    /// Records of one split.
    pub fn records(&self, split: &SplitId) -> &[Record] {
        let found = self.splits.iter().find(|it| it.split == *split);
        found.map(|it| it.records.as_slice()).unwrap_or_default()
    }

    /// Records that a split has given so far.
    pub fn read_n(&self, state: &SplitState) -> u64 {
        let found = self.splits.iter().find(|it| it.split == state.split);
        let read = found.map(|it| {
            let to = it.read_to(state);
            it.numbered().take_while(|(number, _)| *number < to).count()
        });
        read.unwrap_or(0) as u64
    }

    /// What a job had to read that ended with this manifest: of topics only what was there at its start.
    pub fn up_to_ends(&self, shape: &Shape, manifest: &Manifest) -> Cow<'_, Self> {
        if !shape.kafka || shape.unbounded {
            return Cow::Borrowed(self);
        }
        let states = manifest.sources.values().flatten();
        let splits = states.filter_map(|state| {
            let split = self.splits.iter().find(|it| it.split == state.split)?;
            let n = usize::try_from(self.read_n(state)).unwrap_or(usize::MAX);
            let records = split.records.iter().take(n).cloned().collect();
            Some(SplitRecords {
                records,
                ..split.clone()
            })
        });
        Cow::Owned(Self {
            splits: splits.collect(),
            wild: self.wild,
        })
    }

    /// The split and the place in it that a row's `source` and `position` name.
    pub fn place(&self, source: &str, position: &str) -> (String, u64) {
        let (row, offset) = position.split_once(':').expect("row:offset");
        let in_topics = self.splits.iter().any(|it| it.log.is_some());
        let number = |text: &str| text.parse().expect("a number");
        if in_topics {
            (format!("{source}/{row}"), number(offset))
        } else {
            (source.to_owned(), number(row))
        }
    }
}

fn record(rng: &mut Rng, clock: &mut i64, keys_n: u64, wild: bool) -> Record {
    let step = if rng.one_in(12) { 9_000_000 } else { 1_200_000 };
    *clock += i64::try_from(rng.below(step)).unwrap_or(0);
    let back = if wild && rng.one_in(6) {
        20 * SECOND
    } else {
        DISORDER
    };
    let back = i64::try_from(rng.below(back.unsigned_abs() + 1)).unwrap_or(0);
    let number = i64::try_from(rng.below(9)).unwrap_or(0) - 4;
    Record {
        ts: (!rng.one_in(40)).then_some(*clock - back),
        k: (!rng.one_in(10)).then(|| format!("k{}", rng.below(keys_n))),
        v: if rng.one_in(10) {
            i64::MAX - number.abs()
        } else {
            number
        },
        broken: rng.one_in(30),
    }
}
