//! What is in the cluster of one job, and whether it is what was declared.
//!
//! Owns: reading the job, its children and its pods by the API; the comparison with a [`Declared`]; and a form in
//! which the children of two jobs of one declaration are equal.

use serde_json::{Map, Value};

use crate::api::Api;
use crate::declared::Declared;
use crate::job::condition;

/// Where jobs are.
const JOBS: &str = "/apis/streamforge.io/v1alpha1/namespaces";

/// Kinds of children, as paths.
const CHILDREN: [(&str, &str); 7] = [
    ("/api/v1", "configmaps"),
    ("/api/v1", "secrets"),
    ("/api/v1", "serviceaccounts"),
    ("/api/v1", "services"),
    ("/apis/apps/v1", "statefulsets"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
];

/// What of an object belongs to this one alone.
const OF_ONE: [&str; 12] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "generation",
    "status",
    "binaryData",
    "tls.crt",
    "tls.key",
    "ca.crt",
    "clusterIP",
    "clusterIPs",
];

/// One job, as it is.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The resource.
    pub job: Option<Value>,
    /// Its children.
    pub children: Vec<Value>,
    /// Its pods, in the order of their names.
    pub pods: Vec<Value>,
}

/// The path of a job.
pub fn job_path(namespace: &str, name: &str) -> String {
    format!("{JOBS}/{namespace}/streamjobs/{name}")
}

/// The path of a savepoint.
pub fn savepoint_path(namespace: &str, name: &str) -> String {
    format!("{JOBS}/{namespace}/savepoints/{name}")
}

impl Seen {
    /// Looks.
    pub fn look(api: &Api, namespace: &str, name: &str) -> Self {
        let label = format!("labelSelector=streamforge.io%2Fjob%3D{name}");
        let children = CHILDREN.iter().flat_map(|(group, kind)| {
            let target = format!("{group}/namespaces/{namespace}/{kind}?{label}");
            let mut items = api.list(&target);
            // Objects of a list do not say what they are.
            for item in &mut items {
                item["kind"] = (*kind).into();
            }
            items
        });
        let children = children.collect();
        Self {
            job: api.read(&job_path(namespace, name)),
            children,
            pods: api.list(&format!("/api/v1/namespaces/{namespace}/pods?{label}")),
        }
    }

    /// A child; nothing if it is not there.
    pub fn child(&self, kind: &str) -> Option<&Value> {
        self.children.iter().find(|child| child["kind"] == kind)
    }

    /// Uids of the pods.
    pub fn pod_uids(&self) -> Vec<String> {
        let uids = self.pods.iter().map(|pod| text(&pod["metadata"]["uid"]));
        uids.collect()
    }

    /// Why it is not what was declared, if it is not. `obeyed` is what the operator has to run: of a document that is
    /// wrong, the one before.
    pub fn differs(&self, declared: &Declared, obeyed: &Declared) -> Option<String> {
        let Some(job) = &self.job else {
            return Some("there is no job".to_owned());
        };
        let status = &job["status"];
        let progressing = condition(status, "Progressing");
        let settled = if declared.paused { "Paused" } else { "Settled" };
        let valid = if declared.spoiled { "False" } else { "True" };
        let mut wanted = vec![
            (
                "observedGeneration",
                status["observedGeneration"].clone(),
                job["metadata"]["generation"].clone(),
            ),
            ("phase", status["phase"].clone(), obeyed.phase().into()),
            (
                "Valid",
                condition(status, "Valid")["status"].clone(),
                valid.into(),
            ),
            ("Progressing", progressing["reason"].clone(), settled.into()),
        ];
        if obeyed.phase() == "Running" {
            wanted.push((
                "parallelism",
                status["parallelism"].clone(),
                obeyed.parallelism.into(),
            ));
        }
        let found = wanted.into_iter().find(|(_, is, wanted)| is != wanted);
        if let Some((what, is, wanted)) = found {
            return Some(format!("{what} is {is}, not {wanted}; status: {status}"));
        }
        self.pods_differ(obeyed)
            .or_else(|| self.document_differs(obeyed))
    }

