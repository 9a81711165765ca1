//! What a job's coordinator is started with.
//!
//! Owns: opening the job's store and the savepoint that it may begin with, and putting together what
//! the host wants to know.

use std::sync::Arc;

use kube::Api;
use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, JobId};
use streamforge_core::job_graph::JobGraph;
use streamforge_core::manifest::{self, HEAD_KEY, Head, Plan};
use streamforge_core::s3::S3Place;
use streamforge_crds::v1alpha1::{DroppedState, Savepoint, StreamJobSpec};
use streamforge_host::policy::{self, StoreAddress};
use streamforge_host::sessions::Terms;
use streamforge_host::{JobConfig, RestoreFrom};
use streamforge_store::{ObjectStore, StoredObject};

use super::document::Document;
use super::error::Error;
use super::validate::Desired;
use crate::controller::Context;
use crate::record::{HeadSeen, Record};
use crate::stores::{self, Opener};

/// Letters of a uid that make a job's id different from that of another one of its name.
const UID_LETTERS: usize = 8;

/// A coordinator that is about to be started.
pub struct Starting {
    /// What all passes share.
    pub context: Arc<Context>,
    /// What is on record, checked.
    pub desired: Arc<Desired>,
    /// The record.
    pub record: Record,
    /// The annotation.
    pub accept_lost_markers: Option<String>,
}

/// All that a coordinator is started with.
pub struct Prepared {
    /// The job, as the host wants it.
    pub config: JobConfig,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    /// What its task managers are told.
    pub terms: Terms,
    /// The head of the store, if there is one.
    pub head: Option<HeadSeen>,
}

/// Where a job's checkpoints are.
#[must_use]
pub fn place(desired: &Desired, record: &Record) -> S3Place {
    let mut place = desired.store.clone();
    if record.incarnation > 0 {
        place.prefix = format!("{}-{}", place.prefix, record.incarnation);
    }
    place
}

/// The id of a job: it names transactions and consumer groups of Kafka, so it must be no other job's.
#[must_use]
pub fn job_id(desired: &Desired, record: &Record) -> JobId {
    let identity = &desired.identity;
    let uid: String = identity.uid.as_str().chars().take(UID_LETTERS).collect();
    match record.incarnation {
        0 => JobId(format!("{}-{uid}", identity.name)),
        n => JobId(format!("{}-{uid}-{n}", identity.name)),
    }
}

impl Starting {
    /// Opens and collects.
    ///
    /// # Errors
    /// When the store or the savepoint cannot be opened.
    pub async fn prepare(self) -> Result<Prepared, Error> {
        let identity = &self.desired.identity;
        let opener = self
            .context
            .opener(&identity.namespace, identity.uid.as_str());
        let place = place(&self.desired, &self.record);
        let store = opener.open(&place).await?;
        let (head, plan) = self.head(&*store).await?;
        let restore_from = self.restore_from(&opener, has_state(head)).await?;
        let spec = &self.desired.document.spec;
        let rewind_to = rewind_to(&self.record, head);
        let plan = plan.filter(|_| rewind_to.is_none());
        let config = JobConfig {
            new_job: Some(job_id(&self.desired, &self.record)),
            graph: graph_to_run(&self.desired.document, plan),
            document: self.desired.document.text.clone(),
            parallelism: spec.parallelism,
            checkpoint: policy::checkpoints(spec),
            restart: policy::restarts(spec),
            members: policy::members(spec),
            address: self.context.address.clone(),
            rewind_to,
            restore_from,
            drop_state: drops_state(spec),
        };
        let address = StoreAddress {
            uri: place.to_string(),
            settings: serde_json::to_string(&place).expect("a place has texts as keys"),
        };
        let markers = self.accept_lost_markers.as_deref().unwrap_or_default();
        let markers = markers.split(',').map(|name| name.trim().to_owned());
        let markers = markers.filter(|name| !name.is_empty()).collect();
        Ok(Prepared {
            terms: policy::terms(spec, address, None, markers),
            config,
            store,
            head,
        })
    }

