//! Tests of [`KafkaPublisher`] that need no broker.

use streamforge_store::MemoryStore;

use super::*;

/// A publisher of an address where nobody answers.
fn publisher() -> KafkaPublisher {
    let config = serde_json::json!({ "bootstrapServers": "127.0.0.1:1", "topic": "t" });
    let spec = KafkaPublisherSpec {
        config: serde_json::from_value(config).unwrap(),
        secrets: None,
        job: JobId("j".to_owned()),
        sink: OperatorUid("out".to_owned()),
        generation: Generation::ZERO,
        epoch: Epoch::ZERO,
        accept_lost_marker: false,
        keeper: Keeper::default(),
    };
    KafkaPublisher::new(spec, Arc::new(MemoryStore::default()))
}

fn slot() -> SlotId {
    SlotId {
        sink: OperatorUid("out".to_owned()),
        slot: 0,
    }
}

#[tokio::test]
async fn publisher_of_an_attempt_that_is_over_asks_no_broker_and_fences_nobody() {
    let publisher = publisher();
    publisher.stop();
    let interval = StagedInterval {
        id: CheckpointId::ZERO,
        objects: Vec::new(),
    };

    let refused = publisher.publish(&slot(), &interval).await;

    assert!(
        matches!(refused, Err(Error::TakenOver { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn take_over_of_an_attempt_that_is_not_loaded_any_more_begins_nothing() {
    let publisher = publisher();
    let inner = Arc::clone(&publisher.inner);
    drop(publisher);

    assert!(inner.is_zombie());
}
