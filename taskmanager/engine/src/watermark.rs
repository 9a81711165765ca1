//! Watermarks of splits and of operators with several inputs.
//!
//! Owns: how watermarks combine. A split's is the largest event time seen less the allowed disorder;
//! a reader's is the minimum over its live splits; an operator's the minimum over its live inputs. Where
//! none is live, nothing holds the watermark back and it is the largest that any of them has reached:
//! in which order they ended or went idle does not show.
//!
//! Invariants: T1 a watermark never goes back; T2 an idle split or input is left out of the minimum
//! only when its reader asked and was told there is nothing, for the whole `idleTimeout`; T6 a
//! restored reader's own watermark is the minimum over the splits it holds then.

use std::collections::{BTreeSet, HashMap};

use streamforge_core::event_time::{EventTime, Watermark};
use streamforge_core::ids::SplitId;
use streamforge_core::manifest::{SplitProgress, SplitState};

/// Watermarks of one operator's inputs ("lanes": a chained operator, or one channel).
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    watermark: Watermark,
    idle: bool,
}

impl Lanes {
    /// All lanes live and at the beginning of time.
    pub fn new(lanes_n: usize) -> Self {
        Self {
            lanes: vec![
                Lane {
                    watermark: Watermark::NONE,
                    idle: false
                };
                lanes_n
            ],
        }
    }

    /// One more lane, left out of the minimum until it joins.
    pub fn add(&mut self) -> usize {
        self.lanes.push(Lane {
            watermark: Watermark::NONE,
            idle: true,
        });
        self.lanes.len() - 1
    }

    /// Number of lanes.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// A lane's watermark rose; it is live.
    pub fn on_watermark(&mut self, lane: usize, watermark: Watermark) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.idle = false;
            lane.watermark.advance(watermark);
        }
    }

    /// A lane has nothing and may be left out of the minimum (T2).
    pub fn on_idle(&mut self, lane: usize) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.idle = true;
        }
    }

    /// A lane is live again, at the operator's own watermark: a channel may fall there, the operator
    /// never does.
    pub fn on_rejoin(&mut self, lane: usize, own: Watermark) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            *lane = Lane {
                watermark: own,
                idle: false,
            };
        }
    }

    /// What the lanes promise together.
    pub fn promise(&self) -> Promise {
        let all = || self.lanes.iter();
        let live = all().filter(|lane| !lane.idle);
        match live.map(|lane| lane.watermark).min() {
            Some(watermark) => Promise::Watermark(watermark),
            None => Promise::Idle(all().map(|lane| lane.watermark).max().unwrap_or_default()),
        }
    }
}

/// One split as its reader's task sees it.
#[derive(Debug)]
struct Split {
    state: SplitState,
    idle: bool,
    /// Since when, and until when so far, it had nothing whenever it was asked.
    nothing_ms: Option<(u64, u64)>,
}

/// A split that has nothing is said so several times a second. Between two such words that are further apart,
/// or further than `idleTimeout`, nobody asked, or nobody answered (T2).
const WORDS_APART_MAX_MS: u64 = 2_000;

/// Splits of one reader and their watermarks.
#[derive(Debug)]
pub struct SplitTracker {
    splits: Vec<Split>,
    by_id: HashMap<SplitId, usize>,
    out_of_orderness_us: i64,
    idle_timeout_ms: Option<u64>,
    has_event_time: bool,
    bounded: bool,
    ended: bool,
    /// The largest watermark of any split so far, ended ones included.
    highest: Watermark,
    idle_returns: u64,
}

/// The split that holds the watermark of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder<'a> {
    /// Which.
    pub split: &'a SplitId,
    /// For how long.
    pub until: Until,
}

/// For how long a split holds the watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// It has rows, and its watermark goes with them.
    ItsRows,
    /// It is silent, and counts as idle in so long if it stays so.
    Idle {
        /// In so long.
        in_ms: u64,
    },
    /// It is silent, and never counts as idle.
    SomethingComes,
}

/// What a reader's splits, or an operator's inputs, promise together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Every event time below this was seen.
    Watermark(Watermark),
    /// The same, and nothing holds the watermark here (T2).
    Idle(Watermark),
}

impl SplitTracker {
    /// For a source whose rows come at most `out_of_orderness_us` behind the largest time seen.
    /// `idle_timeout_ms` does not apply to bounded sources.
    pub fn new(event_time: Option<(i64, Option<u64>)>, bounded: bool) -> Self {
        let (out_of_orderness_us, idle_timeout_ms) = event_time.unwrap_or((0, None));
        Self {
            splits: Vec::new(),
            by_id: HashMap::new(),
            out_of_orderness_us,
            idle_timeout_ms: if bounded { None } else { idle_timeout_ms },
            has_event_time: event_time.is_some(),
            bounded,
            ended: false,
            highest: Watermark::NONE,
            idle_returns: 0,
        }
    }

    /// Takes a split, at its own watermark (T6).
    pub fn add(&mut self, state: SplitState) {
        if state.progress != SplitProgress::End {
            self.highest.advance(state.watermark);
        }
        self.by_id.insert(state.split.clone(), self.splits.len());
        self.splits.push(Split {
            state,
            idle: false,
            nothing_ms: None,
        });
    }

