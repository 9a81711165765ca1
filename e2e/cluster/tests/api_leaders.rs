//! Two operators that both believe to lead, and one whose clock is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use streamforge_e2e_cluster::{
    COORDINATOR_GONE, Declared, Fate, TASK_MANAGERS_DIE, Trial, eventually,
};

/// The path of the Lease.
fn lease(trial: &Trial) -> String {
    let namespace = trial.release.namespace();
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/streamforge-operator")
}

fn holder(trial: &Trial) -> String {
    let lease = trial.api().read(&lease(trial)).unwrap_or_default();
    let holder = lease["spec"]["holderIdentity"].as_str();
    holder.unwrap_or_default().to_owned()
}

#[test]
fn c5_writes_of_the_older_of_two_leaders_are_refused_and_the_result_is_right() {
    let trial = Trial::started("leaders");
    trial.namespace.announce(&COORDINATOR_GONE);
    let job = Declared {
        rows: Some(60_000),
        rate: 1_000,
        parallelism: 2,
        ..trial.small_job("clicks")
    };
    trial.declare(&job);
    trial.settle(&job, &job);
    let pods = trial.look("clicks").pod_uids();
    let (older, newer) = (&trial.operator, trial.release.operator("operator-1"));

    // The older one hears nothing of its Lease any more, and goes on (F2); somebody takes it out of the Lease.
    let is_cut_off = Arc::new(AtomicBool::new(true));
    let cut_off = Arc::clone(&is_cut_off);
    older.proxy.set(move |request| {
        if request.is_lease() && cut_off.load(Ordering::SeqCst) {
            return Fate::Lose;
        }
        Fate::Pass
    });
    let nobody = json!({"spec": {"holderIdentity": Value::Null}});
    trial.api().merge(&lease(&trial), &nobody);
    newer.start();
    newer.wait_to_lead();
    assert_eq!(holder(&trial), "operator-1");
    assert!(older.process().is_running());

    // Both go on for a while, and one of them has the head of the store.
    eventually(
        "the older one is told that another coordinator has the job",
        60,
        || older.log().contains("another coordinator").then_some(()),
    );
    let checkpoint = |seen: &Value| seen["checkpoint"]["lastCompleted"]["id"].as_u64();
    let status = || trial.look("clicks").job.unwrap_or_default()["status"].take();
    let before = checkpoint(&status()).unwrap_or_default();
    eventually("checkpoints go on", 60, || {
        (checkpoint(&status())? > before + 2).then_some(())
    });
    assert_eq!(trial.look("clicks").pod_uids(), pods, "a pod was replaced");

    // It hears of the other one, and steps down.
    is_cut_off.store(false, Ordering::SeqCst);
    eventually("the older one steps down", 30, || {
        (!older.process().is_running()).then_some(())
    });
    assert!(
        older.log().contains("operator-1 leads now"),
        "{}",
        older.log()
    );
    let end = job.to_the_end();
    trial.declare(&end);
    trial.settle(&end, &end);
    trial.verify(&end);
    trial.delete("clicks");
    trial.settle_gone(&end);
    // Each is told that the other one has the job, and tries again.
    let fenced = "fenced, another coordinator took this job over";
    older.check(&["lease not renewed, going on", fenced]);
    newer.check(&[fenced]);
}

#[test]
fn leader_that_was_frozen_for_longer_than_its_lease_writes_nothing_when_it_wakes_up() {
    let trial = Trial::started("frozen");
    trial.namespace.announce(&COORDINATOR_GONE);
    let job = Declared {
        rows: Some(60_000),
        rate: 1_000,
        parallelism: 2,
        ..trial.small_job("clicks")
    };
    trial.declare(&job);
    trial.settle(&job, &job);
    let pods = trial.look("clicks").pod_uids();
    let (older, newer) = (&trial.operator, trial.release.operator("operator-1"));

    older.process().signal("STOP");
    let frozen = Instant::now();
    newer.start();
    newer.wait_to_lead();
    let edited = Declared {
        parallelism: 1,
        ..job
    };
    trial.declare(&edited);
    trial.settle(&edited, &edited);
    eventually("the Lease is over by itself, too", 60, || {
        (frozen.elapsed() > Duration::from_secs(10)).then_some(())
    });
    // What it could write has time: who leads is told late.
    older.proxy.set(|request| {
        if request.is_lease() {
            std::thread::sleep(Duration::from_secs(2));
        }
        Fate::Pass
    });
    let before_n = older.proxy.lines().len();
    older.process().signal("CONT");

    eventually("it steps down", 30, || {
        (!older.process().is_running()).then_some(())
    });
    let log = older.log();
    assert!(log.contains("operator-1 leads now"), "{log}");
    let since = older.proxy.lines().split_off(before_n);
    let asked = since.into_iter().map(|line| line.request);
    let writes: Vec<String> = asked
        .filter(|request| request.is_write() && !request.is_lease())
        .map(|request| request.to_string())
        .collect();
    assert!(writes.is_empty(), "{writes:#?}");
    let left = trial.look("clicks").pod_uids();
    assert!(
        left.iter().all(|uid| pods.contains(uid)),
        "a pod was replaced"
    );
    let end = edited.to_the_end();
    trial.declare(&end);
    trial.settle(&end, &end);
    trial.verify(&end);
    trial.delete("clicks");
    trial.settle_gone(&end);
    // It may hear of its task managers and of the head before it ends.
    let fenced = "fenced, another coordinator took this job over";
    older.check(&[&TASK_MANAGERS_DIE[..], &[fenced, "lease not renewed"]].concat());
    newer.check(&[fenced]);
}

#[test]
fn operator_waits_for_a_peer_that_renews_whatever_its_clock_says() {
    std::thread::scope(|scope| {
        for year in ["1999", "2099"] {
            scope.spawn(move || peer_in(year));
        }
    });
}

/// A Lease whose holder's pod is gone is free at once: this one is there, and never gets a node.
fn make_pod_of_peer(trial: &Trial) {
    let path = format!("/api/v1/namespaces/{}/pods/peer", trial.release.namespace());
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "peer"},
        "spec": {
            "nodeSelector": {"streamforge.io/nowhere": "yes"},
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "peer", "image": "localhost/none",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        },
    });
    let made = trial.api().declare(&path, &pod.to_string());
    made.expect("a pod can be made");
}

fn peer_in(year: &str) {
    let trial = Trial::new("clock");
    make_pod_of_peer(&trial);
    let renewed = |n: u32| format!("{year}-01-01T00:00:{n:02}.000000Z");
    let target = lease(&trial);
    let taken = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "streamforge-operator"},
        "spec": {"holderIdentity": "peer", "leaseDurationSeconds": 8,
            "acquireTime": renewed(0), "renewTime": renewed(0)},
    });
    trial
        .api()
        .declare(&target, &taken.to_string())
        .expect("a Lease can be made");
    trial.operator.start();

    for n in 1..12 {
        // The peer renews once a second.
        std::thread::sleep(Duration::from_secs(1));
        let again = json!({"spec": {"renewTime": renewed(n)}});
        trial.api().merge(&target, &again);
    }
    assert_eq!(holder(&trial), "peer", "its clock says {year}");

    trial.operator.wait_to_lead();
    assert_eq!(holder(&trial), "operator-0");
    trial.operator.check(&[]);
}
