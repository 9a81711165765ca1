//! The operator has exactly the rights that docs/operator.md names, uses each of them, and needs no other. All other
//! tests of operators as processes have rights in one namespace, and fail at what is forbidden, too.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use streamforge_e2e_cluster::{Declared, Trial, job_path, live, rendered, savepoint_path};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Rights that no request here shows: the API server looks at the first when an owner is named that blocks deletion,
/// and only with an admission plugin that few clusters have; the second is for the pods of a lost node (`nodes.rs`), the
/// third for a Secret that is mended (`secrets.rs`), the fourth for a Lease whose holder is gone (`recover.rs`), the fifth
/// for the webhook, which is off here.
const SILENT: [&str; 5] = [
    "jobs: update streamforge.io/streamjobs/finalizers",
    "jobs: delete /pods",
    "jobs: patch /pods",
    "own: get /pods",
    "jobs: get streamforge.io/streamjobs",
];

/// One line of the table.
struct Row {
    /// `jobs` (the namespaces of jobs) or `own`, and verb and resource.
    right: String,
    /// A file and a function in it.
    code: (String, String),
}

/// The table between its two marks.
fn documented() -> Vec<Row> {
    let text = std::fs::read_to_string(format!("{ROOT}/docs/operator.md"));
    let text = text.expect("the page is there");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, place @ ("jobs" | "own"), verb, resource, code, _] = cells[..] else {
            return None;
        };
        let (file, function) = code.trim_matches('`').split_once(' ')?;
        Some(Row {
            right: format!("{place}: {verb} {}", resource.trim_matches('`')),
            code: (file.to_owned(), function.to_owned()),
        })
    });
    rows.collect()
}

/// What a role of the chart allows.
fn allowed(place: &str, role: &Value) -> BTreeSet<String> {
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let rules = role["rules"].as_array().into_iter().flatten();
    let rights = rules.flat_map(|rule| {
        let (groups, names) = (texts(&rule["apiGroups"]), texts(&rule["resourceNames"]));
        let (resources, verbs) = (texts(&rule["resources"]), texts(&rule["verbs"]));
        let names = if names.is_empty() {
            vec![String::new()]
        } else {
            names
        };
        let mut rights = Vec::new();
        for group in &groups {
            for resource in &resources {
                for verb in &verbs {
                    for name in &names {
                        let right = format!("{place}: {verb} {group}/{resource} {name}");
                        rights.push(right.trim_end().to_owned());
                    }
                }
            }
        }
        rights
    });
    rights.collect()
}

fn of_the_chart() -> BTreeSet<String> {
    let objects = rendered("sf", &[]);
    let role = |kind: &str| {
        let found = objects.iter().find(|object| object["kind"] == kind);
        found.expect("the chart has it")
    };
    let (mut all, own) = (
        allowed("jobs", role("ClusterRole")),
        allowed("own", role("Role")),
    );
    all.extend(own);
    all
}

#[test]
fn table_of_rights_is_what_the_chart_gives_and_names_code_that_is_there() {
    let documented = documented();

    let rights: BTreeSet<String> = documented.iter().map(|row| row.right.clone()).collect();
    assert_eq!(rights, of_the_chart());
    for Row { right, code } in &documented {
        let (file, function) = code;
        let text = std::fs::read_to_string(format!("{ROOT}/operator/src/{file}"));
        let text = text.unwrap_or_else(|error| panic!("{right}: {file}: {error}"));
        assert!(
            text.contains(&format!("fn {function}(")) || text.contains(&format!("fn {function}<")),
            "{right}: {file} has no {function}"
        );
    }
}

#[test]
fn rights_in_one_namespace_are_the_same_ones() {
    let settings = ["watchNamespaces={a}", "rbac.finalizers=false"];
    let objects = rendered("sf", &settings);
    let kinds: Vec<&Value> = objects.iter().map(|object| &object["kind"]).collect();
    assert!(
        !kinds.iter().any(|kind| **kind == "ClusterRole"),
        "{kinds:?}"
    );
    let roles = objects.iter().filter(|object| object["kind"] == "Role");
    let rights: BTreeSet<String> = roles
        .flat_map(|role| {
            let is_of_jobs = role["metadata"]["namespace"] == "a";
            allowed(if is_of_jobs { "jobs" } else { "own" }, role)
        })
        .collect();

    assert_eq!(rights, of_the_chart());
}

