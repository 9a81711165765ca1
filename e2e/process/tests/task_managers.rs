//! The same job on several task-manager processes over real sockets: killed one by one, with the
//! coordinator, and all together, its result is that of a batch.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use streamforge_process::{Published, Random, Running, Workspace, free_address};

const CLICKS: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 3
  sources:
    - name: clicks
      generator: {clicks: {rows: 400000, users: 500, skew: 1.1, outOfOrderness: 3s, lateFraction: 0.01, badFraction: 0.001, seed: 7}}
      eventTime: {column: ts, maxOutOfOrderness: 3s}
      rateLimit: {rowsPerSecond: 100000}
  transforms:
    - {name: valid, from: clicks, filter: "amount > 0"}
    - name: per_user
      from: valid
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: 1s}}
        select: ["count(*) AS clicks", "sum(amount) AS spend", "count(DISTINCT page) AS pages"]
  sinks:
    - {name: results, from: per_user, file: {path: out/per_user/}, format: {json: {}}}
    - {name: late, from: per_user.late, file: {path: out/late/}, format: {json: {}}}
    - {name: bad, from: clicks.bad, file: {path: out/bad/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
  restart: {window: 30s}
"#;

/// As fast as it can.
const UNLIMITED: [&str; 2] = ["--set", "spec.sources[0].rateLimit.rowsPerSecond=100000000"];

/// Kills of task managers in one run.
const KILLS: u64 = 12;

/// Result files published so far.
fn results_n(workspace: &Workspace) -> usize {
    Published::read(&workspace.path("out/per_user")).files_n()
}

fn kill(pid: Pid) {
    // A process that has just ended is as good as killed.
    let _gone = kill_process(pid, Signal::KILL);
}

/// Waits until more results are visible than now: the job makes progress.
fn wait_for_progress(running: &mut Running, workspace: &Workspace) -> bool {
    let before = results_n(workspace);
    running.wait_until(|| results_n(workspace) > before)
}

#[test]
fn three_task_managers_give_the_result_of_a_batch() {
    let workspace = Workspace::new(CLICKS);

    let mut arguments = vec!["--task-managers", "3"];
    arguments.extend(UNLIMITED);
    workspace.run(&arguments).check_code(0);

    workspace.verify();
    workspace.published().check_whole();
    assert!(results_n(&workspace) > 0);
}

#[test]
fn result_survives_kills_of_task_managers_at_any_moment() {
    let mut random = Random::from_environment();
    let workspace = Workspace::new(CLICKS);
    let mut running = workspace.start(&["--task-managers", "3"]);
    let mut kills_n = 0;
    let mut seen = Published::default();
    while kills_n < KILLS {
        running.let_run(Duration::from_millis(50 + random.below(900)));
        if running.has_ended() {
            break;
        }
        let task_managers = running.children();
        // Now and then all of them.
        let all = random.below(4) == 0;
        let one = random.below(task_managers.len() as u64) as usize;
        for (idx, pid) in task_managers.into_iter().enumerate() {
            if all || idx == one {
                kill(pid);
                kills_n += 1;
            }
        }
        let now = workspace.published();
        now.check_whole();
        now.check_keeps(&seen);
        seen = now;
    }

    running.wait().check_code(0);
    println!("{kills_n} kills");
    workspace.verify();
    workspace.published().check_keeps(&seen);
}

#[test]
fn process_that_started_them_takes_its_task_managers_along() {
    let workspace = Workspace::new(CLICKS);
    let mut running = workspace.start(&["--task-managers", "2"]);
    assert!(wait_for_progress(&mut running, &workspace));
    let task_managers = running.children();
    assert_eq!(task_managers.len(), 2);

    running.kill();

    let alive = |pid: &Pid| {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        status.is_ok_and(|status| !status.contains(") Z "))
    };
    let mut again = workspace.start(&["--task-managers", "3", UNLIMITED[0], UNLIMITED[1]]);
    assert!(again.wait_until(|| !task_managers.iter().any(alive)));
    again.wait().check_code(0);
    workspace.verify();
}

/// Processes that work in this folder.
fn processes_in(folder: &std::path::Path) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("this is Linux").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let works_there = |pid: &u32| {
        let at = std::fs::read_link(format!("/proc/{pid}/cwd"));
        at.is_ok_and(|at| at == folder)
    };
    numbers.filter(works_there).collect()
}

/// Killed before a task manager has asked the system to end with its parent: nobody tells it later.
#[test]
fn process_killed_in_its_first_moments_leaves_no_task_manager_behind() {
    let workspace = Workspace::new(CLICKS);
    let folder = workspace.path("").canonicalize().expect("it is there");
    for round in 0..20 {
        let mut running = workspace.start(&["--task-managers", "3"]);
        assert!(running.wait_until(|| processes_in(&folder).len() > 1));
        running.let_run(Duration::from_millis(round));
        running.kill();

        let begun = std::time::Instant::now();
        while !processes_in(&folder).is_empty() {
            let left = processes_in(&folder);
            let waited = begun.elapsed();
            assert!(
                waited < Duration::from_secs(10),
                "round {round}: {left:?} live on"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn stop_takes_a_checkpoint_and_the_next_run_goes_on_in_one_process() {
    let workspace = Workspace::new(CLICKS);
    let mut running = workspace.start(&["--task-managers", "3"]);
    assert!(wait_for_progress(&mut running, &workspace));

    running.signal(Signal::TERM);
    running.wait().check_code(3);
    let asked = workspace.output("status", &[]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("the job was stopped"), "{said}");
    workspace.run(&UNLIMITED).check_code(0);

    workspace.verify();
}

#[test]
fn killed_coordinator_is_followed_by_one_that_adopts_the_running_tasks_f1() {
    let workspace = Workspace::new(CLICKS);
    let address = free_address();
    let listen = ["--listen", &address.to_string()].map(str::to_owned);
    let listen: Vec<&str> = listen.iter().map(String::as_str).collect();
    let mut coordinator = workspace.start(&listen);
    let mut task_managers: Vec<Running> = (1..=3)
        .map(|n| workspace.start_task_manager(&format!("tm-{n}"), address, 1))
        .collect();
    for _kill in 0..3 {
        assert!(wait_for_progress(&mut coordinator, &workspace));
        coordinator.kill();
        coordinator = workspace.start(&listen);
        // Output that was noticed before the kill may still come: its own words tell.
        let log = workspace.path("stderr.log");
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let adopted = || read().contains("adopted the running attempt");
        assert!(coordinator.wait_until(adopted), "{}", read());
    }

    let ended = coordinator.wait();
    ended.check_code(0);
    assert!(!ended.stderr.contains("attempt failed"), "{}", ended.stderr);
    for task_manager in task_managers.drain(..) {
        task_manager.wait().check_code(0);
    }
    workspace.verify();
}

#[test]
fn coordinator_at_another_address_is_found_through_the_head_f4() {
    let document = CLICKS.replace(
        "  restart: {window: 30s}",
        "  restart: {window: 30s}\n  failureDetection: {heartbeat: 100ms, timeout: 1s}",
    );
    let workspace = Workspace::new(&document);
    let (first, second) = (free_address(), free_address());
    let mut coordinator = workspace.start(&["--listen", &first.to_string()]);
    let mut task_managers: Vec<Running> = (1..=2)
        .map(|n| workspace.start_task_manager(&format!("tm-{n}"), first, 2))
        .collect();
    assert!(wait_for_progress(&mut coordinator, &workspace));
    coordinator.kill();

    let mut coordinator = workspace.start(&["--listen", &second.to_string()]);
    assert!(wait_for_progress(&mut coordinator, &workspace));

    coordinator.wait().check_code(0);
    for task_manager in task_managers.drain(..) {
        task_manager.wait().check_code(0);
    }
    workspace.verify();
}

#[test]
fn coordinator_and_a_task_manager_killed_together_lose_and_double_nothing() {
    let mut random = Random::from_environment();
    let workspace = Workspace::new(CLICKS);
    let address = free_address();
    let listen = address.to_string();
    let mut coordinator = workspace.start(&["--listen", &listen]);
    let start = |n: u64| workspace.start_task_manager(&format!("tm-{n}"), address, 2);
    let mut task_managers: Vec<Running> = (0..3).map(start).collect();
    for _round in 0..3 {
        if !wait_for_progress(&mut coordinator, &workspace) {
            break;
        }
        let n = random.below(3);
        coordinator.kill();
        task_managers.remove(n as usize).kill();
        coordinator = workspace.start(&["--listen", &listen]);
        coordinator.let_run(Duration::from_millis(random.below(500)));
        task_managers.insert(n as usize, start(n));
    }

    coordinator.wait().check_code(0);
    workspace.verify();
}

#[test]
fn frozen_task_manager_that_wakes_up_after_it_was_replaced_spoils_nothing() {
    let document = CLICKS.replace(
        "  restart: {window: 30s}",
        "  restart: {window: 30s}\n  failureDetection: {heartbeat: 100ms, timeout: 600ms}",
    );
    let workspace = Workspace::new(&document);
    let mut running = workspace.start(&["--task-managers", "3"]);
    assert!(wait_for_progress(&mut running, &workspace));
    let frozen = running.children()[0];
    kill_process(frozen, Signal::STOP).expect("it is there");

    let lost = |log: &str| log.contains("task manager lost");
    let log = workspace.path("stderr.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(running.wait_until(|| lost(&read())));
    assert!(
        wait_for_progress(&mut running, &workspace),
        "the others go on"
    );
    let _woken = kill_process(frozen, Signal::CONT);

    running.wait().check_code(0);
    workspace.verify();
}
