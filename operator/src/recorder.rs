//! Events of jobs and savepoints, written.
//!
//! Owns: what an event is called and when two are one: the same words about the same object within a few
//! minutes are counted, other words are another event. (kube's recorder keeps the first words for all
//! events of a reason, and names events in a way that the longest names of objects do not fit into.)
//! Start at: [`Recorder::publish`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as Written, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::events::Event;
use crate::names::FIELD_MANAGER;

/// Equal events within this time are one that is counted.
const SERIES: SignedDuration = SignedDuration::from_mins(6);

/// Longest name of an object.
const NAME_BYTES_MAX: usize = 253;

/// Writes events. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    /// Which operator it is.
    instance: String,
    recent: Arc<Mutex<HashMap<Key, Recent>>>,
}

/// Two events with the same one say the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    uid: Option<String>,
    reason: &'static str,
    note: String,
}

/// An event that was written.
#[derive(Clone, Debug)]
struct Recent {
    name: String,
    count: i32,
    last: Timestamp,
}

impl Recorder {
    /// Nothing was written yet. `instance` is the pod.
    #[must_use]
    pub fn new(client: Client, instance: &str) -> Self {
        Self {
            client,
            instance: instance.to_owned(),
            recent: Arc::default(),
        }
    }

    /// Writes an event, or counts the one that says the same.
    ///
    /// # Errors
    /// The API server's.
    pub async fn publish(
        &self,
        event: &Event,
        regarding: &ObjectReference,
    ) -> Result<(), kube::Error> {
        let now = Timestamp::now();
        let key = Key {
            uid: regarding.uid.clone(),
            reason: event.reason,
            note: event.note.clone(),
        };
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        let events: Api<Written> = Api::namespaced(self.client.clone(), namespace);
        let known = self.again(&key, now);
        let recent = match known {
            Some(recent) => {
                let series = json!({"series": EventSeries {
                    count: recent.count,
                    last_observed_time: MicroTime(now),
                }});
                let params = PatchParams::default();
                events
                    .patch(&recent.name, &params, &Patch::Merge(&series))
                    .await?;
                recent
            }
            None => {
                let written = self.written(event, regarding, now);
                let name = written.metadata.name.clone().unwrap_or_default();
                events.create(&PostParams::default(), &written).await?;
                Recent {
                    name,
                    count: 1,
                    last: now,
                }
            }
        };
        self.recent().insert(key, recent);
        Ok(())
    }

    fn recent(&self) -> MutexGuard<'_, HashMap<Key, Recent>> {
        // Every critical section leaves the table whole.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event that says the same, counted once more. What is too old is forgotten.
    fn again(&self, key: &Key, now: Timestamp) -> Option<Recent> {
        let mut recent = self.recent();
        recent.retain(|_, event| now.duration_since(event.last) < SERIES);
        let known = recent.get(key)?;
        Some(Recent {
            name: known.name.clone(),
            count: known.count.saturating_add(1),
            last: now,
        })
    }

    fn written(&self, event: &Event, regarding: &ObjectReference, now: Timestamp) -> Written {
        Written {
            metadata: ObjectMeta {
                namespace: regarding.namespace.clone(),
                name: Some(name(regarding.name.as_deref().unwrap_or_default(), now)),
                ..ObjectMeta::default()
            },
            type_: Some(event.severity.name().to_owned()),
            reason: Some(event.reason.to_owned()),
            action: Some(event.action.to_owned()),
            note: Some(event.note.clone()),
            event_time: Some(MicroTime(now)),
            regarding: Some(regarding.clone()),
            reporting_controller: Some(FIELD_MANAGER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Written::default()
        }
    }
}

/// The name of the object with the time behind it, as everybody names events.
fn name(of: &str, now: Timestamp) -> String {
    let time = format!(".{:x}", now.as_nanosecond());
    let kept = of.get(..NAME_BYTES_MAX - time.len()).unwrap_or(of);
    format!("{}{time}", kept.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_of_the_longest_name_has_a_name_that_fits() {
        let now: Timestamp = "2026-11-30T10:00:00Z".parse().unwrap();

        assert_eq!(name("clicks", now), "clicks.18ecca50d8f34000");
        let longest = format!("{}.{}", "a".repeat(234), "b".repeat(18));
        assert_eq!(longest.len(), 253);
        let name = name(&longest, now);
        assert!(name.len() <= 253, "{name}");
        // Cut right behind the dot: a name may not have two in a row.
        assert!(!name.contains(".."), "{name}");
    }
}
