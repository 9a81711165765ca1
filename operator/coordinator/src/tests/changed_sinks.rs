//! Edits of a sink while output that it has committed is not visible.

use std::sync::Arc;

use serde_json::{Value, json};
use streamforge_core::job_graph::{Delivery, OperatorKind, SinkSpec};
use streamforge_core::manifest::CheckpointKind;

use super::rig::*;
use crate::*;

/// The job of most tests, with its one sink changed.
fn with_sink(change: impl FnOnce(&mut SinkSpec)) -> Config {
    let mut config = config();
    let graph = Arc::make_mut(&mut config.graph);
    let OperatorKind::Sink(spec) = &mut graph.stages[1].operators[1].kind else {
        unreachable!("the last operator is the sink");
    };
    change(spec);
    config
}

fn writes_to(kind: &str, block: Value) -> Config {
    with_sink(|spec| {
        spec.connector.kind = kind.to_owned();
        spec.connector.config = block;
    })
}

fn straight(kind: &str, block: Value) -> Config {
    with_sink(|spec| {
        spec.connector.kind = kind.to_owned();
        spec.connector.config = block;
        spec.delivery = Delivery::AtLeastOnce;
    })
}

fn without_sink() -> Config {
    let mut config = config();
    let graph = Arc::make_mut(&mut config.graph);
    graph.stages[1].operators.truncate(1);
    config
}

fn topic(name: &str) -> Value {
    json!({"topic": name, "bootstrapServers": "a:9092"})
}

fn rolling(path: &str) -> Value {
    json!({"path": path, "rollover": {"every": "1h"}})
}

/// What the next start with this document says, after a crash.
fn said(crashed: &Rig, edited: Config) -> String {
    let mut again = crashed.successor_with(edited);
    again.wait(1);
    again.failure().to_string()
}

fn check_goes_on(crashed: &Rig, edited: Config) {
    let mut again = crashed.successor_with(edited);
    again.wait(1);
    assert!(again.deployment().restore.is_some());
}

fn check_refused(crashed: &Rig, edited: Config, what: &str) {
    let said = said(crashed, edited);
    let sentence = format!(
        "the sink with uid \"out\" {what}; put it back for one start, stop the job, then change it"
    );
    assert!(said.contains(&sentence), "{sentence}\n{said}");
}

#[test]
fn sink_with_staged_output_may_not_begin_to_write_straight_through_x3() {
    let mut rig = Rig::run(writes_to("kafka", topic("t1")));
    rig.checkpoint_staging(2);

    let what = "would no longer publish, but output staged for it is not published yet";
    for edited in [
        straight("kafka", topic("t1")),
        straight("print", json!({})),
        straight("blackhole", json!({})),
    ] {
        check_refused(&rig, edited, what);
    }
    check_refused(
        &rig,
        without_sink(),
        "is gone, but output staged for it is not published yet",
    );
}

#[test]
fn sink_with_staged_output_may_not_publish_elsewhere_x3() {
    let mut rig = Rig::run(writes_to("kafka", topic("t1")));
    rig.checkpoint_staging(2);

    let but = "but output staged for topic \"t1\" is not published yet";
    let edited = writes_to("kafka", topic("t2"));
    check_refused(
        &rig,
        edited,
        &format!("would publish to topic \"t2\", {but}"),
    );
    let edited = writes_to("file", json!({"path": "out"}));
    check_refused(
        &rig,
        edited,
        &format!("would publish to folder \"out\", {but}"),
    );

    let mut rig = Rig::run(writes_to("file", json!({"path": "s3://a/b/"})));
    rig.checkpoint_staging(2);
    check_refused(
        &rig,
        writes_to("file", json!({"path": "s3://a/c"})),
        "would publish to \"s3://a/c\", but output staged for \"s3://a/b\" is not published yet",
    );
}

#[test]
fn sink_with_staged_output_may_change_in_what_publishes_nothing() {
    let mut rig = Rig::run(writes_to("kafka", topic("t1")));
    rig.checkpoint_staging(2);

    // Another broker of the same cluster: the topic's identity says whether it is.
    let moved = json!({"topic": "t1", "bootstrapServers": "b:9092", "key": ["x"]});
    check_goes_on(&rig, writes_to("kafka", moved));
}

#[test]
fn sink_without_staged_output_may_change() {
    let mut rig = Rig::run(writes_to("kafka", topic("t1")));
    rig.checkpoint();

    check_goes_on(&rig, writes_to("kafka", topic("t2")));
    check_goes_on(&rig, straight("kafka", topic("t1")));
    check_goes_on(&rig, without_sink());
}

#[test]
fn sink_that_leaves_files_open_may_not_leave_their_folder_after_a_crash_x6() {
    let mut rig = Rig::run(writes_to("file", rolling("o1")));
    rig.checkpoint();

    let but = "but the job did not stop by itself, and committed rows may lie in folder \"o1\" in files that \
               `rollover` keeps open";
    let elsewhere = writes_to("file", rolling("o2"));
    check_refused(
        &rig,
        elsewhere,
        &format!("would publish to folder \"o2\", {but}"),
    );
    let kafka = writes_to("kafka", topic("t1"));
    check_refused(
        &rig,
        kafka,
        &format!("would publish to topic \"t1\", {but}"),
    );
    let nowhere = straight("blackhole", json!({}));
    check_refused(&rig, nowhere, &format!("would no longer publish, {but}"));
    check_refused(&rig, without_sink(), &format!("is gone, {but}"));
    let mut renamed = writes_to("file", rolling("o1"));
    let graph = Arc::make_mut(&mut renamed.graph);
    graph.stages[1].operators[1].uid = uid("other");
    check_refused(&rig, renamed, &format!("is gone, {but}"));

    // Its first task manager completes what is open there.
    check_goes_on(&rig, writes_to("file", json!({"path": "./o1/"})));
}

#[test]
fn sink_whose_files_are_closed_may_leave_their_folder_x6() {
    let mut stopped = Rig::run(writes_to("file", rolling("o1")));
    stopped.checkpoint();
    stopped.feed(Input::Stop);
    stopped.wait(1);
    stopped.ack_all();
    assert_eq!(stopped.newest().kind, CheckpointKind::Stop);
    check_goes_on(&stopped, writes_to("file", rolling("o2")));
    check_goes_on(&stopped, without_sink());

    let unread = Rig::run(writes_to("file", rolling("o1")));
    assert_eq!(unread.newest().kind, CheckpointKind::Initial);
    check_goes_on(&unread, writes_to("file", rolling("o2")));

    let mut whole = Rig::run(writes_to("file", json!({"path": "o1"})));
    whole.checkpoint();
    check_goes_on(&whole, without_sink());
}
