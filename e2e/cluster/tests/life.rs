//! What a user does with a running job: scale, suspend, resume, an invalid edit, delete.

use serde_json::Value;
use streamforge_e2e_cluster::{ClicksJob, Namespace, apply, bucket, bucket_folder, eventually};

fn endless<'a>(namespace: &'a Namespace, parallelism: u32, more: &'a str) -> ClicksJob<'a> {
    ClicksJob {
        namespace,
        name: "clicks",
        rows: None,
        rate: 2_000,
        parallelism,
        slots: 2,
        more,
    }
}

fn wait_for_phase(namespace: &Namespace, phase: &str) {
    eventually(&format!("phase {phase}"), 90, || {
        (namespace.phase("clicks") == phase).then_some(())
    });
}

fn checkpoint(namespace: &Namespace) -> u64 {
    let job = namespace.job("clicks").expect("the job is there");
    job["status"]["checkpoint"]["lastCompleted"]["id"]
        .as_u64()
        .unwrap_or_default()
}

fn wait_for_later_checkpoint(namespace: &Namespace) {
    let seen = checkpoint(namespace);
    eventually("a later checkpoint", 60, || {
        (checkpoint(namespace) > seen).then_some(())
    });
}

fn suspend(namespace: &Namespace, suspend: bool) {
    let patch = format!("{{\"spec\":{{\"suspend\":{suspend}}}}}");
    namespace.kubectl(&["patch", "streamjob/clicks", "--type=merge", "-p", &patch]);
}

#[test]
fn job_scales_by_kubectl_scale() {
    let namespace = Namespace::create("scale");
    endless(&namespace, 2, "").apply();
    wait_for_phase(&namespace, "Running");

    namespace.kubectl(&["scale", "streamjob/clicks", "--replicas=4"]);

    eventually("two pods", 90, || {
        (namespace.pods().len() == 2).then_some(())
    });
    eventually("four subtasks", 90, || {
        (namespace.job("clicks")?["status"]["parallelism"] == 4).then_some(())
    });
    wait_for_later_checkpoint(&namespace);
}

#[test]
fn suspended_job_has_no_pods_and_goes_on_where_it_was() {
    let namespace = Namespace::create("suspend");
    endless(&namespace, 2, "").apply();
    wait_for_phase(&namespace, "Running");
    wait_for_later_checkpoint(&namespace);

    let before = checkpoint(&namespace);
    suspend(&namespace, true);
    wait_for_phase(&namespace, "Suspended");
    eventually("no pods", 60, || namespace.pods().is_empty().then_some(()));
    suspend(&namespace, false);
    wait_for_phase(&namespace, "Running");

    wait_for_later_checkpoint(&namespace);
    assert!(checkpoint(&namespace) > before, "it began anew");
}

#[test]
fn invalid_edit_is_said_and_the_last_valid_spec_runs_on() {
    let namespace = Namespace::create("invalid");
    // The webhook would refuse it at once; without one the condition says it.
    namespace.kubectl(&[
        "label",
        "namespace",
        namespace.name(),
        "streamforge.io/admission=disabled",
    ]);
    endless(&namespace, 2, "").apply();
    wait_for_phase(&namespace, "Running");
    let pods = namespace.pod_uids();

    let wrong = endless(&namespace, 2, "")
        .document()
        .replace("sum(amount)", "sum(amuont)");
    apply(namespace.name(), &wrong).expect("nobody judges it before it is written");
    let valid = eventually("Valid=False", 60, || {
        let job = namespace.job("clicks")?;
        let conditions: &Vec<Value> = job["status"]["conditions"].as_array()?;
        let valid = conditions.iter().find(|one| one["type"] == "Valid")?;
        (valid["status"] == "False").then(|| valid.clone())
    });
    let message = valid["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("amuont") && message.contains("amount"),
        "{message}"
    );
    wait_for_later_checkpoint(&namespace);
    assert_eq!(namespace.pod_uids(), pods, "a pod was replaced");
}

