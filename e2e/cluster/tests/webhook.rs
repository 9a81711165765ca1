//! The webhook, as `kubectl apply` shows it: what is refused, what is only told, and who is never in the way.

use streamforge_e2e_cluster::{
    ClicksJob, Namespace, Said, condition, eventually, get, kubectl, operator_namespace, said,
};

fn clicks<'a>(namespace: &'a Namespace, more: &'a str) -> ClicksJob<'a> {
    ClicksJob {
        namespace,
        name: "clicks",
        rows: None,
        rate: 2_000,
        parallelism: 2,
        slots: 1,
        more,
    }
}

fn apply(namespace: &Namespace, document: &str, more: &[&str]) -> Said {
    let apply = ["apply", "-n", namespace.name(), "-f", "-"];
    said(&[&apply, more].concat(), document)
}

const DRY_RUN: &[&str] = &["--dry-run=server"];

/// Until the API server asks: it was told of the authority by an operator.
fn wait_for_webhook(namespace: &Namespace) {
    let wrong = clicks(namespace, "")
        .document()
        .replace("count(*)", "cuont(*)");
    eventually("the webhook is asked", 60, || {
        (!apply(namespace, &wrong, DRY_RUN).ok).then_some(())
    });
}

/// A job whose window has state.
fn run(namespace: &Namespace, document: &str) {
    let applied = apply(namespace, document, &[]);
    assert!(applied.ok, "{}", applied.err);
    assert_eq!(applied.warnings(), [""; 0]);
    eventually("a checkpoint", 90, || {
        let status = namespace.job("clicks")?["status"].take();
        let id = status["checkpoint"]["lastCompleted"]["id"].as_u64()?;
        (status["phase"] == "Running" && id > 0).then_some(())
    });
}

fn generation(namespace: &Namespace) -> Option<u64> {
    namespace.job("clicks")?["metadata"]["generation"].as_u64()
}

#[test]
fn wrong_document_is_refused_with_path_reason_and_cure_and_nothing_is_made() {
    let namespace = Namespace::create("refused");
    wait_for_webhook(&namespace);
    let wrong = clicks(&namespace, "")
        .document()
        .replace("sum(amount)", "sum(amuont)");

    for more in [DRY_RUN, &[]] {
        let refused = apply(&namespace, &wrong, more);

        assert!(!refused.ok, "{refused:?}");
        for words in [
            "The StreamJob \"clicks\" is invalid",
            "spec.transforms[0].aggregate.select[1]",
            "amuont",
            "`amount`",
        ] {
            assert!(refused.err.contains(words), "{words}: {}", refused.err);
        }
    }
    assert!(namespace.job("clicks").is_none());
}

#[test]
fn dry_run_of_an_edit_says_what_it_does_to_the_state_and_does_nothing() {
    let namespace = Namespace::create("dry-run");
    wait_for_webhook(&namespace);
    let document = clicks(&namespace, "").document();
    run(&namespace, &document);
    let before = (generation(&namespace), namespace.pod_uids());

    // Another window: its state means something else.
    let drops = document.replace("size: 1s", "size: 2s");
    let refused = apply(&namespace, &drops, DRY_RUN);
    assert!(!refused.ok, "{refused:?}");
    println!("{}", refused.err);
    assert_eq!(
        refused.warnings(),
        [
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
          drops the state of per_user: set upgrade.droppedState: Allow"
        ]
    );
    let cure = "take that back, or write `upgrade: {droppedState: Allow}`";
    assert!(refused.err.contains(cure), "{}", refused.err);

    let allowed = format!("{drops}  upgrade: {{droppedState: Allow}}\n");
    let told = apply(&namespace, &allowed, DRY_RUN);
    assert!(told.ok, "{told:?}");
    assert_eq!(
        told.warnings(),
        [
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
          drops the state of per_user"
        ]
    );

    let slower = document.replace("rowsPerSecond: 2000", "rowsPerSecond: 1000");
    assert_eq!(
        apply(&namespace, &slower, DRY_RUN).warnings(),
        [
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
          keeps the state of per_user"
        ]
    );
    let larger = document.replace("parallelism: 2", "parallelism: 4");
    assert_eq!(
        apply(&namespace, &larger, DRY_RUN).warnings(),
        [
            "hands key groups over from 2 to 4 subtasks, in 4 pods, while rows flow; \
          all state is kept"
        ]
    );
    assert_eq!(before, (generation(&namespace), namespace.pod_uids()));

    // And what it said is what happens.
    let applied = apply(&namespace, &slower, &[]);
    assert!(applied.ok && applied.warnings().len() == 1, "{applied:?}");
    eventually("the edit runs", 60, || {
        let status = namespace.status("clicks");
        let valid = condition(&status, "Valid")["status"] == "True";
        (valid && status["phase"] == "Running" && status["observedGeneration"] == 2).then_some(())
    });
    assert_eq!(namespace.pod_uids(), before.1, "a pod was replaced");

    // Of the other one too: windows of 2 s begin without the sums of those of 1 s, and that is not rolled back.
    namespace.announce(&["state was dropped as allowed"]);
    let checkpoint = || namespace.status("clicks")["checkpoint"]["lastCompleted"]["id"].as_u64();
    let applied = apply(&namespace, &allowed, &[]);
    assert!(applied.ok, "{applied:?}");
    let begun = eventually("the edit that drops state runs", 60, || {
        let status = namespace.status("clicks");
        let runs = status["phase"] == "Running" && status["observedGeneration"] == 3;
        runs.then(checkpoint)?
    });
    eventually("a checkpoint of it", 60, || {
        (checkpoint()? > begun + 1).then_some(())
    });
    let valid = condition(&namespace.status("clicks"), "Valid");
    assert_eq!(valid["status"], "True", "{valid:#}");
    let events = namespace.kubectl(&["get", "events", "-o", "json"]);
    assert!(events.contains("\"reason\": \"StateDropped\""), "{events}");
}

