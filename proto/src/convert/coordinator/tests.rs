//! Every message there and back; what must be refused.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::SplitId;
use streamforge_core::job_graph::{JobGraph, PLAN_FORMAT_VERSION};
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{CheckpointKind, Counters, SplitProgress, SplitState};
use streamforge_core::messages::{Deployment, HandOver, Place, Progress, TaskSnapshot};

use super::*;

fn stamp() -> Stamp {
    Stamp {
        job: JobId("job-1".to_owned()),
        generation: Generation::from_stored(3),
        epoch: Epoch::from_stored(u64::MAX),
    }
}

fn task_id() -> TaskId {
    TaskId {
        stage: StageIdx(1),
        subtask: SubtaskIdx(2),
    }
}

fn slot_id() -> SlotId {
    SlotId {
        sink: OperatorUid("out".to_owned()),
        slot: 7,
    }
}

fn task_manager(name: &str) -> TaskManagerId {
    TaskManagerId {
        name: name.to_owned(),
        nonce: u64::MAX,
    }
}

fn splits() -> Vec<SplitState> {
    vec![SplitState {
        split: SplitId("a".to_owned()),
        progress: SplitProgress::At("5".to_owned()),
        watermark: Watermark(i64::MIN),
        description: "{}".to_owned(),
        weight: u64::MAX,
    }]
}

fn deployment() -> Deployment {
    let place = |name: &str| Place {
        task_manager: task_manager(name),
        exchange: "127.0.0.1:7".to_owned(),
    };
    Deployment {
        graph: JobGraph {
            format_version: PLAN_FORMAT_VERSION,
            name: "job".to_owned(),
            max_parallelism: 4,
            bounded: true,
            stages: Vec::new(),
            edges: Vec::new(),
        },
        parallelism: 2,
        assignment: Assignment::even(4, 2),
        restore: None,
        first_id: id(9),
        placement: BTreeMap::from([(SubtaskIdx(0), place("a")), (SubtaskIdx(1), place("b"))]),
        born: Generation::from_stored(3),
        slots: BTreeMap::from([(0, task_manager("a"))]),
    }
}

fn hand_over() -> HandOver {
    let split = SplitId("s".to_owned());
    HandOver {
        deployment: deployment(),
        joining: BTreeSet::from([SubtaskIdx(1)]),
        leaving: BTreeSet::from([SubtaskIdx(2)]),
        splits: BTreeMap::from([(source(), BTreeMap::from([(split, SubtaskIdx(1))]))]),
    }
}

fn source() -> OperatorUid {
    OperatorUid("in".to_owned())
}

fn staged() -> StagedInterval {
    StagedInterval {
        id: id(4),
        objects: Vec::new(),
    }
}

#[test]
fn every_command_arrives_as_it_was_sent() {
    let by_subtask = BTreeMap::from([(SubtaskIdx(1), splits())]);
    let commands = [
        Command::Deploy(Box::new(deployment())),
        Command::Adopt { void_to: id(8) },
        Command::Start {
            splits: BTreeMap::from([(source(), by_subtask)]),
        },
        Command::Checkpoint {
            id: id(5),
            kind: CheckpointKind::Stop,
        },
        Command::Abort { id: id(5) },
        Command::Publish {
            manifest: id(6),
            slots: vec![(slot_id(), staged())],
        },
        Command::Prepare(Box::new(hand_over())),
        Command::Withdraw,
        Command::Committed { id: id(5) },
        Command::Cancel,
    ];

    for command in commands {
        let there = to_command(stamp(), command.clone());
        assert_eq!(from_command(there), Ok((stamp(), command)));
    }
}