    /// C7: a job that has run does not silently begin anew because its store was emptied. A head that
    /// cannot be read is the coordinator's to tell; so is a plan.
    async fn head(
        &self,
        store: &dyn ObjectStore,
    ) -> Result<(Option<HeadSeen>, Option<Plan>), Error> {
        let Some(object) = read(store, HEAD_KEY).await? else {
            if self.record.ran {
                return Err(Error::Emptied {
                    location: store.location(),
                });
            }
            return Ok((None, None));
        };
        let Ok(head) = manifest::decode::<Head>(frame::HEAD, &object.bytes) else {
            return Ok((Some(HeadSeen::default()), None));
        };
        let seen = HeadSeen {
            generation: head.generation.get(),
            newest: head.newest.map(|newest| newest.id.get()),
        };
        let plan = read(store, &head.plan).await?;
        let plan = plan.and_then(|it| manifest::decode::<Plan>(frame::PLAN, &it.bytes).ok());
        Ok((Some(seen), plan))
    }

    /// The savepoint that the job is to begin with. It may be gone once the job has state of its own.
    async fn restore_from(
        &self,
        opener: &Opener<'_>,
        has_state: bool,
    ) -> Result<Option<RestoreFrom>, Error> {
        let Some(from) = &self.desired.restore_from else {
            return Ok(None);
        };
        // A job that begins anew without its state does not begin with somebody else's either.
        let begins_empty = self.record.incarnation > 0;
        if begins_empty || has_state {
            return Ok(None);
        }
        let uri = match (&from.uri, &from.savepoint) {
            (Some(uri), _) => uri.clone(),
            (None, Some(name)) => self.uri_of(name).await?,
            (None, None) => return Ok(None),
        };
        let storage = self.desired.document.spec.checkpoint.storage.as_ref();
        let access = storage.and_then(|storage| storage.s3.as_ref());
        let place = stores::place_of(&uri, access)?;
        let namespace = &self.desired.identity.namespace;
        if !self.context.settings.may_use(namespace, &place) {
            return Err(Error::Savepoint {
                name: uri,
                reason: format!("{place} is not shared with jobs of the namespace `{namespace}`"),
            });
        }
        Ok(Some(RestoreFrom {
            store: opener.open_read_only(&place).await?,
            place: place.to_string(),
        }))
    }