    fn pods_differ(&self, obeyed: &Declared) -> Option<String> {
        let Some(set) = self.child("statefulsets") else {
            return Some("there is no StatefulSet".to_owned());
        };
        let pods = match obeyed.phase() {
            "Finished" => 0,
            _ => obeyed.pods(),
        };
        let (spec, status) = (&set["spec"], &set["status"]);
        let container = &spec["template"]["spec"]["containers"][0];
        let cpu = &container["resources"]["requests"]["cpu"];
        // An annotation has no generation that would say whether it was seen.
        let restart = &spec["template"]["metadata"]["annotations"]["streamforge.io/restart"];
        // What is edited while a job is suspended is taken when it goes on.
        let (wanted_cpu, wanted_restart) = if obeyed.suspend {
            (cpu.clone(), restart.clone())
        } else {
            let restart = obeyed.restart.map(|n| n.to_string());
            (format!("{}m", obeyed.cpu_m).into(), restart.into())
        };
        let wanted = [
            ("replicas", spec["replicas"].clone(), Value::from(pods)),
            ("cpu", cpu.clone(), wanted_cpu),
            ("restart", restart.clone(), wanted_restart),
            (
                "observedGeneration of the set",
                status["observedGeneration"].clone(),
                set["metadata"]["generation"].clone(),
            ),
            ("pods", self.pods.len().into(), pods.into()),
        ];
        let found = wanted.into_iter().find(|(_, is, wanted)| is != wanted);
        if let Some((what, is, wanted)) = found {
            return Some(format!("{what} is {is}, not {wanted}"));
        }
        if pods == 0 {
            return None;
        }
        let revision = &status["updateRevision"];
        for pod in &self.pods {
            let is_ready = pod["status"]["conditions"].as_array().into_iter().flatten();
            let mut is_ready =
                is_ready.filter(|it| it["type"] == "Ready" && it["status"] == "True");
            let of = &pod["metadata"]["labels"]["controller-revision-hash"];
            if is_ready.next().is_none() || of != revision {
                let name = &pod["metadata"]["name"];
                return Some(format!(
                    "pod {name} of {of} is not ready, or not of {revision}"
                ));
            }
        }
        None
    }

    fn document_differs(&self, obeyed: &Declared) -> Option<String> {
        if obeyed.suspend {
            return None; // as above
        }
        let Some(map) = self.child("configmaps") else {
            return Some("there is no ConfigMap".to_owned());
        };
        let document = text(&map["data"]["job.yaml"]);
        let wanted = [
            format!("rowsPerSecond: {}", obeyed.rate),
            format!("interval: \"{}ms\"", obeyed.interval_ms),
            format!("parallelism: {}", obeyed.parallelism),
        ];
        let missing = wanted.iter().find(|line| !document.contains(*line));
        missing.map(|line| format!("the document has not `{line}`: {document}"))
    }

    /// Whether nothing of it is left.
    pub fn is_gone(&self) -> bool {
        self.job.is_none() && self.children.is_empty() && self.pods.is_empty()
    }

    /// Job and children in a form that is the same for another job that was declared alike: without what belongs
    /// to one object alone, and with `others` (texts of this one: uids, namespaces) taken out.
    pub fn normal(&self, others: &[&str]) -> Value {
        let uid = self.job.as_ref().map(|job| text(&job["metadata"]["uid"]));
        let uid = uid.unwrap_or_default();
        let others: Vec<&str> = others.iter().copied().chain([uid.as_str()]).collect();
        let mut all: Vec<Value> = Vec::new();
        if let Some(job) = &self.job {
            let status = &job["status"];
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let conditions = conditions
                .filter(|it| ["Ready", "Valid"].iter().any(|name| it["type"] == *name))
                .map(|it| format!("{}={} {}", it["type"], it["status"], it["reason"]));
            let mut job = job.clone();
            job["conditions"] = conditions.collect::<Vec<_>>().into();
            job["phase"] = status["phase"].clone();
            all.push(job);
        }
        all.extend(self.children.iter().cloned());
        let mut all = Value::from(all);
        clean(&mut all, &others);
        all
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn clean(value: &mut Value, others: &[&str]) {
    match value {
        Value::Object(map) => {
            let old: Map<String, Value> = std::mem::take(map);
            for (key, mut value) in old {
                if OF_ONE.contains(&key.as_str()) {
                    continue;
                }
                clean(&mut value, others);
                map.insert(key, value);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| clean(value, others)),
        Value::String(text) => {
            for other in others.iter().filter(|other| !other.is_empty()) {
                *text = text.replace(other, "*");
            }
            // The hash of what the pods are, and the seal on it: the address of their coordinator is part of both.
            for start in ["\"hash\":\"", "\"seal\":\""] {
                if let Some((before, after)) = text.split_once(start)
                    && let Some((_, after)) = after.split_once('"')
                {
                    *text = format!("{before}{after}");
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
