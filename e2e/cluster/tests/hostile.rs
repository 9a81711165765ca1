//! Names at the limits of Kubernetes, and documents that say what nobody would write: they run, their results
//! are right, and no log, event or status is torn by them.

use std::fmt::Write as _;

use serde_json::Value;
use streamforge_e2e_cluster::{
    ClicksJob, Namespace, Said, condition, eventually, kubectl, operator_namespace, said,
};

fn clicks<'a>(namespace: &'a Namespace, name: &'a str) -> ClicksJob<'a> {
    ClicksJob {
        namespace,
        name,
        rows: Some(20_000),
        rate: 10_000,
        parallelism: 2,
        slots: 1,
        more: "",
    }
}

fn apply(namespace: &Namespace, document: &str, more: &[&str]) -> Said {
    let apply = ["apply", "-n", namespace.name(), "-f", "-"];
    said(&[&apply, more].concat(), document)
}

/// The message of condition `Valid`, once it is False.
fn refusal(namespace: &Namespace, job: &str) -> String {
    eventually("Valid=False", 60, || {
        let status = namespace.job(job)?["status"].take();
        let valid = condition(&status, "Valid");
        (valid["status"] == "False").then(|| valid["message"].as_str().map(str::to_owned))?
    })
}

/// All that the operator wrote about the jobs of a namespace for people to read.
fn told(namespace: &Namespace) -> String {
    let jobs = namespace.kubectl(&["get", "streamjobs", "-o", "json"]);
    let jobs: Value = serde_json::from_str(&jobs).expect("kubectl prints JSON");
    let jobs = jobs["items"].as_array().expect("it is a list");
    let mut text: Vec<String> = Vec::new();
    for job in jobs {
        strings(&job["status"], &mut text);
    }
    let events = namespace.kubectl(&["get", "events", "-o", "json"]);
    strings(
        &serde_json::from_str(&events).expect("kubectl prints JSON"),
        &mut text,
    );
    text.join("\n")
}

fn strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            assert!(!text.contains('\n'), "{text:?}");
            found.push(text.clone());
        }
        Value::Array(items) => items.iter().for_each(|item| strings(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| strings(field, found)),
        _ => {}
    }
}

/// The lines that operators have logged.
fn operator_log() -> String {
    let label = "app.kubernetes.io/component=operator";
    kubectl(&[
        "-n",
        &operator_namespace(),
        "logs",
        "-l",
        label,
        "--tail=-1",
    ])
}

/// No escape reaches a terminal, and no text of a document looks like a line of its own.
fn check_is_not_torn(text: &str) {
    let torn = text
        .lines()
        .find(|line| line.contains(|c: char| c.is_control() && c != '\t'));
    assert!(torn.is_none(), "{torn:?}");
}

#[test]
fn longest_names_run_to_their_end() {
    // With two dashes, the fourteen signs of time and process and the number of the namespace it has 63.
    let namespace = Namespace::create(&"n".repeat(46));
    assert_eq!(namespace.name().len(), 63);
    let name = [
        "a".repeat(63),
        "b-9".repeat(21),
        "1".repeat(63),
        "c".repeat(61),
    ]
    .join(".");
    assert_eq!(name.len(), 253);
    let job = clicks(&namespace, &name);
    let node = "n".repeat(40);
    // A place in a bucket is shorter than two names.
    let document = job
        .document()
        .replace(&format!("/{name}/"), "/j/")
        .replace("per_user", &node);

    let applied = apply(&namespace, &document, &[]);
    assert!(applied.ok, "{applied:?}");
    streamforge_e2e_cluster::finish(&namespace, &name, &document, 120);

    let events = namespace.kubectl(&["get", "events", "-o", "json"]);
    for reason in ["Starting", "Running", "Finished"] {
        assert!(
            events.contains(&format!("\"reason\": \"{reason}\"")),
            "no event {reason}"
        );
    }
    namespace.kubectl(&["delete", "streamjob", &name, "--timeout=60s"]);
}

#[test]
fn two_jobs_of_one_name_in_two_namespaces_do_not_meet() {
    let (one, other) = (Namespace::create("twin-a"), Namespace::create("twin-b"));
    let twins = [clicks(&one, "clicks"), clicks(&other, "clicks")];
    for twin in &twins {
        twin.apply();
    }

    for twin in &twins {
        twin.finish(120);
    }

    assert_ne!(
        one.status("clicks")["jobId"],
        other.status("clicks")["jobId"]
    );
}

