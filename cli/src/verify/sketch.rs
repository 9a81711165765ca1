//! `approx_distinct`, computed once more.
//!
//! Owns: the estimate that HyperLogLog with 2^14 registers gives for a set of values. Written from the
//! paper (Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", arXiv 1702.01284,
//! section 4) and not from the engine's code; the hash of a value is a file format with vectors of its
//! own (K1), so it is taken as it is. Start at: [`estimate`].

use std::collections::HashMap;

use anyhow::Result;
use streamforge_core::data_type::DataType;
use streamforge_taskmanager::engine::key_hash::hash_columns;
use streamforge_taskmanager::engine::types::arrow_type;

use super::array::array;
use super::cell::Cell;

/// Bits of a hash that choose its register.
const P: u32 = 14;
/// Bits that make its rank.
const Q: u32 = 64 - P;

/// The estimate for these values, each given once.
pub fn estimate(values: &[Cell], data_type: &DataType) -> Result<i128> {
    let column = array(values, &arrow_type(data_type))?;
    let mut registers: HashMap<u64, u32> = HashMap::new();
    for hash in hash_columns(&[column], values.len())? {
        let (register, rest) = (hash >> Q, hash & ((1 << Q) - 1));
        // The place of the first 1 among Q bits; Q + 1 if there is none.
        let rank = 1 + rest.leading_zeros() - P;
        let place = registers.entry(register).or_default();
        *place = rank.max(*place);
    }
    let m = f64::from(1_u32 << P);
    let with_rank = |rank: u32| registers.values().filter(|r| **r == rank).count() as f64;
    let empty = m - registers.len() as f64;
    let between: f64 = (1..=Q)
        .map(|rank| with_rank(rank) * 0.5_f64.powi(rank.cast_signed()))
        .sum();
    let full = with_rank(Q + 1) / m;
    let z = between + m * sigma(empty / m) + m * tau(1.0 - full) * 0.5_f64.powi(Q.cast_signed());
    let estimate = m * m / (2.0 * std::f64::consts::LN_2 * z);
    #[expect(clippy::cast_possible_truncation, reason = "far below 2^127")]
    let estimate = estimate.round() as i128;
    Ok(estimate)
}

/// `x + sum over k >= 1 of x^(2^k) 2^(k-1)`; infinite at 1.
fn sigma(x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let term = |k: i32| x.powf(2_f64.powi(k)) * 2_f64.powi(k - 1);
    x + (1..64).map(term).sum::<f64>()
}

/// `(1 - x - sum over k >= 1 of (1 - x^(2^-k))^2 2^-k) / 3`.
fn tau(x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let term = |k: i32| (1.0 - x.powf(0.5_f64.powi(k))).powi(2) * 0.5_f64.powi(k);
    (1.0 - x - (1..64).map(term).sum::<f64>()) / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_within_a_few_percent_and_exact_for_few_values() {
        let of = |n: i128| {
            let values: Vec<Cell> = (0..n).map(|i| Cell::Int(i * 7)).collect();
            estimate(&values, &DataType::BigInt).unwrap()
        };
        assert_eq!([of(0), of(1), of(10), of(50)], [0, 1, 10, 50]);
        for n in [1_000, 20_000, 300_000] {
            // Four standard errors of 0.81 %.
            assert!((of(n) - n).abs() * 1000 < n * 33, "{n}: {}", of(n));
        }
    }

    #[test]
    fn the_series_have_the_values_of_the_paper() {
        // sigma(1/2) = 1/2 + 1/4 + 2/16 + 4/256 + 8/65536 + ..., by hand.
        let by_hand = 0.5 + 0.25 + 0.125 + 4.0 / 256.0 + 8.0 / 65_536.0;
        assert!((sigma(0.5) - by_hand).abs() < 1e-8);
        assert_eq!([tau(0.0), tau(1.0), sigma(0.0)], [0.0, 0.0, 0.0]);
    }
}
