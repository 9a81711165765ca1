//! Which subtask reads which split.
//!
//! Owns: dealing splits out when an attempt starts. Ended splits are never dealt (C11): they stay in
//! the manifest only.

use std::collections::BTreeMap;

use streamforge_core::ids::{OperatorUid, SubtaskIdx};
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
}
