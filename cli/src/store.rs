//! Which store a command works with.
//!
//! Owns: what `--store` and the document say about it, and opening it. Start at: [`StorePlace`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use streamforge_core::s3::{S3Place, SCHEME};
use streamforge_core::savepoint;
use streamforge_crds::v1alpha1::{S3Access, StreamJobSpec};
use streamforge_plan::s3_place;
use streamforge_store::{FolderStore, ObjectStore, S3Store};

use crate::args::PlaceArgs;

/// Where a job keeps its checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// On this machine.
    Folder(PathBuf),
    /// In a bucket; with the folder of secrets that may name its keys.
    Bucket {
        /// Which.
        place: S3Place,
        /// `--secrets`
        secrets: Option<PathBuf>,
    },
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Bucket { place, .. } => place.fmt(f),
        }
    }
}

impl StorePlace {
    /// The store of a document's job: `--store`, else `checkpoint.storage`, else a folder here.
    ///
    /// # Errors
    /// When `--store` is no place.
    pub fn of_job(args: &PlaceArgs, spec: &StreamJobSpec, name: &str) -> Result<Self> {
        let storage = spec.checkpoint.storage.as_ref();
        let access = storage.and_then(|storage| storage.s3.as_ref());
        if let Some(given) = &args.store {
            return Self::given(given, access, args.secrets.as_deref());
        }
        match storage {
            None => Ok(Self::Folder(Path::new(".streamforge").join(name))),
            Some(storage) => Self::of_text(&storage.uri, access, args.secrets.as_deref())
                .context("checkpoint.storage.uri"),
        }
    }

    /// The store of `--store`, without a document.
    ///
    /// # Errors
    /// When it is no place.
    pub fn given(path: &Path, access: Option<&S3Access>, secrets: Option<&Path>) -> Result<Self> {
        match path.to_str() {
            Some(text) if text.contains("://") => {
                Self::of_text(text, access, secrets).context("--store")
            }
            _ => Ok(Self::Folder(path.to_owned())),
        }
    }

    fn of_text(text: &str, access: Option<&S3Access>, secrets: Option<&Path>) -> Result<Self> {
        if text.starts_with(SCHEME) {
            return Ok(Self::Bucket {
                place: s3_place(text, access)?,
                secrets: secrets.map(Path::to_owned),
            });
        }
        match text.strip_prefix("file://") {
            Some(path) => Ok(Self::Folder(path.into())),
            None => bail!(
                "`{text}` is no place for checkpoints; write file:///path or s3://bucket/prefix"
            ),
        }
    }

    /// The place of a savepoint outside of the job's store: what the command line says, else the
    /// document; `None`: neither.
    ///
    /// # Errors
    /// When it is no place.
    pub fn of_savepoint(
        given: Option<&Path>,
        args: &PlaceArgs,
        spec: &StreamJobSpec,
    ) -> Result<Option<Self>> {
        let storage = spec.checkpoint.storage.as_ref();
        let access = storage.and_then(|storage| storage.s3.as_ref());
        let secrets = args.secrets.as_deref();
        let from = spec.restore_from.as_ref();
        let uri = from.and_then(|it| it.uri.as_ref());
        let name = from.and_then(|it| it.savepoint.as_ref());
        match (given, uri, name) {
            (Some(path), _, _) => Self::given(path, access, secrets).map(Some),
            (None, Some(uri), _) => Self::of_text(uri, access, secrets)
                .context("restoreFrom.uri")
                .map(Some),
            (None, None, Some(name)) => bail!(
                "restoreFrom.savepoint: only a cluster knows savepoints by name; say where {name} is with \
                 --restore-from"
            ),
            (None, None, None) => Ok(None),
        }
    }

    /// Whether it is a folder below that one.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let own = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match (self, other) {
            (Self::Folder(inner), Self::Folder(outer)) => own(inner).starts_with(own(outer)),
            _ => false,
        }
    }

    /// Where a savepoint of the job is, as `--restore-from` wants it.
    #[must_use]
    pub fn savepoint(&self, name: &str) -> String {
        let folder = savepoint::folder(name);
        let folder = folder.trim_end_matches('/');
        match self {
            Self::Folder(path) => path.join(folder).display().to_string(),
            Self::Bucket { place, .. } if place.prefix.is_empty() => {
                format!("{SCHEME}{}/{folder}", place.bucket)
            }
            Self::Bucket { place, .. } => {
                format!("{SCHEME}{}/{}/{folder}", place.bucket, place.prefix)
            }
        }
    }

    /// Opens it for a job; `fresh` keeps what is there aside.
    ///
    /// # Errors
    /// When it is in use, cannot be written, or breaks its conditions.
    pub async fn open(&self, fresh: bool) -> Result<Arc<dyn ObjectStore>> {
        match self {
            Self::Folder(path) => Ok(Arc::new(open_folder(path, fresh)?)),
            Self::Bucket { place, .. } if fresh => bail!(
                "--fresh: what is in a bucket is not moved aside; name another prefix instead, as in \
                 --store {SCHEME}{}/{}-2",
                place.bucket,
                place.prefix
            ),
            Self::Bucket { place, secrets } => {
                Ok(Arc::new(S3Store::open(place, secrets.as_deref()).await?))
            }
        }
    }

    /// How task managers in other processes find it: a URI, and settings of a bucket as JSON. It
    /// must be open.
    ///
    /// # Errors
    /// When the folder's own path cannot be found.
    pub fn for_task_managers(&self) -> Result<(String, String)> {
        match self {
            Self::Folder(path) => {
                let own = std::fs::canonicalize(path);
                let own = own.with_context(|| format!("find {}", path.display()))?;
                Ok((format!("file://{}", own.display()), String::new()))
            }
            Self::Bucket { place, .. } => {
                let settings = serde_json::to_string(place)?;
                Ok((place.to_string(), settings))
            }
        }
    }

    /// Opens it for reading, beside whoever writes there.
    ///
    /// # Errors
    /// When there is none, or the way to it is not known.
    pub async fn open_read_only(&self) -> Result<Arc<dyn ObjectStore>> {
        match self {
            Self::Folder(path) if !path.exists() => bail!(
                "no store at {}: run the job first, or say where with --store",
                path.display()
            ),
            Self::Folder(path) => Ok(Arc::new(FolderStore::open_read_only(path)?)),
            Self::Bucket { place, secrets } => Ok(Arc::new(
                S3Store::open_read_only(place, secrets.as_deref()).await?,
            )),
        }
    }
}

