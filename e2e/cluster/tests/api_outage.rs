//! The API server is gone for a while, and a namespace for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use streamforge_e2e_cluster::{Declared, Fate, Trial, bucket, eventually, savepoint_path};

/// How long it is gone.
const OUTAGE: Duration = Duration::from_secs(20);

/// Checkpoints of that time that must have come to the output, of two per second.
const CHECKPOINTS_MIN: u64 = 20;

/// The newest checkpoint in a job's output.
fn committed(trial: &Trial, job: &Declared) -> u64 {
    let folder = format!("{}/{}/results/", trial.namespace.name(), job.name);
    let keys = bucket::keys(&folder);
    let begun = keys.iter().filter(|key| key.contains("/part-"));
    begun
        .map(|key| bucket::begun_behind(key))
        .max()
        .unwrap_or_default()
}

#[test]
fn rows_flow_while_the_api_server_is_gone_and_the_status_is_true_soon_after_f2() {
    let trial = Trial::new("outage");
    let is_gone = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&is_gone);
    trial.operator.proxy.set(move |request| {
        if gone.load(Ordering::SeqCst) {
            return Fate::Lose;
        }
        // So that no watch that began before lives for long.
        match request.verb {
            "watch" => Fate::Cut(Duration::from_secs(2)),
            _ => Fate::Pass,
        }
    });
    trial.operator.start();
    let job = Declared {
        rows: Some(200_000),
        rate: 1_000,
        parallelism: 2,
        ..trial.small_job("clicks")
    };
    trial.declare(&job);
    trial.settle(&job, &job);
    eventually("output", 60, || (committed(&trial, &job) > 0).then_some(()));
    let pods = trial.look("clicks").pod_uids();

    is_gone.store(true, Ordering::SeqCst);
    let (began, before) = (Instant::now(), committed(&trial, &job));
    let during = eventually("the outage is over", 60, || {
        let during = committed(&trial, &job);
        (began.elapsed() > OUTAGE).then_some(during)
    });
    is_gone.store(false, Ordering::SeqCst);

    assert!(
        during > before + CHECKPOINTS_MIN,
        "output of checkpoint {before} to {during}"
    );
    eventually("the status says so", 30, || {
        let job = trial.look("clicks").job?;
        let told = job["status"]["checkpoint"]["lastCompleted"]["id"].as_u64()?;
        (told > during).then_some(())
    });
    assert_eq!(trial.look("clicks").pod_uids(), pods, "a pod was replaced");
    let end = job.to_the_end();
    trial.declare(&end);
    trial.settle(&end, &end);
    trial.verify(&end);
    trial.delete("clicks");
    trial.settle_gone(&end);
    trial.operator.check(&["lease not", "pass failed"]);
}

#[test]
fn namespace_with_a_job_and_a_savepoint_can_be_deleted_kf_o13() {
    let trial = Trial::started("deleted");
    let job = trial.small_job("clicks");
    trial.declare(&job);
    trial.settle(&job, &job);
    let path = savepoint_path(trial.namespace.name(), "kept");
    let savepoint = "{apiVersion: streamforge.io/v1alpha1, kind: Savepoint, metadata: {name: kept}, \
                     spec: {job: clicks}}";
    let taken = trial.api().declare(&path, savepoint);
    taken.expect("the savepoint is asked for");
    eventually("the savepoint is whole", 60, || {
        let phase = trial.api().read(&path)?["status"]["phase"].take();
        (phase == "Completed").then_some(())
    });

    let namespace = format!("/api/v1/namespaces/{}", trial.namespace.name());
    trial.api().delete(&namespace);

    eventually("the namespace is gone", 120, || {
        trial.api().read(&namespace).is_none().then_some(())
    });
    // In which order a namespace loses what is in it is not said: rights and keys may go first, and much is forbidden then.
    let announced = [
        "pass failed",
        "are left",
        "coordinator ended",
        "attempt failed",
    ];
    let trouble = trial.operator.trouble(&announced);
    assert!(trouble.is_empty(), "not announced: {trouble:#?}");
}
