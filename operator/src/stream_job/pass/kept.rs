//! What is kept of a job: read when it must be, written before it counts.
//!
//! Owns: when the ConfigMap is read, and the order of writes. What was read or written last is good for as long as
//! the watch tells of nothing newer. If the ConfigMap is gone, what is remembered is written again; only an
//! operator that remembers nothing falls back on the status.

use kube::ResourceExt as _;
use streamforge_crds::v1alpha1::StreamJob;

use super::Pass;
use super::children::Applied;
use crate::children::{Kind, Seen, SetStatus};
use crate::controller::Context;
use crate::names::Names;
use crate::record::{Record, State};
use crate::stream_job::build::{self, KeptPods};
use crate::stream_job::error::{Error, api};
use crate::stream_job::keep::{self, Kept, Packed};
use crate::{events, hash};

/// The newest that is kept of a job; `None`: what is remembered.
pub(super) async fn newer(
    job: &StreamJob,
    context: &Context,
    remembered: &Kept,
) -> Result<Option<Kept>, Error> {
    if is_newest(job, context, remembered) {
        return Ok(None);
    }
    let found = match keep::read(&context.client, job).await {
        // What somebody spoilt is written again by who remembers it.
        Err(Error::Record { .. }) if remembered.record.is_some() => Kept::default(),
        found => found?,
    };
    Ok(Some(choose(found, remembered)))
}

/// What was found, or what is remembered where somebody has taken it away. It is written with the version that
/// was found: if that is not the newest any more, another operator has written it.
fn choose(found: Kept, remembered: &Kept) -> Kept {
    if found.record.is_some() || remembered.record.is_none() {
        return found;
    }
    Kept {
        version: found.version,
        ..remembered.clone()
    }
}

fn is_newest(job: &StreamJob, context: &Context, kept: &Kept) -> bool {
    let Ok(names) = Names::of(&job.name_any()) else {
        return false;
    };
    let namespace = job.namespace().unwrap_or_default();
    let name = names.document().to_string();
    let seen = context.children.get(Kind::ConfigMap, &namespace, &name);
    let version = kept
        .version
        .as_deref()
        .and_then(|version| version.parse::<u64>().ok());
    matches!((seen, version), (Some(seen), Some(version)) if seen.version <= version)
}

impl Pass<'_> {
    /// Writes a record down, with the document and the pods of it. False: somebody else has written meanwhile,
    /// and the next pass reads what.
    pub(super) async fn write(&mut self, record: Record) -> Result<bool, Error> {
        let current = self.read(&record).ok();
        let Some(current) = current.or_else(|| self.desired.as_ref().ok().cloned()) else {
            return Ok(true); // nothing that this operator can read was ever valid
        };
        // What must not be lost with the ConfigMap is elsewhere first.
        self.keep_lived(&record).await?;
        let children = build::build(&build::Request {
            desired: &current,
            settings: &self.context.settings,
            kept: self.kept.as_ref(),
            replicas: 0,
            certificate: None,
        });
        self.write_map(children.document, record).await
    }

    /// The same for a ConfigMap that is built already.
    pub(super) async fn write_map(
        &mut self,
        mut map: k8s_openapi::api::core::v1::ConfigMap,
        record: Record,
    ) -> Result<bool, Error> {
        keep::add(&mut map, &record);
        let hash = hash::of(&map);
        let name = map.name_any();
        let seen = self
            .context
            .children
            .get(Kind::ConfigMap, &self.namespace(), &name);
        let before = self.memory.applied.get(&Kind::ConfigMap).cloned();
        let same = before.as_ref().is_some_and(|before| before.hash == hash);
        let version = self.memory.kept.version.clone();
        let written = keep::write(&self.context.client, &map, version.as_deref());
        let Some(written) = written.await.map_err(api("write the ConfigMap"))? else {
            tracing::info!(
                namespace = self.namespace(),
                name,
                "the record was changed by somebody else, reading it again"
            );
            // Kept for the case that it was deleted.
            self.memory.kept.version = None;
            return Ok(false);
        };
        let now = Seen::of(&written.metadata, SetStatus::default());
        if let Some(before) = before.filter(|_| same) {
            self.tell_of_drift(
                Kind::ConfigMap,
                &name,
                seen.as_ref(),
                (&before.seen, &now),
                &map,
            )
            .await;
        }
        let data = map.data.as_ref();
        let pods = data.and_then(|data| data.get(build::PODS_KEY));
        self.kept = pods.and_then(|text| KeptPods::read(text));
        self.memory
            .applied
            .insert(Kind::ConfigMap, Applied { hash, seen: now });
        self.memory.kept = Packed::of(&Kept {
            record: Some(record.clone()),
            pods: self.kept.clone(),
            version: written.metadata.resource_version,
        });
        if record.state != State::Active {
            self.give_up_starting();
        }
        self.record = Some(record);
        Ok(true)
    }

    pub(super) async fn tell_of_drift(
        &self,
        kind: Kind,
        name: &str,
        seen: Option<&Seen>,
        (before, now): (&Seen, &Seen),
        applied: &impl serde::Serialize,
    ) {
        let event = match seen {
            None if now.uid != before.uid => events::made_again(kind.name(), name),
            Some(seen) if now.version != seen.version => {
                let applied = serde_json::to_value(applied).unwrap_or_default();
                let by = seen.by.as_ref();
                let fields = by.map(|by| by.fields_of(&applied)).unwrap_or_default();
                events::drift_repaired(kind.name(), name, by.map(|by| &*by.manager), &fields)
            }
            _ => return,
        };
        self.tell(event).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(generation: i64, version: Option<&str>) -> Kept {
        Kept {
            record: Some(Record::new("uid-1", json!({}), generation)),
            pods: None,
            version: version.map(str::to_owned),
        }
    }

    #[test]
    fn record_that_was_deleted_is_the_one_that_is_remembered_and_one_that_is_there_counts() {
        let remembered = || kept(1, Some("7"));

        assert_eq!(choose(Kept::default(), &remembered()), kept(1, None));
        let emptied = Kept {
            version: Some("9".to_owned()),
            ..Kept::default()
        };
        assert_eq!(choose(emptied, &remembered()), kept(1, Some("9")));
        assert_eq!(
            choose(kept(2, Some("9")), &remembered()),
            kept(2, Some("9"))
        );
        assert_eq!(choose(Kept::default(), &Kept::default()), Kept::default());
    }
}