    async fn uri_of(&self, name: &str) -> Result<String, Error> {
        let namespace = &self.desired.identity.namespace;
        let savepoints: Api<Savepoint> = Api::namespaced(self.context.client.clone(), namespace);
        let found = savepoints
            .get_opt(name)
            .await
            .map_err(|source| Error::Api {
                what: "read the Savepoint",
                source,
            })?;
        let failed = |reason: &str| Error::Savepoint {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        let found = found.ok_or_else(|| failed("there is none of this name in the namespace"))?;
        let status = found.status.unwrap_or_default();
        status.uri.ok_or_else(|| failed("it is not complete"))
    }
}

async fn read(store: &dyn ObjectStore, key: &str) -> Result<Option<StoredObject>, Error> {
    store.get(key).await.map_err(|source| {
        Error::Store(stores::Error::Open {
            location: store.location(),
            source,
        })
    })
}

/// The deployed plan, unless the document says something else by now. An operator of a version that would plan
/// the same document otherwise drives what runs and restarts nothing; the next edit is planned its own way.
fn graph_to_run(document: &Document, deployed: Option<Plan>) -> Arc<JobGraph> {
    let planned = &document.graph;
    let deployed = deployed.filter(|plan| {
        plan.graph != **planned
            && Document::read(&plan.document)
                .is_ok_and(|it| it.attempt_hash() == document.attempt_hash())
    });
    deployed.map_or_else(|| Arc::clone(planned), |plan| Arc::new(plan.graph))
}

/// Whether the job has state of its own. A head without a manifest is that of a start whose copy of the savepoint did
/// not come to its end.
fn has_state(head: Option<HeadSeen>) -> bool {
    head.is_some_and(|head| head.newest.is_some())
}

/// Whether somebody has said that state without a place in this document may go.
fn drops_state(spec: &StreamJobSpec) -> bool {
    let policy = spec.upgrade.as_ref();
    policy.is_some_and(|policy| policy.dropped_state == DroppedState::Allow)
}

/// The checkpoint to go back to, if that has not been done yet.
fn rewind_to(record: &Record, head: Option<HeadSeen>) -> Option<CheckpointId> {
    let to = record.rewind.as_deref()?.parse().ok()?;
    let is_done = match (record.before_rewind, head) {
        (Some(before), Some(now)) => before.is_rewound(now),
        _ => false,
    };
    (!is_done).then(|| CheckpointId::from_stored(to))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stream_job::testing::{job, with};

    #[test]
    fn state_is_dropped_only_where_the_document_says_so() {
        let allows = |value| with(&job(), "/upgrade/droppedState", json!(value)).spec;
        assert!(drops_state(&allows("Allow")));
        assert!(!drops_state(&allows("Refuse")));
        assert!(!drops_state(&job().spec));
    }

    #[test]
    fn deployed_plan_is_driven_until_the_document_means_something_else() {
        let document = Document::of(&job()).unwrap();
        // As a planner of another version may have cut the job into stages.
        let mut graph = JobGraph::clone(&document.graph);
        graph.stages.push(streamforge_core::job_graph::Stage {
            operators: Vec::new(),
        });
        let deployed = |text: &str| Plan {
            graph: graph.clone(),
            document: text.to_owned(),
        };

        let same = graph_to_run(&document, Some(deployed(&document.text)));
        assert_eq!(*same, graph, "what runs goes on");
        // Nothing of an attempt is made of these.
        let edited = with(&job(), "/checkpoint/interval", json!("7s"));
        let edited = Document::of(&edited).unwrap();
        assert_ne!(edited.text, document.text);
        let same = graph_to_run(&edited, Some(deployed(&document.text)));
        assert_eq!(*same, graph);

        let other = with(&job(), "/transforms/0/filter", json!("amount > 5"));
        let other = Document::of(&other).unwrap();
        for (document, plan) in [
            (&other, Some(deployed(&document.text))),
            (&document, Some(deployed("not a document"))),
            (&document, None),
        ] {
            assert!(Arc::ptr_eq(&graph_to_run(document, plan), &document.graph));
        }
    }

    /// Else a job whose operator died while it copied its savepoint would begin empty.
    #[test]
    fn start_that_died_before_its_savepoint_was_copied_begins_with_it_again_c7() {
        let died = HeadSeen {
            generation: 1,
            newest: None,
        };
        let newest = Some(1);
        assert!(!has_state(None) && !has_state(Some(died)));
        assert!(has_state(Some(HeadSeen { newest, ..died })));
    }

    #[test]
    fn rewind_is_done_again_only_if_the_head_says_that_it_was_not_done() {
        let seen = |generation, newest| HeadSeen {
            generation,
            newest: Some(newest),
        };
        let mut record = Record::new("uid-1", json!({}), 1);
        let to = |record: &Record, head| rewind_to(record, Some(head)).map(CheckpointId::get);
        assert_eq!(to(&record, seen(4, 9)), None);

        record.rewind = Some("7".to_owned());
        assert_eq!(to(&record, seen(4, 9)), Some(7));
        record.before_rewind = Some(seen(4, 9));
        // The coordinator that was to do it never took over; one from before has committed once more.
        assert_eq!(to(&record, seen(4, 9)), Some(7));
        assert_eq!(to(&record, seen(4, 10)), Some(7));
        // It took over, and a savepoint that was to be the newest is not copied yet.
        assert_eq!(to(&record, seen(5, 9)), Some(7));
        // It took over with the rewind, and perhaps has gone on from there.
        assert_eq!(to(&record, seen(5, 7)), None);
        assert_eq!(to(&record, seen(6, 11)), None);
    }
}