fn open_folder(path: &Path, fresh: bool) -> Result<FolderStore> {
    if fresh && path.exists() {
        // Only who holds the lock may move the folder.
        let held = FolderStore::open(path)?;
        let aside = aside_path(path);
        std::fs::rename(path, &aside)
            .with_context(|| format!("move {} to {}", path.display(), aside.display()))?;
        drop(held);
        tracing::info!(old = %aside.display(), "beginning anew, the old store is kept");
    }
    Ok(FolderStore::open(path)?)
}

/// The first free name beside a store.
fn aside_path(path: &Path) -> PathBuf {
    let numbered = |n: u32| {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".old-{n}"));
        path.with_file_name(name)
    };
    (1..u32::MAX)
        .map(numbered)
        .find(|aside| !aside.exists())
        .unwrap_or_else(|| numbered(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(checkpoint: &str) -> StreamJobSpec {
        serde_json::from_str(&format!(
            "{{\"sources\": [], \"sinks\": [], \"checkpoint\": {checkpoint}}}"
        ))
        .expect("the spec is right")
    }

    fn place(store: Option<&str>, checkpoint: &str) -> String {
        let args = PlaceArgs {
            store: store.map(PathBuf::from),
            secrets: None,
        };
        StorePlace::of_job(&args, &spec(checkpoint), "clicks")
            .map_or_else(|error| format!("{error:#}"), |place| place.to_string())
    }

    #[test]
    fn store_is_what_the_command_line_says_else_the_document_else_a_folder_here() {
        let s3 = r#"{"storage": {"uri": "s3://bucket/p", "s3": {"endpoint": "http://x:1"}}}"#;

        assert_eq!(place(None, "{}"), ".streamforge/clicks");
        assert_eq!(
            place(None, r#"{"storage": {"uri": "file:///data/s"}}"#),
            "/data/s"
        );
        assert_eq!(place(None, s3), "s3://bucket/p at http://x:1");
        assert_eq!(place(Some("/tmp/x"), s3), "/tmp/x");
        // The way to the server stays the document's.
        assert_eq!(
            place(Some("s3://other/q"), s3),
            "s3://other/q at http://x:1"
        );
        assert_eq!(place(Some("s3://other/q"), "{}"), "s3://other/q");
        assert!(place(Some("gs://x/y"), "{}").contains("no place for checkpoints"));
    }

    #[test]
    fn savepoint_is_found_by_what_a_savepoint_command_says() {
        let args = PlaceArgs {
            store: None,
            secrets: None,
        };
        let job =
            spec(r#"{"storage": {"uri": "s3://bucket/p", "s3": {"endpoint": "http://x:1"}}}"#);
        let place = StorePlace::of_job(&args, &job, "clicks").expect("it is a place");
        let said = place.savepoint("nightly");
        assert_eq!(said, "s3://bucket/p/savepoints/nightly");

        let found = StorePlace::of_savepoint(Some(Path::new(&said)), &args, &job);
        let found = found.expect("it is a place").expect("one is named");
        assert_eq!(
            found.to_string(),
            "s3://bucket/p/savepoints/nightly at http://x:1"
        );
        let folder = StorePlace::Folder("store".into()).savepoint("nightly");
        assert_eq!(folder, "store/savepoints/nightly");
        let none = StorePlace::of_savepoint(None, &args, &job).expect("nothing is wrong");
        assert_eq!(none, None);

        let named = streamforge_crds::v1alpha1::RestoreFrom {
            savepoint: Some("nightly".to_owned()),
            uri: None,
        };
        let job = StreamJobSpec {
            restore_from: Some(named),
            ..job
        };
        let refused = StorePlace::of_savepoint(None, &args, &job).expect_err("there is no cluster");
        assert!(
            refused
                .to_string()
                .contains("where nightly is with --restore-from")
        );
        let found = StorePlace::of_savepoint(Some(Path::new("/a")), &args, &job);
        assert!(found.expect("it is a place").is_some());
    }
}
