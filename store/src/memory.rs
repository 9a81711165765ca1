//! A store in memory, and the faults a simulation makes it have.
//!
//! Owns: the objects, and what a client is told about them. A [`MemoryStore`] is one *client*;
//! clones and [`MemoryStore::connect`] share the objects, each with its own [`Faults`]. Every
//! future is ready at the first poll, so a simulation can do without a runtime.
//! Start at: [`MemoryStore::new`]; faults: [`fault`].

mod fault;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

pub use fault::{Fault, Faults, NoFaults, Operation, OperationKind, ScriptedFaults};

use crate::key::{check_key, check_prefix};
use crate::{
    Condition, ETag, Error, ObjectMeta, ObjectStore, ObjectWriter, Put, Result, StoredObject,
};

#[derive(Debug)]
struct Object {
    bytes: Bytes,
    version: u64,
}

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<String, Object>,
    versions_n: u64,
    /// Puts that a client gave up on and that have not arrived yet, oldest first.
    under_way: Vec<LatePut>,
}

#[derive(Debug)]
struct LatePut {
    key: String,
    bytes: Bytes,
    condition: Condition,
}

/// One client of a store in memory.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
    faults: Arc<Mutex<dyn Faults>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store that never fails.
    #[must_use]
    pub fn new() -> Self {
        Self::with_faults(NoFaults)
    }

    /// An empty store with a client that fails as told.
    #[must_use]
    pub fn with_faults(faults: impl Faults + 'static) -> Self {
        Self {
            objects: Arc::default(),
            faults: Arc::new(Mutex::new(faults)),
        }
    }

    /// Another client of the same objects, with faults of its own.
    #[must_use]
    pub fn connect(&self, faults: impl Faults + 'static) -> Self {
        Self {
            objects: Arc::clone(&self.objects),
            faults: Arc::new(Mutex::new(faults)),
        }
    }

    /// How many given-up puts are still under way.
    #[must_use]
    pub fn under_way_n(&self) -> usize {
        self.objects().under_way.len()
    }

    /// Lets the given-up put number `idx` (oldest = 0) arrive now, under the condition it was sent
    /// with. Says which key it was for and whether it took effect.
    pub fn land(&self, idx: usize) -> Option<(String, bool)> {
        let mut objects = self.objects();
        if idx >= objects.under_way.len() {
            return None;
        }
        let late = objects.under_way.remove(idx);
        let key = late.key.clone();
        let put = objects.put(late.key, late.bytes, &late.condition);
        Some((key, matches!(put, Ok(Put::Done(_)))))
    }

    /// Overwrites the bytes of an object behind everybody's back, as a broken disk would.
    /// False when there is no such object.
    pub fn tamper(&self, key: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> bool {
        let mut objects = self.objects();
        let Some(object) = objects.by_key.get_mut(key) else {
            return false;
        };
        object.bytes = Bytes::from(change(object.bytes.to_vec()));
        true
    }

    /// All keys, in order, without any fault.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.objects().by_key.keys().cloned().collect()
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        // A panic of another thread leaves whole objects behind: every change is one insert.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, kind: OperationKind, key: &str) -> Fault {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.on_operation(Operation { kind, key })
    }

    /// Runs a read under the client's faults: a read has no effect, so every fault is a lost one.
    fn read<T>(
        &self,
        kind: OperationKind,
        key: &str,
        read: impl FnOnce(&Objects) -> Result<T>,
    ) -> Result<T> {
        match self.fault(kind, key) {
            Fault::None => read(&self.objects()),
            Fault::FailBefore | Fault::FailAfter | Fault::LandLater => Err(lost("no answer")),
            Fault::Dead => Err(lost("the client is dead")),
        }
    }

    /// [`ObjectStore::get`] without a future.
    ///
    /// # Errors
    /// As the trait says, and as the client's faults say.
    pub fn get_now(&self, key: &str) -> Result<Option<StoredObject>> {
        self.get_within_now(key, u64::MAX)
    }

    fn get_within_now(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        check_key(key)?;
        self.read(OperationKind::Get, key, |objects| {
            let Some(object) = objects.by_key.get(key) else {
                return Ok(None);
            };
            if object.bytes.len() as u64 > bytes_max {
                return Err(Error::TooLong {
                    key: key.to_owned(),
                    location: "memory".to_owned(),
                    bytes_max,
                });
            }
            Ok(Some(StoredObject {
                bytes: object.bytes.clone(),
                etag: etag(object.version),
            }))
        })
    }

    /// [`ObjectStore::get_range`] without a future.
    ///
    /// # Errors
    /// As the trait says, and as the client's faults say.
    pub fn get_range_now(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        check_key(key)?;
        self.read(OperationKind::GetRange, key, |objects| {
            let object = objects.by_key.get(key).ok_or_else(|| Error::NotFound {
                key: key.to_owned(),
                location: "memory".to_owned(),
            })?;
            slice(key, &object.bytes, &range)
        })
    }

    /// [`ObjectStore::put`] without a future.
    ///
    /// # Errors
    /// As the trait says, and as the client's faults say.
    pub fn put_now(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        check_key(key)?;
        match self.fault(OperationKind::Put, key) {
            Fault::None => self.objects().put(key.to_owned(), bytes, &condition),
            Fault::FailBefore => Err(lost("the request did not arrive")),
            Fault::FailAfter => {
                // The outcome is what the fault hides.
                let _hidden = self.objects().put(key.to_owned(), bytes, &condition);
                Err(lost("the answer did not arrive"))
            }
            Fault::LandLater => {
                let late = LatePut {
                    key: key.to_owned(),
                    bytes,
                    condition,
                };
                self.objects().under_way.push(late);
                Err(lost("no answer in time"))
            }
            Fault::Dead => Err(lost("the client is dead")),
        }
    }

    /// [`ObjectStore::list`] without a future.
    ///
    /// # Errors
    /// As the trait says, and as the client's faults say.
    pub fn list_now(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        check_prefix(prefix)?;
        self.read(OperationKind::List, prefix, |objects| {
            let from = objects.by_key.range(prefix.to_owned()..);
            let within = from.take_while(|(key, _)| key.starts_with(prefix));
            Ok(within
                .map(|(key, object)| ObjectMeta {
                    key: key.clone(),
                    bytes_n: object.bytes.len() as u64,
                })
                .collect())
        })
    }

    /// [`ObjectStore::delete`] without a future.
    ///
    /// # Errors
    /// As the trait says, and as the client's faults say.
    pub fn delete_now(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            check_key(key)?;
            match self.fault(OperationKind::Delete, key) {
                Fault::None => drop(self.objects().by_key.remove(key)),
                Fault::FailBefore | Fault::LandLater => return Err(lost("no answer")),
                Fault::FailAfter => {
                    self.objects().by_key.remove(key);
                    return Err(lost("the answer did not arrive"));
                }
                Fault::Dead => return Err(lost("the client is dead")),
            }
        }
        Ok(())
    }
}

