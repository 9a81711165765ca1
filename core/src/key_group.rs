//! Key groups and who owns them.
//!
//! Owns: the step from a key's hash to its key group, and the table key group -> subtask. The hash of
//! a key's columns lives in the engine, which knows Arrow.
//!
//! Invariant K1: `key group = (high 32 bits of the hash x maxParallelism) >> 32`; it is a file format
//! and never changes. Invariant K2: on a change survivors keep what they own, and only lost or
//! surplus groups move.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::SubtaskIdx;

/// Largest number of key groups.
pub const MAX_PARALLELISM: u32 = 32_768;

/// One of `0..maxParallelism` classes of keys that move together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyGroup(pub u16);

/// The key group of a key with this hash (K1).
pub fn key_group_of_hash(hash: u64, max_parallelism: u32) -> KeyGroup {
    debug_assert!((1..=MAX_PARALLELISM).contains(&max_parallelism));
    let group = ((hash >> 32) * u64::from(max_parallelism)) >> 32;
    KeyGroup(u16::try_from(group).unwrap_or(u16::MAX))
}

/// Which subtask owns each key group. Stored as runs of groups with one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredAssignment", into = "StoredAssignment")]
pub struct Assignment {
    /// Version of the table; every change makes a higher one.
    pub version: u64,
    owners: Vec<SubtaskIdx>,
}

/// The stored form: a head is written with every checkpoint, 32,768 owners would be most of it.
#[derive(Serialize, Deserialize)]
struct StoredAssignment {
    version: u64,
    /// Owner, and how many groups in a row it owns, from group 0 on.
    runs: Vec<(SubtaskIdx, u32)>,
}

impl From<Assignment> for StoredAssignment {
    fn from(table: Assignment) -> Self {
        let mut runs: Vec<(SubtaskIdx, u32)> = Vec::new();
        for owner in table.owners {
            match runs.last_mut() {
                Some((last, n)) if *last == owner => *n += 1,
                _ => runs.push((owner, 1)),
            }
        }
        Self {
            version: table.version,
            runs,
        }
    }
}

impl From<StoredAssignment> for Assignment {
    fn from(stored: StoredAssignment) -> Self {
        // Bounded, so that a corrupt run cannot ask for all memory; the count is checked in use.
        let limit = MAX_PARALLELISM as usize;
        let run = |(owner, n)| std::iter::repeat_n(owner, (n as usize).min(limit));
        let owners = stored.runs.into_iter().flat_map(run).take(limit).collect();
        Self {
            version: stored.version,
            owners,
        }
    }
}

impl Assignment {
    /// Deals `groups_n` key groups to `parallelism` subtasks in even, contiguous runs.
    pub fn even(groups_n: u32, parallelism: u32) -> Self {
        let parallelism = parallelism.max(1);
        let owner = |group: u32| {
            let idx = u64::from(group) * u64::from(parallelism) / u64::from(groups_n.max(1));
            SubtaskIdx(u32::try_from(idx).unwrap_or(0))
        };
        Self {
            version: 1,
            owners: (0..groups_n).map(owner).collect(),
        }
    }

    /// Number of key groups.
    pub fn groups_n(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap_or(u32::MAX)
    }

    /// Owner of one group; `None` if there is no such group.
    pub fn owner(&self, group: KeyGroup) -> Option<SubtaskIdx> {
        self.owners.get(usize::from(group.0)).copied()
    }

    /// Owners by key group, for routing.
    pub fn owners(&self) -> &[SubtaskIdx] {
        &self.owners
    }

    /// The groups of one subtask, ascending.
    pub fn groups_of(&self, subtask: SubtaskIdx) -> Vec<KeyGroup> {
        let mine = |(group, owner): (usize, &SubtaskIdx)| {
            (*owner == subtask).then(|| KeyGroup(u16::try_from(group).unwrap_or(u16::MAX)))
        };
        self.owners.iter().enumerate().filter_map(mine).collect()
    }

