//! Histories of a job that reads topics, played one by one. The reader is the real one.
//!
//! Each is forced, then the job runs on until everything is read, has fired and is visible, and is compared
//! with a batch; or it must be refused, loudly. That a partition has one reader, and that no reader calls
//! one idle that has more, is checked at every step.

use streamforge_coordinator::{Error, Outcome};
use streamforge_core::ids::SplitId;
use streamforge_core::manifest::CheckpointKind;
use streamforge_sim::input::Input;
use streamforge_sim::job::{OUT, shape};
use streamforge_sim::kafka::Kafka;
use streamforge_sim::world::World;

/// A long job in order.
fn quiet(seed: u64, name: &str) -> World<'static> {
    let shape = shape(name);
    World::quiet(seed, shape, Some(Input::long(&shape.0, seed)))
}

fn kafka(world: &World<'_>) -> Kafka {
    world.kafka.clone().expect("the job reads topics")
}

/// One coordinator with a task manager of its own, and rows flowing.
fn running(world: &mut World<'_>, parallelism: u32) -> (u64, u64) {
    let task_manager = world.start_task_manager();
    let coordinator = world.start_coordinator(task_manager, parallelism);
    world.until("an ordinary checkpoint", |world| {
        let kind = world.watch.newest.as_ref().map(|manifest| manifest.kind);
        kind == Some(CheckpointKind::Ordinary)
    });
    (coordinator, task_manager)
}

/// The job ends, and says all of this.
fn until_refused(world: &mut World<'_>, coordinator: u64, words: &[&str]) {
    world.until("the end", |world| !world.has_coordinator(coordinator));
    let says = |(id, outcome): &(u64, Outcome)| match outcome {
        Outcome::Failed(Error::Job { cause }) => {
            *id == coordinator && words.iter().all(|word| cause.contains(word))
        }
        _ => false,
    };
    let outcomes = &world.outcomes;
    assert!(outcomes.iter().any(says), "{words:?}: {outcomes:?}");
}

/// Ends everything, lets something happen to the topics, and starts again; returns the coordinator.
fn restart_after(
    world: &mut World<'_>,
    (coordinator, task_manager): (u64, u64),
    what: fn(&Kafka),
) -> u64 {
    world.kill_coordinator(coordinator);
    world.lose_task_manager(task_manager);
    for _ in 0..500 {
        world.step();
    }
    what(&kafka(world));
    world.expect_failure();
    let task_manager = world.start_task_manager();
    world.start_coordinator(task_manager, 2)
}

#[test]
fn kf_k1_recreated_topic_is_refused_while_it_is_read() {
    for seed in 0..5 {
        let mut world = quiet(seed, "kafka");
        let (coordinator, _) = running(&mut world, 2);
        world.expect_failure();
        kafka(&world).recreate("a");
        until_refused(
            &mut world,
            coordinator,
            &["deleted and re-created", "a-1-again"],
        );
    }
}

#[test]
fn kf_k1_recreated_topic_is_refused_at_a_restart() {
    for seed in 0..5 {
        let mut world = quiet(seed, "kafka");
        let first = running(&mut world, 2);
        let second = restart_after(&mut world, first, |kafka| kafka.recreate("a"));
        until_refused(&mut world, second, &["deleted and re-created", "a-1-again"]);
    }
}

#[test]
fn kf_k2_offsets_that_were_deleted_before_they_were_read_are_refused() {
    for seed in 0..5 {
        let mut world = quiet(seed, "kafka");
        let first = running(&mut world, 2);
        let second = restart_after(&mut world, first, Kafka::delete_all);
        until_refused(&mut world, second, &["is gone", "the oldest one kept is"]);
    }
}

#[test]
fn kf_k1_partition_that_ends_before_its_offset_is_refused() {
    for seed in 0..5 {
        let mut world = quiet(seed, "kafka");
        let first = running(&mut world, 2);
        let second = restart_after(&mut world, first, Kafka::cut_all);
        until_refused(
            &mut world,
            second,
            &["does not exist", "the partition ends at"],
        );
    }
}

/// It is read, and no manifest knows it: whoever comes next finds it again and reads it from its begin.
#[test]
fn new_partition_that_died_with_its_reader_is_found_again() {
    let mut deaths_n = 0;
    for seed in 0..30 {
        let mut world = quiet(seed, "kafka");
        let task_manager = world.start_task_manager();
        world.start_coordinator(task_manager, 2);
        world.until("manifest 0", |world| world.watch.newest.is_some());
        let is_read_only = |world: &World<'_>, number: u32| {
            let split = SplitId(format!("a/{number}"));
            let newest = world.watch.newest.iter();
            let mut known = newest.flat_map(|it| it.sources.values().flatten());
            kafka(world).is_fetched(&split) && !known.any(|it| it.split == split)
        };
        world.until("a new partition that is read", |world| {
            world.is_over() || (0..2).any(|number| is_read_only(world, number))
        });
        if !world.is_over() {
            deaths_n += 1;
            world.kill_task_manager(task_manager);
        }
        world.finish_quietly();
    }
    assert!(deaths_n > 3, "{deaths_n} deaths in time");
}

/// Attack 33: the others go on without it, also where the last that it holds is no record.
#[test]
fn attack_33_silent_partition_does_not_hold_the_windows_of_others_t2() {
    for seed in 0..10 {
        let mut world = quiet(seed, "kafka, idle");
        kafka(&world).silence("a", 0, u64::MAX);
        running(&mut world, 2);
        world.until("windows of the others", |world| {
            world.outside.rows(OUT).len() > 50
        });
        kafka(&world).silence("a", 0, 0);
        world.finish_quietly();
    }
}

/// K3: partitions go to those that join and come back from those that leave; each has one reader.
#[test]
fn partitions_are_handed_over_and_read_by_one_k3_o4() {
    for seed in 0..10 {
        let shape = shape("kafka, idle union");
        let mut world = World::quiet(seed, shape, Some(Input::long(&shape.0, seed)));
        world.start_fleet(&[1, 1, 1]);
        let coordinator = world.start_alone(1);
        for (n, parallelism) in (1..).zip([3, 1, 2]) {
            world.until("an ordinary checkpoint", |world| {
                let newest = world.watch.newest.as_ref();
                newest.is_some_and(|it| it.kind == CheckpointKind::Ordinary)
            });
            world.scale_to(coordinator, parallelism);
            world.until("a hand-over", |world| {
                let mut processes = world.processes.iter();
                let found = processes.find(|it| it.id == coordinator);
                world.is_over() || found.is_some_and(|it| it.reports.handed_over_n == n)
            });
        }
        world.finish_quietly();
    }
}
