//! Which rows may be late although they are in order.
//!
//! Owns: T2 as it looks from outside. A partition that was silent for `idleTimeout`, which was said of it all
//! that time and no less often, or that nobody knew yet, does not hold the watermark; what it says next may be late, for a watermark that somebody had
//! reached by then and no later one: from its next row on it holds the watermark again.

use std::collections::BTreeMap;

use streamforge_core::ids::SplitId;

/// Of each partition the offsets at which it was silent, and the highest watermark that could be when it
/// spoke again.
#[derive(Clone, Debug, Default)]
pub struct Silences {
    floors: BTreeMap<SplitId, BTreeMap<i64, i64>>,
}

impl Silences {
    /// It is silent at this offset. True: for the first time.
    pub fn begin(&mut self, split: SplitId, offset: i64) -> bool {
        let floors = self.floors.entry(split).or_default();
        let n = floors.len();
        floors.entry(offset).or_insert(i64::MIN);
        floors.len() > n
    }

    /// Rows from this offset on were taken, while no watermark could be higher.
    pub fn on_taken(&mut self, split: &SplitId, offset: i64, watermark: i64) {
        let floors = self.floors.get_mut(split);
        if let Some(floor) = floors.and_then(|floors| floors.get_mut(&offset)) {
            *floor = watermark.max(*floor);
        }
    }

    /// For which watermark the row at this offset may be late at most; none: for no one.
    pub fn excuse(&self, split: &SplitId, offset: i64) -> Option<i64> {
        let floors = self.floors.get(split)?;
        // Whoever came later may have begun at an earlier silence.
        floors.range(..=offset).map(|(_, floor)| *floor).max()
    }
}
