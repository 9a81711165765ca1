//! Savepoints of jobs from Kafka to Kafka: begun with in another store and topic, and gone back to in
//! the same ones.

use std::collections::BTreeMap;

use streamforge_e2e_kafka::windows::{Row, document, found, input, oracle, write};
use streamforge_e2e_kafka::{Broker, Records, Topic};
use streamforge_process::{Running, Workspace};

/// A job that takes orders.
const ORDERS: [&str; 2] = ["--task-managers", "2"];

const ROWS_N: i64 = 60_000;

struct Topics {
    broker: Broker,
    from: Topic,
    to: Topic,
    rows: Vec<Row>,
}

async fn topics(seed: u64) -> Topics {
    let broker = Broker::shared();
    let from = broker.topic("in", 4, &[]).await;
    let to = broker.topic("out", 3, &[]).await;
    let rows = input(ROWS_N, 4, seed);
    write(&from, &rows);
    Topics {
        broker,
        from,
        to,
        rows,
    }
}

fn wait_for_output(running: &mut Running, to: &Topic, n: usize) {
    let reader = to.follow();
    assert!(
        running.wait_until(|| reader.seen_n() > n),
        "{}",
        running.log()
    );
    reader.stop();
}

fn order(job: &Workspace, command: &str, arguments: &[&str]) {
    let output = job.output(command, arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
}

/// How often each value was seen.
fn times(records: &Records) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for value in records.values() {
        *times.entry(value).or_default() += 1;
    }
    times
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_begins_with_a_savepoint_writes_what_the_first_had_not_and_nothing_else_c9() {
    let Topics {
        broker,
        from,
        to,
        rows,
    } = topics(21).await;
    let job = Workspace::new(&document(&broker, &from, &to, ""));
    let mut running = job.start(&ORDERS);
    wait_for_output(&mut running, &to, 200);
    order(&job, "stop", &["--savepoint", "last"]);
    running.wait().check_code(3);
    let first = found(&to.committed());

    // The first job's store is gone, and so is what its slots said of themselves in the group.
    std::fs::rename(job.path("store/savepoints/last"), job.path("backup")).expect("it is there");
    std::fs::remove_dir_all(job.path("store")).expect("it is there");
    let other = broker.topic("other", 2, &[]).await;
    job.write("job.yaml", document(&broker, &from, &other, ""));
    let job = job.at(&["--store", "other"]);
    let more = ["--restore-from", "backup", "--parallelism", "3"];
    let mut running = job.start(&more);
    wait_for_output(&mut running, &other, 100);
    // It is killed once: the second start is a resume, not another begin.
    running.kill();
    job.run(&more).check_code(0);

    let second = found(&other.committed());
    let mut all = first.clone();
    all.extend(second.clone());
    assert_eq!(all, oracle(&rows));
    assert_eq!(first.len() + second.len(), all.len(), "nothing comes twice");
    assert_eq!(
        found(&to.committed()),
        first,
        "the first topic is left alone"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_published_after_a_savepoint_come_once_more_after_a_rewind_to_it_and_no_others_c7() {
    let Topics {
        broker,
        from,
        to,
        rows,
    } = topics(22).await;
    let job = Workspace::new(&document(&broker, &from, &to, ""));
    let mut running = job.start(&ORDERS);
    wait_for_output(&mut running, &to, 200);
    order(&job, "stop", &["--savepoint", "s"]);
    running.wait().check_code(3);
    let before = to.committed();
    job.run(&["--parallelism", "3"]).check_code(0);
    let whole = to.committed();
    assert_eq!(found(&whole), oracle(&rows));
    assert!(before.is_continued_by(&whole));
    let after: usize = whole.len() - before.len();
    assert!(after > 500, "{after}");

    let list = ["checkpoints", "list", "--store", "store", "-o", "json"];
    let listed = job.bare(&list).output().expect("the binary starts");
    let listed: Vec<serde_json::Value> =
        serde_json::from_slice(&listed.stdout).expect("a list in JSON");
    let savepoint = listed.iter().find(|it| it["savepoint"] == "s");
    let id = savepoint.expect("the savepoint is listed")["id"].to_string();
    let mut running = job.start(&["--rewind-to", &id]);
    let reader = to.follow();
    assert!(running.wait_until(|| reader.seen_n() > whole.len() + 100));
    reader.stop();
    running.kill();
    let ended = job.run(&[]);
    ended.check_code(0);

    let twice = to.committed();
    assert!(whole.is_continued_by(&twice), "what was there stays");
    let once: BTreeMap<String, usize> = times(&before);
    let expected: BTreeMap<String, usize> = times(&whole)
        .into_keys()
        .map(|value| {
            let n = if once.contains_key(&value) { 1 } else { 2 };
            (value, n)
        })
        .collect();
    assert_eq!(times(&twice), expected);
}