/// Where the job has its checkpoints.
fn store(namespace: &Namespace) -> String {
    format!("{}/clicks/store", bucket_folder(namespace))
}

fn condition(namespace: &Namespace, kind: &str) -> Option<Value> {
    let job = namespace.job("clicks")?;
    let conditions: &Vec<Value> = job["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|one| one["type"] == kind);
    found.cloned()
}

#[test]
fn pods_that_the_api_server_refuses_are_said_and_what_runs_runs_on() {
    let namespace = Namespace::create("refused");
    let job = endless(&namespace, 2, "");
    job.apply();
    wait_for_phase(&namespace, "Running");
    let pods = namespace.pod_uids();

    // No schema knows what a toleration may be.
    let template = "podTemplate: {spec: {tolerations: [{key: a, operator: Foo}]}}";
    let wrong = job
        .document()
        .replace("{slots: 2}", &format!("{{slots: 2, {template}}}"));
    apply(namespace.name(), &wrong).expect("only the pods are wrong");
    let valid = eventually("Valid=False", 60, || {
        condition(&namespace, "Valid").filter(|it| it["status"] == "False")
    });
    let message = valid["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("spec.taskManager.podTemplate: ") && message.contains("Foo"),
        "{message}"
    );
    wait_for_later_checkpoint(&namespace);
    assert_eq!(namespace.pod_uids(), pods, "a pod was replaced");

    job.apply();
    eventually("Valid=True", 60, || {
        condition(&namespace, "Valid").filter(|it| it["status"] == "True")
    });
}

#[test]
fn pods_that_a_quota_forbids_are_said_to_be_stuck() {
    let namespace = Namespace::create("quota");
    namespace.kubectl(&["create", "quota", "few", "--hard=pods=1"]);
    endless(&namespace, 4, "").apply();

    let stuck = eventually("PodsStuck", 150, || {
        condition(&namespace, "Progressing").filter(|it| it["reason"] == "PodsStuck")
    });
    let message = stuck["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("StatefulSet clicks-tm has ") && message.contains(" of 2 pods"),
        "{message}"
    );
}

#[test]
fn deleted_job_leaves_nothing_behind() {
    let namespace = Namespace::create("delete");
    endless(&namespace, 2, "").apply();
    wait_for_phase(&namespace, "Running");
    wait_for_later_checkpoint(&namespace);
    let store = store(&namespace);
    assert!(!bucket::checkpoints_below(&store).is_empty(), "{store}");

    namespace.kubectl(&["delete", "streamjob/clicks", "--timeout=60s"]);

    // They go before the job does.
    assert_eq!(bucket::checkpoints_below(&store), [""; 0]);
    eventually("no children", 60, || {
        let kinds = "statefulset,service,poddisruptionbudget,networkpolicy,configmap,secret,serviceaccount,pod";
        let label = "app.kubernetes.io/managed-by=streamforge-operator";
        let left = namespace.kubectl(&["get", kinds, "-l", label, "-o", "name"]);
        left.trim().is_empty().then_some(())
    });
}

#[test]
fn checkpoints_of_a_job_that_says_retain_are_there_after_it() {
    let namespace = Namespace::create("retain");
    let document = endless(&namespace, 2, "").document();
    let document = document.replace("checkpoint: {", "checkpoint: {onDelete: Retain, ");
    apply(namespace.name(), &document).expect("the document is taken");
    wait_for_phase(&namespace, "Running");
    wait_for_later_checkpoint(&namespace);
    // Nobody writes to the store of a job that is suspended: what is there can be compared.
    suspend(&namespace, true);
    wait_for_phase(&namespace, "Suspended");
    eventually("no pods", 60, || namespace.pods().is_empty().then_some(()));
    let store = store(&namespace);
    let before = bucket::keys_below(&store);
    let has_head = before.iter().any(|key| key.ends_with("/head"));
    assert!(has_head, "{before:?}");

    namespace.kubectl(&["delete", "streamjob/clicks", "--timeout=60s"]);

    assert_eq!(bucket::keys_below(&store), before);
}