#[test]
fn every_event_arrives_as_it_was_sent() {
    let counters = BTreeMap::from([(source(), Counters::default())]);
    let snapshot = TaskSnapshot {
        task: task_id(),
        id: id(5),
        splits: BTreeMap::from([(source(), splits())]),
        operators: BTreeMap::from([(source(), (Watermark(1), Vec::new()))]),
        staged: vec![(slot_id(), staged())],
        counters: counters.clone(),
        late_log: Vec::new(),
        freeze_us: 1,
        bytes: 2,
    };
    let progress = Progress {
        counters,
        ..Progress::default()
    };
    let (slot, interval, reason) = (slot_id(), id(4), "why".to_owned());
    let events = [
        Event::Prepared {
            splits: BTreeMap::from([(source(), splits())]),
        },
        Event::Ack(Box::new(snapshot)),
        Event::Declined {
            task: task_id(),
            id: id(5),
            reason: reason.clone(),
        },
        Event::Published {
            slot: slot.clone(),
            interval,
        },
        Event::PublishFailed {
            slot,
            interval,
            reason: reason.clone(),
        },
        Event::TakenOver {
            reason: reason.clone(),
        },
        Event::Ended { task: task_id() },
        Event::Failed {
            task: None,
            cause: reason,
            retry: true,
        },
        Event::ChannelBroke {
            sender: SubtaskIdx(1),
            receiver: SubtaskIdx(2),
            cause: "reset".to_owned(),
        },
        Event::HandOverPrepared,
        Event::HandOverRefused {
            reason: "no way there".to_owned(),
        },
        Event::Received {
            task: task_id(),
            id: id(6),
        },
        Event::Progress(Box::new(progress)),
    ];

    for event in events {
        let there = to_event(stamp(), event.clone());
        assert_eq!(from_event(there), Ok((stamp(), event)));
    }
}

#[test]
fn registration_with_a_running_attempt_arrives_as_it_was_sent() {
    for runs in [true, false] {
        let running = RunningAttempt {
            stamp: stamp(),
            deployment: deployment(),
            started: true,
            ended: vec![task_id()],
            failed: Some("boom".to_owned()),
            prepared: Some(Box::new(hand_over())),
        };
        let registration = Registration {
            slots: 3,
            exchange: "127.0.0.1:9".to_owned(),
            runs: runs.then(|| Box::new(running)),
        };

        let there = to_register(task_manager("a"), registration.clone());

        assert_eq!(from_register(there), Ok((task_manager("a"), registration)));
    }
}

#[test]
fn message_without_a_stamp_or_a_meaning_is_refused_c5() {
    let mut command = to_command(stamp(), Command::Cancel);
    command.stamp = None;
    let mut event = to_event(stamp(), Event::Ended { task: task_id() });
    event.what = None;

    assert!(matches!(
        from_command(command),
        Err(Error::Missing { field: "stamp", .. })
    ));
    assert!(matches!(
        from_event(event),
        Err(Error::Missing { field: "what", .. })
    ));
}

#[test]
fn payload_of_a_newer_format_is_refused_and_not_guessed_at_c8() {
    let mut command = to_command(stamp(), Command::Deploy(Box::new(deployment())));
    let Some(CommandWhat::Deploy(deploy)) = &mut command.what else {
        panic!("a deploy");
    };
    deploy.deployment.as_mut().expect("there is one").format = PAYLOAD_FORMAT + 1;

    assert_eq!(
        from_command(command),
        Err(Error::Unknown {
            message: "deploy",
            field: "format",
            value: 2
        })
    );
}

#[test]
fn both_ends_agree_on_the_highest_version_that_both_speak() {
    assert_eq!(agree(2, 2), Some(2));
    assert_eq!(agree(1, 9), Some(PROTOCOL_MAX));
    assert_eq!(agree(PROTOCOL_MAX + 1, 9), None);
    assert_eq!(agree(1, 1), None);
    assert_eq!(agree(0, 0), None);
    let refusal = NoCommonVersion {
        theirs_min: 2,
        theirs_max: 9,
    };
    assert!(refusal.to_string().contains("2 to 9"), "{refusal}");
}
