//! The stores of jobs.
//!
//! Owns: where a job's checkpoints are, opening that place with the job's own credentials, and
//! clearing it. Each job has a folder of its own below what its document names, by the uid of its
//! resource: a job that was deleted and created again never reads what another one wrote.
//!
//! Credentials are read from the one Secret that the document names, and kept as files in a folder in
//! memory, never anywhere else. A coordinator's store has them read anew when they are refused. A Secret without
//! keys leaves it to the environment to say who we are: that is the operator's own identity, which only
//! those may use with whom a place is shared.

mod bounded;
mod renewed;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use streamforge_core::s3::{AddressError, S3Place};
use streamforge_core::savepoint::{MANIFEST_KEY, SAVEPOINTS};
use streamforge_crds::v1alpha1::{S3Access, StreamJobSpec};
use streamforge_store::{ObjectStore, S3Store};

use self::bounded::Bounded;
use self::renewed::Renewed;
use crate::apply::is_out_of_reach;
use crate::credentials::{self, Users};
use crate::settings::Settings;

/// What is read of a Secret, and how much of each at most: the folder is in memory.
const KEYS: [&str; 4] = [ID, SECRET, "sessionToken", "ca.crt"];
const ID: &str = "accessKeyId";
const SECRET: &str = "secretAccessKey";
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

/// How long a server that keeps its conditions is believed to go on doing so.
const PROVEN_FOR: Duration = Duration::from_secs(3_600);

/// A server, and a bucket there.
type Bucket = (Option<String>, String);

/// Servers that have proved that they keep conditions, and when: a thousand jobs need not have it proved a thousand
/// times, with a hundred requests each.
#[derive(Debug, Default)]
pub struct Proven(Mutex<BTreeMap<Bucket, Instant>>);

impl Proven {
    fn bucket(place: &S3Place) -> Bucket {
        (place.access.endpoint.clone(), place.bucket.clone())
    }

    fn has(&self, place: &S3Place) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.get(&Self::bucket(place));
        at.is_some_and(|at| at.elapsed() < PROVEN_FOR)
    }

    fn note(&self, place: &S3Place) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(Self::bucket(place), Instant::now());
    }
}

/// Opens stores for the jobs of one namespace: see [`crate::controller::Context::opener`].
pub struct Opener<'a> {
    /// For secrets.
    pub client: &'a Client,
    /// The jobs'.
    pub namespace: &'a str,
    /// A folder in memory.
    pub work_dir: &'a Path,
    /// Which places are shared.
    pub settings: &'a Settings,
    /// What is known of servers.
    pub proven: &'a Proven,
    /// Who uses which credentials.
    pub users: &'a Arc<Users>,
    /// The uid of whom this is done for.
    pub user: &'a str,
}

