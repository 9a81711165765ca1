//! Where a slot's committed rows end in each partition. Pure.
//!
//! Owns: how that is written behind the marker, and what it says about rows that are found open: the
//! end of a transaction may be missing in one partition although it was committed (X7).

use std::collections::{BTreeMap, BTreeSet};

/// Longest text behind a marker: brokers take 4,096 bytes of metadata with it.
const TEXT_BYTES_MAX: usize = 3_900;

/// Before it, so that whoever reads a marker can tell it from what may come later.
const WORD: char = 'o';

/// Partition -> offset of the last committed row of this slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends(BTreeMap<i32, i64>);

impl Ends {
    /// From the metadata of a marker; those of earlier versions have none.
    pub fn decode(metadata: &str) -> Self {
        let word = metadata.split(' ').find_map(|word| word.strip_prefix(WORD));
        let pairs = word.into_iter().flat_map(|word| word.split(','));
        let pair = |pair: &str| {
            let (partition, offset) = pair.split_once(':')?;
            Some((partition.parse().ok()?, offset.parse().ok()?))
        };
        Ends(pairs.filter_map(pair).collect())
    }

    /// What is written behind a marker; empty if nothing is known, or too much to be kept.
    pub fn encode(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|(p, o)| format!("{p}:{o}")).collect();
        let text = format!(" {WORD}{}", pairs.join(","));
        if pairs.is_empty() || text.len() > TEXT_BYTES_MAX {
            String::new()
        } else {
            text
        }
    }

    /// With the rows of one more transaction.
    #[must_use]
    pub fn after(&self, rows: &BTreeMap<i32, i64>) -> Self {
        let mut ends = self.0.clone();
        ends.extend(rows);
        Ends(ends)
    }

    /// Which of the partitions hold rows of ours, open from `stable` on, that were *not* committed. If
    /// the last committed row is itself behind `stable`, its transaction has no end there, and what is
    /// open is to become visible.
    pub fn not_committed(&self, open: &BTreeMap<i32, i64>) -> BTreeSet<i32> {
        let is_committed = |(partition, stable): (&i32, &i64)| {
            let last = self.0.get(partition);
            last.is_some_and(|last| stable <= last)
        };
        let open = open.iter().filter(|it| !is_committed(*it));
        open.map(|(partition, _)| *partition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_as_they_were_written_and_older_markers_have_none() {
        let ends = Ends::default().after(&[(0, 17), (12, 5_000_000_000)].into());
        let metadata = format!("streamforge-1 g1 e2 t0 1/1{}", ends.encode());

        assert_eq!(metadata, "streamforge-1 g1 e2 t0 1/1 o0:17,12:5000000000");
        assert_eq!(Ends::decode(&metadata), ends);
        assert_eq!(Ends::decode("streamforge-1 g1 e2 t0 1/1"), Ends::default());
    }

    #[test]
    fn newer_rows_of_one_partition_leave_the_others_as_they_were() {
        let ends = Ends::default().after(&[(0, 17), (1, 4)].into());

        let ends = ends.after(&[(1, 9)].into());

        assert_eq!(ends.encode(), " o0:17,1:9");
    }

    #[test]
    fn more_partitions_than_a_marker_holds_are_not_kept() {
        let many = (0..2_000).map(|partition| (partition, i64::from(partition)));

        assert_eq!(Ends::default().after(&many.collect()).encode(), "");
    }

    #[test]
    fn open_rows_up_to_the_last_committed_one_were_committed_x7() {
        let ends = Ends::default().after(&[(0, 17), (1, 17), (2, 17)].into());
        // 0: open from its own rows on; 1: open behind them; 3: nothing was ever committed there.
        let open = [(0, 10), (1, 19), (3, 0)].into();

        assert_eq!(ends.not_committed(&open), [1, 3].into());
    }
}
