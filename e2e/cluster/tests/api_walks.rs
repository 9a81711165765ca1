//! Random walks over what can be declared of a job. Each ends in what was declared last, with the right result,
//! nothing left behind, and no pod replaced that did not have to be.
//!
//! `make walks` takes many and long ones, `make e2e` a few of fixed seeds. `SEED=n WALKS=1` repeats one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use streamforge_e2e_cluster::{COORDINATOR_GONE, Declared, Seen, Trial, job_path, savepoint_path};
use streamforge_process::Random;

/// Walks at the same time, all under one operator.
const AT_ONCE: usize = 4;

/// An image that no node has.
const NO_IMAGE: &str = "localhost/streamforge-taskmanager:none";

/// More rows than flow in a walk.
const ROWS: u64 = 200_000;

fn number(name: &str, default: usize) -> usize {
    let given = std::env::var(name).ok();
    given.and_then(|it| it.parse().ok()).unwrap_or(default)
}

struct Walk<'a> {
    trial: &'a Trial,
    random: Random,
    /// What was applied last.
    declared: Declared,
    /// What the operator has to run.
    obeyed: Declared,
    /// What the pods were declared to be since the job was made, one after the other.
    of_pods: Vec<(u32, Option<String>, Option<u32>)>,
    /// Pods by name, where they may not be replaced until the next look.
    pods: BTreeMap<String, String>,
    /// Times that the job was made.
    lives_n: u32,
    savepoints: Vec<String>,
    /// How many of them there were when the job was made again: those may have lost theirs.
    savepoints_before: usize,
    trace: Vec<String>,
}

impl<'a> Walk<'a> {
    fn new(trial: &'a Trial, seed: usize) -> Self {
        let mut walk = Self {
            trial,
            random: Random::seeded(seed as u64),
            declared: trial.small_job(&format!("walk-{seed}")),
            obeyed: trial.small_job(""),
            of_pods: Vec::new(),
            pods: BTreeMap::new(),
            lives_n: 0,
            savepoints: Vec::new(),
            savepoints_before: 0,
            trace: Vec::new(),
        };
        walk.create();
        walk
    }

    fn below(&mut self, limit: u32) -> u32 {
        let n = self.random.below(u64::from(limit));
        u32::try_from(n).expect("it is below a u32")
    }

    /// Makes the job: each one has a folder of its own.
    fn create(&mut self) {
        self.lives_n += 1;
        let fresh = self.trial.small_job(&self.declared.name);
        self.declared = Declared {
            folder: format!("{}-{}", fresh.folder, self.lives_n),
            rows: Some(ROWS),
            parallelism: 1 + self.below(4),
            ..fresh
        };
        self.of_pods.clear();
        self.apply();
    }

    /// Applies what is declared. Any edit of what is wrong mends it.
    fn apply(&mut self) {
        self.trial.declare(&self.declared);
        if !self.declared.paused && !self.declared.spoiled {
            self.obeyed = self.declared.clone();
            let of_pods = self.declared.of_pods();
            if self.of_pods.last() != Some(&of_pods) {
                self.of_pods.push(of_pods);
                self.pods.clear();
            }
        }
    }

    fn settle(&mut self) -> Seen {
        let seen = self.trial.settle(&self.declared, &self.obeyed);
        let pods = seen.pods.iter().map(|pod| {
            let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
            (text("name"), text("uid"))
        });
        let pods: BTreeMap<String, String> = pods.collect();
        for (name, uid) in &self.pods {
            let now = pods.get(name);
            assert!(
                now.is_none_or(|now| now == uid),
                "{name} was replaced, {:#?}",
                self.trace
            );
        }
        self.pods = pods;
        self.check_rollouts(&seen);
        seen
    }

    /// A StatefulSet has no revision that nobody declared.
    fn check_rollouts(&self, seen: &Seen) {
        let set = seen.child("statefulsets").expect("a settled job has one");
        let uid = &set["metadata"]["uid"];
        let namespace = self.trial.namespace.name();
        let target = format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions");
        let revisions = self.trial.api().list(&target).into_iter();
        let revisions = revisions.filter(|it| it["metadata"]["ownerReferences"][0]["uid"] == *uid);
        let revisions_n = revisions.count();
        assert!(
            revisions_n <= self.of_pods.len(),
            "{revisions_n} revisions of pods, declared: {:?}, {:#?}",
            self.of_pods,
            self.trace
        );
    }

    fn step(&mut self) {
        let chosen = self.below(14);
        // Whatever comes next mends what was wrong.
        if self.declared.spoiled {
            self.declared.spoiled = false;
            self.apply();
        }
        match chosen {
            0 | 1 => self.declared.parallelism = 1 + self.below(4),
            2 => self.declared.rate = 500 + u64::from(self.below(4)) * 50,
            3 => self.declared.interval_ms = 400 + self.below(4) * 100,
            4 => self.declared.cpu_m = 10 + self.below(3),
            5 => self.declared.restart = Some(self.declared.restart.unwrap_or_default() + 1),
            6 | 7 => {
                self.declared.suspend = !self.declared.suspend;
                self.pods.clear();
            }
            8 | 9 => return self.take_savepoint(),
            10 => return self.create_again(),
            11 => return self.spoil(),
            12 => return self.pause_or_go_on(),
            _ => return self.wrong_image(),
        }
        self.trace.push(self.declared.to_string());
        self.apply();
    }

