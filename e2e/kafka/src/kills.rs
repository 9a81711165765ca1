//! The kill ledger: windowed jobs from Kafka to Kafka and to Parquet files in a bucket, whose
//! processes are killed at random moments until the kills are used up.
//!
//! Owns: the loop, and what is written down of it. A job is in [`job`], its processes and who of them
//! is killed in [`cluster`], the readers beside in [`beside`]. Start at: [`run`].

mod beside;
mod cluster;
mod job;
mod ledger;

use std::time::Duration;

use streamforge_process::Random;

use crate::Broker;
use cluster::{Cluster, Victim};
use job::Job;

pub use job::{Output, WINDOWS, Windows};
pub use ledger::Ledger;

/// Rows that a job reads; with the limit of its source that is eight seconds of work, kills aside.
const ROWS_N: u32 = 80_000;

/// Longest time until the next kill.
const WITHIN_MS: u64 = 1_500;

/// Most kills of one job: then it is let run to its end.
const PER_JOB_MAX: u32 = 12;

/// Kills jobs that write to `output` until `kills_n` are used up, lets the last one end, and compares
/// each result.
pub async fn run(output: Output, kills_n: u32, seed: u64) -> Ledger {
    let broker = Broker::shared();
    let mut random = Random::seeded(seed);
    let mut ledger = Ledger::new(output, seed);
    let mut jobs_n: usize = 0;
    while ledger.kills_n() < kills_n {
        let windows = WINDOWS[jobs_n % WINDOWS.len()];
        jobs_n += 1;
        let job = Job::new(&broker, windows, output, ROWS_N, random.below(1 << 32)).await;
        let before = ledger.kills_n();
        let share = kills_n.div_ceil(3).min(PER_JOB_MAX);
        live(&job, &mut ledger, kills_n.min(before + share), &mut random);
        let killed_n = ledger.kills_n() - before;
        let complaints = job.end().await;
        println!(
            "{} kills; {windows:?} after {killed_n}: {}",
            ledger.kills_n(),
            if complaints.is_empty() {
                "equal"
            } else {
                "DIFFERS"
            }
        );
        ledger.ended(windows, complaints);
    }
    ledger
}

/// Runs a job to its end, killing until there are so many kills in all.
fn live(job: &Job, ledger: &mut Ledger, kills_n: u32, random: &mut Random) {
    let mut cluster = Cluster::start(&job.workspace, random);
    loop {
        let ms = if ledger.kills_n() < kills_n {
            20 + random.below(WITHIN_MS)
        } else {
            u64::MAX
        };
        if cluster.lives_for(Duration::from_millis(ms)) {
            if random.below(5) == 0 {
                // So that kills find a hand-over, too.
                cluster.scale(random);
            }
            let moment = cluster.moment();
            let victim = cluster.kill(random);
            let is_open = job.has_open_transaction();
            ledger.killed(job.windows, victim, moment, is_open);
            cluster.mend(victim, random);
        } else {
            let ended = cluster.end();
            if ended.code != Some(0) || ended.stderr.contains("panicked at") {
                ledger.complain(job.windows, format!("{:?}: {}", ended.code, ended.stderr));
            }
            return;
        }
    }
}

impl Victim {
    /// All kinds, in the order of the ledger.
    pub const ALL: [Self; 4] = [
        Self::TaskManager,
        Self::Several,
        Self::Coordinator,
        Self::Everything,
    ];
}
