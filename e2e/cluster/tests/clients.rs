//! Clients that know nothing of StreamJobs: the HorizontalPodAutoscaler of Kubernetes, `kubectl wait`.

use std::collections::BTreeSet;

use serde_json::Value;
use streamforge_e2e_cluster::{ClicksJob, Namespace, apply, eventually, get, kubectl, try_kubectl};

/// Two tasks at least, so that it has to scale at once: with fewer it need not know a metric for that.
const AUTOSCALER: &str = r#"
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: clicks}
spec:
  scaleTargetRef: {apiVersion: streamforge.io/v1alpha1, kind: StreamJob, name: clicks}
  minReplicas: 2
  maxReplicas: 4
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
"#;

fn clicks(namespace: &Namespace, rows: Option<u64>) -> ClicksJob<'_> {
    ClicksJob {
        namespace,
        name: "clicks",
        rows,
        rate: 2_000,
        parallelism: 1,
        slots: 1,
        more: "",
    }
}

fn wait_until_it_runs(namespace: &Namespace) {
    eventually("rows flow", 90, || {
        (namespace.phase("clicks") == "Running").then_some(())
    });
}

/// The scale subresource, as clients read it.
fn scale(namespace: &Namespace) -> Value {
    let name = namespace.name();
    let path = format!("/apis/streamforge.io/v1alpha1/namespaces/{name}/streamjobs/clicks/scale");
    serde_json::from_str(&kubectl(&["get", "--raw", &path])).expect("the API server writes JSON")
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
    pods.iter().filter_map(name).collect()
}

/// Status and reason of a condition of the autoscaler.
fn condition(namespace: &Namespace, kind: &str) -> Option<(String, String)> {
    let autoscaler = get(namespace.name(), "hpa", "clicks")?;
    let mut all = autoscaler["status"]["conditions"].as_array()?.iter();
    let found = all.find(|it| it["type"] == kind)?;
    let text = |key: &str| found[key].as_str().map(str::to_owned);
    Some((text("status")?, text("reason")?))
}

#[test]
fn horizontal_pod_autoscaler_scales_a_job_by_its_scale_subresource() {
    let namespace = Namespace::create("hpa");
    clicks(&namespace, None).apply();
    wait_until_it_runs(&namespace);

    apply(namespace.name(), AUTOSCALER).expect("an autoscaler can be made");

    eventually("it has two subtasks", 180, || {
        (namespace.job("clicks")?["status"]["parallelism"] == 2).then_some(())
    });
    assert_eq!(
        namespace.job("clicks").expect("it is there")["spec"]["parallelism"],
        2
    );
    eventually("its pods are counted", 90, || {
        (names(&namespace.pods()).len() == 2).then_some(())
    });
    let scale = scale(&namespace);
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]["replicas"]),
        (&2.into(), &2.into())
    );
    let selector = scale["status"]["selector"]
        .as_str()
        .expect("a selector in a text");
    let selected = namespace.kubectl(&["get", "pods", "-l", selector, "-o", "json"]);
    let selected: Value = serde_json::from_str(&selected).expect("kubectl prints JSON");
    let selected = selected["items"].as_array().expect("a list");
    assert_eq!(names(selected), names(&namespace.pods()), "{selector}");

    let able = eventually("it has looked again", 90, || {
        condition(&namespace, "AbleToScale").filter(|(_, reason)| reason != "SucceededRescale")
    });
    assert_eq!(able, ("True".to_owned(), "SucceededGetScale".to_owned()));
    let autoscaler = get(namespace.name(), "hpa", "clicks").expect("it is there");
    assert_eq!(autoscaler["status"]["currentReplicas"], 2);
    // The selector was taken: what it lacks are metrics, which nobody serves here.
    let active = condition(&namespace, "ScalingActive").expect("it has tried");
    assert_eq!(
        active,
        ("False".to_owned(), "FailedGetResourceMetric".to_owned())
    );
}

#[test]
fn kubectl_wait_ends_when_a_job_has_caught_up_and_not_before() {
    let namespace = Namespace::create("wait");
    let job = clicks(&namespace, Some(120_000));
    job.apply();
    wait_until_it_runs(&namespace);
    let wait = |timeout: &str| {
        let timeout = format!("--timeout={timeout}");
        let of = [
            "-n",
            namespace.name(),
            "wait",
            "--for=condition=CaughtUp",
            &timeout,
        ];
        try_kubectl(&[&of[..], &["streamjob/clicks"]].concat())
    };

    // All of it takes a minute.
    let refused = wait("1s").expect_err("there is more to read");
    assert!(refused.contains("timed out"), "{refused}");

    let met =
        wait("120s").unwrap_or_else(|said| panic!("{said}: {:#}", namespace.status("clicks")));
    assert!(met.contains("condition met"), "{met}");
    job.finish(60);
}
