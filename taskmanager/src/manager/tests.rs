use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, SubtaskIdx};
use streamforge_core::job_graph::{JobGraph, PLAN_FORMAT_VERSION};
use streamforge_core::key_group::Assignment;
use streamforge_core::messages::Place;
use streamforge_store::MemoryStore;

use super::*;
use crate::exchange::Config as ExchangeConfig;

pub(crate) fn task_manager(name: &str) -> TaskManagerId {
    let name = name.to_owned();
    TaskManagerId { name, nonce: 1 }
}

pub(crate) fn context(me: &str) -> Context {
    let exchange = Exchange::start(ExchangeConfig::default()).expect("a port is free");
    Context {
        me: task_manager(me),
        store: Arc::new(MemoryStore::new()),
        local: None,
        exchange: Some(Arc::new(exchange)),
        secrets: None,
        terms: Arc::default(),
        terminal: Some(false),
        kafka: Keeper::default(),
        metrics: Metrics::default(),
        sight: Arc::default(),
    }
}

pub(crate) fn stamp() -> Stamp {
    Stamp {
        job: JobId("job".to_owned()),
        generation: Generation::from_stored(1),
        epoch: Epoch::from_stored(1),
    }
}

/// Of a job without a stage, on these task managers.
pub(crate) fn hand_over(places: &[(u32, &str)], joining: &[u32], leaving: &[u32]) -> HandOver {
    let place = |(subtask, name): &(u32, &str)| {
        let place = Place {
            task_manager: task_manager(name),
            exchange: String::new(),
        };
        (SubtaskIdx(*subtask), place)
    };
    let subtasks =
        |all: &[u32]| -> BTreeSet<SubtaskIdx> { all.iter().copied().map(SubtaskIdx).collect() };
    HandOver {
        deployment: Deployment {
            graph: JobGraph {
                format_version: PLAN_FORMAT_VERSION,
                name: "job".to_owned(),
                max_parallelism: 4,
                bounded: true,
                stages: Vec::new(),
                edges: Vec::new(),
            },
            parallelism: u32::try_from(places.len()).expect("few"),
            assignment: Assignment::even(4, 1),
            restore: None,
            first_id: CheckpointId::from_stored(1),
            placement: places.iter().map(place).collect(),
            born: Generation::ZERO,
            slots: BTreeMap::new(),
        },
        joining: subtasks(joining),
        leaving: subtasks(leaving),
        splits: BTreeMap::new(),
    }
}

/// Its attempt would have a table that never holds, and keep the next coordinator from adopting.
#[tokio::test]
async fn hand_over_that_is_withdrawn_while_a_joiner_opens_it_leaves_no_attempt_k3_f1() {
    let (events, mut said) = mpsc::channel(8);
    let mut manager = Manager::new(context("b"), events);
    let joins = hand_over(&[(0, "a"), (1, "b")], &[1], &[]);

    manager.on_command(&stamp(), Command::Prepare(Box::new(joins.clone())));
    manager.on_command(&stamp(), Command::Withdraw);
    let opened = manager.opened.recv().await.expect("it opened");
    assert!(opened.2.is_ok(), "nothing was in its way");
    manager.on_opened(opened).await;

    assert!(manager.attempt.is_none());
    assert!(said.try_recv().is_err(), "nobody waits for an answer");
    // The next one opens as if nothing had been.
    manager.on_command(&stamp(), Command::Prepare(Box::new(joins)));
    let opened = manager.opened.recv().await.expect("it opened");
    manager.on_opened(opened).await;
    assert!(manager.attempt.is_some());
    let (_, event) = said.recv().await.expect("it lives");
    assert_eq!(event, Event::HandOverPrepared);
}
