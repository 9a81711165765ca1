//! What is kept of a child, and whether it is as it was applied.
//!
//! Owns: telling a change by somebody else from what was applied, and who made it. Pure.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde_json::{Value, json};

use super::Kind;
use crate::hash;
use crate::names::FIELD_MANAGER;

/// Fields that are named of a change.
const FIELDS_MAX: usize = 8;

/// What is kept of a child.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Its uid.
    pub uid: String,
    /// Its resource version; of two the larger is the newer one.
    pub version: u64,
    /// Its generation, if it has one: its spec is another under another one.
    pub generation: Option<i64>,
    /// Hash of its labels and owners.
    pub meta: String,
    /// The job that owns it.
    pub job: Option<String>,
    /// Who wrote to it last, if that was not this operator.
    pub by: Option<By>,
    /// Of a StatefulSet.
    pub set: SetStatus,
}

/// Somebody who wrote to a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// The field manager.
    pub manager: String,
    /// Fields that are theirs, each as the names that lead to it.
    pub fields: Vec<Vec<String>>,
}

/// What a StatefulSet says of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetStatus {
    /// Pods that are ready.
    pub ready: i32,
    /// The revision that pods are to have.
    pub update_revision: Option<String>,
    /// Pods are being replaced.
    pub replaces_pods: bool,
}

impl SetStatus {
    /// Reads it.
    #[must_use]
    pub fn of(set: &StatefulSet) -> Self {
        let Some(status) = &set.status else {
            return Self::default();
        };
        Self {
            ready: status.ready_replicas.unwrap_or(0),
            update_revision: status.update_revision.clone(),
            replaces_pods: status.update_revision != status.current_revision,
        }
    }
}

impl Seen {
    /// Of an object's metadata.
    #[must_use]
    pub fn of(meta: &ObjectMeta, set: SetStatus) -> Self {
        let mut owners = meta.owner_references.iter().flatten();
        let job = owners.find(|owner| owner.kind == "StreamJob");
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            version: version_of(meta),
            generation: meta.generation,
            meta: hash::of(&json!([meta.labels, meta.owner_references])),
            job: job.map(|owner| owner.name.clone()),
            by: written_by(meta.managed_fields.as_deref().unwrap_or_default()),
            set,
        }
    }

    /// Whether this is what `applied` was when it was written, or older: then it is on its way here.
    #[must_use]
    pub fn is_as(&self, applied: &Self, kind: Kind) -> bool {
        if self.version <= applied.version {
            return true;
        }
        // Others write the status of these, which changes no generation.
        let has_generation = matches!(
            kind,
            Kind::StatefulSet | Kind::PodDisruptionBudget | Kind::NetworkPolicy
        );
        let of = |seen: &Self| (seen.uid.clone(), seen.generation, seen.meta.clone());
        has_generation && of(self) == of(applied)
    }
}

/// A resource version as a number, which it is for every API server.
#[must_use]
pub fn version_of(meta: &ObjectMeta) -> u64 {
    let version = meta.resource_version.as_deref().unwrap_or_default();
    version.parse().unwrap_or_default()
}

/// The newest writer that is not this operator, of what is no status. `kubectl scale` writes to a subresource, too, and
/// what it changes is in the spec.
fn written_by(entries: &[ManagedFieldsEntry]) -> Option<By> {
    let others = entries.iter().filter(|entry| {
        let ours = entry.manager.as_deref() == Some(FIELD_MANAGER);
        !ours && entry.subresource.as_deref() != Some("status")
    });
    let newest = others.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?;
    let mut fields = Vec::new();
    if let Some(owned) = &newest.fields_v1 {
        collect(&owned.0, &mut Vec::new(), &mut fields);
    }
    Some(By {
        manager: newest.manager.clone().unwrap_or_default(),
        fields,
    })
}

/// The paths of a set of fields; of lists only the list.
fn collect(owned: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let entries = owned.as_object().into_iter().flatten();
    let mut named = entries
        .filter_map(|(key, below)| Some((key.strip_prefix("f:")?, below)))
        .peekable();
    if named.peek().is_none() && !path.is_empty() && found.len() < FIELDS_MAX {
        found.push(path.clone());
    }
    for (name, below) in named {
        path.push(name.to_owned());
        collect(below, path, found);
        path.pop();
    }
}

impl By {
    /// Those of its fields that `object`, as it was applied, has too, as `spec.replicas`.
    #[must_use]
    pub fn fields_of(&self, object: &Value) -> Vec<String> {
        let has = |path: &&Vec<String>| {
            let mut at = Some(object);
            for name in *path {
                at = at.and_then(|at| at.get(name));
            }
            at.is_some()
        };
        let theirs = self.fields.iter().filter(has);
        theirs.map(|path| path.join(".")).collect()
    }
}
