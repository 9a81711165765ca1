//! A user's first minutes: apply, watch, result.

use std::time::Instant;

use streamforge_e2e_cluster::{ClicksJob, Namespace, eventually, get};

#[test]
fn first_job_reaches_its_result_and_its_pods_go() {
    let namespace = Namespace::create("first");
    let job = ClicksJob {
        namespace: &namespace,
        name: "clicks",
        rows: Some(100_000),
        rate: 20_000,
        parallelism: 2,
        slots: 1,
        more: "",
    };

    let applied = Instant::now();
    job.apply();
    eventually("a first checkpoint", 60, || {
        let status = &namespace.job("clicks")?["status"]["checkpoint"]["lastCompleted"]["id"];
        status.as_u64().filter(|id| *id > 0)
    });
    println!(
        "apply to first committed result in the status: {:?}",
        applied.elapsed()
    );
    job.finish(120);

    eventually("the pods of a finished job go", 60, || {
        namespace.pods().is_empty().then_some(())
    });
    assert!(
        get(namespace.name(), "streamjob", "clicks").is_some(),
        "the job stays"
    );
}
