//! The stores of jobs.
//!
//! Owns: where a job's checkpoints are, opening that place with the job's own credentials, and
//! clearing it. Each job has a folder of its own below what its document names, by the uid of its
//! resource: a job that was deleted and created again never reads what another one wrote.
//!
//! Credentials are read from the one Secret that the document names, and kept as files in a folder in
//! memory, never anywhere else.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use streamforge_core::s3::{AddressError, S3Place};
use streamforge_core::savepoint::SAVEPOINTS;
use streamforge_crds::v1alpha1::{S3Access, StreamJobSpec};
use streamforge_store::{ObjectStore, S3Store};

use crate::apply::is_gone;

/// What is read of a Secret, and how much of each at most: the folder is in memory.
const KEYS: [&str; 4] = ["accessKeyId", "secretAccessKey", "sessionToken", "ca.crt"];
const KEY_BYTES_MAX: usize = 256 << 10;

/// Why a job's store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The document names none.
    #[error("find the job's store: checkpoint.storage is missing")]
    None,
    /// It is no place.
    #[error("find the job's store")]
    Address(#[from] AddressError),
    /// The Secret cannot be read.
    #[error("read secret {name}")]
    Secret {
        /// Its name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// The folder in memory cannot be written.
    #[error("keep secret {name} in {}", folder.display())]
    Keep {
        /// Its name.
        name: String,
        /// Where.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store does not let itself be opened.
    #[error("open {location}")]
    Open {
        /// Which.
        location: String,
        /// Why.
        source: streamforge_store::Error,
    },
}

/// Where a job's checkpoints are.
///
/// # Errors
/// When the document names no place.
pub fn place(spec: &StreamJobSpec, uid: &str, incarnation: u32) -> Result<S3Place, Error> {
    let storage = spec.checkpoint.storage.as_ref().ok_or(Error::None)?;
    let mut place = streamforge_plan::s3_place(&storage.uri, storage.s3.as_ref())?;
    let own = match incarnation {
        0 => uid.to_owned(),
        n => format!("{uid}-{n}"),
    };
    place.prefix = if place.prefix.is_empty() {
        own
    } else {
        format!("{}/{own}", place.prefix)
    };
    Ok(place)
}

/// A savepoint's place, reached as the job's store is.
///
/// # Errors
/// When it is none.
pub fn place_of(uri: &str, access: Option<&S3Access>) -> Result<S3Place, Error> {
    Ok(streamforge_plan::s3_place(uri, access)?)
}

/// Opens stores for the jobs of one namespace.
pub struct Opener<'a> {
    /// For secrets.
    pub client: &'a Client,
    /// The jobs'.
    pub namespace: &'a str,
    /// A folder in memory.
    pub work_dir: &'a Path,
}

impl Opener<'_> {
    /// Opens a place for its coordinator.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open(&self, place: &S3Place) -> Result<Arc<dyn ObjectStore>, Error> {
        let secrets = self.secrets(place).await?;
        let opened = S3Store::open(place, Some(&secrets)).await;
        Ok(Arc::new(opened.map_err(|source| failed(place, source))?))
    }

    /// Opens a place for reading.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open_read_only(&self, place: &S3Place) -> Result<Arc<dyn ObjectStore>, Error> {
        let secrets = self.secrets(place).await?;
        let opened = S3Store::open_read_only(place, Some(&secrets)).await;
        Ok(Arc::new(opened.map_err(|source| failed(place, source))?))
    }

    /// Deletes what a job wrote; its savepoints stay.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn clear(&self, place: &S3Place) -> Result<(), Error> {
        let secrets = self.secrets(place).await?;
        let store = S3Store::connect(
            place,
            Some(&secrets),
            streamforge_store::s3::Limits::default(),
        );
        let store = store.await.map_err(|source| failed(place, source))?;
        let listed = store.list("").await;
        let listed = listed.map_err(|source| failed(place, source))?;
        let stays = format!("{SAVEPOINTS}/");
        let keys = listed.into_iter().map(|object| object.key);
        let keys: Vec<String> = keys.filter(|key| !key.starts_with(&stays)).collect();
        let deleted = store.delete(&keys).await;
        deleted.map_err(|source| failed(place, source))
    }

    /// The folder of secrets for this place, with the one that it names.
    async fn secrets(&self, place: &S3Place) -> Result<PathBuf, Error> {
        let folder = self.work_dir.join("secrets").join(self.namespace);
        let Some(name) = &place.access.credentials_secret else {
            return Ok(folder);
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), self.namespace);
        let secret = match secrets.get(name).await {
            Ok(secret) => secret,
            // In a namespace that is being deleted it may go before the job does.
            Err(error) if is_gone(&error) && folder.join(name).is_dir() => return Ok(folder),
            Err(source) => {
                let name = name.clone();
                return Err(Error::Secret { name, source });
            }
        };
        keep(&folder.join(name), &secret).map_err(|source| Error::Keep {
            name: name.clone(),
            folder: folder.clone(),
            source,
        })?;
        Ok(folder)
    }
}

fn failed(place: &S3Place, source: streamforge_store::Error) -> Error {
    Error::Open {
        location: place.to_string(),
        source,
    }
}

/// Writes each key of a Secret to a file that nobody else reads.
fn keep(folder: &Path, secret: &Secret) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    let known = secret.data.iter().flatten();
    let known =
        known.filter(|(key, value)| KEYS.contains(&key.as_str()) && value.0.len() <= KEY_BYTES_MAX);
    for (key, value) in known {
        // Written beside and renamed: whoever reads meanwhile sees the old one or the new one.
        let beside = folder.join(format!(".{key}"));
        std::fs::write(&beside, &value.0)?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&beside, folder.join(key))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(uri: &str) -> StreamJobSpec {
        let json = format!(
            r#"{{"sources": [], "sinks": [], "checkpoint": {{"storage": {{"uri": "{uri}"}}}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn each_resource_has_a_folder_of_its_own() {
        let at = |uri, incarnation| place(&spec(uri), "uid-1", incarnation).unwrap().to_string();

        assert_eq!(at("s3://bucket/jobs", 0), "s3://bucket/jobs/uid-1");
        assert_eq!(at("s3://bucket/jobs/", 2), "s3://bucket/jobs/uid-1-2");
        assert_eq!(at("s3://bucket", 0), "s3://bucket/uid-1");
    }

    #[test]
    fn secret_is_kept_in_files_that_nobody_else_reads() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("ns/s3");
        let value = k8s_openapi::ByteString(b"key".to_vec());
        let secret = Secret {
            data: Some([("accessKeyId".to_owned(), value)].into()),
            ..Secret::default()
        };

        keep(&place, &secret).unwrap();
        keep(&place, &secret).unwrap();

        let file = place.join("accessKeyId");
        assert_eq!(std::fs::read(&file).unwrap(), b"key");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
    }
}
