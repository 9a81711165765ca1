//! Pods and operators die; the result does not change.

use std::thread::sleep;
use std::time::{Duration, Instant};

use streamforge_e2e_cluster::{
    COORDINATOR_GONE, ClicksJob, Namespace, TASK_MANAGERS_DIE, eventually, kill_pods, kubectl,
    operator_namespace,
};
use streamforge_process::Random;

/// Rows of a job: more than flow while it is disturbed.
const ROWS: u64 = 500_000;

/// How long a Lease is good for that nobody gives back. Whoever is deleted by force cannot.
const LEASE: Duration = Duration::from_secs(8);

fn leader(namespace: &str) -> String {
    let holder = "jsonpath={.spec.holderIdentity}";
    let lease = "lease/streamforge-operator";
    kubectl(&["-n", namespace, "get", lease, "-o", holder])
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
        let before = leader(&operator);
        let killed = Instant::now();
        kubectl(&[
            "-n",
            &operator,
            "delete",
            "pod",
            "-l",
            "app.kubernetes.io/component=operator",
            "--force",
            "--grace-period=0",
        ]);
        eventually("another operator leads", 60, || {
            let now = leader(&operator);
            (now != before && !now.is_empty()).then_some(())
        });
        let led = killed.elapsed();
        assert!(led < LEASE, "nobody led for {led:?}");
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
