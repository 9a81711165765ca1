//! Secrets that are missing, wrong, or replaced while a job runs; and their values, which nobody ever sees.

use streamforge_e2e_cluster::{
    ClicksJob, Namespace, TASK_MANAGERS_DIE, apply, condition, eventually, kubectl,
    operator_namespace, s3_settings, try_kubectl, variable,
};

/// The Secret of these jobs.
const OWN: &str = "own-keys";

/// What would be found if somebody printed a wrong key.
const WRONG: [&str; 2] = ["CANARYKEYID7Q", "canary-secret-key-7q"];

/// A password of Kafka.
const PASSWORD: &str = "canary-kafka-password-7q";

fn document(namespace: &Namespace, rows: u64, rate: u64) -> String {
    let job = ClicksJob {
        namespace,
        name: "clicks",
        rows: Some(rows),
        rate,
        parallelism: 2,
        slots: 2,
        more: "",
    };
    let settings = s3_settings();
    let own = settings.replace("store-keys", OWN);
    job.document().replace(&settings, &own)
}

fn right() -> [String; 2] {
    [
        variable("AWS_ACCESS_KEY_ID"),
        variable("AWS_SECRET_ACCESS_KEY"),
    ]
}

fn write_secret(namespace: &Namespace, [id, secret]: [&str; 2]) {
    let yaml = format!(
        "{{apiVersion: v1, kind: Secret, metadata: {{name: {OWN}}}, \
         stringData: {{accessKeyId: {id}, secretAccessKey: {secret}}}}}"
    );
    apply(namespace.name(), &yaml).expect("a secret can be written");
}

fn write_right(namespace: &Namespace) {
    let [id, secret] = right();
    write_secret(namespace, [&id, &secret]);
}

/// The reason and message of condition `Progressing`, once it is one of trouble.
fn trouble(namespace: &Namespace, job: &str, reason: &str) -> String {
    eventually(reason, 90, || {
        let status = namespace.job(job)?["status"].take();
        let progressing = condition(&status, "Progressing");
        (progressing["reason"] == reason)
            .then(|| progressing["message"].as_str().map(str::to_owned))?
    })
}

/// Waits for the result. Whoever has mended the Secret need do nothing else: the job is not given up.
fn finish(namespace: &Namespace, document: &str) {
    // `streamforge verify` finds its keys in a secret of another name.
    let known = document.replace(OWN, "store-keys");
    streamforge_e2e_cluster::finish(namespace, "clicks", &known, 240);
}

/// All that people read of a namespace and its operator: objects, events, logs, metrics. Secrets aside, which are
/// the place for it.
fn everything(namespace: &Namespace) -> Vec<(String, String)> {
    let name = namespace.name();
    let operator = operator_namespace();
    let kinds = "streamjobs,savepoints,statefulsets,configmaps,pods,services,serviceaccounts,\
                 networkpolicies,poddisruptionbudgets,controllerrevisions,events";
    let mut all = vec![(
        "objects".to_owned(),
        namespace.kubectl(&["get", kinds, "-o", "yaml"]),
    )];
    all.push((
        "description".to_owned(),
        namespace.kubectl(&["describe", "streamjobs,pods"]),
    ));
    let operators = kubectl(&[
        "-n",
        &operator,
        "get",
        "configmaps,leases,events",
        "-o",
        "yaml",
    ]);
    all.push(("objects of the operator".to_owned(), operators));
    for (namespace, component) in [(name, "task-manager"), (operator.as_str(), "operator")] {
        let label = format!("app.kubernetes.io/component={component}");
        let pods = kubectl(&["-n", namespace, "get", "pods", "-l", &label, "-o", "name"]);
        for pod in pods.lines() {
            for more in [&["--previous"][..], &[]] {
                let logs = [&["-n", namespace, "logs", pod, "--tail=-1"], more].concat();
                all.push((
                    format!("log of {pod}"),
                    try_kubectl(&logs).unwrap_or_default(),
                ));
            }
            let pod = pod.trim_start_matches("pod/");
            let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy/metrics");
            let metrics = try_kubectl(&["get", "--raw", &path]).unwrap_or_default();
            all.push((format!("metrics of {pod}"), metrics));
        }
    }
    all
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut written = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..=chunk.len() {
            let letter = usize::try_from(bits >> (18 - 6 * at) & 63).expect("it is below 64");
            written.push(char::from(LETTERS[letter]));
        }
    }
    written
}

/// Asserts that none of the values is anywhere, as it is or in base64.
fn check_unseen(namespace: &Namespace, values: &[&str]) {
    let all = everything(namespace);
    assert!(
        all.iter()
            .any(|(what, text)| what.starts_with("log of") && !text.is_empty())
    );
    assert!(
        all.iter()
            .any(|(what, text)| what.starts_with("metrics") && !text.is_empty())
    );
    for (what, text) in &all {
        for value in values {
            for form in [(*value).to_owned(), base64(value)] {
                let line = text.lines().find(|line| line.contains(&form));
                assert!(line.is_none(), "{what} shows {form}: {line:?}");
            }
        }
    }
}

/// Attempts fail by old keys until the kubelet has brought those of a Secret that was mended.
const OLD_KEYS: &str = "the credentials are refused";

/// After too many of them the operator begins a new count.
const NEW_COUNT: &str = "coordinator ended, starting it again";

#[test]
fn base64_is_that_of_the_api_server() {
    for (text, wanted) in [
        ("a", "YQ"),
        ("ab", "YWI"),
        ("abc", "YWJj"),
        ("testsecret", "dGVzdHNlY3JldA"),
    ] {
        assert_eq!(base64(text), wanted);
    }
}

