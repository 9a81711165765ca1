//! Which task manager a failure is laid to.

use streamforge_core::ids::SubtaskIdx;
use streamforge_core::messages::Event;

use super::members::{a, b, c, checkpoint, prepare, running};
use super::rig::*;

fn at_fault(rig: &Rig) -> (Option<String>, String) {
    let failure = rig.co.status().last_failure.expect("an attempt failed");
    (failure.task_manager, failure.reason)
}

#[test]
fn failure_names_the_task_manager_that_was_lost_or_whose_task_failed() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    rig.lose(&b());
    let session = "session broke".to_owned();
    assert_eq!(at_fault(&rig), (Some("b".to_owned()), session));
    prepare(&mut rig);

    let failed = Event::Failed {
        task: Some(task(0, 2)),
        cause: "boom".to_owned(),
        retry: true,
    };
    rig.say_as(&c(), rig.stamp(), failed);

    let boom = "task 0.2: boom".to_owned();
    assert_eq!(at_fault(&rig), (Some("c".to_owned()), boom));
}

#[test]
fn broken_channel_is_nobodys_fault_until_one_of_its_ends_turns_out_to_be_lost() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    let broke = Event::ChannelBroke {
        sender: SubtaskIdx(0),
        receiver: SubtaskIdx(1),
        cause: "reset".to_owned(),
    };
    rig.say_as(&a(), rig.stamp(), broke);
    let between = "between a and b: reset".to_owned();
    assert_eq!(at_fault(&rig), (None, between));

    rig.lose(&b());

    let session = "session broke".to_owned();
    assert_eq!(at_fault(&rig), (Some("b".to_owned()), session));
}
