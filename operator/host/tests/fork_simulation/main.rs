//! Coordinators that fork, freeze and die, on a store that fails, delays and loses answers.
//!
//! One seed is one history: several coordinators of one job, each with tasks of its own (a zombie
//! keeps its tasks), share a store and a sink. After a while the chaos stops and a last coordinator
//! finishes the job. The oracles: every input row is visible exactly once; ids and generations of
//! the head only grow; no object that a restore needs is ever missing.
//!
//! `STREAMFORGE_SEEDS=n` runs n seeds, `STREAMFORGE_SEED=s` only one.

#![expect(
    clippy::unwrap_used,
    reason = "a test that finds nothing to unwrap has failed"
)]

mod process;
mod sink;
mod tasks;
mod whole_jobs;
mod world;

use world::World;

const SEEDS_N: u64 = 1_000;

#[test]
fn every_row_is_visible_exactly_once_whatever_coordinators_and_store_do_c2_c3_c4_c5_c6_c10_c11_x5()
{
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text: String| text.parse().ok())
    };
    let seeds = match number("STREAMFORGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STREAMFORGE_SEEDS").unwrap_or(SEEDS_N),
    };
    let mut totals = world::Totals::default();
    for seed in seeds.clone() {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        match run {
            Ok(run) => totals.add(&run),
            Err(panic) => {
                eprintln!("seed {seed} failed; again: STREAMFORGE_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{totals:?}");
    if seeds.end - seeds.start >= 100 {
        assert!(
            totals.has_everything(),
            "the chaos missed something: {totals:?}"
        );
    }
}
