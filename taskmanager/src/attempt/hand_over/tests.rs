use async_trait::async_trait;
use streamforge_core::ids::{OperatorUid, StageIdx};
use streamforge_core::job_graph::{
    Edge, Exchange as ShuffleKind, Input, JobGraph, Operator, Port, Stage,
};
use streamforge_core::manifest::StagedInterval;
use streamforge_engine::error::Error as EngineError;
use streamforge_engine::sink::Publisher;

use super::*;
use crate::manager::tests::{context, hand_over, stamp};

fn broke(sender: u32, receiver: u32) -> Event {
    Event::ChannelBroke {
        sender: SubtaskIdx(sender),
        receiver: SubtaskIdx(receiver),
        cause: "reset".to_owned(),
    }
}

/// What is remembered of a break is what the next coordinator judges the attempt by (F1).
#[tokio::test]
async fn after_a_withdrawal_breaks_count_between_those_that_are_there_b2_f1() {
    let (events, _said) = mpsc::channel(8);
    let came_to_nothing = Arc::new(hand_over(&[(0, "a"), (1, "b"), (3, "c")], &[1], &[]));
    let joined = Attempt::join(&context("b"), stamp(), &came_to_nothing, events).await;
    let mut attempt = joined.expect("nothing is in its way");

    drop(attempt.open_hand_over(came_to_nothing));
    attempt.withdraw();
    attempt.outbox.note(&broke(0, 1));
    assert_eq!(attempt.running().failed, None, "subtask 1 never came");

    // Withdrawn before it was open here: the one that was to leave stays.
    let next = hand_over(&[(1, "b"), (2, "b"), (3, "c")], &[2], &[0]);
    drop(attempt.open_hand_over(Arc::new(next)));
    attempt.withdraw();
    attempt.outbox.note(&broke(2, 3));
    assert_eq!(attempt.running().failed, None, "nor did subtask 2");
    attempt.outbox.note(&broke(0, 3));
    assert_eq!(attempt.running().failed.as_deref(), Some("reset"));
}

/// A sink whose outside system is away.
struct Away;

#[async_trait]
impl Publisher for Away {
    async fn publish(&self, _: &SlotId, _: &StagedInterval) -> Result<(), EngineError> {
        Ok(())
    }

    async fn take_over(&self, _: &[SlotTakeOver]) -> Result<(), EngineError> {
        Err(EngineError::Restore {
            operator: "out".to_owned(),
            reason: "no answer".to_owned(),
        })
    }

    async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Two stages with a shuffle between them.
fn shuffled() -> JobGraph {
    let stage = |uid: &str, inputs: Vec<Input>| Stage {
        operators: vec![Operator {
            uid: OperatorUid(uid.to_owned()),
            node: uid.to_owned(),
            kind: OperatorKind::Union,
            inputs,
            output: Vec::new(),
            updating: false,
        }],
    };
    let shuffle = Edge {
        from_stage: StageIdx(0),
        from_operator: 0,
        port: Port::Main,
        to_stage: StageIdx(1),
        to_operator: 0,
        exchange: ShuffleKind::KeyGroup {
            columns: Vec::new(),
        },
    };
    JobGraph {
        stages: vec![stage("in", Vec::new()), stage("out", vec![Input::Edge(0)])],
        edges: vec![shuffle],
        ..hand_over(&[], &[], &[]).deployment.graph
    }
}

/// While a sink is away each try is refused, and there may be any number of them.
#[tokio::test]
async fn a_hand_over_that_is_refused_leaves_no_lanes_behind_b1() {
    let mut joins = hand_over(&[(0, "a"), (1, "a")], &[1], &[]);
    joins.deployment.graph = shuffled();
    let joins = Arc::new(joins);
    let id = |stage| TaskId {
        stage: StageIdx(stage),
        subtask: SubtaskIdx(0),
    };
    let receiver = Arc::new(Inbox::new(1));
    let (events, _said) = mpsc::channel(8);
    let away: Arc<dyn Publisher> = Arc::new(Away);
    let publishers = BTreeMap::from([(OperatorUid("out".to_owned()), away)]);

    for _ in 0..3 {
        let base = Base {
            context: context("a"),
            stamp: stamp(),
            inboxes: BTreeMap::from([
                (id(0), Arc::new(Inbox::new(0))),
                (id(1), Arc::clone(&receiver)),
            ]),
            exchange: None,
            publishing: Publishing::new(publishers.clone(), Arc::default(), events.clone()),
            events: events.clone(),
            clock: Clock::start(),
            budget: Arc::new(StateBudget::new(Arc::default())),
        };
        let refused = open(base, Arc::clone(&joins)).await.err();
        let said = refused.expect("its sink is away").to_string();
        assert!(said.contains("out"), "{said}");
    }
    assert_eq!(receiver.add_lanes(0), 1, "as many as there were");
}