#[test]
fn missing_secret_is_named_and_the_job_begins_when_it_is_there() {
    let namespace = Namespace::create("no-secret");
    namespace.announce(&["pass failed: use the job's store"]);
    let document = document(&namespace, 20_000, 10_000);
    apply(namespace.name(), &document).expect("the document is taken");

    let message = trouble(&namespace, "clicks", "SecretMissing");
    assert!(message.contains(OWN), "{message}");

    write_right(&namespace);
    finish(&namespace, &document);
    let [id, secret] = right();
    check_unseen(&namespace, &[&id, &secret]);
}

#[test]
fn wrong_secret_is_told_without_its_values_and_mended_without_a_new_job() {
    let namespace = Namespace::create("wrong-secret");
    namespace.announce(&["pass failed: use the job's store", OLD_KEYS, NEW_COUNT]);
    write_secret(&namespace, WRONG);
    let document = document(&namespace, 20_000, 10_000);
    apply(namespace.name(), &document).expect("the document is taken");

    let message = trouble(&namespace, "clicks", "StoreUnreachable");
    println!("{message}");
    assert!(message.contains("s3://"), "{message}");
    check_unseen(&namespace, &WRONG);

    write_right(&namespace);
    finish(&namespace, &document);
    check_unseen(&namespace, &WRONG);
}

#[test]
fn password_of_kafka_is_never_shown_when_kafka_refuses() {
    let namespace = Namespace::create("kafka-secret");
    let yaml = format!(
        "{{apiVersion: v1, kind: Secret, metadata: {{name: kafka}}, \
         stringData: {{username: someone, password: {PASSWORD}}}}}"
    );
    apply(namespace.name(), &yaml).expect("a secret can be written");
    let bootstrap = variable("POD_KAFKA_BOOTSTRAP");
    let sink = format!(
        "- {{name: results, from: per_user, format: {{json: {{}}}}, kafka: {{bootstrapServers: \"{bootstrap}\", \
         topic: refused, security: {{protocol: SaslPlaintext, mechanism: Plain, credentialsSecret: {{name: kafka}}}}}}}}"
    );
    let job = ClicksJob {
        namespace: &namespace,
        name: "clicks",
        rows: Some(20_000),
        rate: 10_000,
        parallelism: 1,
        slots: 1,
        more: "  restart: {maxFailures: 2}\n",
    };
    let document = job.document();
    let first = document
        .lines()
        .find(|line| line.contains("{name: results"));
    let document = document.replace(first.expect("it has that sink").trim_start(), &sink);
    apply(namespace.name(), &document).expect("the document is taken");

    let message = eventually("the job fails", 120, || {
        let status = namespace.job("clicks")?["status"].take();
        let failure = status["lastFailure"]["reason"].as_str()?.to_owned();
        assert_eq!(
            status["lastFailure"]["taskManager"], "clicks-tm-0",
            "{failure}"
        );
        (status["phase"] == "Failed" || status["phase"] == "Recovering").then_some(failure)
    });
    println!("{message}");
    check_unseen(&namespace, &[PASSWORD]);
}

/// `make e2e-slow`.
mod slow {
    use super::*;

    #[test]
    fn wrong_secret_while_a_job_runs_is_told_without_its_values_and_mended() {
        let namespace = Namespace::create("new-secret");
        // The only pod is rolled, and the next one may register before the end of its session is noticed.
        namespace.announce(&TASK_MANAGERS_DIE);
        namespace.announce(&[
            OLD_KEYS,
            NEW_COUNT,
            "it was asked to end, and no other could take over",
        ]);
        write_right(&namespace);
        let document = document(&namespace, 60_000, 3_000)
            + "  restart: {maxFailures: 3, backoff: {initial: 100ms, max: 1s}}\n";
        apply(namespace.name(), &document).expect("the document is taken");
        let checkpoint = || {
            let status = namespace.status("clicks");
            status["checkpoint"]["lastCompleted"]["id"]
                .as_u64()
                .unwrap_or_default()
        };
        eventually("a checkpoint", 90, || (checkpoint() > 0).then_some(()));

        // A mistake shows in pods that start anew: those that run may have the right keys for a while.
        write_secret(&namespace, WRONG);
        let label = "app.kubernetes.io/component=task-manager";
        namespace.kubectl(&["delete", "pod", "-l", label, "--force", "--grace-period=0"]);
        let refusal = eventually("the keys are refused", 120, || {
            let status = namespace.job("clicks")?["status"].take();
            let failed = &status["checkpoint"]["lastFailed"]["reason"];
            let progressing = condition(&status, "Progressing");
            let reason = [
                failed,
                &status["lastFailure"]["reason"],
                &progressing["message"],
            ];
            let told = reason.into_iter().filter_map(|it| it.as_str());
            told.filter(|it| it.contains("credentials are refused"))
                .map(str::to_owned)
                .next()
        });
        println!("{refusal}");
        check_unseen(&namespace, &WRONG);
        let before = checkpoint();

        write_right(&namespace);
        // Left to itself the kubelet takes 60 to 90 s, and as many failures end the job many times over.
        eventually("rows flow again", 40, || {
            let phase = namespace.phase("clicks");
            assert_ne!(phase, "Failed", "{:#}", namespace.status("clicks"));
            (checkpoint() > before && phase == "Running").then_some(())
        });
        finish(&namespace, &document);
        let [id, secret] = right();
        check_unseen(&namespace, &[WRONG[0], WRONG[1], &id, &secret]);
    }
}
