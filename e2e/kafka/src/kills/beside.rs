//! Readers beside a job: what was visible once stays as it was (O2, P1).
//!
//! Owns: a `read_committed` consumer of a topic, and somebody who looks at a bucket again and again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamforge_core::s3::{S3Access, S3Place};
use streamforge_process::Bucket;
use streamforge_store::{ObjectStore as _, Result, S3Store};
use tokio::task::JoinHandle;

/// Time between two looks at a bucket.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Somebody who lists a folder of a bucket and reads what is new there.
pub(super) struct Onlooker {
    store: S3Store,
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    looking: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    /// Contents as they were when they were seen first.
    files: BTreeMap<String, Vec<u8>>,
    complaints: Vec<String>,
}

impl Onlooker {
    /// Begins to look at `uri`, with the keys in this folder of secrets.
    pub async fn start(bucket: &Bucket, uri: &str, secrets: &Path) -> Self {
        let access = S3Access {
            endpoint: Some(bucket.endpoint().to_owned()),
            credentials_secret: bucket.secret().map(str::to_owned),
            ..S3Access::default()
        };
        let place = S3Place::parse(uri, access).expect("the address is right");
        let store = S3Store::open_read_only(&place, Some(secrets)).await;
        let store = store.expect("the keys are there");
        let (over, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Seen>>::default());
        let (eyes, told, found) = (store.clone(), Arc::clone(&over), Arc::clone(&seen));
        let looking = tokio::spawn(async move {
            while !told.load(Ordering::Relaxed) {
                // A server that is too busy to answer is asked again.
                let _answered = look(&eyes, &found).await;
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self {
            store,
            over,
            seen,
            looking,
        }
    }

    /// Ends looking: the files as they are now, and complaints about those that changed or went.
    pub async fn stop(self) -> (BTreeMap<String, Vec<u8>>, Vec<String>) {
        self.over.store(true, Ordering::Relaxed);
        self.looking.await.expect("looking does not panic");
        look(&self.store, &self.seen)
            .await
            .expect("the server answers");
        let seen = std::mem::take(&mut *self.seen.lock().expect("looking does not panic"));
        let mut complaints = seen.complaints;
        let mut now = BTreeMap::new();
        for (key, before) in seen.files {
            match read(&self.store, &key).await {
                Ok(Some(bytes)) if bytes == before => {
                    now.insert(key, bytes);
                }
                Err(error) => complaints.push(format!("cannot be read: {key}: {error}")),
                Ok(_) => complaints.push(format!("changed or gone: {key}")),
            }
        }
        (now, complaints)
    }
}

async fn read(store: &S3Store, key: &str) -> Result<Option<Vec<u8>>> {
    let object = store.get(key).await?;
    Ok(object.map(|object| object.bytes.to_vec()))
}

async fn look(store: &S3Store, seen: &Mutex<Seen>) -> Result<()> {
    let listed = store.list("").await?;
    let visible = listed.into_iter();
    let visible = visible.filter(|meta| !meta.key.starts_with("_streamforge/"));
    let listed: BTreeMap<String, u64> = visible.map(|meta| (meta.key, meta.bytes_n)).collect();
    let mut complaints = Vec::new();
    let mut new = Vec::new();
    {
        let seen = seen.lock().expect("looking does not panic");
        for (key, bytes) in &seen.files {
            if listed.get(key) != Some(&(bytes.len() as u64)) {
                complaints.push(format!("changed or gone: {key}"));
            }
        }
        new.extend(listed.keys().filter(|key| !seen.files.contains_key(*key)));
    }
    let mut files = Vec::new();
    for key in new {
        match read(store, key).await? {
            Some(bytes) if bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1") => {
                files.push((key.clone(), bytes));
            }
            Some(_) => complaints.push(format!("half-written: {key}")),
            None => complaints.push(format!("gone as soon as it was seen: {key}")),
        }
    }
    let mut seen = seen.lock().expect("looking does not panic");
    seen.files.extend(files);
    seen.complaints.extend(complaints);
    Ok(())
}