#[test]
fn job_that_is_wrong_already_can_be_labelled_edited_elsewhere_and_deleted() {
    let namespace = Namespace::create("ratchet");
    wait_for_webhook(&namespace);
    let name = namespace.name();
    let wrong = clicks(&namespace, "")
        .document()
        .replace("sum(amount)", "sum(amuont)");
    let admission = |value: &str| {
        let label = format!("streamforge.io/admission{value}");
        kubectl(&["label", "namespace", name, &label]);
    };
    admission("=disabled");
    eventually("the namespace is left out", 30, || {
        apply(&namespace, &wrong, &[]).ok.then_some(())
    });
    eventually("condition Valid", 30, || {
        let valid = condition(&namespace.status("clicks"), "Valid");
        (valid["reason"] == "InvalidSpec").then_some(())
    });
    admission("-");
    wait_for_webhook_of(&namespace, &wrong);

    namespace.kubectl(&["label", "streamjob/clicks", "team=streams"]);
    namespace.kubectl(&["annotate", "streamjob/clicks", "streamforge.io/restart=1"]);
    let elsewhere = apply(
        &namespace,
        &wrong.replace("parallelism: 2", "parallelism: 3"),
        &[],
    );
    assert!(elsewhere.ok, "{elsewhere:?}");
    let [warning] = elsewhere.warnings()[..] else {
        panic!("{elsewhere:?}")
    };
    assert!(
        warning.starts_with("still wrong: spec.transforms[0]"),
        "{warning}"
    );
    namespace.kubectl(&["delete", "streamjob/clicks", "--timeout=60s"]);
}

/// The same with another mistake, in a place that does not depend on the first.
fn worse(wrong: &str) -> String {
    wrong.replace("storage: {uri: \"s3:", "storage: {uri: \"gs:")
}

/// The label of a namespace is known to the API server a moment later.
fn wait_for_webhook_of(namespace: &Namespace, wrong: &str) {
    let worse = worse(wrong);
    eventually("the namespace is judged again", 30, || {
        (!apply(namespace, &worse, DRY_RUN).ok).then_some(())
    });
}

#[test]
fn savepoint_is_judged_and_told_of_a_job_that_is_not_there() {
    let namespace = Namespace::create("judged-copy");
    wait_for_webhook(&namespace);
    let savepoint = |job: &str| {
        format!(
            "{{apiVersion: streamforge.io/v1alpha1, kind: Savepoint, metadata: {{name: nightly}}, \
             spec: {{job: {job}}}}}"
        )
    };

    let refused = apply(&namespace, &savepoint("My_Job"), DRY_RUN);
    assert!(
        !refused.ok && refused.err.contains("spec.job"),
        "{refused:?}"
    );
    let told = apply(&namespace, &savepoint("clicks"), DRY_RUN);
    assert!(told.ok, "{told:?}");
    assert_eq!(
        told.warnings(),
        ["there is no StreamJob clicks in this namespace: it waits for one"]
    );
}

#[test]
fn operators_that_are_gone_are_in_nobodys_way_and_any_of_them_answers() {
    let namespace = Namespace::create("unjudged");
    wait_for_webhook(&namespace);
    let operator = operator_namespace();
    let wrong = clicks(&namespace, "")
        .document()
        .replace("sum(amount)", "sum(amuont)");
    let scale = |n: u32| {
        let replicas = format!("--replicas={n}");
        kubectl(&[
            "-n",
            &operator,
            "scale",
            "deployment/streamforge-operator",
            &replicas,
        ]);
    };
    let pods_n = || {
        let label = "app.kubernetes.io/component=operator";
        let text = kubectl(&["-n", &operator, "get", "pods", "-l", label, "-o", "name"]);
        text.lines().count()
    };

    scale(0);
    eventually("no operator", 60, || (pods_n() == 0).then_some(()));
    let applied = apply(&namespace, &wrong, &[]);
    scale(2);
    assert!(applied.ok, "{applied:?}");

    // The one that does not lead answers, too: whichever is asked.
    kubectl(&[
        "-n",
        &operator,
        "rollout",
        "status",
        "deployment/streamforge-operator",
        "--timeout=60s",
    ]);
    wait_for_webhook_of(&namespace, &wrong);
    let addresses = kubectl(&[
        "-n",
        &operator,
        "get",
        "endpointslices",
        "-l",
        "kubernetes.io/service-name=streamforge-webhook",
        "-o",
        "jsonpath={.items[*].endpoints[*].addresses[0]}",
    ]);
    assert_eq!(addresses.split_whitespace().count(), 2, "{addresses}");
    for _ in 0..20 {
        let worse = worse(&wrong);
        assert!(!apply(&namespace, &worse, DRY_RUN).ok);
    }
    eventually("a pass says it", 60, || {
        let valid = condition(&namespace.status("clicks"), "Valid");
        (valid["reason"] == "InvalidSpec").then_some(())
    });
    assert!(get(namespace.name(), "statefulset", "clicks-tm").is_none());
    namespace.kubectl(&["delete", "streamjob/clicks", "--timeout=60s"]);
}