    /// These are the splits from now on, each at its own watermark.
    pub fn begin_anew(&mut self, splits: Vec<SplitState>) {
        self.splits.clear();
        self.by_id.clear();
        self.ended = false;
        self.highest = Watermark::NONE;
        splits.into_iter().for_each(|split| self.add(split));
    }

    /// Another reader goes on with these splits, where this one stopped.
    pub fn give_up(&mut self, splits: &BTreeSet<SplitId>) {
        self.splits
            .retain(|split| !splits.contains(&split.state.split));
        let ids = self.splits.iter().map(|split| split.state.split.clone());
        self.by_id = ids.zip(0..).collect();
        // What may be there again is not known to have ended.
        self.ended = false;
    }

    /// A split has rows again, which are not taken yet: it holds the watermark from now on.
    pub fn on_wake(&mut self, split: &SplitId) {
        if let Some(split) = self
            .by_id
            .get(split)
            .and_then(|idx| self.splits.get_mut(*idx))
        {
            split.nothing_ms = None;
            if std::mem::take(&mut split.idle) {
                self.idle_returns += 1;
            }
        }
    }

    /// Rows of a split were taken; `max_event_time` is the largest among them, if any.
    pub fn on_rows(
        &mut self,
        split: &SplitId,
        max_event_time: Option<EventTime>,
        progress: SplitProgress,
    ) {
        let out_of_orderness_us = self.out_of_orderness_us;
        let Some(split) = self
            .by_id
            .get(split)
            .and_then(|idx| self.splits.get_mut(*idx))
        else {
            return;
        };
        split.state.progress = progress;
        split.nothing_ms = None;
        if std::mem::take(&mut split.idle) {
            self.idle_returns += 1;
        }
        if let Some(time) = max_event_time {
            split
                .state
                .watermark
                .advance(Watermark(time).held_back(out_of_orderness_us));
            self.highest.advance(split.state.watermark);
        }
    }

    /// A split is read to its end.
    pub fn on_split_ended(&mut self, split: &SplitId) {
        if let Some(split) = self
            .by_id
            .get(split)
            .and_then(|idx| self.splits.get_mut(*idx))
        {
            split.state.progress = SplitProgress::End;
            split.state.watermark = Watermark::END;
            split.state.weight = 0;
        }
    }

    /// A split was asked and had nothing.
    pub fn on_nothing_new(&mut self, split: &SplitId, now_ms: u64) {
        let timeout_ms = self.idle_timeout_ms;
        let apart_max_ms = timeout_ms.map_or(WORDS_APART_MAX_MS, |it| it.min(WORDS_APART_MAX_MS));
        let Some(split) = self
            .by_id
            .get(split)
            .and_then(|idx| self.splits.get_mut(*idx))
        else {
            return;
        };
        let known = split.nothing_ms;
        let known = known.filter(|(_, until_ms)| now_ms.saturating_sub(*until_ms) <= apart_max_ms);
        let since_ms = known.map_or(now_ms, |(since_ms, _)| since_ms);
        split.nothing_ms = Some((since_ms, now_ms));
        if timeout_ms.is_some_and(|timeout_ms| now_ms.saturating_sub(since_ms) >= timeout_ms) {
            split.idle = true;
        }
    }

    /// The reader has no split left and will get none.
    pub fn on_ended(&mut self) {
        self.ended = true;
    }

    /// What the splits promise together now.
    pub fn promise(&self) -> Promise {
        let open = || {
            self.splits
                .iter()
                .filter(|split| split.state.progress != SplitProgress::End)
        };
        if self.ended || (self.bounded && open().next().is_none()) {
            return Promise::Watermark(Watermark::END);
        }
        if !self.has_event_time {
            return Promise::Watermark(Watermark::NONE);
        }
        open()
            .filter(|split| !split.idle)
            .map(|split| split.state.watermark)
            .min()
            .map_or(Promise::Idle(self.highest), Promise::Watermark)
    }

    /// Which split holds the watermark, for people.
    pub fn held_back_by(&self, now_ms: u64) -> Option<Holder<'_>> {
        if !self.has_event_time {
            return None;
        }
        let open = self.splits.iter();
        let split = open
            .filter(|split| split.state.progress != SplitProgress::End && !split.idle)
            .min_by_key(|split| split.state.watermark)?;
        let silent_since_ms = split.nothing_ms.filter(|_| !self.bounded);
        let silent_since_ms = silent_since_ms.map(|(since_ms, _)| since_ms);
        let until = match (silent_since_ms, self.idle_timeout_ms) {
            (None, _) => Until::ItsRows,
            (Some(_), None) => Until::SomethingComes,
            (Some(since_ms), Some(timeout_ms)) => Until::Idle {
                in_ms: timeout_ms.saturating_sub(now_ms.saturating_sub(since_ms)),
            },
        };
        Some(Holder {
            split: &split.state.split,
            until,
        })
    }

    /// All splits as they are now, for a checkpoint.
    pub fn states(&self) -> Vec<SplitState> {
        self.splits
            .iter()
            .map(|split| split.state.clone())
            .collect()
    }

    /// Times a split came back from being idle.
    pub fn idle_returns(&self) -> u64 {
        self.idle_returns
    }
}

#[cfg(test)]
mod tests;
