//! Pods and operators die; the result does not change.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use streamforge_e2e_cluster::{
    COORDINATOR_GONE, ClicksJob, Namespace, TASK_MANAGERS_DIE, eventually, kill_pods, kubectl,
    leading_pod, lease, operator_namespace,
};
use streamforge_process::Random;

/// Rows of a job: more than flow while it is disturbed.
const ROWS: u64 = 500_000;

/// From the start of the next operator until it leads. A Lease is good for 8 s, and whoever is deleted by force cannot
/// give it back: it must be taken because its holder is gone.
const LEADS_WITHIN_S: f64 = 5.0;

/// Who leads, once it is another one than this; with when its container was started, and when it took the Lease: both
/// by the clock of its node.
fn next_leader(before: &Value) -> Option<(String, String)> {
    let (pod, lease) = (leading_pod()?, lease());
    let name = &pod["metadata"]["name"];
    if name == before || lease["holderIdentity"] != *name {
        return None;
    }
    let started = &pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"];
    let (started, led) = (started.as_str()?, lease["acquireTime"].as_str()?);
    // A container that was started anew has not taken it yet.
    (led.get(..19) >= started.get(..19)).then(|| (started.to_owned(), led.to_owned()))
}

/// Seconds of the day of a time of Kubernetes: `2026-01-31T09:30:00Z`, or with a fraction.
fn seconds_of_day(time: &str) -> f64 {
    let (_, clock) = time.split_once('T').expect("a date comes first");
    let parts = clock.trim_end_matches('Z').split(':');
    let parts = parts.map(|part| part.parse::<f64>().expect("a number"));
    parts.fold(0.0, |sum, part| sum * 60.0 + part)
}

fn running(namespace: &Namespace, rows: u64) -> ClicksJob<'_> {
    let job = ClicksJob {
        namespace,
        name: "clicks",
        rows: Some(rows),
        rate: 20_000,
        parallelism: 4,
        slots: 2,
        more: "",
    };
    job.apply();
    eventually("the job runs", 90, || {
        (namespace.phase("clicks") == "Running").then_some(())
    });
    job
}

/// Pods of a job of so many rows are killed; its result is compared with the oracle's.
fn survives_kills(test: &str, kills_n: usize, rows: u64) {
    let namespace = Namespace::create(test);
    namespace.announce(&TASK_MANAGERS_DIE);
    let job = running(&namespace, rows);

    kill_pods(&namespace, "clicks", kills_n, 5);

    job.finish(180);
}

#[test]
fn killed_pods_do_not_change_the_result() {
    survives_kills("kill-pod", 4, ROWS);
}

#[test]
fn dead_operators_restart_no_pod_and_do_not_change_the_result() {
    let namespace = Namespace::create("kill-operator");
    namespace.announce(&COORDINATOR_GONE);
    let job = running(&namespace, ROWS);
    let pods = namespace.pod_uids();
    let operator = operator_namespace();
    let mut random = Random::seeded(6);

    for _ in 0..3 {
        sleep(Duration::from_millis(3_000 + random.below(3_000)));
        let before = lease()["holderIdentity"].take();
        kubectl(&[
            "-n",
            &operator,
            "delete",
            "pod",
            "-l",
            "app.kubernetes.io/component=operator",
            "--force",
            "--grace-period=0",
            "--wait=false",
        ]);
        let next = || next_leader(&before);
        let (started, led) = eventually("another operator leads", 60, next);
        let took = seconds_of_day(&led) - seconds_of_day(&started);
        // Over midnight.
        let took = took.rem_euclid(86_400.0);
        assert!(took < LEADS_WITHIN_S, "started {started}, led {led}");
    }
    assert_eq!(namespace.pod_uids(), pods, "a pod was replaced");

    job.finish(180);
}

/// `make e2e-slow`.
mod slow {
    use super::*;

    #[test]
    fn twenty_killed_pods_do_not_change_the_result() {
        survives_kills("kill-twenty", 20, 3_000_000);
    }
}