    /// The same groups over `parallelism` subtasks, of which some go on under another number: what
    /// an old subtask owned goes to its heir, and only what has no heir, or is more than an even
    /// share, moves (K2).
    #[must_use]
    pub fn handed_on(&self, heirs: &BTreeMap<SubtaskIdx, SubtaskIdx>, parallelism: u32) -> Self {
        // Nobody: a number that no subtask has.
        let heir = |owner: &SubtaskIdx| heirs.get(owner).copied().unwrap_or(SubtaskIdx(u32::MAX));
        let named = Self {
            version: self.version,
            owners: self.owners.iter().map(heir).collect(),
        };
        named.rescaled(parallelism)
    }

    /// The subtasks that own something, ascending. As there are no more subtasks than key groups, each
    /// owns a group: these are all.
    pub fn subtasks(&self) -> BTreeSet<SubtaskIdx> {
        self.owners.iter().copied().collect()
    }

    /// The same groups over just these subtasks: whoever stays keeps what it owns, and only what has
    /// no owner any more, or is more than an even share, moves (K2).
    #[must_use]
    pub fn dealt_to(&self, subtasks: &BTreeSet<SubtaskIdx>) -> Self {
        let ranks = (0..).map(SubtaskIdx);
        let ranks: BTreeMap<SubtaskIdx, SubtaskIdx> = subtasks.iter().copied().zip(ranks).collect();
        let dealt = self.handed_on(&ranks, u32::try_from(subtasks.len()).unwrap_or(u32::MAX));
        let names: Vec<SubtaskIdx> = subtasks.iter().copied().collect();
        let name = |rank: SubtaskIdx| names.get(rank.0 as usize).copied().unwrap_or(rank);
        Self {
            version: dealt.version,
            owners: dealt.owners.into_iter().map(name).collect(),
        }
    }

    /// Groups that this subtask owns here and did not own in `before`, ascending.
    pub fn gained(&self, before: &Self, subtask: SubtaskIdx) -> BTreeSet<KeyGroup> {
        let mine = self.groups_of(subtask).into_iter();
        mine.filter(|group| before.owner(*group) != Some(subtask))
            .collect()
    }

