//! `approx_distinct(x)`: HyperLogLog, 2^14 registers, standard error 0.8 %.
//!
//! Over the stable hash of key_hash (K1), so that equal values count once whatever their Arrow
//! encoding and whatever version wrote the state. The estimate is made from how many registers hold
//! each rank, so it does not depend on order. State: BYTEA, NULL for no value: byte 0, then 3 bytes
//! per register that is not 0 (register u16, rank u8, ascending), up to 1,024 of them; or byte 1,
//! then all 16,384 ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, Int64Array};

use super::{Accumulator, Error, Evaluated, Rows, argument, columns, typed};
use crate::key_hash::hash_column;

const PRECISION: u32 = 14;
const REGISTERS: usize = 1 << PRECISION;
/// Ranks run from 0 (no value) to this.
const RANK_MAX: usize = 64 - PRECISION as usize + 1;
/// Registers kept one by one; more take the 16 KiB of all.
const SPARSE_MAX: usize = 1024;

const SPARSE: u8 = 0;
const DENSE: u8 = 1;

/// The registers of each group.
#[derive(Debug, Default)]
pub(super) struct ApproxDistinct {
    sketches: Vec<Sketch>,
}

#[derive(Clone, Debug)]
enum Sketch {
    Sparse(BTreeMap<u16, u8>),
    Dense(Box<[u8]>),
}

impl Default for Sketch {
    fn default() -> Self {
        Sketch::Sparse(BTreeMap::new())
    }
}

impl Sketch {
    fn add(&mut self, hash: u64) {
        let register = u16::try_from(hash >> (64 - PRECISION)).unwrap_or(0);
        // The bit set below the shifted hash bounds the rank.
        let rest = (hash << PRECISION) | (1 << (PRECISION - 1));
        let rank = u8::try_from(rest.leading_zeros() + 1).unwrap_or(u8::MAX);
        self.raise(register, rank);
    }

    fn raise(&mut self, register: u16, rank: u8) {
        match self {
            Sketch::Sparse(ranks) => {
                let place = ranks.entry(register).or_default();
                *place = rank.max(*place);
                if ranks.len() > SPARSE_MAX {
                    let mut dense = vec![0u8; REGISTERS].into_boxed_slice();
                    for (register, rank) in ranks {
                        dense[usize::from(*register)] = *rank;
                    }
                    *self = Sketch::Dense(dense);
                }
            }
            Sketch::Dense(ranks) => {
                let place = &mut ranks[usize::from(register)];
                *place = rank.max(*place);
            }
        }
    }

    fn encode(&self) -> Option<Vec<u8>> {
        match self {
            Sketch::Sparse(ranks) if ranks.is_empty() => None,
            Sketch::Sparse(ranks) => {
                let mut bytes = vec![SPARSE];
                for (register, rank) in ranks {
                    bytes.extend(register.to_le_bytes());
                    bytes.push(*rank);
                }
                Some(bytes)
            }
            Sketch::Dense(ranks) => {
                let mut bytes = vec![DENSE];
                bytes.extend_from_slice(ranks);
                Some(bytes)
            }
        }
    }

    fn merge(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let wrong = || Error::State("registers of approx_distinct are damaged".to_owned());
        let legal = |register: usize, rank: u8| {
            register < REGISTERS && (1..=RANK_MAX).contains(&usize::from(rank))
        };
        match bytes.split_first() {
            Some((&SPARSE, entries)) if entries.len() % 3 == 0 => {
                for entry in entries.chunks_exact(3) {
                    let register = u16::from_le_bytes([entry[0], entry[1]]);
                    if !legal(usize::from(register), entry[2]) {
                        return Err(wrong());
                    }
                    self.raise(register, entry[2]);
                }
                Ok(())
            }
            Some((&DENSE, ranks)) if ranks.len() == REGISTERS => {
                for (register, rank) in ranks.iter().enumerate().filter(|(_, rank)| **rank > 0) {
                    let short = u16::try_from(register).map_err(|_| wrong())?;
                    if !legal(register, *rank) {
                        return Err(wrong());
                    }
                    self.raise(short, *rank);
                }
                Ok(())
            }
            _ => Err(wrong()),
        }
    }

    /// Ertl's estimator (arXiv 1702.01284, algorithm 6).
    fn estimate(&self) -> i64 {
        let mut histogram = [0u32; RANK_MAX + 1];
        match self {
            Sketch::Sparse(ranks) => {
                for rank in ranks.values() {
                    histogram[usize::from(*rank)] += 1;
                }
                histogram[0] = u32::try_from(REGISTERS - ranks.len()).unwrap_or(0);
            }
            Sketch::Dense(ranks) => {
                for rank in ranks {
                    histogram[usize::from(*rank)] += 1;
                }
            }
        }
        let m = f64::from(1u32 << PRECISION);
        let mut z = m * tau(1.0 - f64::from(histogram[RANK_MAX]) / m);
        for count in histogram[1..RANK_MAX].iter().rev() {
            z = 0.5 * (z + f64::from(*count));
        }
        z += m * sigma(f64::from(histogram[0]) / m);
        let estimate = (m * m / (2.0 * std::f64::consts::LN_2) / z).round();
        #[expect(clippy::cast_possible_truncation, reason = "below 2^63, or saturates")]
        let estimate = estimate as i64;
        estimate
    }
}

fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z <= before {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z >= before {
            return z / 3.0;
        }
    }
}

impl Accumulator for ApproxDistinct {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg = argument(arg)?;
        let mut hashes = Vec::with_capacity(arg.len());
        hash_column(arg, &mut hashes)?;
        self.sketches.resize(rows.groups_n, Sketch::default());
        let sketches = &mut self.sketches;
        rows.for_each(arg.logical_nulls().as_ref(), |row, group| {
            sketches[group].add(hashes[row]);
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [encoded] = columns(state)?;
        let encoded: &BinaryArray = typed(encoded)?;
        self.sketches.resize(groups_n, Sketch::default());
        for (group, bytes) in groups.iter().zip(encoded) {
            if let Some(bytes) = bytes {
                self.sketches[*group].merge(bytes)?;
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let sketches = std::mem::take(&mut self.sketches);
        Ok(vec![Arc::new(BinaryArray::from_iter(
            sketches.iter().map(Sketch::encode),
        ))])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let estimates = groups.iter().map(|group| self.sketches[*group].estimate());
        let estimates: ArrayRef = Arc::new(Int64Array::from_iter_values(estimates));
        Ok(estimates.into())
    }

    fn size(&self) -> usize {
        let held = |sketch: &Sketch| match sketch {
            Sketch::Sparse(ranks) => ranks.len() * 8,
            Sketch::Dense(_) => REGISTERS,
        };
        self.sketches.capacity() * size_of::<Sketch>()
            + self.sketches.iter().map(held).sum::<usize>()
    }
}
