//! Comparing what was expected with what was found, as multisets of rows.
//!
//! Owns: adding up rows from both sides, floats within a relative tolerance and all else exactly, and
//! saying which rows are missing, extra or wrong. Order never counts. A changelog is folded by adding
//! its rows with signs. Start at: [`Multiset`].

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use super::cell::Cell;

/// Floats agree when they differ by no more than this part of the larger.
pub const FLOAT_TOLERANCE: f64 = 1e-9;

/// Rows of either side shown per sink.
const SAMPLES_MAX: usize = 10;

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The oracle computed it.
    Expected,
    /// A published file has it.
    Found,
}

/// The rows of one sink from both sides, equal ones cancelled out.
#[derive(Debug)]
pub struct Multiset {
    /// By all values but the floats.
    rows: HashMap<Box<[u8]>, Balance>,
    /// Columns that identify a row, for telling a wrong row from a missing and an extra one.
    key: Vec<usize>,
    expected_n: i64,
    found_n: i64,
    scratch: Vec<u8>,
    floats: Vec<f64>,
}

/// A row and how many of it.
type Counted = (Vec<Cell>, i64);

/// What is left of rows that agree in all but their floats.
#[derive(Debug, Default)]
struct Balance {
    /// Expected less found, of rows without floats.
    net: i64,
    /// Rows with floats that found no partner yet, by the sum of these.
    loose: BTreeMap<Total, Vec<Loose>>,
    /// A row of these values, for the report.
    sample: Option<Box<[Cell]>>,
}

/// The floats of a row, and how many of it (negative: found).
type Loose = (Box<[f64]>, i64);

/// A finite number, by its order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Total(f64);

impl Eq for Total {}

impl PartialOrd for Total {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Total {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The sum of a row's finite floats, and how far from it that of a row that agrees can be.
fn total(floats: &[f64]) -> (Total, f64) {
    let finite = || floats.iter().filter(|value| value.is_finite());
    // Halves, so that no sum is infinite; -0 is no sum.
    let halves = 0.5 / floats.len().max(1) as f64;
    let sum: f64 = finite().map(|value| value * halves).sum();
    let magnitude: f64 = finite().map(|value| value.abs() * halves).sum();
    (Total(sum + 0.0), 2.0 * FLOAT_TOLERANCE * magnitude)
}

/// How two sides differ.
#[derive(Debug, Default)]
pub struct Difference {
    /// Rows that the oracle has.
    pub expected: i64,
    /// Rows in the files, a changelog folded.
    pub found: i64,
    /// Expected, not found.
    pub missing: i64,
    /// Found, not expected.
    pub extra: i64,
    /// Found under an expected key with other values: counted here only.
    pub wrong: i64,
    /// A few of them.
    pub samples: Vec<Sample>,
}

/// One differing row.
#[derive(Debug, PartialEq)]
pub enum Sample {
    /// Expected, not found.
    Missing(Vec<Cell>),
    /// Found, not expected.
    Extra(Vec<Cell>),
    /// Same key, other values.
    Wrong {
        /// From the oracle.
        expected: Vec<Cell>,
        /// From a file.
        found: Vec<Cell>,
    },
}

impl Difference {
    /// Whether both sides agree.
    pub fn is_none(&self) -> bool {
        self.missing == 0 && self.extra == 0 && self.wrong == 0
    }
}

impl Multiset {
    /// Without rows; `key` are the columns that identify a row, none if nothing does.
    pub fn new(key: Vec<usize>) -> Self {
        Self {
            rows: HashMap::new(),
            key,
            expected_n: 0,
            found_n: 0,
            scratch: Vec::new(),
            floats: Vec::new(),
        }
    }

    /// Adds a row `times` over; a retraction is -1.
    pub fn add(&mut self, side: Side, row: &[Cell], times: i64) {
        self.scratch.clear();
        self.floats.clear();
        for cell in row {
            cell.encode_apart(&mut self.scratch, &mut self.floats);
        }
        let net = match side {
            Side::Expected => {
                self.expected_n += times;
                times
            }
            Side::Found => {
                self.found_n += times;
                -times
            }
        };
        let balance = match self.rows.get_mut(self.scratch.as_slice()) {
            Some(balance) => balance,
            None => self.rows.entry(self.scratch.as_slice().into()).or_default(),
        };
        if balance.is_even() {
            balance.sample = Some(row.into());
        }
        balance.add(&self.floats, net);
        if balance.is_even() {
            self.rows.remove(self.scratch.as_slice());
        }
    }

