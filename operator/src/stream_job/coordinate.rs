//! What a job's coordinator is started with.
//!
//! Owns: opening the job's store and the savepoint that it may begin with, and putting together what
//! the host wants to know.

use std::sync::Arc;

use kube::Api;
use streamforge_core::ids::{CheckpointId, JobId};
use streamforge_core::manifest::HEAD_KEY;
use streamforge_core::s3::S3Place;
use streamforge_crds::v1alpha1::Savepoint;
use streamforge_host::policy::{self, StoreAddress};
use streamforge_host::sessions::Terms;
use streamforge_host::{JobConfig, RestoreFrom};
use streamforge_store::ObjectStore;

use super::error::Error;
use super::validate::Desired;
use crate::controller::Context;
use crate::record::Record;
use crate::stores::{self, Opener};

/// Letters of a uid that make a job's id different from that of another one of its name.
const UID_LETTERS: usize = 8;

/// A coordinator that is about to be started.
pub struct Starting<'a> {
    /// What all passes share.
    pub context: &'a Context,
    /// What is on record, checked.
    pub desired: &'a Desired,
    /// The record.
    pub record: &'a Record,
    /// The annotation.
    pub accept_lost_markers: Option<String>,
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

impl Starting<'_> {
    /// Opens and collects.
    ///
    /// # Errors
    /// When the store or the savepoint cannot be opened.
    pub async fn prepare(&self) -> Result<(JobConfig, Arc<dyn ObjectStore>, Terms), Error> {
        let identity = &self.desired.identity;
        let opener = Opener {
            client: &self.context.client,
            namespace: &identity.namespace,
            work_dir: &self.context.work_dir,
        };
        let place = place(self.desired, self.record);
        let store = opener.open(&place).await?;
        self.check_not_emptied(&*store).await?;
        let restore_from = self.restore_from(&opener, &*store).await?;
        let spec = &self.desired.document.spec;
        let rewind_to = self.record.rewind.as_deref();
        let config = JobConfig {
            new_job: Some(job_id(self.desired, self.record)),
            graph: self.desired.document.graph.clone(),
            document: self.desired.document.text.clone(),
            parallelism: spec.parallelism,
            checkpoint: policy::checkpoints(spec),
            restart: policy::restarts(spec),
            members: policy::members(spec),
            address: self.context.address.clone(),
            rewind_to: rewind_to
                .and_then(|id| id.parse().ok())
                .map(CheckpointId::from_stored),
            restore_from,
        };
        let address = StoreAddress {
            uri: place.to_string(),
            settings: serde_json::to_string(&place).expect("a place has texts as keys"),
        };
        let markers = self.accept_lost_markers.as_deref().unwrap_or_default();
        let markers = markers.split(',').map(|name| name.trim().to_owned());
        let markers = markers.filter(|name| !name.is_empty()).collect();
        Ok((config, store, policy::terms(spec, address, None, markers)))
    }

    /// C7: a job that has run does not silently begin anew because its store was emptied.
    async fn check_not_emptied(&self, store: &dyn ObjectStore) -> Result<(), Error> {
        let is_empty = store.get(HEAD_KEY).await.is_ok_and(|head| head.is_none());
        if self.record.ran && is_empty {
            return Err(Error::Emptied {
                location: store.location(),
            });
        }
        Ok(())
    }

    /// The savepoint that the job is to begin with. It may be gone once the job has state of its own.
    async fn restore_from(
        &self,
        opener: &Opener<'_>,
        store: &dyn ObjectStore,
    ) -> Result<Option<RestoreFrom>, Error> {
        let Some(from) = &self.desired.restore_from else {
            return Ok(None);
        };
        // A job that begins anew without its state does not begin with somebody else's either.
        let begins_empty = self.record.incarnation > 0;
        let has_state = store.get(HEAD_KEY).await.is_ok_and(|head| head.is_some());
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
