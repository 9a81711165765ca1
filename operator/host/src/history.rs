//! What a store holds of a job, for people: `streamforge checkpoints`, `verify`.
//!
//! Owns: reading head, plan and manifests without taking anything over. Works beside a running job
//! on a store that was opened for reading.

use std::sync::Arc;

use streamforge_coordinator::expected_objects;
use streamforge_core::frame;
use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{self, DecodeError, HEAD_KEY, Head, Manifest, ManifestRef, Plan};
use streamforge_core::savepoint::{self, MANIFEST_KEY, SAVEPOINTS};
use streamforge_store::ObjectStore;

use crate::requests::check_objects;

/// Why a store's history cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] streamforge_store::Error),
    /// There is no head.
    #[error("read {location}: no job has run with this store")]
    NoJob {
        /// The store.
        location: String,
    },
    /// The object is not in the store.
    #[error("read {key}: it is missing")]
    Missing {
        /// Its key.
        key: String,
    },
    /// The object is there and broken.
    #[error("read {key}")]
    Broken {
        /// Its key.
        key: String,
        /// What is wrong.
        source: DecodeError,
    },
    /// No checkpoint of this id is kept.
    #[error("read checkpoint {id}: the store does not keep it")]
    NotRetained {
        /// Which.
        id: CheckpointId,
    },
}

/// What a store holds of a job.
#[derive(Clone, Debug)]
pub struct History {
    store: Arc<dyn ObjectStore>,
    /// Its head.
    pub head: Head,
}

impl History {
    /// Reads the head.
    ///
    /// # Errors
    /// [`Error::NoJob`] when there is none.
    pub async fn load(store: Arc<dyn ObjectStore>) -> Result<Self, Error> {
        let Some(object) = store.get(HEAD_KEY).await? else {
            return Err(Error::NoJob {
                location: store.location(),
            });
        };
        let broken = |source| Error::Broken {
            key: HEAD_KEY.to_owned(),
            source,
        };
        let head = manifest::decode(frame::HEAD, &object.bytes).map_err(broken)?;
        Ok(Self { store, head })
    }

    /// The checkpoints that are kept, oldest first.
    #[must_use]
    pub fn retained(&self) -> &[ManifestRef] {
        &self.head.retained
    }

    /// One of the checkpoints that are kept.
    ///
    /// # Errors
    /// When it is not kept, missing or broken.
    pub async fn manifest(&self, id: CheckpointId) -> Result<Manifest, Error> {
        let kept = self.head.retained.iter().find(|kept| kept.id == id);
        let key = &kept.ok_or(Error::NotRetained { id })?.key;
        self.read(key, frame::MANIFEST).await
    }

    /// The savepoints that are whole, or claim to be, by name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn savepoints(&self) -> Result<Vec<(String, Result<Manifest, Error>)>, Error> {
        let listed = self.store.list(&format!("{SAVEPOINTS}/")).await?;
        let mut savepoints = Vec::new();
        for object in listed {
            if let Some(name) = savepoint::name_of(&object.key) {
                let manifest = self.read(&object.key, frame::MANIFEST).await;
                savepoints.push((name.to_owned(), manifest));
            }
        }
        Ok(savepoints)
    }

    /// The savepoint of this name.
    ///
    /// # Errors
    /// When it is missing or broken.
    pub async fn savepoint(&self, name: &str) -> Result<Manifest, Error> {
        let key = format!("{}{MANIFEST_KEY}", savepoint::folder(name));
        self.read(&key, frame::MANIFEST).await
    }

    /// The plan that a checkpoint, or the head, names.
    ///
    /// # Errors
    /// When it is missing or broken.
    pub async fn plan(&self, key: &str) -> Result<Plan, Error> {
        self.read(key, frame::PLAN).await
    }

    /// What is wrong with the objects of a checkpoint; empty: it can be restored.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn damages(&self, manifest: &Manifest) -> Result<Vec<String>, Error> {
        Ok(check_objects(&*self.store, &expected_objects(manifest)).await?)
    }

    async fn read<T: for<'de> serde::Deserialize<'de>>(
        &self,
        key: &str,
        kind: frame::Kind,
    ) -> Result<T, Error> {
        let Some(object) = self.store.get(key).await? else {
            return Err(Error::Missing {
                key: key.to_owned(),
            });
        };
        let broken = |source| Error::Broken {
            key: key.to_owned(),
            source,
        };
        manifest::decode(kind, &object.bytes).map_err(broken)
    }
}
