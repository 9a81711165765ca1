//! One job of the ledger: its input, its document, its readers beside, its result against DuckDB.
//!
//! Owns: everything about a job but its processes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use streamforge_process::{Bucket, Random, Workspace};

use super::beside::Onlooker;
use crate::{Broker, Follower, Topic};

/// Partitions of the input.
const PARTITIONS_N: i32 = 4;

/// Rows per second of event time.
const ROWS_PER_SECOND: u32 = 100;

/// Keys: each comes about every four seconds, so that sessions with a gap of five seconds end.
const KEYS_N: u64 = 400;

/// The kinds of windows.
pub const WINDOWS: [Windows; 3] = [Windows::Tumbling, Windows::Hopping, Windows::Session];

/// A kind of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Windows {
    /// 10 s.
    Tumbling,
    /// 10 s, every 5 s.
    Hopping,
    /// A gap of 5 s.
    Session,
}

/// Where results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A topic; checkpoints in a folder.
    Topic,
    /// Parquet files in a bucket, and the checkpoints, too.
    Bucket,
}

impl Windows {
    fn block(self) -> &'static str {
        match self {
            Self::Tumbling => "{tumbling: {size: 10s}}",
            Self::Hopping => "{hopping: {size: 10s, slide: 5s}}",
            Self::Session => "{session: {gap: 5s}}",
        }
    }
}

enum Beside {
    Topic(Topic, Follower),
    Bucket(Onlooker),
}

/// A job with its input written.
pub struct Job {
    /// Its windows.
    pub windows: Windows,
    /// Its folder.
    pub workspace: Workspace,
    beside: Beside,
}

impl Job {
    /// Writes the input and the document, and begins to read beside.
    pub(super) async fn new(
        broker: &Broker,
        windows: Windows,
        output: Output,
        rows_n: u32,
        seed: u64,
    ) -> Self {
        let from = broker.topic("kills-in", PARTITIONS_N, &[]).await;
        let input = write_input(&from, rows_n, seed);
        let goal = match output {
            Output::Topic => Goal::topic(broker).await,
            Output::Bucket => Goal::bucket(seed.is_multiple_of(2)).await,
        };
        let document = document(broker.servers(), &from.name, windows, &goal);
        goal.workspace.write("job.yaml", document);
        goal.workspace.write("input.ndjson", input);
        Self {
            windows,
            workspace: goal.workspace,
            beside: goal.beside,
        }
    }

    /// Whether somebody's transaction was open in the output when asked.
    pub fn has_open_transaction(&self) -> bool {
        match &self.beside {
            Beside::Topic(topic, _) => topic.has_open_transaction(),
            Beside::Bucket(_) => false,
        }
    }

    /// Compares what is visible at the end with what the readers beside saw, and with DuckDB.
    pub(super) async fn end(self) -> Vec<String> {
        let out = self.workspace.path("result");
        std::fs::create_dir(&out).expect("a folder can be made");
        let mut complaints = Vec::new();
        match self.beside {
            Beside::Topic(topic, follower) => {
                let last = topic.committed();
                let seen = follower.stop();
                if !seen.is_continued_by(&last) || seen.is_empty() {
                    complaints.push("O2: a reader beside saw what is not in the result".to_owned());
                }
                let mut text = String::new();
                for record in last.0 {
                    let value = record.value.as_deref().unwrap_or("null");
                    writeln!(text, "{value}").expect("a text takes more text");
                }
                std::fs::write(out.join("rows.ndjson"), text).expect("a file can be written");
            }
            Beside::Bucket(onlooker) => {
                let (files, found) = onlooker.stop().await;
                complaints.extend(found);
                for (n, bytes) in files.into_values().enumerate() {
                    let file = out.join(format!("{n}.parquet"));
                    std::fs::write(file, bytes).expect("a file can be written");
                }
            }
        }
        complaints.extend(differences(
            self.windows,
            &self.workspace.path("input.ndjson"),
            &out,
        ));
        complaints
    }
}

/// Where a job writes, as its document says it, and who reads there.
struct Goal {
    sink: String,
    storage: String,
    workspace: Workspace,
    beside: Beside,
}