/// Texts that have broken something somewhere.
const HOSTILE: [&str; 16] = [
    "it's; DROP TABLE clicks; --",
    "\"quoted\" \\ and \\\" back\\\\slashed \\N \\u0041",
    "line one\nERROR line two\r\nline three",
    "tab\tand \u{1b}[31;1mred\u{1b}[0m \u{1b}]0;title\u{7}",
    "nul \u{0} and \u{1} and \u{7f} and \u{85}",
    "\u{2028}\u{2029}\u{200b}\u{feff}\u{202e}turned\u{2066}",
    "ünïcödé 漢字 🦀 👩‍👩‍👧 e\u{301}",
    "$(POD_NAME) ${HOME} `id` %s%n {{ .Values.x }} <script>",
    "no",
    "~",
    "0o17",
    "1e3",
    "2026-01-01",
    "- a: b # c",
    "---\n...\n",
    "&anchor *alias !!binary |",
];

/// A text as a JSON string that YAML reads, too: what may not stand there as it is, is written as an escape.
fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    let mut written = String::new();
    for c in json.chars() {
        match c {
            c if c.is_control() || matches!(u32::from(c), 0x2000..=0x206f | 0xfeff) => {
                write!(written, "\\u{:04x}", u32::from(c)).expect("a String takes all");
            }
            c => written.push(c),
        }
    }
    written
}

/// Windows over users and a column with a name that needs quotes, behind a filter that names all of them.
fn hostile_document(job: &ClicksJob<'_>) -> String {
    let mut filter = "amount IS NOT NULL OR amount IS NULL".to_owned();
    for text in HOSTILE {
        let literal = text.replace('\'', "''");
        write!(filter, " OR user_id = '{literal}'").expect("a String takes all");
    }
    let filter = quoted(&filter);
    let column = r#"user_id AS \"it's a \"\"weird\"\" name: é # {}\""#;
    let note = quoted(&HOSTILE.concat());
    job.document()
        .replace(
            "  transforms:\n",
            &format!(
                "  transforms:\n    - {{name: odd, from: clicks, filter: {filter}}}\n    \
                 - {{name: named, from: odd, select: [\"{column}\", \"amount\", \"ts\"]}}\n"
            ),
        )
        .replace("      from: clicks\n      aggregate", "      from: named\n      aggregate")
        .replace(
            "groupBy: [user_id]",
            r#"groupBy: ["\"it's a \"\"weird\"\" name: é # {}\""]"#,
        )
        .replace(
            "metadata: {name: clicks}",
            &format!("metadata: {{name: clicks, annotations: {{example.com/note: {note}}}}}"),
        )
        .replace(
            "taskManager: {slots: 1}",
            &format!(
                "taskManager: {{slots: 1, podTemplate: {{metadata: {{annotations: {{example.com/note: {note}}}}}}}}}"
            ),
        )
}

#[test]
fn hostile_texts_run_and_tear_nothing() {
    let namespace = Namespace::create("hostile");
    let job = clicks(&namespace, "clicks");
    let document = hostile_document(&job);

    let applied = apply(&namespace, &document, &[]);
    assert!(applied.ok, "{}", applied.err);
    streamforge_e2e_cluster::finish(&namespace, "clicks", &document, 120);

    let kept = namespace.kubectl(&["get", "configmap", "clicks-document", "-o", "json"]);
    let kept: Value = serde_json::from_str(&kept).expect("kubectl prints JSON");
    assert!(kept["data"]["job.yaml"].as_str().is_some(), "{kept}");
    for line in operator_log().lines() {
        let entry: Result<Value, _> = serde_json::from_str(line);
        assert!(entry.is_ok(), "no line of the operator's: {line}");
    }
    check_is_not_torn(&operator_log());
}

