//! Histories of a job on several task managers, played one by one.
//!
//! Each is forced, then the job runs to its end and everything published is compared with a batch. The
//! invariants of every swap of the head, of sessions and of publishing are checked on the way.

use std::collections::BTreeSet;

use streamforge_coordinator::{Error, Outcome};
use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::CheckpointKind;
use streamforge_sim::input::Input;
use streamforge_sim::job::shape;
use streamforge_sim::world::World;

/// A long job on task managers with so many slots each, of which nothing is started yet.
fn quiet(seed: u64, name: &str, slots: &[u32]) -> (World<'static>, Vec<u64>) {
    let shape = shape(name);
    let mut world = World::quiet(seed, shape, Some(Input::long(&shape.0, seed)));
    let task_managers = world.start_fleet(slots);
    (world, task_managers)
}

fn newest(world: &World<'_>) -> CheckpointId {
    let newest = world.watch.newest.as_ref();
    newest.map(|manifest| manifest.id).unwrap_or_default()
}

fn epoch(world: &World<'_>) -> u64 {
    world.watch.head.as_ref().map_or(0, |head| head.epoch.get())
}

fn kind(world: &World<'_>) -> Option<CheckpointKind> {
    world.watch.newest.as_ref().map(|manifest| manifest.kind)
}

fn is_kind(kind_wanted: CheckpointKind) -> impl Fn(&World<'_>) -> bool {
    move |world| kind(world) == Some(kind_wanted)
}

/// Rows flow and an ordinary checkpoint is committed.
fn running(world: &mut World<'_>, parallelism: u32) -> u64 {
    let coordinator = world.start_alone(parallelism);
    world.until("an ordinary checkpoint", is_kind(CheckpointKind::Ordinary));
    coordinator
}

fn until_committed(world: &mut World<'_>) {
    let before = newest(world);
    world.until("another checkpoint", |world| {
        world.is_done() || newest(world) > before
    });
}

fn reports(world: &World<'_>, coordinator: u64) -> streamforge_sim::process::Reports {
    let found = world.processes.iter().find(|it| it.id == coordinator);
    found.expect("it is there").reports
}

/// How far the hand-over of this coordinator is, in the words of its status.
fn step(world: &World<'_>, coordinator: u64) -> Option<String> {
    let found = world.processes.iter().find(|it| it.id == coordinator)?;
    found.co.status().hand_over
}

#[test]
fn successor_of_a_dead_coordinator_adopts_and_no_task_restarts_f1() {
    for seed in 0..5 {
        let (mut world, _) = quiet(seed, "tumbling", &[1, 1, 2]);
        let first = running(&mut world, 3);
        let before = epoch(&world);

        world.kill_coordinator(first);
        let second = world.start_alone(3);
        world.until("the adoption", |world| {
            reports(world, second).adopted_n == 1
        });
        until_committed(&mut world);

        assert_eq!(epoch(&world), before, "seed {seed}: the epoch goes on");
        world.finish_quietly();
    }
}

/// Attack 26: some sources got the barrier, then the coordinator dies.
#[test]
fn barrier_of_a_dead_coordinator_blocks_nobody_for_ever_a2_f1() {
    for seed in 0..5 {
        let (mut world, task_managers) = quiet(seed, "union", &[1, 1]);
        let first = running(&mut world, 2);
        if !world.drop_a_barrier(task_managers[0]) {
            continue; // all input was read before
        }
        let before = epoch(&world);
        world.kill_coordinator(first);
        let second = world.start_alone(2);
        world.until("the adoption", |world| {
            reports(world, second).adopted_n == 1
        });
        until_committed(&mut world);

        assert_eq!(epoch(&world), before, "seed {seed}: the epoch goes on");
        world.finish_quietly();
    }
}

/// C2: the manifest is written, and no head names it.
#[test]
fn manifest_that_its_coordinator_could_not_name_never_counts_c2_f1() {
    for seed in 0..5 {
        let (mut world, _) = quiet(seed, "hopping", &[1, 1]);
        let first = running(&mut world, 2);
        world.until("a swap that would name a manifest", |world| {
            let found = world.processes.iter().find(|it| it.id == first);
            found.is_some_and(|it| it.puts("head") && it.co.status().checkpoint.in_flight.is_none())
        });
        let named = newest(&world);
        world.kill_coordinator(first);
        let second = world.start_alone(2);
        world.until("the adoption", |world| {
            reports(world, second).adopted_n == 1
        });
        assert_eq!(newest(&world), named);
        world.finish_quietly();
    }
}

/// Attack 8: the head names it, and nobody was told.
#[test]
fn commit_without_a_notice_is_published_by_the_adopter_c3_f1() {
    for seed in 0..5 {
        let (mut world, _) = quiet(seed, "tumbling", &[1, 2]);
        let first = running(&mut world, 3);
        let listed = |world: &World<'_>| {
            let newest = world.watch.newest.as_ref();
            newest.is_some_and(|it| !it.staged.is_empty())
        };
        world.until("a commit with output", listed);
        world.kill_coordinator(first);
        world.start_alone(3);
        world.finish_quietly();
    }
}