impl Goal {
    async fn topic(broker: &Broker) -> Self {
        let to = broker.topic("kills-out", 3, &[]).await;
        let (servers, name) = (broker.servers(), &to.name);
        let sink = format!(
            "kafka: {{bootstrapServers: \"{servers}\", topic: \"{name}\", key: [k]}}\n    \
             format: {{json: {{}}}}"
        );
        let follower = to.follow();
        Self {
            sink,
            storage: String::new(),
            workspace: Workspace::new(""),
            beside: Beside::Topic(to, follower),
        }
    }

    /// Files are one for each checkpoint, or stay open over several.
    async fn bucket(rolls_over: bool) -> Self {
        let rollover = if rolls_over {
            ", rollover: {size: 64Ki, every: 1s}"
        } else {
            ""
        };
        let bucket = Bucket::up();
        let s3 = bucket.settings();
        let base = bucket.folder(&crate::fresh_name("kills"));
        let workspace = Workspace::new("").at(&["--secrets", "secrets"]);
        bucket.hand_keys_to(&workspace);
        let (out, secrets) = (format!("{base}/out"), workspace.path("secrets"));
        let onlooker = Onlooker::start(&bucket, &out, &secrets).await;
        Self {
            sink: format!(
                "file: {{path: \"{out}/\", s3: {s3}{rollover}}}\n    format: {{parquet: {{}}}}"
            ),
            storage: format!(", storage: {{uri: \"{base}/store\", s3: {s3}}}"),
            workspace,
            beside: Beside::Bucket(onlooker),
        }
    }
}

fn document(servers: &str, topic: &str, windows: Windows, goal: &Goal) -> String {
    let (window, sink, storage) = (windows.block(), &goal.sink, &goal.storage);
    format!(
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: kills}}
spec:
  sources:
  - name: rows
    kafka: {{bootstrapServers: "{servers}", topics: ["{topic}"], endAt: Latest}}
    format: {{json: {{}}}}
    schema:
    - {{name: k, type: TEXT}}
    - {{name: n, type: BIGINT}}
    - {{name: ts, type: TIMESTAMP, parse: EpochSeconds}}
    eventTime: {{column: ts}}
    rateLimit: {{rowsPerSecond: 10000}}
  transforms:
  - name: windows
    from: rows
    aggregate:
      groupBy: [k]
      window: {window}
      select: ["count(*) AS c", "sum(n) AS s"]
  - name: shown
    from: windows
    select:
    - k
    - "CAST(extract(epoch FROM window_start) AS BIGINT) AS t0"
    - "CAST(extract(epoch FROM window_end) AS BIGINT) AS t1"
    - c
    - "CAST(s AS BIGINT) AS s"
  sinks:
  - name: out
    from: shown
    {sink}
  checkpoint: {{interval: 150ms{storage}}}
  failureDetection: {{heartbeat: 100ms, timeout: 2s}}
  restart: {{maxFailures: 100, backoff: {{initial: 50ms, max: 1s}}}}
"#
    )
}

/// Rows whose time rises within each partition, so that none is late at any parallelism.
fn write_input(topic: &Topic, rows_n: u32, seed: u64) -> String {
    let mut random = Random::seeded(seed);
    let writer = topic.writer();
    let mut text = String::new();
    for n in 0..rows_n {
        let partition = i32::try_from(random.below(PARTITIONS_N as u64)).expect("they are few");
        let (key, ts) = (random.below(KEYS_N), n / ROWS_PER_SECOND);
        let row = format!(r#"{{"k":"k{key}","n":{},"ts":{ts}}}"#, random.below(1_000));
        writer.send(partition, None, Some(&row));
        writeln!(text, "{row}").expect("a text takes more text");
    }
    writer.drain();
    text
}

/// What DuckDB says about a result.
fn differences(windows: Windows, input: &Path, out: &Path) -> Option<String> {
    let cache = std::env::var_os("STREAMFORGE_CACHE").map_or_else(
        || {
            let home = std::env::var_os("HOME").expect("there is a home");
            PathBuf::from(home).join(".cache/streamforge")
        },
        PathBuf::from,
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("differences.py");
    let output = Command::new(cache.join("tools/bin/python"))
        .arg(script)
        .arg(format!("{windows:?}").to_lowercase())
        .args([input, out])
        .output()
        .expect("scripts/setup tests has put Python and DuckDB there");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then(|| format!("DuckDB: {said}{trouble}"))
}
