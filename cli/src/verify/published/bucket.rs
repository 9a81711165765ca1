//! The files of a sink in a bucket, brought here to be read.
//!
//! Owns: a temporary folder with them, laid out as in the bucket. Start at: [`fetch`].

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use streamforge_core::job_graph::SinkSpec;
use streamforge_core::s3::SCHEME;
use streamforge_crds::v1alpha1::S3Access;
use streamforge_store::s3::{Bucket, Limits};

use super::STAGING;

/// A folder that is removed with this.
#[derive(Debug)]
pub struct Fetched {
    /// The folder.
    pub root: PathBuf,
}

impl Drop for Fetched {
    fn drop(&mut self) {
        // What stays is in the system's temporary folder.
        let _best_effort = fs::remove_dir_all(&self.root);
    }
}

/// Brings what this sink published, if that is in a bucket. File names begin with `prefix`.
///
/// # Errors
/// When the bucket or the disk refuses.
pub async fn fetch(
    spec: &SinkSpec,
    prefix: &str,
    secrets: Option<&Path>,
) -> Result<Option<Fetched>> {
    let config = &spec.connector.config;
    let path = config.get("path").and_then(|path| path.as_str());
    let Some(path) = path.filter(|path| path.starts_with(SCHEME)) else {
        return Ok(None);
    };
    let access: Option<S3Access> = match config.get("s3") {
        None => None,
        Some(written) => serde_json::from_value(written.clone())?,
    };
    let place = streamforge_plan::s3_place(path, access.as_ref())?;
    let bucket = Bucket::connect(&place, secrets, Limits::default()).await?;
    let name = format!("streamforge-verify-{}-{prefix}", std::process::id());
    let fetched = Fetched {
        root: std::env::temp_dir().join(name),
    };
    fs::create_dir_all(&fetched.root)?;
    for meta in bucket.list("").await? {
        let name = meta.key.rsplit('/').next().unwrap_or_default();
        // Below the hidden folder lies what is not published.
        let is_staged = meta.key.starts_with(&format!("{STAGING}/"));
        if is_staged || !name.starts_with(prefix) {
            continue;
        }
        let object = bucket.get(&meta.key).await?;
        let object = object.with_context(|| format!("{} vanished", meta.key))?;
        let target = fetched.root.join(&meta.key);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&target, &object.bytes)?;
    }
    Ok(Some(fetched))
}