impl Objects {
    fn put(&mut self, key: String, bytes: Bytes, condition: &Condition) -> Result<Put> {
        let holds = match (condition, self.by_key.get(&key)) {
            (Condition::None, _) | (Condition::CreateIfAbsent, None) => true,
            (Condition::CreateIfAbsent, Some(_)) | (Condition::IfMatch(_), None) => false,
            (Condition::IfMatch(wanted), Some(object)) => *wanted == etag(object.version),
        };
        if !holds {
            return Ok(Put::ConditionFailed);
        }
        if let Some(other) = self.path_conflict(&key) {
            return Err(Error::KeyConflict { key, other });
        }
        self.versions_n += 1;
        let version = self.versions_n;
        self.by_key.insert(key, Object { bytes, version });
        Ok(Put::Done(etag(version)))
    }

    fn path_conflict(&self, key: &str) -> Option<String> {
        let above = key.match_indices('/').filter_map(|(at, _)| key.get(..at));
        if let Some(other) = above
            .into_iter()
            .find(|folder| self.by_key.contains_key(*folder))
        {
            return Some(other.to_owned());
        }
        let folder = format!("{key}/");
        let below = self.by_key.range(folder.clone()..).next();
        below
            .map(|(other, _)| other.clone())
            .filter(|other| other.starts_with(&folder))
    }
}

fn etag(version: u64) -> ETag {
    ETag::new(format!("v{version}"))
}

fn lost(reason: &str) -> Error {
    Error::Unavailable {
        location: "memory".to_owned(),
        reason: reason.to_owned(),
    }
}

fn slice(key: &str, bytes: &Bytes, range: &Range<u64>) -> Result<Bytes> {
    let out_of_range = || Error::OutOfRange {
        key: key.to_owned(),
        start: range.start,
        end: range.end,
        bytes_n: bytes.len() as u64,
    };
    let start = usize::try_from(range.start).map_err(|_| out_of_range())?;
    let end = usize::try_from(range.end).map_err(|_| out_of_range())?;
    if start > end || end > bytes.len() {
        return Err(out_of_range());
    }
    Ok(bytes.slice(start..end))
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        self.get_within_now(key, bytes_max)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.get_range_now(key, range)
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        self.put_now(key, bytes, condition)
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        check_key(key)?;
        Ok(Box::new(MemoryWriter {
            store: self.clone(),
            key: key.to_owned(),
            bytes: Vec::new(),
        }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.list_now(prefix)
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.delete_now(keys)
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }
}

/// An object under way. Of its calls only the last one has a fault: it is the put.
#[derive(Debug)]
struct MemoryWriter {
    store: MemoryStore,
    key: String,
    bytes: Vec<u8>,
}

#[async_trait]
impl ObjectWriter for MemoryWriter {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        self.bytes.extend_from_slice(&piece);
        Ok(())
    }

    async fn finish(&mut self, condition: Condition) -> Result<Put> {
        let bytes = Bytes::copy_from_slice(&self.bytes);
        self.store.put_now(&self.key, bytes, condition)
    }

    async fn abandon(&mut self) -> Result<()> {
        self.bytes = Vec::new();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