#[test]
fn hostile_mistakes_are_told_in_one_line_each() {
    let namespace = Namespace::create("hostile-wrong");
    namespace.kubectl(&[
        "label",
        "namespace",
        namespace.name(),
        "streamforge.io/admission=disabled",
    ]);
    for (idx, text) in HOSTILE.into_iter().enumerate() {
        let name = format!("job-{idx}");
        let job = clicks(&namespace, &name);
        // No column of this name, however it is quoted.
        let column = format!("sum(\"{}\") AS spend", text.replace('"', "\"\""));
        let select = quoted(&column);
        let document = job.document().replace("\"sum(amount) AS spend\"", &select);

        let applied = apply(&namespace, &document, &[]);
        assert!(applied.ok, "{text:?}: {}", applied.err);
    }
    for idx in 0..HOSTILE.len() {
        let message = refusal(&namespace, &format!("job-{idx}"));
        check_is_not_torn(&message);
        assert!(!message.contains('\n'), "{message}");
        let place = "spec.transforms[0].aggregate.select[1]";
        assert!(message.contains(place), "{message}");
    }
    check_is_not_torn(&told(&namespace));
    check_is_not_torn(&namespace.kubectl(&["get", "events"]));
    check_is_not_torn(&operator_log());
    // Before their Secret, which a namespace may take first.
    namespace.kubectl(&["delete", "streamjobs", "--all", "--timeout=60s"]);
}

/// A document of filters without a pattern that a compressor would find.
fn large_document(job: &ClicksJob<'_>, filters_n: usize, seed: u64) -> String {
    let mut random = streamforge_process::Random::seeded(seed);
    let mut filters = String::new();
    let mut from = "clicks".to_owned();
    for n in 0..filters_n {
        let noise: String = (0..16_000)
            .map(|_| char::from(b'a' + u8::try_from(random.below(26)).expect("it is small")))
            .collect();
        let line = format!(
            "    - {{name: f{n}, from: {from}, filter: \"user_id IS NOT NULL OR page = '{noise}'\"}}\n"
        );
        filters.push_str(&line);
        from = format!("f{n}");
    }
    job.document()
        .replace("  transforms:\n", &format!("  transforms:\n{filters}"))
        .replace(
            "      from: clicks\n      aggregate",
            &format!("      from: {from}\n      aggregate"),
        )
}

/// `make e2e-slow`.
mod slow {
    use super::*;

    #[test]
    fn document_of_500_kib_runs_is_edited_and_one_that_is_too_large_is_told_so() {
        let namespace = Namespace::create("large");
        let job = ClicksJob {
            rows: Some(60_000),
            rate: 2_000,
            ..clicks(&namespace, "clicks")
        };
        let first = large_document(&job, 32, 1);
        assert!(
            (490 << 10..512 << 10).contains(&first.len()),
            "{}",
            first.len()
        );
        let server_side = ["--server-side"];

        let applied = apply(&namespace, &first, &server_side);
        assert!(applied.ok, "{}", applied.err);
        eventually("a checkpoint", 120, || {
            let status = namespace.job("clicks")?["status"].take();
            let id = status["checkpoint"]["lastCompleted"]["id"].as_u64()?;
            (status["phase"] == "Running" && id > 0).then_some(())
        });
        // All of it is another one: what runs and what ran before are kept, side by side.
        let second = large_document(&job, 32, 2);
        let applied = apply(&namespace, &second, &server_side);
        assert!(applied.ok, "{}", applied.err);
        streamforge_e2e_cluster::finish(&namespace, "clicks", &second, 180);

        // The operator, then etcd, then the API server refuse; the first is asked at once, or says it afterwards.
        let noise = |filters_n| large_document(&job, filters_n, 3);
        let huge = apply(&namespace, &noise(60), &server_side);
        assert!(!huge.ok, "{huge:?}");
        let label = "streamforge.io/admission=disabled";
        namespace.kubectl(&["label", "namespace", namespace.name(), label]);
        eventually("nobody judges it", 30, || {
            apply(&namespace, &noise(60), &server_side).ok.then_some(())
        });
        for (said, words) in [
            (huge.err, "compressed the document has"),
            (refusal(&namespace, "clicks"), "compressed the document has"),
            (
                apply(&namespace, &noise(120), &server_side).err,
                "too large",
            ),
            (
                apply(&namespace, &noise(240), &server_side).err,
                "too large",
            ),
        ] {
            println!("{said:.300}");
            assert!(said.contains(words) && said.len() < 2_000, "{said:.400}");
        }
    }
}