    /// What is declared during a pause is obeyed after it.
    fn pause_or_go_on(&mut self) {
        if self.declared.paused {
            self.declared.paused = false;
            self.trace.push("the pause is over".to_owned());
            self.apply();
            return;
        }
        self.settle();
        self.trace.push("a pause".to_owned());
        self.declared.paused = true;
        self.obeyed.paused = true;
        self.apply();
        self.settle();
    }

    fn take_savepoint(&mut self) {
        let name = format!("{}-{}", self.declared.name, self.savepoints.len());
        let policy = if self.below(2) == 0 {
            "Retain"
        } else {
            "Delete"
        };
        self.trace.push(format!("savepoint {name}, {policy}"));
        let savepoint = json!({
            "apiVersion": "streamforge.io/v1alpha1", "kind": "Savepoint", "metadata": {"name": name},
            "spec": {"job": self.declared.name, "deletionPolicy": policy},
        });
        let path = savepoint_path(self.trial.namespace.name(), &name);
        let taken = self.trial.api().declare(&path, &savepoint.to_string());
        taken.expect("a savepoint can be declared");
        self.savepoints.push(path);
    }

    fn create_again(&mut self) {
        self.trace.push("deleted and made again".to_owned());
        self.trial.delete(&self.declared.name);
        self.trial.settle_gone(&self.declared);
        self.pods.clear();
        self.savepoints_before = self.savepoints.len();
        self.create();
    }

    /// What is wrong is said, and what was right runs on.
    fn spoil(&mut self) {
        if self.declared.paused {
            return;
        }
        self.settle();
        self.trace.push("spoiled".to_owned());
        self.declared.spoiled = true;
        self.apply();
        self.settle();
    }

    /// Pods that cannot start are told, and are not in the way of those that can.
    fn wrong_image(&mut self) {
        if self.declared.paused || self.declared.suspend {
            return;
        }
        self.trace.push("an image that is not there".to_owned());
        self.declared.image = Some(NO_IMAGE.to_owned());
        self.apply();
        let path = job_path(self.trial.namespace.name(), &self.declared.name);
        self.trial.wait("pods are stuck", || {
            let job = self.trial.api().read(&path).unwrap_or_default();
            let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
            let mut reasons = conditions.map(|it| &it["reason"]);
            if reasons.any(|reason| *reason == "PodsStuck") {
                return Ok(());
            }
            Err(job["status"].to_string())
        });
        self.declared.image = None;
        self.apply();
    }

    /// The end of a walk: as declared, then to the end of its input, then gone.
    fn end(&mut self) {
        if self.declared.paused {
            self.declared.paused = false;
            self.apply();
        }
        self.settle();
        self.declared = self.declared.to_the_end();
        self.trace.push("to the end".to_owned());
        self.pods.clear();
        self.apply();
        self.settle();
        self.trial.verify(&self.declared);
        for (n, path) in self.savepoints.iter().enumerate() {
            let savepoint = self.trial.api().read(path).unwrap_or_default();
            let (phase, reason) = (
                &savepoint["status"]["phase"],
                &savepoint["status"]["reason"],
            );
            let reason = reason.as_str().unwrap_or_default();
            let has_lost = n < self.savepoints_before && reason.starts_with("its job is gone");
            assert!(*phase != "Failed" || has_lost, "{savepoint}");
            self.trial.api().delete(path);
        }
        self.trial.delete(&self.declared.name);
        self.trial.settle_gone(&self.declared);
        self.trial.wait("savepoints go", || {
            let left = self.savepoints.iter();
            let left: Vec<Value> = left
                .filter_map(|path| self.trial.api().read(path))
                .collect();
            left.first().map_or(Ok(()), |it| Err(it.to_string()))
        });
    }
}

/// Tells what was done when a walk fails.
impl Drop for Walk<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}: {:#?}", self.declared.name, self.trace);
        }
    }
}

fn walk(trial: &Trial, seed: usize, steps_n: usize) {
    let began = Instant::now();
    let mut walk = Walk::new(trial, seed);
    for _ in 0..steps_n {
        walk.step();
        // The next one may come before this one is obeyed.
        if walk.below(2) == 0 && !walk.declared.spoiled {
            walk.settle();
        }
    }
    walk.end();
    println!(
        "| {seed} | {:.0} s | {} |",
        began.elapsed().as_secs_f64(),
        walk.trace.join("; ")
    );
}

#[test]
fn walk_over_declarations_ends_in_what_was_declared_last() {
    let (first, walks_n, steps_n) = (number("SEED", 1), number("WALKS", 3), number("STEPS", 10));
    let trial = Trial::started("walk");
    // What only the coordinator looks at is changed by another coordinator.
    trial.namespace.announce(&COORDINATOR_GONE);
    let next = AtomicUsize::new(first);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= first + walks_n {
                return;
            }
            walk(&trial, seed, steps_n);
        }
    };
    thread::scope(|scope| {
        for _ in 0..number("WALKS_AT_ONCE", AT_ONCE) {
            scope.spawn(work);
        }
    });
    trial.operator.check(&[
        // A pod that was the only one has nobody to hand over to.
        "it was asked to end, and no other could take over",
        // A savepoint that was declared just before the end: it is made of the last checkpoint then.
        "the job has come to its end",
    ]);
}
