//! Subtasks come and go while the job runs (K3): `streamforge scale` and `drain` on real processes under
//! load, with kills at any moment; each result is that of a batch.

use std::time::Duration;

use streamforge_process::{Published, Random, Running, Workspace, every_window, free_address};

/// A job that waits for task managers, and these.
struct Job {
    workspace: Workspace,
    arguments: Vec<String>,
    address: std::net::SocketAddr,
    coordinator: Running,
    task_managers: Vec<Running>,
}

impl Job {
    fn start(parallelism: &str, task_managers_n: usize) -> Self {
        let workspace = Workspace::new(&every_window(400_000));
        let address = free_address();
        let listen = address.to_string();
        let arguments = ["--listen", &listen, "--parallelism", parallelism];
        let coordinator = workspace.start(&arguments);
        let arguments = arguments.map(str::to_owned).to_vec();
        let mut job = Self {
            workspace,
            arguments,
            address,
            coordinator,
            task_managers: Vec::new(),
        };
        for n in 0..task_managers_n {
            let task_manager = job.task_manager(n);
            job.task_managers.push(task_manager);
        }
        assert!(job.wait_for_progress());
        job
    }

    /// One more, which has nothing to do yet: the job runs on those it began with.
    fn add_spare(&mut self) {
        let spare = self.task_manager(self.task_managers.len());
        self.task_managers.push(spare);
        let log = self.workspace.path("stderr.log");
        let came_n = self.task_managers.len();
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let came = || read().matches("task manager came").count() >= came_n;
        assert!(self.coordinator.wait_until(came), "{}", read());
    }

    fn task_manager(&self, n: usize) -> Running {
        let name = format!("tm-{n}");
        self.workspace.start_task_manager(&name, self.address, 1)
    }

    fn results_n(workspace: &Workspace) -> usize {
        Published::read(&workspace.path("out/per_user")).files_n()
    }

    fn wait_for_progress(&mut self) -> bool {
        let before = Self::results_n(&self.workspace);
        let workspace = &self.workspace;
        self.coordinator
            .wait_until(|| Self::results_n(workspace) > before)
    }

    /// Asks for something; false: the job is over.
    fn ask(&mut self, command: &str, arguments: &[&str]) -> bool {
        let output = self.workspace.output(command, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let over = self.coordinator.has_ended() || said.contains("the job ends");
        assert!(output.status.success() || over, "{command}: {said}");
        output.status.success()
    }

    fn handed_over_n(log: &str) -> usize {
        log.matches("handed over").count()
    }

    /// Asks for it and waits until it is done.
    fn changes(&mut self, command: &str, arguments: &[&str]) {
        let before = Self::handed_over_n(&self.coordinator.log());
        assert!(self.ask(command, arguments));
        let log = self.workspace.path("stderr.log");
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let done = || Self::handed_over_n(&read()) > before;
        assert!(self.coordinator.wait_until(done), "{}", read());
    }

    /// Until its end, with nothing wrong.
    fn ends(self) -> String {
        let ended = self.coordinator.wait();
        ended.check_code(0);
        self.workspace.verify();
        self.workspace.published().check_whole();
        ended.stderr
    }
}

#[test]
fn scale_up_and_down_restarts_nothing_and_loses_nothing_k3() {
    let mut job = Job::start("1", 2);

    job.changes("scale", &["--parallelism", "2"]);
    assert!(job.wait_for_progress());
    job.changes("scale", &["--parallelism", "1"]);
    assert!(job.wait_for_progress());
    job.changes("scale", &["--parallelism", "2"]);

    let log = job.ends();
    assert!(!log.contains("attempt failed"), "{log}");
    assert!(!log.contains("withdrawn"), "{log}");
}

#[test]
fn drained_task_manager_may_be_killed_and_nobody_notices_attack_45() {
    let mut job = Job::start("2", 2);
    job.add_spare();

    job.changes("drain", &["tm-0"]);
    assert!(job.wait_for_progress());
    let drained = job.task_managers.remove(0);
    assert!(drained.kill());
    assert!(job.wait_for_progress());

    let log = job.ends();
    assert!(!log.contains("attempt failed"), "{log}");
}

#[test]
fn lost_task_manager_comes_back_by_hand_over_k3() {
    let mut job = Job::start("2", 2);
    assert!(job.task_managers.remove(1).kill());
    assert!(job.wait_for_progress());
    let before = Job::handed_over_n(&job.coordinator.log());

    let again = job.task_manager(1);
    job.task_managers.push(again);

    let log = job.workspace.path("stderr.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let done = || Job::handed_over_n(&read()) > before;
    assert!(job.coordinator.wait_until(done), "{}", read());
    job.ends();
}

/// Scales to and fro, and kills one of the processes each time, at any moment of it.
fn survives_kills_of(victims: &[Option<usize>]) {
    let mut random = Random::from_environment();
    let mut job = Job::start("2", 2);
    job.add_spare();
    let mut seen = Published::default();
    for (round, victim) in victims.iter().enumerate() {
        let wanted = if round % 2 == 0 { "3" } else { "2" };
        if !job.ask("scale", &["--parallelism", wanted]) {
            break;
        }
        job.coordinator
            .let_run(Duration::from_millis(random.below(500)));
        match victim {
            None => {
                let arguments: Vec<&str> = job.arguments.iter().map(String::as_str).collect();
                let name = format!("coordinator-{round}");
                let next = |job: &Job| job.workspace.start_named(&name, &arguments);
                // The store is free when the old one is gone.
                job.coordinator.signal(rustix::process::Signal::KILL);
                while !job.coordinator.has_ended() {
                    job.coordinator.let_run(Duration::from_millis(5));
                }
                job.coordinator = next(&job);
            }
            Some(n) => {
                job.task_managers.remove(*n).kill();
                let again = job.task_manager(*n);
                job.task_managers.insert(*n, again);
            }
        }
        let now = job.workspace.published();
        now.check_whole();
        now.check_keeps(&seen);
        seen = now;
        if !job.wait_for_progress() {
            break;
        }
    }
    job.ends();
}

#[test]
fn kills_of_old_owners_in_hand_overs_lose_and_double_nothing_k3() {
    survives_kills_of(&[Some(0), Some(1), Some(0), Some(1)]);
}

#[test]
fn kills_of_new_owners_in_hand_overs_lose_and_double_nothing_k3() {
    survives_kills_of(&[Some(2), Some(2), Some(2), Some(2)]);
}

#[test]
fn kills_of_the_coordinator_in_hand_overs_lose_and_double_nothing_attack_24() {
    survives_kills_of(&[None, None, None, None]);
}
