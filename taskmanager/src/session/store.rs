//! The job's store, as a task manager writes to it: beside the coordinator.

use std::path::Path;
use std::sync::Arc;

use streamforge_core::causes::with_causes;
use streamforge_core::s3::S3Place;
use streamforge_store::s3::Limits;
use streamforge_store::{FolderStore, ObjectStore, S3Store};

/// Opens the place that a coordinator names: a folder, or a bucket with its settings as JSON.
pub(super) async fn open(
    uri: &str,
    settings: &str,
    secrets: Option<&Path>,
) -> Result<Arc<dyn ObjectStore>, String> {
    if let Some(folder) = uri.strip_prefix("file://") {
        let store = FolderStore::open_beside(folder).map_err(|error| with_causes(&error))?;
        return Ok(Arc::new(store));
    }
    let place: S3Place = serde_json::from_str(settings).map_err(|error| error.to_string())?;
    let store = S3Store::connect(&place, secrets, Limits::default()).await;
    Ok(Arc::new(store.map_err(|error| with_causes(&error))?))
}