    /// What did not cancel out.
    pub fn difference(self) -> Difference {
        let mut difference = Difference {
            expected: self.expected_n,
            found: self.found_n,
            ..Difference::default()
        };
        // By key and then by row, so that the report is the same every time.
        let mut left: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Counted>> = BTreeMap::new();
        for (cells, n) in self.rows.into_values().flat_map(Balance::left) {
            let mut key = Vec::new();
            for column in &self.key {
                cells.get(*column).unwrap_or(&Cell::Null).encode(&mut key);
            }
            let mut row = Vec::new();
            cells.iter().for_each(|cell| cell.encode(&mut row));
            left.entry(key).or_default().insert(row, (cells, n));
        }
        for rows in left.into_values() {
            let mut missing: Vec<Counted> = Vec::new();
            let mut extra: Vec<Counted> = Vec::new();
            for (cells, n) in rows.into_values() {
                let side = if n > 0 { &mut missing } else { &mut extra };
                side.push((cells, n.abs()));
            }
            difference.count(&missing, &extra, !self.key.is_empty());
        }
        difference
    }
}

impl Balance {
    fn is_even(&self) -> bool {
        self.net == 0 && self.loose.is_empty()
    }

    fn add(&mut self, floats: &[f64], mut net: i64) {
        if floats.is_empty() {
            self.net += net;
            return;
        }
        let (at, slack) = total(floats);
        let near = Total(at.0 - slack)..=Total(at.0 + slack);
        let mut empty = Vec::new();
        for (total, rows) in self.loose.range_mut(near) {
            rows.retain_mut(|(others, n)| {
                let opposite = n.signum() == -net.signum();
                if net != 0 && opposite && agree(floats, others) {
                    let cancelled = net.abs().min(n.abs()) * net.signum();
                    *n += cancelled;
                    net -= cancelled;
                }
                *n != 0
            });
            if rows.is_empty() {
                empty.push(*total);
            }
        }
        for total in empty {
            self.loose.remove(&total);
        }
        if net != 0 {
            self.loose.entry(at).or_default().push((floats.into(), net));
        }
    }

    fn left(self) -> Vec<Counted> {
        let sample = self.sample.map(Vec::from).unwrap_or_default();
        if self.loose.is_empty() {
            return vec![(sample, self.net)];
        }
        let with = |floats: &[f64]| {
            let mut floats = floats.iter().copied();
            sample
                .iter()
                .map(|cell| with_floats(cell, &mut floats))
                .collect()
        };
        let rows = self.loose.values().flatten();
        rows.map(|(floats, n)| (with(floats), *n)).collect()
    }
}

/// The sample's cells with the floats of another row of its group.
fn with_floats(cell: &Cell, floats: &mut dyn Iterator<Item = f64>) -> Cell {
    match cell {
        Cell::Float(_) => floats.next().map_or(Cell::Null, Cell::Float),
        Cell::Many(cells) => {
            Cell::Many(cells.iter().map(|cell| with_floats(cell, floats)).collect())
        }
        other => other.clone(),
    }
}

fn agree(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| close(*a, *b))
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= FLOAT_TOLERANCE * a.abs().max(b.abs())
}

impl Difference {
    fn count(&mut self, missing: &[Counted], extra: &[Counted], keyed: bool) {
        let total = |rows: &[Counted]| rows.iter().map(|(_, n)| n).sum::<i64>();
        let pairs = if keyed {
            total(missing).min(total(extra))
        } else {
            0
        };
        self.wrong += pairs;
        self.missing += total(missing) - pairs;
        self.extra += total(extra) - pairs;
        let paired = if keyed {
            missing.len().min(extra.len())
        } else {
            0
        };
        for (expected, found) in missing.iter().zip(extra).take(paired) {
            self.sample(Sample::Wrong {
                expected: expected.0.clone(),
                found: found.0.clone(),
            });
        }
        for (row, _) in missing.iter().skip(paired) {
            self.sample(Sample::Missing(row.clone()));
        }
        for (row, _) in extra.iter().skip(paired) {
            self.sample(Sample::Extra(row.clone()));
        }
    }

