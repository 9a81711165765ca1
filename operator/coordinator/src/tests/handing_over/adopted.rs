//! A coordinator that comes after hand-overs of which some task managers have not heard (F1).

use streamforge_core::messages::{Deployment, Event, Registration};

use super::super::rig::name;
use super::job::*;
use super::leaving::left_with_output;
use crate::*;

/// What a task manager would register with that was given this.
fn runs(job: &Job, deployment: &Deployment) -> Registration {
    let mut registration = job.runs(false);
    if let Some(runs) = &mut registration.runs {
        runs.deployment = deployment.clone();
    }
    registration
}

#[test]
fn task_manager_that_was_to_join_and_did_not_keeps_nobody_from_adopting_f1() {
    let mut job = growing();
    let running = job.rig.deployment();
    let reason = "no way to c".to_owned();
    job.say(&a(), Event::HandOverRefused { reason });
    assert_eq!(job.rig.head().proposed, None);
    let epoch = job.rig.head().epoch;

    for failed in [None, Some("its channels broke".to_owned())] {
        let mut new = job.successor();
        new.wait(1);
        let mut of_c = job.runs(false);
        if let Some(runs) = &mut of_c.runs {
            runs.failed = failed;
        }
        register(&mut new, &c(), of_c);
        assert!(new.sent.is_empty(), "who runs it is still to come");
        register(&mut new, &a(), runs(&job, &running));
        register(&mut new, &b(), runs(&job, &running));

        assert_eq!(new.sent_names()[..2], ["adopt", "adopt"]);
        assert_eq!(new.head().epoch, epoch);
    }
}

/// a waits at every barrier for channels that nobody will open, until it hears that: its session broke
/// before, and the coordinator died right after the head had taken the table back.
#[test]
fn hand_over_that_was_withdrawn_is_withdrawn_once_more_by_who_adopts_k3_f1() {
    let mut job = growing();
    let running = job.rig.deployment();
    let reason = "no way to a".to_owned();
    job.say(&c(), Event::HandOverRefused { reason });
    assert_eq!(job.rig.head().proposed, None);

    let mut new = job.successor();
    new.wait(1);
    register(&mut new, &a(), job.runs(true));
    register(&mut new, &b(), runs(&job, &running));

    assert_eq!(new.sent_names()[..2], ["adopt", "adopt"]);
    let sent = new.sent.iter().zip(&new.sent_to);
    let to_a = sent.filter(|(_, to)| **to == a());
    let to_a: Vec<&str> = to_a.map(|((_, command), _)| name(command)).collect();
    assert!(to_a.contains(&"withdraw"), "{to_a:?}");
}

/// b left with output, and has heard nothing of the hand-over after that.
#[test]
fn task_manager_that_left_is_adopted_with_the_table_it_knew_and_publishes_f1_x4() {
    let (mut job, n) = left_with_output();
    let stale = job.plan().deployment;
    job.rig.feed(Input::Leaving(b()));
    job.rig.register(&c(), 1);
    job.rig.feed(Input::Scale(2));
    job.hand_over();
    assert_eq!(job.owners().len(), 4);
    assert!(job.places.values().any(|it| *it == c()), "{:?}", job.places);
    assert!(!job.rig.listed().is_empty());
    let (epoch, now) = (job.rig.head().epoch, job.plan().deployment);
    assert_ne!(stale.assignment, now.assignment);

    let mut new = job.successor();
    new.wait(1);
    register(&mut new, &a(), runs(&job, &now));
    register(&mut new, &c(), runs(&job, &now));
    assert!(new.sent.is_empty(), "who publishes it is needed");
    register(&mut new, &b(), runs(&job, &stale));

    assert_eq!(new.sent_names()[..3], ["adopt"; 3]);
    assert_eq!(new.head().epoch, epoch);
    assert_eq!(new.notices(), [vec![(1, n.get())]]);
}