    /// The same groups over `parallelism` subtasks, moving as few as an even share allows (K2).
    #[must_use]
    pub fn rescaled(&self, parallelism: u32) -> Self {
        let parallelism = parallelism.max(1) as usize;
        let n = self.owners.len();
        let share = |idx: usize| n / parallelism + usize::from(idx < n % parallelism);
        let mut counts = vec![0usize; parallelism];
        let mut owners: Vec<Option<SubtaskIdx>> = Vec::with_capacity(n);
        // The larger shares go to whoever owns most, so that nobody gives up a group for rounding.
        let mut owned: Vec<(usize, usize)> = (0..parallelism)
            .map(|idx| {
                (
                    self.owners.iter().filter(|o| o.0 as usize == idx).count(),
                    idx,
                )
            })
            .collect();
        owned.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut limits = vec![0usize; parallelism];
        for (rank, (_, idx)) in owned.iter().enumerate() {
            if let Some(limit) = limits.get_mut(*idx) {
                *limit = share(rank);
            }
        }
        for owner in &self.owners {
            let idx = owner.0 as usize;
            let keeps = counts
                .get(idx)
                .zip(limits.get(idx))
                .is_some_and(|(c, l)| c < l);
            if keeps && let Some(count) = counts.get_mut(idx) {
                *count += 1;
            }
            owners.push(keeps.then_some(*owner));
        }
        let mut next = 0;
        let owners = owners.into_iter().map(|kept| {
            kept.unwrap_or_else(|| {
                while next + 1 < parallelism && counts.get(next) >= limits.get(next) {
                    next += 1;
                }
                if let Some(count) = counts.get_mut(next) {
                    *count += 1;
                }
                SubtaskIdx(u32::try_from(next).unwrap_or(0))
            })
        });
        Self {
            version: self.version + 1,
            owners: owners.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_group_is_the_high_word_scaled_k1() {
        assert_eq!(key_group_of_hash(0, 128), KeyGroup(0));
        assert_eq!(key_group_of_hash(u64::MAX, 128), KeyGroup(127));
        assert_eq!(key_group_of_hash(0x8000_0000_0000_0000, 128), KeyGroup(64));
        assert_eq!(key_group_of_hash(0x0000_0000_ffff_ffff, 128), KeyGroup(0));
        assert_eq!(key_group_of_hash(u64::MAX, 1), KeyGroup(0));
        assert_eq!(key_group_of_hash(u64::MAX, 32_768), KeyGroup(32_767));
    }

    #[test]
    fn assignment_is_stored_as_runs_and_read_back_the_same() {
        for table in [
            Assignment::even(128, 3),
            Assignment::even(128, 3).rescaled(5),
        ] {
            let stored = serde_json::to_string(&table).unwrap();
            let read: Assignment = serde_json::from_str(&stored).unwrap();
            assert_eq!(read, table);
        }
        let even = serde_json::to_string(&Assignment::even(4, 2)).unwrap();
        assert_eq!(even, r#"{"version":1,"runs":[[0,2],[1,2]]}"#);
    }

    #[test]
    fn survivors_keep_their_groups_under_their_new_numbers_k2() {
        // Subtask 1 of 0, 1, 2 is lost; 2 goes on as 1.
        let before = Assignment::even(12, 3);
        let heirs = BTreeMap::from([
            (SubtaskIdx(0), SubtaskIdx(0)),
            (SubtaskIdx(2), SubtaskIdx(1)),
        ]);

        let after = before.handed_on(&heirs, 2);

        assert_eq!(after.version, 2);
        let numbers = |table: &Assignment, of: u32| -> Vec<u16> {
            let groups = table.groups_of(SubtaskIdx(of));
            groups.into_iter().map(|group| group.0).collect()
        };
        // 0-3 and 8-11 stay where they are; of 4-7 each takes an even share.
        assert_eq!(numbers(&after, 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(numbers(&after, 1), [6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn table_of_any_subtasks_moves_only_what_must_k2() {
        let set = |numbers: &[u32]| numbers.iter().copied().map(SubtaskIdx).collect();
        let before = Assignment::even(12, 3);

        // 1 leaves, 5 comes.
        let after = before.dealt_to(&set(&[0, 2, 5]));

        assert_eq!(after.subtasks(), set(&[0, 2, 5]));
        assert_eq!(
            after.groups_of(SubtaskIdx(0)),
            before.groups_of(SubtaskIdx(0))
        );
        assert_eq!(
            after.groups_of(SubtaskIdx(2)),
            before.groups_of(SubtaskIdx(2))
        );
        let moved: Vec<KeyGroup> = after.gained(&before, SubtaskIdx(5)).into_iter().collect();
        assert_eq!(moved, before.groups_of(SubtaskIdx(1)));
        assert_eq!(after.version, before.version + 1);
        // And back to one.
        let one = after.dealt_to(&set(&[2]));
        assert_eq!(one.groups_of(SubtaskIdx(2)).len(), 12);
    }

    #[test]
    fn rescale_moves_only_what_an_even_share_needs_k2() {
        for groups in [1u32, 7, 128, 1000] {
            for from in 1..9u32 {
                for to in 1..9u32 {
                    let before = Assignment::even(groups, from);
                    let after = before.rescaled(to);
                    let moved = (0..groups)
                        .map(|g| KeyGroup(g as u16))
                        .filter(|g| before.owner(*g) != after.owner(*g))
                        .count();
                    let (low, high) = (groups / to, groups.div_ceil(to));
                    for subtask in 0..to {
                        let n = after.groups_of(SubtaskIdx(subtask)).len() as u32;
                        assert!((low..=high).contains(&n), "{groups} {from}->{to}: {n}");
                    }
                    let kept_at_most: u32 = (0..to.min(from))
                        .map(|s| before.groups_of(SubtaskIdx(s)).len() as u32)
                        .map(|had| had.min(high))
                        .sum();
                    // Rounding may cost at most one group per subtask over the ideal.
                    assert!(
                        moved as u32 <= groups - kept_at_most + to,
                        "{groups} {from}->{to}: moved {moved}"
                    );
                    if from == to {
                        assert_eq!(moved, 0);
                    }
                }
            }
        }
    }
}
