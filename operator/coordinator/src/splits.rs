//! Which subtask reads which split.
//!
//! Owns: dealing splits out when an attempt starts. Ended splits are never dealt (C11): they stay in
//! the manifest only.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{OperatorUid, SplitId, SubtaskIdx};
use streamforge_core::manifest::{SplitProgress, SplitState};

/// Deals the splits that are not at their end, largest first, each to the subtask with the least
/// work so far; ties go to the lowest subtask, so the same input is always dealt the same way.
#[must_use]
pub fn deal_splits(
    sources: &BTreeMap<OperatorUid, Vec<SplitState>>,
    parallelism: u32,
) -> BTreeMap<OperatorUid, BTreeMap<SubtaskIdx, Vec<SplitState>>> {
    let mut dealt = BTreeMap::new();
    let mut load: BTreeMap<SubtaskIdx, u64> = (0..parallelism.max(1))
        .map(|idx| (SubtaskIdx(idx), 0))
        .collect();
    for (source, splits) in sources {
        let mut open: Vec<&SplitState> = splits
            .iter()
            .filter(|split| split.progress != SplitProgress::End)
            .collect();
        open.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.split.cmp(&b.split)));
        let by_subtask: &mut BTreeMap<SubtaskIdx, Vec<SplitState>> =
            dealt.entry(source.clone()).or_default();
        // Splits per subtask come first: even weightless splits are spread.
        let mut splits_n: BTreeMap<SubtaskIdx, u64> = BTreeMap::new();
        for split in open {
            let least = load
                .iter()
                .min_by_key(|(idx, load)| (**load, splits_n.get(idx).copied().unwrap_or(0), **idx));
            let subtask = least.map_or(SubtaskIdx(0), |(idx, _)| *idx);
            *load.entry(subtask).or_default() += split.weight;
            *splits_n.entry(subtask).or_default() += 1;
            by_subtask.entry(subtask).or_default().push(split.clone());
        }
    }
    dealt
}

/// Who reads which open split once just these subtasks are there: everybody keeps what it has, what
/// has no reader any more goes to those with the fewest, and then the fullest give until all have
/// about as many.
#[must_use]
pub fn deal_on(
    sources: &BTreeMap<OperatorUid, Vec<SplitState>>,
    holders: &BTreeMap<OperatorUid, BTreeMap<SplitId, SubtaskIdx>>,
    subtasks: &BTreeSet<SubtaskIdx>,
) -> BTreeMap<OperatorUid, BTreeMap<SplitId, SubtaskIdx>> {
    let mut dealt = BTreeMap::new();
    for (source, splits) in sources {
        let held = holders.get(source);
        let mut by_reader: BTreeMap<SubtaskIdx, Vec<SplitId>> =
            subtasks.iter().map(|idx| (*idx, Vec::new())).collect();
        let mut orphans = Vec::new();
        let open = splits.iter();
        for split in open.filter(|split| split.progress != SplitProgress::End) {
            let holder = held.and_then(|held| held.get(&split.split));
            match holder.and_then(|holder| by_reader.get_mut(holder)) {
                Some(theirs) => theirs.push(split.split.clone()),
                None => orphans.push(split.split.clone()),
            }
        }
        let least = |by: &BTreeMap<SubtaskIdx, Vec<SplitId>>| {
            let least = by.iter().min_by_key(|(idx, theirs)| (theirs.len(), **idx));
            least.map(|(idx, theirs)| (*idx, theirs.len()))
        };
        let most = |by: &BTreeMap<SubtaskIdx, Vec<SplitId>>| {
            let most = by.iter().max_by_key(|(idx, theirs)| (theirs.len(), **idx));
            most.map(|(idx, theirs)| (*idx, theirs.len()))
        };
        for split in orphans {
            if let Some((idx, _)) = least(&by_reader) {
                by_reader.entry(idx).or_default().push(split);
            }
        }
        while let (Some((to, fewest)), Some((from, most))) = (least(&by_reader), most(&by_reader))
            && most > fewest + 1
        {
            let Some(split) = by_reader.get_mut(&from).and_then(Vec::pop) else {
                break;
            };
            by_reader.entry(to).or_default().push(split);
        }
        let deal = by_reader.into_iter();
        let deal = deal.flat_map(|(idx, splits)| splits.into_iter().map(move |it| (it, idx)));
        dealt.insert(source.clone(), deal.collect());
    }
    dealt
}

#[cfg(test)]
mod tests {
    use streamforge_core::event_time::Watermark;
    use streamforge_core::ids::SplitId;

    use super::*;

    fn split(name: &str, weight: u64) -> SplitState {
        SplitState {
            split: SplitId(name.to_owned()),
            progress: SplitProgress::At("0".to_owned()),
            watermark: Watermark::NONE,
            description: String::new(),
            weight,
        }
    }

    fn deal(splits: Vec<SplitState>, parallelism: u32) -> Vec<Vec<String>> {
        let source = OperatorUid("s".to_owned());
        let dealt = deal_splits(&BTreeMap::from([(source.clone(), splits)]), parallelism);
        let names = |subtask| {
            let splits: &[SplitState] = dealt[&source].get(&SubtaskIdx(subtask)).map_or(&[], |s| s);
            splits.iter().map(|split| split.split.0.clone()).collect()
        };
        (0..parallelism).map(names).collect()
    }

    #[test]
    fn large_splits_are_dealt_first_and_evenly() {
        let splits = vec![split("a", 1), split("b", 5), split("c", 3), split("d", 3)];

        assert_eq!(deal(splits, 2), [vec!["b", "a"], vec!["c", "d"]]);
    }

    #[test]
    fn weightless_splits_are_spread_too() {
        let splits = (0..4).map(|n| split(&n.to_string(), 0)).collect();

        assert_eq!(deal(splits, 2), [vec!["0", "2"], vec!["1", "3"]]);
    }

    #[test]
    fn ended_splits_are_never_dealt_c11() {
        let mut ended = split("done", 9);
        ended.progress = SplitProgress::End;

        assert_eq!(
            deal(vec![ended, split("open", 1)], 2),
            [vec!["open".to_owned()], vec![]]
        );
    }

    #[test]
    fn splits_move_only_where_they_must_k3() {
        let source = OperatorUid("s".to_owned());
        let splits = ["a", "b", "c", "d", "e"].map(|name| split(name, 1));
        let sources = BTreeMap::from([(source.clone(), splits.to_vec())]);
        let held = [("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1)];
        let held = held.map(|(split, idx)| (SplitId(split.to_owned()), SubtaskIdx(idx)));
        let holders = BTreeMap::from([(source.clone(), held.into())]);
        let deal = |subtasks: &[u32]| {
            let subtasks = subtasks.iter().copied().map(SubtaskIdx).collect();
            let dealt = deal_on(&sources, &holders, &subtasks);
            let dealt = dealt[&source].iter();
            dealt
                .map(|(split, idx)| (split.0.clone(), idx.0))
                .collect::<Vec<_>>()
        };
        let named =
            |all: [(&str, u32); 5]| all.map(|(split, idx)| (split.to_owned(), idx)).to_vec();

        let stays = named([("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1)]);
        assert_eq!(deal(&[0, 1]), stays);
        let one_more = named([("a", 0), ("b", 0), ("c", 2), ("d", 1), ("e", 1)]);
        assert_eq!(deal(&[0, 1, 2]), one_more);
        let one_left = named([("a", 5), ("b", 5), ("c", 1), ("d", 1), ("e", 1)]);
        assert_eq!(deal(&[1, 5]), one_left);
    }
}