    fn sample(&mut self, sample: Sample) {
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: i128, value: f64) -> Vec<Cell> {
        vec![Cell::Int(key), Cell::Float(value)]
    }

    fn compare(expected: &[Vec<Cell>], found: &[Counted]) -> Difference {
        let mut rows = Multiset::new(vec![0]);
        expected
            .iter()
            .for_each(|row| rows.add(Side::Expected, row, 1));
        found
            .iter()
            .for_each(|(row, times)| rows.add(Side::Found, row, *times));
        rows.difference()
    }

    #[test]
    fn equal_rows_cancel_out_in_any_order_and_number() {
        let (a, b) = (row(1, 1.0), row(2, 2.0));

        let same = compare(
            &[a.clone(), b.clone(), a.clone()],
            &[(b.clone(), 1), (a.clone(), 1), (a.clone(), 1)],
        );
        let fewer = compare(&[a.clone(), a.clone(), b], &[(a, 1), (row(2, 2.0), 1)]);

        assert!(same.is_none(), "{same:?}");
        assert_eq!((fewer.missing, fewer.extra, fewer.wrong), (1, 0, 0));
    }

    #[test]
    fn floats_agree_within_the_tolerance_and_not_beyond() {
        let near = compare(&[row(1, 1e6)], &[(row(1, 1e6 + 1e-4), 1)]);
        let far = compare(&[row(1, 1e6)], &[(row(1, 1e6 + 1e-2), 1)]);

        assert!(near.is_none());
        assert_eq!(far.wrong, 1);
        let expected = row(1, 1e6);
        assert_eq!(
            far.samples,
            [Sample::Wrong {
                expected,
                found: row(1, 1e6 + 1e-2)
            }]
        );
    }

    #[test]
    fn rows_of_nothing_but_floats_find_their_partners_among_many() {
        let row = |i: u32| vec![Cell::Float(f64::from(i) * 1e-3), Cell::Float(-f64::from(i))];
        let many = 50_000;
        let mut rows = Multiset::new(vec![]);
        (0..many).for_each(|i| rows.add(Side::Expected, &row(i), 1));
        for i in (0..many).rev() {
            let mut found = row(i);
            if let Cell::Float(value) = &mut found[0] {
                *value *= 1.0 + 0.9e-9;
            }
            rows.add(Side::Found, &found, 1);
        }
        assert!(rows.difference().is_none());

        let odd = [f64::NAN, f64::INFINITY, -0.0, f64::MAX, -f64::MAX].map(Cell::Float);
        let mut rows = Multiset::new(vec![]);
        rows.add(Side::Expected, &odd, 1);
        let mut even = odd;
        even[2] = Cell::Float(0.0);
        rows.add(Side::Found, &even, 1);
        assert!(rows.difference().is_none());
    }

    #[test]
    fn a_changelog_folds_to_its_last_rows() {
        let changelog = [
            (row(1, 1.0), 1),
            (row(1, 1.0), -1),
            (row(1, 2.0), 1),
            (row(2, 5.0), 1),
            (row(2, 5.0), -1),
        ];

        assert!(compare(&[row(1, 2.0)], &changelog).is_none());
        let unmatched = compare(&[], &[(row(1, 1.0), -1)]);
        assert_eq!((unmatched.missing, unmatched.found), (1, -1));
    }

    #[test]
    fn a_row_with_the_key_of_another_is_wrong_and_without_keys_both_are_told() {
        let keyed = compare(&[row(1, 1.0)], &[(row(1, 3.0), 1), (row(7, 1.0), 1)]);
        let mut rows = Multiset::new(vec![]);
        rows.add(Side::Expected, &row(1, 1.0), 1);
        rows.add(Side::Found, &row(1, 3.0), 1);
        let bare = rows.difference();

        assert_eq!((keyed.missing, keyed.extra, keyed.wrong), (0, 1, 1));
        assert_eq!((bare.missing, bare.extra, bare.wrong), (1, 1, 0));
    }
}
