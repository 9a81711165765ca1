//! The API server's questions and our answers: `AdmissionReview`, admission.k8s.io/v1.
//!
//! Owns: reading and writing them. Objects stay JSON until somebody judges them: one that cannot be read
//! as what it says it is must be judged, too.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use streamforge_crds::v1alpha1::Savepoint;

use super::verdict::Verdict;
use crate::stream_job::report::listed;

/// Mistakes that an answer lists one by one.
const CAUSES_MAX: usize = 50;

/// A question.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    uid: String,
    kind: Kind,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    name: Option<String>,
    operation: String,
    /// As it would be.
    #[serde(default)]
    pub object: Value,
    /// As it is; null when it is created.
    #[serde(default)]
    pub old_object: Value,
}

#[derive(Debug, Deserialize)]
struct Kind {
    group: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    request: Option<Request>,
}

const API_VERSION: &str = "admission.k8s.io/v1";

/// The kind of jobs.
pub const STREAM_JOB: &str = "StreamJob";

/// The kind of savepoints.
pub const SAVEPOINT: &str = "Savepoint";

impl Request {
    /// Reads a question.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(body: &[u8]) -> Result<Arc<Self>, String> {
        let review: Review = serde_json::from_slice(body)
            .map_err(|error| format!("read an AdmissionReview: {error}"))?;
        if review.api_version != API_VERSION {
            return Err(format!("read an AdmissionReview: it is not {API_VERSION}"));
        }
        let request = review
            .request
            .ok_or("read an AdmissionReview: no request")?;
        Ok(Arc::new(request))
    }

    /// Of what kind the object is, if it is one of ours.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match (self.kind.group.as_str(), self.kind.kind.as_str()) {
            ("streamforge.io", STREAM_JOB) => STREAM_JOB,
            ("streamforge.io", SAVEPOINT) => SAVEPOINT,
            _ => "other",
        }
    }

    /// Whether an object is made.
    #[must_use]
    pub fn is_creation(&self) -> bool {
        self.operation == "CREATE"
    }

    /// Whether the object itself is made or edited, not a part of it and not its end.
    #[must_use]
    pub fn is_of_document(&self) -> bool {
        let part = self.sub_resource.as_deref().unwrap_or_default();
        let is_edit = self.is_creation() || self.operation == "UPDATE";
        part.is_empty() && is_edit && self.object.pointer("/metadata/deletionTimestamp").is_none()
    }

    /// Where it is.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        let of_object = || {
            self.object
                .pointer("/metadata/name")
                .and_then(Value::as_str)
        };
        let name = self.name.as_deref().filter(|name| !name.is_empty());
        name.or_else(of_object).unwrap_or_default()
    }

    /// The uid of a job that is edited.
    #[must_use]
    pub fn uid_of_job(&self) -> Option<&str> {
        if self.is_creation() {
            return None;
        }
        self.object.pointer("/metadata/uid")?.as_str()
    }

    /// The object as a savepoint.
    #[must_use]
    pub fn savepoint(&self) -> Option<Savepoint> {
        serde_json::from_value(self.object.clone()).ok()
    }

    /// The answer.
    #[must_use]
    pub fn answer(&self, verdict: &Verdict) -> Vec<u8> {
        let mut response = json!({"uid": self.uid, "allowed": verdict.problems.is_empty()});
        if !verdict.warnings.is_empty() {
            response["warnings"] = json!(verdict.warnings);
        }
        if !verdict.problems.is_empty() {
            let causes = verdict.problems.iter().take(CAUSES_MAX).map(|problem| {
                json!({
                    "reason": "FieldValueInvalid",
                    "field": problem.path,
                    "message": problem.explained(),
                })
            });
            response["status"] = json!({
                "status": "Failure",
                "code": 422,
                "reason": "Invalid",
                "message": listed(&verdict.problems),
                "details": {
                    "group": self.kind.group,
                    "kind": self.kind.kind,
                    "name": self.name(),
                    "causes": causes.collect::<Vec<_>>(),
                },
            });
        }
        let review = json!({
            "apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response,
        });
        review.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests;
