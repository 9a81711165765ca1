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

/// Files that are open when the process is killed, at another parallelism each time.
#[test]
fn job_whose_files_roll_over_is_killed_resumed_and_equal_to_the_oracle_x6() {
    let bucket = Bucket::up();
    let rollover = "{size: 32Ki, every: 700ms}";
    let base = bucket.folder("rollover");
    let workspace = bucket.rolling_clicks(&base, "rows: 200000, ", 60_000, rollover);
    let mut random = Random::seeded(31);
    for kill in 0..KILLS {
        let parallelism = (1 + kill % 3).to_string();
        let mut running = workspace.start(&["--parallelism", &parallelism]);
        running.let_run(Duration::from_millis(300 + random.below(900)));
        let log = running.log();
        running.kill();
        assert!(!log.contains("panicked at"), "{log}");
    }

    workspace.run(&[]).check_code(0);
    workspace.verify();
}

/// Rows of the files that a reader sees.
fn late_rows_n(bucket: &Bucket, base: &str) -> usize {
    let s3 = bucket.settings();
    let reader = Workspace::new(&format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: reader}}
spec:
  sources:
    - name: late
      file: {{path: "{base}/out/late/", s3: {s3}}}
      format: {{json: {{}}}}
      schema: [{{name: user_id, type: TEXT}}]
  sinks:
    - {{name: seen, from: late, file: {{path: out/}}, format: {{json: {{}}}}}}
"#
    ))
    .at(&["--secrets", "secrets"]);
    bucket.hand_keys_to(&reader);
    reader.run(&[]).check_code(0);
    reader.published().rows().len()
}

/// Neither size nor age is ever reached: only the stop, and the end, make these files visible.
#[test]
fn stop_closes_the_files_that_are_open_in_a_bucket_x6() {
    let bucket = Bucket::up();
    let base = bucket.folder("rollover-stop");
    let workspace = bucket.rolling_clicks(&base, "rows: 150000, ", 40_000, "{every: 1h}");
    let mut running = workspace.start(&["--progress", "lines"]);
    let read = || std::fs::read_to_string(workspace.path("stderr.log")).unwrap_or_default();
    let late = || read().matches("checkpoint completed").count() > 5;
    assert!(running.wait_until(late), "{}", read());
    running.signal(Signal::TERM);
    let stopped = running.wait();
    stopped.check_code(3);

    let seen_n = late_rows_n(&bucket, &base);
    assert!(seen_n > 0, "{}", stopped.stderr);
    workspace.run(&[]).check_code(0);
    assert!(late_rows_n(&bucket, &base) > seen_n);
    workspace.verify();
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

/// A job that makes input: clicks as files of a bucket, many of them and compressed by nobody.
fn made_input(bucket: &Bucket, base: &str) {
    let s3 = bucket.settings();
    let maker = Workspace::new(&format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: maker}}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {{clicks: {{rows: 120000, users: 500, skew: 1.1, outOfOrderness: 3s, seed: 7}}}}
      eventTime: {{column: ts, maxOutOfOrderness: 3s}}
      rateLimit: {{rowsPerSecond: 60000}}
  sinks:
    - {{name: in, from: clicks, file: {{path: "{base}/in/", partitionBy: [type], s3: {s3}}}, format: {{json: {{}}}}}}
  checkpoint: {{interval: 200ms}}
"#
    ))
    .at(&["--secrets", "secrets"]);
    bucket.hand_keys_to(&maker);
    maker.run(&[]).check_code(0);
}

/// Windows over these files, killed and resumed at another parallelism, while the rate leaves time for it.
#[test]
fn job_that_reads_a_bucket_is_killed_resumed_and_equal_to_the_oracle() {
    let bucket = Bucket::up();
    let base = bucket.folder("input");
    made_input(&bucket, &base);
    let s3 = bucket.settings();
    let workspace = Workspace::new(&format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: reader}}
spec:
  parallelism: 2
  sources:
    - name: clicks
      file: {{path: "{base}/in/type=*/*.ndjson", s3: {s3}}}
      format: {{json: {{}}}}
      schema: [{{name: user_id, type: TEXT}}, {{name: amount, type: "DECIMAL(10,2)"}}, {{name: ts, type: TIMESTAMP}}]
      eventTime: {{column: ts, maxOutOfOrderness: 3s}}
      rateLimit: {{rowsPerSecond: 30000}}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {{tumbling: {{size: 1s}}}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {{name: results, from: per_user, file: {{path: out/results/}}, format: {{json: {{}}}}}}
    - {{name: late, from: per_user.late, file: {{path: out/late/}}, format: {{json: {{}}}}}}
  checkpoint: {{interval: 200ms, storage: {{uri: "{base}/store", s3: {s3}}}}}
"#
    ))
    .at(&["--secrets", "secrets"]);
    bucket.hand_keys_to(&workspace);
    let mut random = Random::seeded(29);
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
}