/// In a namespace that is being deleted the Role goes before the finalizers of jobs do.
#[test]
fn finalizers_are_taken_away_with_a_right_that_no_namespace_takes_along() {
    let objects = rendered("sf", &["watchNamespaces={a}"]);

    let role = objects
        .iter()
        .find(|object| object["kind"] == "ClusterRole");
    let rights = allowed("all", role.expect("there is one"));
    let kinds = ["streamjobs", "savepoints"];
    let wanted = kinds.iter().flat_map(|kind| {
        let verbs = ["list", "watch", "patch"].iter();
        verbs.map(move |verb| format!("all: {verb} streamforge.io/{kind}"))
    });
    assert_eq!(rights, wanted.collect());
}

/// What was asked of the API server, in the words of the table.
fn used(trial: &Trial) -> BTreeSet<String> {
    let own = trial.release.namespace();
    let lines = trial.operator.proxy.lines();
    let rights = lines.iter().flat_map(|line| {
        let request = &line.request;
        let is_own = request.namespace == own;
        let place = if is_own { "own" } else { "jobs" };
        let name = match (is_own, request.verb) {
            (true, "get" | "update") => &request.name,
            _ => "",
        };
        let of = |verb: &str| {
            let right = format!("{place}: {verb} {} {name}", request.resource);
            right.trim_end().to_owned()
        };
        // A patch that makes the object wants the right to create, too.
        let made = (request.verb == "patch" && line.status == 201).then(|| of("create"));
        [of(request.verb)]
            .into_iter()
            .chain(made)
            .collect::<Vec<_>>()
    });
    // Whether the cluster knows our kinds is asked in everybody's name.
    rights.filter(|right| !right.contains(" /apis")).collect()
}

#[test]
fn operator_with_the_rights_of_the_whole_cluster_uses_all_and_misses_none() {
    let trial = Trial::of_cluster("rights");
    trial.operator.start();
    live(&trial, &mut ());

    // What a usual life does not see: a job whose time is over, pods that cannot start, a beginning with a savepoint.
    let short = trial.small_job("short");
    let short = Declared {
        rows: Some(1_000),
        ..short
    };
    let document = short.to_the_end().document() + "  ttlAfterFinished: 1s\n";
    let path = job_path(trial.namespace.name(), "short");
    trial.api().declare(&path, &document).expect("it is taken");
    trial.wait("the job's time is over", || {
        trial
            .api()
            .read(&path)
            .map_or(Ok(()), |job| Err(job["status"].to_string()))
    });
    let mut stuck = trial.small_job("stuck");
    stuck.image = Some("localhost/streamforge-taskmanager:none".to_owned());
    trial.declare(&stuck);
    trial.wait("pods are stuck", || {
        let status = trial.look("stuck").job.unwrap_or_default()["status"].take();
        let is_stuck = status.to_string().contains("PodsStuck");
        if is_stuck {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    stuck.image = None;
    trial.declare(&stuck);
    trial.settle(&stuck, &stuck);
    begin_with_a_savepoint(&trial, &stuck);
    trial.delete("stuck");
    trial.settle_gone(&stuck);

    trial.operator.check(&[]);
    let mut used = used(&trial);
    used.extend(SILENT.map(str::to_owned));
    let never: Vec<String> = of_the_chart().difference(&used).cloned().collect();
    assert!(never.is_empty(), "given and never used: {never:#?}");
}

/// Another job begins with what was kept of this one.
fn begin_with_a_savepoint(trial: &Trial, job: &Declared) {
    let path = savepoint_path(trial.namespace.name(), "start");
    let savepoint = json!({
        "apiVersion": "streamforge.io/v1alpha1", "kind": "Savepoint", "metadata": {"name": "start"},
        "spec": {"job": job.name},
    });
    let taken = trial.api().declare(&path, &savepoint.to_string());
    taken.expect("a savepoint can be declared");
    trial.wait("a savepoint", || {
        let savepoint = trial.api().read(&path).unwrap_or_default();
        let is_there = savepoint["status"]["phase"] == "Completed";
        if is_there {
            Ok(())
        } else {
            Err(savepoint.to_string())
        }
    });
    let next = trial.small_job("next");
    let document = next.document() + "  restoreFrom: {savepoint: start}\n";
    let path = job_path(trial.namespace.name(), "next");
    trial.api().declare(&path, &document).expect("it is taken");
    trial.settle(&next, &next);
    trial.delete("next");
    trial.settle_gone(&next);
}
