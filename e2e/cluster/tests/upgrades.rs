//! Upgrades that work and upgrades that do not; savepoints, and jobs of another namespace that begin with one.

use streamforge_e2e_cluster::{
    ClicksJob, Namespace, apply, bucket, bucket_folder, condition, eventually, kubectl, s3_settings,
};
use streamforge_process::Workspace;

fn clicks<'a>(namespace: &'a Namespace, name: &'a str, rows: u64) -> ClicksJob<'a> {
    ClicksJob {
        namespace,
        name,
        rows: Some(rows),
        rate: 2_000,
        parallelism: 2,
        slots: 2,
        more: "  upgrade: {rollbackAfter: 10s}\n",
    }
}

fn wait_for_checkpoint(namespace: &Namespace, job: &str, beyond: u64) -> u64 {
    eventually("a checkpoint", 90, || {
        let status = namespace.job(job)?["status"].take();
        let id = status["checkpoint"]["lastCompleted"]["id"].as_u64()?;
        (status["phase"] == "Running" && id > beyond).then_some(id)
    })
}

fn edit(namespace: &Namespace, document: &str) {
    apply(namespace.name(), document).expect("the edit is taken");
}

/// The message of condition `Valid`, once it is False for this reason.
fn refused(namespace: &Namespace, job: &str, reason: &str) -> String {
    eventually(reason, 120, || {
        let status = namespace.job(job)?["status"].take();
        let valid = condition(&status, "Valid");
        (valid["reason"] == reason).then(|| valid["message"].as_str().map(str::to_owned))?
    })
}

#[test]
fn upgrade_takes_state_and_positions_with_it() {
    let namespace = Namespace::create("upgrade");
    let job = clicks(&namespace, "clicks", 40_000);
    // Two plans that mean the same: what the first attempt counted must be in the result of the second.
    let with_filter = |filter: &str| {
        let node = format!("    - {{name: all, from: clicks, filter: \"{filter}\"}}\n");
        job.document()
            .replace("  transforms:\n", &format!("  transforms:\n{node}"))
            .replace(
                "      from: clicks\n      aggregate",
                "      from: all\n      aggregate",
            )
    };
    edit(
        &namespace,
        &with_filter("amount < 5 OR amount >= 5 OR amount IS NULL"),
    );
    wait_for_checkpoint(&namespace, "clicks", 16);
    let pods = namespace.pod_uids();
    let document = with_filter("amount IS NULL OR amount >= 7 OR amount < 7");
    edit(&namespace, &document);
    let upgraded = eventually("the new document runs", 60, || {
        let status = namespace.job("clicks")?["status"].take();
        let runs = condition(&status, "Ready")["status"] == "True";
        (status["observedGeneration"] == 2 && runs).then_some(status)
    });
    let valid = condition(&upgraded, "Valid");
    assert_eq!(valid["status"], "True", "{upgraded:#}");
    assert_eq!(namespace.pod_uids(), pods, "a pod was replaced");

    streamforge_e2e_cluster::finish(&namespace, "clicks", &document, 120);
}

