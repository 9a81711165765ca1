//! An upgrade that is rolled back after its version has run for a while.

use std::collections::BTreeSet;
use std::sync::Arc;

use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::manifest::CheckpointKind;

use super::rig::*;
use super::saving::stop_with;
use crate::*;

/// A document that means something else and whose state is the same.
fn newer() -> Config {
    let mut newer = config();
    newer.document = "newer".into();
    let graph = Arc::make_mut(&mut newer.graph);
    graph.stages[1].operators[0].node = "renamed".to_owned();
    newer
}

/// A checkpoint with an interval of its own, which is published.
fn publish_one(rig: &mut Rig) -> CheckpointId {
    let mut staged = 0;
    let n = rig.checkpoint_with(|ack| {
        if ack.task == task(1, 0) {
            staged = ack.id.get();
            ack.staged.push((slot(0), interval(staged)));
        }
    });
    rig.published(0, staged);
    n
}

/// One that was stopped with a savepoint for an upgrade.
fn stopped() -> Rig {
    let mut rig = Rig::run(config());
    publish_one(&mut rig);
    stop_with(&mut rig, "upgrade-2-1");
    rig.ack_all();
    let stopped = matches!(rig.outcome, Some(Outcome::Stopped { .. }));
    assert!(stopped, "{:?}", rig.outcome);
    assert_eq!(rig.newest().kind, CheckpointKind::Stop);
    rig
}

/// To begin with the savepoint would publish the five intervals behind it again.
#[test]
fn rollback_after_five_published_intervals_goes_on_behind_them_attack_20() {
    let old = stopped();
    let saved = old.newest().id;
    let mut new = old.successor_with(newer());
    new.resume();
    let published: Vec<CheckpointId> = (0..5).map(|_| publish_one(&mut new)).collect();
    assert!(published[0] > saved);

    let mut back = new.successor_with(config());
    back.resume();

    let restored = back.deployment().restore.expect("there is state");
    assert_eq!(restored.id, published[4], "whoever wrote it");
    // That the last one is published is in no manifest: it is looked up, by its name.
    let again: BTreeSet<(u32, u64)> = back.notices().concat().into_iter().collect();
    assert_eq!(again, BTreeSet::from([(0, published[4].get())]));
    assert!(publish_one(&mut back) > published[4]);
}

#[test]
fn rollback_to_a_document_that_cannot_read_what_came_since_begins_nothing_attack_20() {
    let old = stopped();
    let saved = old.newest().id;
    let mut incompatible = newer();
    let window = OperatorKind::WindowFinal(aggregate(tumbling(20)));
    let graph = Arc::make_mut(&mut incompatible.graph);
    graph.stages[1].operators[0].kind = window;
    incompatible.drop_state = true;
    let mut new = old.successor_with(incompatible);
    new.resume();
    publish_one(&mut new);

    let mut back = new.successor_with(config());
    back.wait(1);

    let text = back.failure().to_string();
    assert!(text.contains("window of aggregate \"agg\""), "{text}");
    let newest = back.newest().id;
    assert!(newest > saved, "nothing was taken back");
    assert!(!back.sent_names().contains(&"deploy"));
}
