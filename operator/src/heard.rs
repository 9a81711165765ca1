//! Resources of ours as they were heard of.
//!
//! Owns: what is left of a resource that cannot be read as what it is. An API server may have admitted it by a
//! definition of another version, and whoever wrote it is to be told, and may delete it. What runs of it goes on, and
//! of what it says only that is used which decides about what others would lose. Start at: [`Heard`].

use std::ops::Deref;
use std::sync::Arc;

use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use streamforge_crds::v1alpha1::{
    DeletionPolicy, OnDelete, Savepoint, SavepointSpec, StreamJob, StreamJobSpec,
};

use crate::stream_job::document;
use crate::stream_job::report::listed;
use crate::stream_job::validate::Problem;
use crate::watch::{Unread, member, members};

/// A resource, whole or in part.
#[derive(Clone, Debug)]
pub struct Heard<K> {
    /// What was read of it.
    pub object: K,
    /// What could not be.
    pub unreadable: Option<Arc<Unreadable>>,
}

/// What could not be read of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// What is wrong with it.
    pub problems: Vec<Problem>,
    /// It has a status that cannot be read either: whoever wrote another one would destroy it.
    pub status: bool,
}

impl<K: Resource<DynamicType = ()>> Heard<K> {
    /// Says in the log that it cannot be read, unless it was so before: each write of its status is heard of.
    pub fn warn(&self, before: Option<&Self>) {
        let known = before.and_then(|before| before.unreadable.as_ref());
        let Some(unreadable) = self.unreadable.as_ref().filter(|it| Some(*it) != known) else {
            return;
        };
        tracing::warn!(
            kind = %K::kind(&()),
            namespace = self.meta().namespace,
            name = self.meta().name,
            reason = listed(&unreadable.problems),
            "a resource cannot be read"
        );
    }
}

impl<K> From<K> for Heard<K> {
    fn from(object: K) -> Self {
        Self {
            object,
            unreadable: None,
        }
    }
}

impl<K> Deref for Heard<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.object
    }
}

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Heard<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(deserializer).map(Self::from)
    }
}

/// It is what it is of.
impl<K: Resource> Resource for Heard<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

/// A kind of ours.
pub trait Ours: Sized {
    /// What is left of one that cannot be read; none: it has no name.
    fn rest(unread: &Unread) -> Option<Heard<Self>>;
}

/// The parts of an unreadable resource.
struct Parts<'a> {
    members: Vec<(String, &'a str)>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            members: members(text).unwrap_or_default(),
        }
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        member(&self.members, key).filter(|text| *text != "null")
    }

    /// A part by itself. `Err`: it is there, and cannot be read.
    fn read<T: DeserializeOwned>(&self, key: &str) -> serde_json::Result<Option<T>> {
        self.text(key).map(serde_json::from_str).transpose()
    }

    fn parts(&self, key: &str) -> Self {
        Self::of(self.text(key).unwrap_or("{}"))
    }
}

fn unreadable(problems: Vec<Problem>, status: bool) -> Option<Arc<Unreadable>> {
    let is_whole = problems.is_empty() && !status;
    (!is_whole).then(|| Arc::new(Unreadable { problems, status }))
}

fn of_status(error: &serde_json::Error) -> Problem {
    let cure = "run an operator of the version that wrote it";
    Problem::new("status", error.to_string(), cure)
}

impl Ours for StreamJob {
    fn rest(unread: &Unread) -> Option<Heard<Self>> {
        let name = unread.metadata.name.as_deref()?;
        let parts = Parts::of(&unread.text);
        let status = parts.read("status");
        let mut problems = Vec::new();
        let text = parts.text("spec").unwrap_or("{}");
        let spec = serde_json::from_str(text).unwrap_or_else(|error| {
            problems = document::problems(name, text, &error);
            rest_of_spec(text)
        });
        problems.extend(status.as_ref().err().map(of_status));
        let mut object = Self::new(name, spec);
        object.metadata = unread.metadata.clone();
        let unreadable = unreadable(problems, status.is_err());
        object.status = status.ok().flatten();
        Some(Heard { object, unreadable })
    }
}

/// A document without anything but what becomes of its checkpoints.
fn rest_of_spec(text: &str) -> StreamJobSpec {
    let mut spec: StreamJobSpec = serde_json::from_value(json!({"sources": [], "sinks": []}))
        .expect("all other fields have defaults");
    let spec_parts = Parts::of(text);
    let parts = spec_parts.parts("checkpoint");
    // What says something that nobody here knows says not to delete them.
    let on_delete = parts.read("onDelete").unwrap_or(Some(OnDelete::Retain));
    spec.checkpoint.on_delete = on_delete.unwrap_or_default();
    spec.checkpoint.storage = parts.read("storage").ok().flatten();
    spec
}

