//! Store and output in a bucket of the real S3 server that `e2e/services/s3` starts.

use std::time::Duration;

use rustix::process::Signal;
use streamforge_process::{Bucket, Random, Workspace};

/// Kills before the job is let run.
const KILLS: u32 = 5;

/// A job over clicks: windows to Parquet, late rows to NDJSON, all in a bucket.
fn workspace(test: &str, rows: &str) -> Workspace {
    let bucket = Bucket::up();
    bucket.clicks(&bucket.folder(test), rows, 60_000)
}

#[test]
fn job_in_a_bucket_is_killed_resumed_and_equal_to_the_oracle_x6() {
    let workspace = workspace("kills", "rows: 200000, ");
    let mut random = Random::seeded(23);
    for kill in 0..KILLS {
        let parallelism = (1 + kill % 3).to_string();
        let mut running = workspace.start(&["--parallelism", &parallelism]);
        running.let_run(Duration::from_millis(300 + random.below(900)));
        let log = running.log();
        running.kill();
        assert!(
            !log.contains("testsecret") && !log.contains("panicked at"),
            "{log}"
        );
    }

    workspace.run(&[]).check_code(0);
    workspace.verify();
    let again = workspace.run(&[]);
    again.check_code(0);
    assert!(
        again.stderr.contains("finished already"),
        "{}",
        again.stderr
    );
}

/// Bytes of state that attempts began with, as their task managers say: from copies, from the bucket.
fn restored(log: &str) -> Vec<(u64, u64)> {
    let bytes = |line: &str| {
        let (_, said) = line.split_once(" ms: ")?;
        let (here, rest) = said.split_once(" bytes of state from local copies, ")?;
        let (stored, _) = rest.split_once(" from the store")?;
        Some((here.parse().ok()?, stored.parse().ok()?))
    };
    log.lines().filter_map(bytes).collect()
}

#[test]
fn survivors_of_a_loss_restore_from_their_local_copies() {
    let workspace = workspace("local-copies", "rows: 200000, ");
    let arguments = [
        "--task-managers",
        "3",
        "--parallelism",
        "3",
        "--local-copies",
        "local",
    ];
    let mut running = workspace.start(&arguments);
    let log = workspace.path("stderr.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let began = |n: usize| restored(&read()).len() >= n;
    assert!(running.wait_until(|| began(3) && workspace.path("local/tm-1").exists()));
    let copied = || {
        let entries = std::fs::read_dir(workspace.path("local/tm-1")).expect("it is a folder");
        entries.count() > 2
    };
    assert!(running.wait_until(copied), "{}", read());

    let victim = *running.children().last().expect("there are three");
    rustix::process::kill_process(victim, Signal::KILL).expect("it runs");
    assert!(running.wait_until(|| began(5)), "{}", read());
    running.wait().check_code(0);

    let (here, stored) = restored(&read())[3..5]
        .iter()
        .fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    assert!(here > stored, "{here} and {stored} bytes");
    workspace.verify();
}

#[test]
fn later_process_takes_the_bucket_over_and_the_earlier_one_stops_c5() {
    let workspace = workspace("take-over", "");
    let committed = |log: &str| log.contains("checkpoint completed");
    let mut first = workspace.start_named("first", &["--progress", "lines"]);
    assert!(
        first.wait_until(|| committed(&log_of(&workspace, "first"))),
        "{}",
        first.log()
    );

    let mut second = workspace.start_named("second", &["--progress", "lines"]);
    // Asked of the second: when it cannot take over, its words are wanted.
    let taken = second.wait_until(|| log_of(&workspace, "first").contains("took this job over"));
    assert!(taken, "{}", second.log());
    let first = first.wait();
    let goes_on = second.wait_until(|| committed(&log_of(&workspace, "second")));
    second.signal(Signal::TERM);
    let second = second.wait();

    first.check_code(1);
    assert!(
        first
            .stderr
            .contains("another coordinator took this job over"),
        "{}",
        first.stderr
    );
    assert!(goes_on, "{}", second.stderr);
    second.check_code(3);
}

fn log_of(workspace: &Workspace, name: &str) -> String {
    std::fs::read_to_string(workspace.path(&format!("{name}.log"))).unwrap_or_default()
}