#[test]
fn returning_task_manager_gets_groups_back_and_nothing_restarts_k3() {
    for seed in 0..5 {
        let (mut world, task_managers) = quiet(seed, "hopping", &[1, 1, 1]);
        let coordinator = running(&mut world, 3);
        world.lose_task_manager(task_managers[1]);
        let lost = epoch(&world);
        world.until("the next epoch", |world| epoch(world) > lost);
        until_committed(&mut world);
        let smaller = epoch(&world);
        assert_eq!(world.watch.head.as_ref().map(|it| it.parallelism), Some(2));

        world.start_named("tm-1".to_owned(), 1);
        world.until("the hand-over", |world| {
            world.is_done() || reports(world, coordinator).handed_over_n == 1
        });
        if !world.is_done() {
            assert_eq!(epoch(&world), smaller, "seed {seed}: the epoch goes on");
            assert_eq!(world.watch.head.as_ref().map(|it| it.parallelism), Some(3));
        }
        world.finish_quietly();
    }
}

#[test]
fn order_to_scale_is_a_hand_over_up_and_down_k3() {
    for (seed, from, to) in [(0, 1, 3), (1, 3, 1), (2, 2, 4), (3, 4, 2), (4, 1, 2)] {
        for name in ["session with lateness", "union", "window over window"] {
            let (mut world, _) = quiet(seed, name, &[2, 2]);
            let coordinator = running(&mut world, from);
            let before = epoch(&world);
            world.scale_to(coordinator, to);
            world.until("the hand-over", |world| {
                world.is_done() || reports(world, coordinator).handed_over_n == 1
            });
            if !world.is_done() {
                assert_eq!(epoch(&world), before, "{name}: the epoch goes on");
                assert_eq!(world.watch.head.as_ref().map(|it| it.parallelism), Some(to));
            }
            world.finish_quietly();
        }
    }
}

/// Whoever left in the first hears nothing of the second, and still has an attempt of an older table.
#[test]
fn successor_that_comes_after_two_hand_overs_adopts_too_f1_k3() {
    let mut adopted_n = 0;
    for seed in 0..5 {
        let (mut world, _) = quiet(seed, "hopping", &[1, 1, 1]);
        let first = running(&mut world, 3);
        for (n, to) in [(1, 2), (2, 1)] {
            world.scale_to(first, to);
            world.until("the hand-over", |world| {
                world.is_done() || reports(world, first).handed_over_n == n
            });
        }
        if !world.is_done() {
            let before = epoch(&world);
            world.kill_coordinator(first);
            let second = world.start_alone(3);
            world.until("the adoption", |world| {
                reports(world, second).adopted_n == 1 || epoch(world) > before
            });
            assert_eq!(epoch(&world), before, "seed {seed}: the epoch goes on");
            adopted_n += 1;
        }
        world.finish_quietly();
    }
    assert!(adopted_n > 0, "no job was long enough");
}

/// A task that leaves has acknowledged the barrier, and is slow to answer those who join it behind that:
/// they know how far its groups are only from it (T6).
#[test]
fn slow_task_that_leaves_keeps_nobody_waiting_k3_t6() {
    for seed in 0..20 {
        let (mut world, _) = quiet(seed, "tumbling", &[1, 1, 1]);
        let coordinator = running(&mut world, 3);
        world.scale_to(coordinator, 2);
        let has_left = |world: &World<'_>| {
            let all = world.task_managers.iter();
            all.filter(|it| it.has_left()).map(|it| it.id.nonce).next()
        };
        world.until("a subtask that left", |world| {
            world.is_done() || has_left(world).is_some()
        });
        let left = has_left(&world);
        let hold = |world: &mut World<'_>, holds: bool| {
            let mut all = world.task_managers.iter_mut();
            let found = all.find(|it| Some(it.id.nonce) == left);
            found.into_iter().for_each(|it| it.holds_tasks = holds);
        };
        hold(&mut world, true);
        for _ in 0..1_000 {
            world.step();
        }
        hold(&mut world, false);
        world.finish_quietly();
    }
}

/// Who dies.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Coordinator,
    TaskManager(usize),
    Everybody,
}