impl Ours for Savepoint {
    fn rest(unread: &Unread) -> Option<Heard<Self>> {
        let name = unread.metadata.name.as_deref()?;
        let parts = Parts::of(&unread.text);
        let status = parts.read("status");
        let mut problems = Vec::new();
        let text = parts.text("spec").unwrap_or("{}");
        let spec = serde_json::from_str(text).unwrap_or_else(|error: serde_json::Error| {
            let cure = "create another one, or run an operator of its version";
            problems.push(Problem::new("spec", error.to_string(), cure));
            let parts = Parts::of(text);
            let policy = parts.read("deletionPolicy");
            SavepointSpec {
                job: parts.read("job").ok().flatten().unwrap_or_default(),
                deletion_policy: policy.ok().flatten().unwrap_or(DeletionPolicy::Retain),
            }
        });
        problems.extend(status.as_ref().err().map(of_status));
        let mut object = Self::new(name, spec);
        object.metadata = unread.metadata.clone();
        let unreadable = unreadable(problems, status.is_err());
        object.status = status.ok().flatten();
        Some(Heard { object, unreadable })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::stream_job::testing::written;
    use crate::watch::Item;

    /// The job with another spec, as it is heard of.
    fn heard(change: impl FnOnce(&mut Value)) -> Heard<StreamJob> {
        let mut job = written();
        job["metadata"]["resourceVersion"] = json!("9");
        change(&mut job);
        match Item::<StreamJob>::read(&job.to_string()) {
            Item::Read(job) => job.into(),
            Item::Unread(unread) => StreamJob::rest(&unread).unwrap(),
        }
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |value, _| json!({"a": value}))
    }

    #[test]
    fn job_that_cannot_be_read_says_why_in_the_words_of_validate_and_what_becomes_of_its_checkpoints()
     {
        let job = heard(|job| {
            job["spec"]["checkpoint"]["interval"] = json!("");
            job["spec"]["checkpoint"]["onDelete"] = json!("Retain");
            job["status"] = json!({"phase": "Running"});
        });

        let unreadable = job.unreadable.as_deref().unwrap();
        let told: Vec<String> = unreadable
            .problems
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(told.len(), 1, "{told:?}");
        let told = &told[0];
        assert!(
            told.starts_with("spec.checkpoint.interval: `` is not a duration"),
            "{told}"
        );
        assert!(!unreadable.status);
        assert_eq!(
            job.status.as_ref().unwrap().phase.as_deref(),
            Some("Running")
        );
        assert_eq!(job.metadata.resource_version.as_deref(), Some("9"));
        assert_eq!(job.metadata.generation, Some(3));
        assert_eq!(job.spec.checkpoint.on_delete, OnDelete::Retain);
        assert_eq!(
            job.spec.checkpoint.storage.as_ref().unwrap().uri,
            "s3://state/jobs"
        );
        assert!(job.spec.sources.is_empty());
    }

    #[test]
    fn checkpoints_are_deleted_only_where_that_is_what_is_written() {
        for (on_delete, kept) in [
            (json!("Archive"), OnDelete::Retain),
            (json!("Delete"), OnDelete::Delete),
            (Value::Null, OnDelete::Delete),
        ] {
            let job = heard(|job| {
                job["spec"]["checkpoint"]["interval"] = json!("1w");
                job["spec"]["checkpoint"]["onDelete"] = on_delete.clone();
            });
            assert_eq!(job.spec.checkpoint.on_delete, kept, "{on_delete}");
        }
    }

    #[test]
    fn what_nests_too_deep_is_told_and_who_wrote_it_does_not_matter() {
        let job = heard(|job| job["spec"]["taskManager"] = json!({"podTemplate": nested(300)}));
        let problem = &job.unreadable.as_deref().unwrap().problems[0];
        assert!(problem.message.contains("recursion limit"), "{problem}");
        assert_eq!(problem.path, "spec");

        let fields = json!([{"manager": "m", "operation": "Apply", "fieldsV1": nested(300)}]);
        let job = heard(|job| job["metadata"]["managedFields"] = fields);
        assert_eq!(job.unreadable, None);
        assert_eq!(job.spec, crate::stream_job::testing::job().spec);
    }

    #[test]
    fn status_that_cannot_be_read_is_no_status_and_is_left_alone() {
        let job = heard(|job| job["status"] = json!({"phase": 7}));

        let unreadable = job.unreadable.as_deref().unwrap();
        assert!(unreadable.status && job.status.is_none());
        assert_eq!(unreadable.problems[0].path, "status");
        assert!(!job.spec.sources.is_empty());
    }

    #[test]
    fn savepoint_that_cannot_be_read_keeps_its_copy_unless_it_says_to_delete_it() {
        for (policy, kept) in [
            ("Delete", DeletionPolicy::Delete),
            ("Archive", DeletionPolicy::Retain),
        ] {
            let savepoint = json!({
                "metadata": {"name": "nightly"},
                "spec": {"job": "clicks", "deletionPolicy": policy, "format": "Canonical"},
                "status": {"phase": "Completed"},
            });
            let Item::Unread(unread) = Item::<Savepoint>::read(&savepoint.to_string()) else {
                unreachable!("it has a field of a later version");
            };

            let savepoint = Savepoint::rest(&unread).unwrap();

            assert_eq!(savepoint.spec.deletion_policy, kept);
            assert_eq!(savepoint.spec.job, "clicks");
            assert!(savepoint.status.as_ref().unwrap().phase.is_some());
            let problem = savepoint.unreadable.as_ref().unwrap().problems[0].to_string();
            assert!(problem.starts_with("spec: "), "{problem}");
        }
    }
}