/// An upgrade to a document that names a sink like this ends in the document before, and in its result.
fn rolls_back(test: &str, sink_settings: &str, announced: &[&'static str]) {
    let namespace = Namespace::create(test);
    namespace.announce(announced);
    namespace.announce(&["session with the coordinator is over"]);
    let job = clicks(&namespace, "clicks", 60_000);
    job.apply();
    wait_for_checkpoint(&namespace, "clicks", 3);

    let more = format!(
        "    - {{name: more, from: clicks.bad, file: {{path: \"{}/more/\", s3: {sink_settings}}}, format: {{json: {{}}}}}}\n",
        bucket_folder(&namespace)
    );
    edit(
        &namespace,
        &job.document()
            .replace("  checkpoint:", &format!("{more}  checkpoint:")),
    );
    let message = refused(&namespace, "clicks", "RolledBack");
    println!("{test}: {message}");
    assert!(message.starts_with("spec: "), "{message}");

    job.finish(180);
    let events = namespace.kubectl(&["get", "events", "-o", "json"]);
    assert!(
        events.contains("\"reason\": \"RolledBack\""),
        "no event tells of it"
    );
    // It is not tried again until somebody edits it.
    let again = refused(&namespace, "clicks", "RolledBack");
    assert_eq!(again, message);
}

#[test]
fn upgrade_whose_sink_does_not_answer_is_rolled_back() {
    let nobody = s3_settings().replace(":19200", ":9");
    rolls_back(
        "silent-sink",
        &nobody,
        &["attempt failed", "checkpoint", "store"],
    );
}

fn savepoint(namespace: &Namespace, name: &str, policy: &str) -> (String, u64) {
    let yaml = format!(
        "{{apiVersion: streamforge.io/v1alpha1, kind: Savepoint, metadata: {{name: {name}}}, \
         spec: {{job: clicks, deletionPolicy: {policy}}}}}"
    );
    apply(namespace.name(), &yaml).expect("a savepoint can be asked for");
    let whole = eventually("the savepoint is whole", 60, || {
        let found = streamforge_e2e_cluster::get(namespace.name(), "savepoint", name)?;
        let status = &found["status"];
        assert_ne!(status["phase"], "Failed", "{status:#}");
        let uri = status["uri"].as_str()?.to_owned();
        (status["phase"] == "Completed").then_some((uri, status["checkpointId"].as_u64()?))
    });
    eventually("an event of it", 10, || {
        let selector = format!("--field-selector=involvedObject.name={name}");
        let events = namespace.kubectl(&["get", "events", &selector, "-o", "json"]);
        events
            .contains("\"reason\": \"SavepointCompleted\"")
            .then_some(())
    });
    whole
}

#[test]
fn job_of_another_namespace_goes_on_from_a_savepoint_of_a_job_that_is_gone() {
    let (one, other) = (Namespace::create("from"), Namespace::create("to"));
    // Which rows are late depends on who reads when: none may be.
    let first = clicks(&one, "clicks", 60_000)
        .document()
        .replace("lateFraction: 0.01", "lateFraction: 0");
    edit(&one, &first);
    let results = |namespace: &Namespace| {
        let folder = bucket_folder(namespace);
        let (_, prefix) = folder
            .trim_start_matches("s3://")
            .split_once('/')
            .expect("it has one");
        bucket::keys(&format!("{prefix}/clicks/results/part-"))
    };
    // Some windows are published, others open.
    eventually("a first result", 90, || {
        (!results(&one).is_empty()).then_some(())
    });
    let (uri, taken_at) = savepoint(&one, "nightly", "Retain");
    one.kubectl(&["delete", "streamjob/clicks", "--timeout=60s"]);
    let before: Vec<String> = results(&one)
        .into_iter()
        .filter(|key| bucket::begun_behind(key) < taken_at)
        .collect();
    assert!(
        !bucket::keys_below(&uri).is_empty(),
        "the savepoint went with its job"
    );

    let second = first
        .replace(one.name(), other.name())
        .replace("rowsPerSecond: 2000", "rowsPerSecond: 20000");
    let document = format!("{second}  restoreFrom: {{uri: \"{uri}\"}}\n");
    edit(&other, &document);
    eventually("the second job finishes", 120, || {
        assert_ne!(
            other.phase("clicks"),
            "Failed",
            "{:#}",
            other.status("clicks")
        );
        (other.phase("clicks") == "Finished").then_some(())
    });

    let after = results(&other);
    let mut rows = [bucket::lines(&before), bucket::lines(&after)].concat();
    rows.sort_unstable();
    assert!(!before.is_empty() && !after.is_empty());
    // The same rows by a job that nobody disturbed, on this machine.
    let folder = format!("{}/clicks", bucket_folder(&one));
    let s3 = format!(", s3: {}", s3_settings());
    let storage = format!(", storage: {{uri: \"{folder}/store\"{s3}}}");
    let alone = first
        .replace(&storage, "")
        .replace(&s3, "")
        .replace(&folder, "out")
        .replace("rateLimit: {rowsPerSecond: 2000}", "");
    let alone = Workspace::new(&alone);
    alone.run(&[]).check_code(0);
    let mut wanted = alone.published().rows();
    wanted.retain(|row| row.contains("\"spend\""));
    assert_eq!(rows.len(), wanted.len());
    assert!(rows == wanted, "rows differ");
}

/// `make e2e-slow`.
mod slow {
    use super::*;

    #[test]
    fn upgrade_whose_sink_refuses_is_rolled_back() {
        let namespace_settings = s3_settings().replace("store-keys", "wrong-keys");
        rolls_back("refusing-sink", &namespace_settings, &["attempt failed"]);
    }

    #[test]
    fn copy_of_a_savepoint_goes_or_stays_as_its_policy_says_in_the_end() {
        let namespace = Namespace::create("copies");
        let job = ClicksJob {
            rows: None,
            ..clicks(&namespace, "clicks", 0)
        };
        job.apply();
        wait_for_checkpoint(&namespace, "clicks", 1);
        let (stays, _) = savepoint(&namespace, "stays", "Delete");
        let (goes, _) = savepoint(&namespace, "goes", "Retain");
        let policy = |name: &str, policy: &str| {
            let patch = format!("{{\"spec\": {{\"deletionPolicy\": \"{policy}\"}}}}");
            namespace.kubectl(&["patch", "savepoint", name, "--type=merge", "-p", &patch]);
        };
        policy("stays", "Retain");
        policy("goes", "Delete");
        let finalizers = |name: &str| {
            let found = streamforge_e2e_cluster::get(namespace.name(), "savepoint", name)?;
            Some(
                found["metadata"]["finalizers"]
                    .as_array()
                    .map_or(0, Vec::len),
            )
        };
        eventually("the policies are known", 30, || {
            (finalizers("stays")? == 0 && finalizers("goes")? == 1).then_some(())
        });

        for name in ["stays", "goes"] {
            kubectl(&[
                "-n",
                namespace.name(),
                "delete",
                "savepoint",
                name,
                "--timeout=60s",
            ]);
        }

        assert!(
            !bucket::keys_below(&stays).is_empty(),
            "the copy is gone though it was to stay"
        );
        assert_eq!(bucket::keys_below(&goes), [""; 0]);
    }
}