/// K3, attacks 22 to 24: whoever dies at whatever step, nothing is lost and nothing comes twice.
#[test]
fn hand_over_survives_a_death_at_each_of_its_steps_k3_attack_24() {
    let steps = ["proposed", "opening", "under way", "load"];
    let victims = [
        Victim::Coordinator,
        Victim::TaskManager(0),
        Victim::TaskManager(1),
        Victim::TaskManager(2),
        Victim::Everybody,
    ];
    let mut reached = BTreeSet::new();
    for (n, wanted) in steps.into_iter().enumerate() {
        for victim in victims {
            for (seed, to) in [(7, 3), (8, 1)] {
                let (mut world, task_managers) = quiet(seed + n as u64, "hopping", &[1, 1, 1]);
                let coordinator = running(&mut world, 2);
                world.scale_to(coordinator, to);
                world.until(wanted, |world| {
                    let is_there = |it: String| it.contains(wanted);
                    world.is_done() || step(world, coordinator).is_some_and(is_there)
                });
                if world.is_done() {
                    continue;
                }
                reached.insert(wanted);
                match victim {
                    Victim::Coordinator => world.kill_coordinator(coordinator),
                    Victim::TaskManager(idx) => world.kill_task_manager(task_managers[idx]),
                    Victim::Everybody => {
                        world.kill_coordinator(coordinator);
                        for task_manager in task_managers {
                            world.kill_task_manager(task_manager);
                        }
                    }
                }
                world.finish_quietly();
            }
        }
    }
    assert_eq!(reached.len(), steps.len(), "{reached:?}");
}

/// B2: a break is never healed.
#[test]
fn broken_channel_ends_the_epoch_and_frames_of_the_old_one_are_refused_b2() {
    for seed in 0..5 {
        let (mut world, _) = quiet(seed, "tumbling", &[1, 1]);
        running(&mut world, 2);
        let before = epoch(&world);
        world.until("a frame under way", |world| {
            world.is_done() || !world.is_net_quiet()
        });
        world.break_channel();
        world.until("the next epoch", |world| {
            world.is_done() || epoch(world) > before
        });
        world.finish_quietly();
    }
}

/// A long job whose output goes to a topic.
fn to_topic(seed: u64, slots: &[u32]) -> (World<'static>, Vec<u64>) {
    let shape = shape("tumbling");
    let mut world = World::quiet(seed, shape, Some(Input::long(&shape.0, seed)));
    world.publish_to_topic();
    let task_managers = world.start_fleet(slots);
    (world, task_managers)
}

/// X2: it wakes between its rows and its marker, after another took its slots over.
#[test]
fn frozen_publisher_that_wakes_after_it_was_replaced_commits_nothing_x2() {
    for seed in 0..10 {
        let (mut world, task_managers) = to_topic(seed, &[1, 1, 1]);
        running(&mut world, 2);
        let sends = |world: &World<'_>| {
            let mut all = world.task_managers.iter();
            all.find(|it| it.has_sent()).map(|it| it.id.nonce)
        };
        world.until("rows without their marker", |world| {
            world.is_done() || sends(world).is_some()
        });
        let Some(zombie) = sends(&world) else {
            continue;
        };
        assert!(task_managers.contains(&zombie));
        world.freeze_task_manager(zombie);
        let before = epoch(&world);
        world.until("the next epoch", |world| epoch(world) > before);
        until_committed(&mut world);

        world.wake_task_manager(zombie);
        world.finish_quietly();
    }
}

/// Attack 50: output is listed, nobody publishes for so long that the marker is forgotten.
#[test]
fn vanished_marker_with_listed_output_is_refused_loudly_x3() {
    for seed in 0..5 {
        let (mut world, task_managers) = to_topic(seed, &[1, 1]);
        world.hold_publishes(true);
        let first = running(&mut world, 2);
        world.until("a commit with output", |world| {
            let newest = world.watch.newest.as_ref();
            newest.is_some_and(|it| !it.staged.is_empty())
        });
        world.kill_coordinator(first);
        for task_manager in task_managers {
            world.kill_task_manager(task_manager);
        }
        world.forget_markers();
        let second = world.start_alone(2);
        world.until("its end", |world| !world.has_coordinator(second));

        let refused = |(id, outcome): &(u64, Outcome)| match outcome {
            Outcome::Failed(Error::Job { cause }) => *id == second && cause.contains("the marker"),
            _ => false,
        };
        assert!(world.outcomes.iter().any(refused), "seed {seed}");
        assert!(world.outside.rows(streamforge_sim::job::OUT).is_empty());
    }
}

/// It writes nothing while it waits, and holds the task managers that its successor waits for.
#[test]
fn replaced_coordinator_that_waits_for_publishes_lets_its_task_managers_go_c5() {
    for seed in 0..5 {
        let (mut world, _) = quiet(seed, "tumbling", &[1, 1]);
        let first = running(&mut world, 2);
        world.hold_publishes(true);
        world.until("the final checkpoint", is_kind(CheckpointKind::Final));
        world.start_alone(2);

        world.until("its end", |world| !world.has_coordinator(first));

        let fenced = |(id, outcome): &(u64, Outcome)| {
            *id == first && matches!(outcome, Outcome::Failed(Error::Fenced { .. }))
        };
        assert!(world.outcomes.iter().any(fenced), "seed {seed}");
        world.hold_publishes(false);
        world.finish_quietly();
    }
}
