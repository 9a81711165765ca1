//! SIGKILL at random moments, each time resumed at another parallelism: the result is that of an
//! undisturbed run, and nothing half-written was ever visible.

use std::fmt::Write as _;
use std::time::Duration;

use streamforge_process::{Published, Random, Workspace};

/// Kills per job; the long ledger is `make kills`.
const KILLS: u32 = 6;
/// A job that is killed this often without coming to its end is let run.
const KILL_WITHIN_MS: u64 = 700;

/// For a run that nobody kills: as fast as it can.
const UNLIMITED: [&str; 2] = ["--set", "spec.sources[0].rateLimit.rowsPerSecond=100000000"];

const CLICKS: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {clicks: {rows: 400000, users: 500, skew: 1.1, outOfOrderness: 3s, lateFraction: 0.01, badFraction: 0.001, seed: 7}}
      eventTime: {column: ts, maxOutOfOrderness: 3s}
      rateLimit: {rowsPerSecond: 200000}
  transforms:
    - {name: valid, from: clicks, filter: "amount > 0"}
    - name: per_user
      from: valid
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: 1s}}
        select: ["count(*) AS clicks", "sum(amount) AS spend", "count(DISTINCT page) AS pages"]
  sinks:
    - {name: results, from: per_user, file: {path: out/per_user/}, format: {json: {}}}
    - {name: late, from: per_user.late, file: {path: out/late/}, format: {json: {}}}
    - {name: bad, from: clicks.bad, file: {path: out/bad/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

/// Sessions over files that are one sequence: whole rows cross the shuffle here.
const SESSIONS: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: sessions}
spec:
  parallelism: 2
  sources:
    - name: visits
      file: {path: "in/*.ndjson", order: ByName}
      format: {json: {}}
      schema:
        - {name: visitor, type: TEXT, nullable: false}
        - {name: n, type: BIGINT}
        - {name: ts, type: TIMESTAMP, parse: EpochMillis}
      eventTime: {column: ts, maxOutOfOrderness: 20s}
      rateLimit: {rowsPerSecond: 60000}
  transforms:
    - name: per_user
      from: visits
      aggregate:
        groupBy: [visitor]
        window: {session: {gap: 15s}}
        select: ["count(*) AS visits", "sum(n) AS n", "min(n) AS first_n"]
  sinks:
    - {name: spells, from: per_user, file: {path: out/spells/}, format: {json: {}}}
    - {name: late, from: per_user.late, file: {path: out/late/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

/// 120,000 visits in six files. Which row is late is beyond doubt: none is more than 20 s behind,
/// but for some that are ten minutes behind, more than W can lag by a batch.
fn write_visits(workspace: &Workspace) {
    let mut random = Random::seeded(11);
    for file in 0..6 {
        let mut text = String::new();
        for row in 0..20_000_u64 {
            let n = file * 20_000 + row;
            let far = file > 0 && random.below(500) == 0;
            let behind_ms = if far { 600_000 } else { random.below(20_000) };
            let ts = 1_700_000_000_000 + n * 10 - behind_ms;
            let user = random.below(2_000);
            writeln!(text, r#"{{"visitor":"u{user}","n":{n},"ts":{ts}}}"#).expect("memory");
        }
        workspace.write(&format!("in/visits-{file}.ndjson"), text);
    }
}

/// Runs the job with kills until it ends by itself; returns what it published.
fn run_with_kills(workspace: &Workspace, random: &mut Random) -> Published {
    let mut kills_n = 0;
    let mut seen = Published::default();
    loop {
        let parallelism = (1 + random.below(4)).to_string();
        let mut running = workspace.start(&["--parallelism", &parallelism]);
        if kills_n == KILLS {
            running.wait().check_code(0);
            break;
        }
        running.let_run(Duration::from_millis(random.below(KILL_WITHIN_MS)));
        if running.has_ended() {
            running.wait().check_code(0);
            break;
        }
        running.kill();
        kills_n += 1;
        let now = workspace.published();
        now.check_whole();
        now.check_keeps(&seen);
        seen = now;
    }
    let published = workspace.published();
    published.check_whole();
    published.check_keeps(&seen);
    println!("{kills_n} kills, {} files", published.files_n());
    published
}

#[test]
fn windowed_result_survives_kills_at_any_moment_and_changes_of_parallelism() {
    let mut random = Random::from_environment();
    let disturbed = Workspace::new(CLICKS);
    let calm = Workspace::new(CLICKS);

    let rows = run_with_kills(&disturbed, &mut random).rows();
    calm.run(&["--parallelism", "3", UNLIMITED[0], UNLIMITED[1]])
        .check_code(0);

    disturbed.verify();
    calm.verify();
    assert!(
        rows.len() > 1_000,
        "the job has results to compare: {}",
        rows.len()
    );
    let calm_results = Published::read(&calm.path("out/per_user")).rows();
    let results = Published::read(&disturbed.path("out/per_user")).rows();
    assert!(!calm_results.is_empty());
    check_same(&keys(&results), &keys(&calm_results), "out/per_user");
}

/// The first window that rows in time fall into: the generator begins at midnight, 3 s of disorder.
const FIRST_WINDOW: &str = "2025-12-31T23:59:57";

/// The (key, window) of each result whose window has rows in time, which no kill may change. Earlier
/// windows hold rows of the first moment that are a minute or two behind: whether W has passed
/// them by then depends on how much came at once, and only `verify` can say what is right.
fn keys(rows: &[String]) -> Vec<String> {
    let mut keys: Vec<String> = rows
        .iter()
        .map(|row| serde_json::from_str::<serde_json::Value>(row).expect("checked before"))
        .filter(|row| row["window_start"].as_str().expect("a time") >= FIRST_WINDOW)
        .map(|row| format!("{} {}", row["user_id"], row["window_start"]))
        .collect();
    keys.sort_unstable();
    keys
}

#[test]
fn sessions_over_ordered_files_are_the_same_after_kills_to_the_last_late_row() {
    let mut random = Random::from_environment();
    let (disturbed, calm) = (Workspace::new(SESSIONS), Workspace::new(SESSIONS));
    write_visits(&disturbed);
    write_visits(&calm);

    run_with_kills(&disturbed, &mut random);
    calm.run(&[
        "--parallelism",
        "1",
        "--set",
        "spec.sources[0].rateLimit.rowsPerSecond=100000000",
    ])
    .check_code(0);

    disturbed.verify();
    calm.verify();
    for folder in ["out/spells", "out/late"] {
        let (one, other) = (
            Published::read(&disturbed.path(folder)),
            Published::read(&calm.path(folder)),
        );
        assert!(!other.rows().is_empty(), "{folder} has rows to compare");
        check_same(
            &without_watermark(&one.rows()),
            &without_watermark(&other.rows()),
            folder,
        );
    }
}

/// Asserts that two sorted lists of rows are equal, and shows only where they are not.
fn check_same(rows: &[String], calm: &[String], what: &str) {
    let not_in = |rows: &[String], others: &[String]| -> Vec<String> {
        let missing = rows.iter().filter(|row| others.binary_search(row).is_err());
        missing.take(3).cloned().collect()
    };
    let (extra, missing) = (not_in(rows, calm), not_in(calm, rows));
    assert!(
        extra.is_empty() && missing.is_empty(),
        "{what}: extra {extra:?}, missing {missing:?}"
    );
    assert_eq!(rows.len(), calm.len(), "{what}: a row is there twice");
}

/// Late rows carry W at their arrival, which moves in steps of a batch.
fn without_watermark(rows: &[String]) -> Vec<String> {
    let mut rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let mut row: serde_json::Value = serde_json::from_str(row).expect("checked before");
            if let Some(row) = row.as_object_mut() {
                for column in ["watermark", "source", "position"] {
                    row.remove(column);
                }
            }
            row.to_string()
        })
        .collect();
    rows.sort_unstable();
    rows
}