impl Opener<'_> {
    /// Opens a place for its coordinator.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open(&self, place: &S3Place) -> Result<Arc<dyn ObjectStore>, Error> {
        let secrets = self.secrets(place).await?;
        let opened = if self.proven.has(place) {
            S3Store::open_proven(place, Some(&secrets)).await
        } else {
            let opened = S3Store::open(place, Some(&secrets)).await;
            opened.inspect(|_| self.proven.note(place))
        };
        let opened = opened.map_err(|source| failed(place, source))?;
        let opened = Arc::new(Bounded(Arc::new(opened)));
        let Some(name) = place.access.credentials_secret.clone() else {
            return Ok(opened);
        };
        let (api, folder, keyless) = (self.api(), secrets.join(&name), self.keyless(place));
        let users = Arc::clone(self.users);
        let read = move || {
            let (api, name, folder) = (api.clone(), name.clone(), folder.clone());
            let users = Arc::clone(&users);
            // Without an answer what was read before is all there is.
            let read = async move {
                let secret = api.get(&name).await;
                secret.map(|secret| keep_within(&users, &folder, &secret, keyless))
            };
            read.map(|kept| matches!(kept, Ok(Ok(true)))).boxed()
        };
        Ok(Arc::new(Renewed::new(opened, Box::new(read))))
    }

    fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Opens a place for reading.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn open_read_only(&self, place: &S3Place) -> Result<Arc<dyn ObjectStore>, Error> {
        let secrets = self.secrets(place).await?;
        let opened = S3Store::open_read_only(place, Some(&secrets)).await;
        let opened = opened.map_err(|source| failed(place, source))?;
        Ok(Arc::new(Bounded(Arc::new(opened))))
    }

    /// Deletes what a job wrote, or a savepoint's copy; a job's savepoints stay.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn clear(&self, place: &S3Place) -> Result<(), Error> {
        let (store, mut keys) = self.listed(place).await?;
        let stays = format!("{SAVEPOINTS}/");
        keys.retain(|key| !key.starts_with(&stays));
        let deleted = store.delete(&keys).await;
        deleted.map_err(|source| failed(place, source))
    }

    /// Deletes what there is of a savepoint's copy, unless it is whole.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn clear_unfinished(&self, place: &S3Place) -> Result<(), Error> {
        let (store, keys) = self.listed(place).await?;
        if keys.iter().any(|key| key == MANIFEST_KEY) {
            return Ok(());
        }
        let deleted = store.delete(&keys).await;
        deleted.map_err(|source| failed(place, source))
    }

    async fn listed(&self, place: &S3Place) -> Result<(S3Store, Vec<String>), Error> {
        let secrets = self.secrets(place).await?;
        let store = S3Store::connect(
            place,
            Some(&secrets),
            streamforge_store::s3::Limits::default(),
        );
        let store = store.await.map_err(|source| failed(place, source))?;
        let listed = store.list("").await;
        let listed = listed.map_err(|source| failed(place, source))?;
        let keys = listed.into_iter().map(|object| object.key);
        let keys = keys.collect();
        Ok((store, keys))
    }

    fn keyless(&self, place: &S3Place) -> Keyless {
        if self.settings.is_shared(self.namespace, place) {
            Keyless::Allowed
        } else {
            Keyless::Refused
        }
    }

    /// The folder of secrets for this place, with the one that it names.
    async fn secrets(&self, place: &S3Place) -> Result<PathBuf, Error> {
        let keyless = self.keyless(place);
        let folder = keyless.folder(credentials::folder_of(self.work_dir, self.namespace));
        let Some(name) = &place.access.credentials_secret else {
            return Ok(folder);
        };
        self.users.note(self.user, folder.join(name));
        let secret = match self.api().get(name).await {
            Ok(secret) => secret,
            // In a namespace that is being deleted it may go before the job does.
            Err(error) if is_out_of_reach(&error) && folder.join(name).is_dir() => {
                return Ok(folder);
            }
            Err(source) => {
                let name = name.clone();
                return Err(Error::Secret { name, source });
            }
        };
        let kept = keep_within(self.users, &folder.join(name), &secret, keyless);
        kept.map_err(|source| Error::Keep {
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

/// What becomes of a Secret without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keyless {
    /// Nothing of it is kept: whoever opens the store is told which key is missing.
    Refused,
    /// The operator may be who it is.
    Allowed,
}

impl Keyless {
    /// Apart: the same Secret may be named for both kinds of places. No namespace has a name with a `+`.
    fn folder(self, of_namespace: PathBuf) -> PathBuf {
        match self {
            Self::Refused => of_namespace,
            Self::Allowed => {
                let mut name = of_namespace.into_os_string();
                name.push("+shared");
                name.into()
            }
        }
    }
}

/// Keeps a Secret as [`keep`] does, if there is room for it.
fn keep_within(
    users: &Users,
    folder: &Path,
    secret: &Secret,
    keyless: Keyless,
) -> io::Result<bool> {
    users.put(folder, sizes(secret), || keep(folder, secret, keyless))
}

/// Writes each key of a Secret to a file that nobody else reads. Says whether they were others before.
fn keep(folder: &Path, secret: &Secret, keyless: Keyless) -> io::Result<bool> {
    std::fs::create_dir_all(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    let has = |key: &str| {
        let data = secret.data.as_ref();
        data.is_some_and(|data| data.contains_key(key))
    };
    let is_none = keyless == Keyless::Refused && !has(ID) && !has(SECRET);
    // Certificates without keys must be there at no moment: the last to come, and the first to go.
    let mut keys = KEYS;
    if is_none {
        keys.reverse();
    }
    let mut is_new = false;
    for key in keys {
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        let value = value.filter(|_| !is_none);
        let value = value.filter(|value| value.0.len() <= KEY_BYTES_MAX);
        let before = std::fs::read(folder.join(key)).ok();
        if before.as_ref() == value.map(|value| &value.0) {
            continue;
        }
        is_new = true;
        let Some(value) = value else {
            std::fs::remove_file(folder.join(key))?; // new keys may be without a session
            continue;
        };
        // Written beside and renamed: whoever reads meanwhile sees the old one or the new one.
        let beside = folder.join(format!(".{key}"));
        std::fs::write(&beside, &value.0)?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&beside, folder.join(key))?;
    }
    Ok(is_new)
}

/// Of what is kept of a Secret.
fn sizes(secret: &Secret) -> impl Iterator<Item = u64> {
    let values = KEYS
        .into_iter()
        .filter_map(|key| secret.data.as_ref()?.get(key));
    let sizes = values.map(|value| value.0.len());
    sizes
        .filter(|size| *size <= KEY_BYTES_MAX)
        .map(|size| size as u64)
}

#[cfg(test)]
mod tests {
    use streamforge_core::causes::with_causes;

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
    fn proof_of_one_bucket_is_none_of_another_or_of_another_server() {
        let proven = Proven::default();
        let place = |uri: &str| place(&spec(uri), "uid-1", 0).unwrap();
        proven.note(&place("s3://bucket/a"));

        assert!(proven.has(&place("s3://bucket/b")));
        assert!(!proven.has(&place("s3://other/a")));
        let mut elsewhere = place("s3://bucket/a");
        elsewhere.access.endpoint = Some("http://minio:9000".to_owned());
        assert!(!proven.has(&elsewhere));
    }

    fn secret(data: &[(&str, &str)]) -> Secret {
        let value = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
        let data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), value(text)));
        Secret {
            data: Some(data.collect()),
            ..Secret::default()
        }
    }

    #[test]
    fn of_a_replaced_secret_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let old = [("accessKeyId", "a"), ("sessionToken", "s"), ("other", "o")];
        keep(folder.path(), &secret(&old), Keyless::Refused).unwrap();

        assert!(
            keep(
                folder.path(),
                &secret(&[("accessKeyId", "b")]),
                Keyless::Refused
            )
            .unwrap()
        );

        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let files: Vec<_> = files.map(|it| it.file_name()).collect();
        assert_eq!(files, ["accessKeyId"], "no session of before");
    }

    #[test]
    fn secret_is_kept_in_files_that_nobody_else_reads() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("ns/s3");
        let secret = secret(&[("accessKeyId", "key")]);

        assert!(keep(&place, &secret, Keyless::Refused).unwrap());
        assert!(
            !keep(&place, &secret, Keyless::Refused).unwrap(),
            "the same again"
        );

        let file = place.join("accessKeyId");
        assert_eq!(std::fs::read(&file).unwrap(), b"key");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
    }

    /// Else whoever may write a Secret would use buckets as the operator.
    #[tokio::test]
    async fn secret_without_keys_is_no_way_to_the_operators_identity() {
        let folder = tempfile::tempdir().unwrap();
        let mut place = place(&spec("s3://bucket/jobs"), "uid-1", 0).unwrap();
        place.access.credentials_secret = Some("s3".to_owned());
        let own = Keyless::Refused.folder(folder.path().join("ns"));
        let shared = Keyless::Allowed.folder(folder.path().join("ns"));
        let certificates = [("ca.crt", "certificates")];
        let both = [certificates[0], (ID, "id"), (SECRET, "key")];
        let files = |folder: &Path| std::fs::read_dir(folder.join("s3")).unwrap().count();
        keep(&own.join("s3"), &secret(&both), Keyless::Refused).unwrap();
        assert_eq!(files(&own), 3);

        // It is replaced by one that has none.
        assert!(keep(&own.join("s3"), &secret(&certificates), Keyless::Refused).unwrap());
        keep(&shared.join("s3"), &secret(&certificates), Keyless::Allowed).unwrap();

        assert_eq!(files(&own), 0);
        assert_eq!(files(&shared), 1);
        let opened = S3Store::connect(&place, Some(&own), streamforge_store::s3::Limits::default());
        let error = opened.await.expect_err("it says nothing of who we are");
        let said = with_causes(&error);
        assert!(said.contains("has no key accessKeyId"), "{said}");
    }
}
