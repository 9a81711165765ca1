//! A thousand histories, each from one seed.
//!
//! `SEEDS=n` runs n of them, `SEED=n` replays one and prints what happens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use streamforge_sim::totals::Totals;
use streamforge_sim::trace::{Tail, Trace};
use streamforge_sim::world::run;

const SEEDS_N: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One seed; when it fails, its number and how its history ended are printed.
fn run_seed(seed: u64, prints: bool) -> (Totals, u64) {
    let ran = std::panic::catch_unwind(|| run(seed, Trace::new(prints)));
    ran.unwrap_or_else(|panic| {
        let tail = Tail::default();
        let _again = std::panic::catch_unwind(|| run(seed, Trace::kept(&tail)));
        eprintln!(
            "seed {seed} failed; all of it: SEED={seed}. Its end:\n{}",
            tail.text()
        );
        std::panic::resume_unwind(panic);
    })
}

#[test]
fn published_output_equals_a_batch_whatever_fails_when_o1() {
    if let Some(seed) = number("SEED") {
        let (totals, _) = run_seed(seed, true);
        eprintln!("{totals:?}");
        return;
    }
    let seeds_n = number("SEEDS").unwrap_or(SEEDS_N);
    let (next, totals) = (AtomicU64::new(0), Mutex::new(Totals::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds_n {
                return;
            }
            let (one, _) = run_seed(seed, false);
            totals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(&one);
        }
    };
    std::thread::scope(|scope| {
        let threads_n = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads_n).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let totals = totals.into_inner().unwrap();
    eprintln!("{seeds_n} seeds: {totals:?}");
    assert!(
        seeds_n < 100 || totals.has_everything(),
        "the chaos missed something: {totals:?}"
    );
}

#[test]
fn same_seed_is_the_same_history_o6() {
    for seed in 0..20 {
        assert_eq!(run_seed(seed, false), run_seed(seed, false), "seed {seed}");
    }
}
