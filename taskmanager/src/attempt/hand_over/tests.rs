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
