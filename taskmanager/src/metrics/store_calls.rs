//! Calls to the checkpoint store, counted.
//!
//! Owns: a store around a store that notes how each call ended and how long it took.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use streamforge_proto::metrics::Sheet;
use streamforge_store::{
    Condition, Error, ObjectMeta, ObjectStore, ObjectWriter, Put, Recovery, Result, StoredObject,
};

/// Numbers of one kind of call.
#[derive(Clone, Debug, Default)]
struct Numbers {
    by_outcome: BTreeMap<&'static str, u64>,
    took: Duration,
    bytes_n: u64,
}

/// What was asked of a store, and how it ended.
#[derive(Debug, Default)]
pub struct StoreCalls {
    by_call: Mutex<BTreeMap<&'static str, Numbers>>,
}

impl StoreCalls {
    fn note(&self, call: &'static str, outcome: &'static str, took: Duration, bytes_n: usize) {
        let mut by_call = self.by_call.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = by_call.entry(call).or_default();
        *numbers.by_outcome.entry(outcome).or_default() += 1;
        numbers.took += took;
        numbers.bytes_n += u64::try_from(bytes_n).unwrap_or(u64::MAX);
    }

    fn note_result<T>(
        &self,
        call: &'static str,
        began: Instant,
        result: &Result<T>,
        done: impl FnOnce(&T) -> (&'static str, usize),
    ) {
        let (outcome, bytes_n) = match result {
            Ok(value) => done(value),
            Err(error) => (failure(error), 0),
        };
        self.note(call, outcome, began.elapsed(), bytes_n);
    }

    /// Notes all numbers.
    pub fn fill(&self, sheet: &mut Sheet) {
        let by_call = self.by_call.lock().unwrap_or_else(PoisonError::into_inner);
        for (call, numbers) in by_call.iter() {
            for (outcome, n) in &numbers.by_outcome {
                sheet.set("streamforge_store_calls_total", &[call, outcome], *n as f64);
            }
            let took_s = numbers.took.as_secs_f64();
            sheet.set("streamforge_store_seconds_total", &[call], took_s);
            let bytes_n = numbers.bytes_n as f64;
            sheet.set("streamforge_store_bytes_total", &[call], bytes_n);
        }
    }
}

/// A store whose calls are counted.
#[derive(Debug)]
pub struct CountedStore {
    inner: Arc<dyn ObjectStore>,
    calls: Arc<StoreCalls>,
}

impl CountedStore {
    /// Around another one.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        let calls = Arc::default();
        Self { inner, calls }
    }

    /// The counts, for [`super::Metrics::watch_store`].
    pub fn calls(&self) -> Arc<StoreCalls> {
        Arc::clone(&self.calls)
    }

    fn note<T>(
        &self,
        call: &'static str,
        began: Instant,
        result: &Result<T>,
        done: impl FnOnce(&T) -> (&'static str, usize),
    ) {
        self.calls.note_result(call, began, result, done);
    }
}

/// An object under way: each piece is a put, and so is its end.
#[derive(Debug)]
struct CountedWriter {
    inner: Box<dyn ObjectWriter>,
    calls: Arc<StoreCalls>,
}

#[async_trait]
impl ObjectWriter for CountedWriter {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        let (began, bytes_n) = (Instant::now(), piece.len());
        let result = self.inner.add(piece).await;
        let done = |_: &()| ("done", bytes_n);
        self.calls.note_result("put", began, &result, done);
        result
    }

    async fn finish(&mut self, condition: Condition) -> Result<Put> {
        let began = Instant::now();
        let result = self.inner.finish(condition).await;
        let done = |put: &Put| (outcome(put), 0);
        self.calls.note_result("put", began, &result, done);
        result
    }

    async fn abandon(&mut self) -> Result<()> {
        self.inner.abandon().await
    }
}

fn outcome(put: &Put) -> &'static str {
    match put {
        Put::Done(_) => "done",
        Put::ConditionFailed => "condition_failed",
    }
}

fn failure(error: &Error) -> &'static str {
    match error.recovery() {
        Recovery::OutcomeUnknown => "unknown",
        Recovery::Refused => "refused",
        Recovery::Fatal => "failed",
    }
}

#[async_trait]
impl ObjectStore for CountedStore {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        let began = Instant::now();
        let result = self.inner.get_within(key, bytes_max).await;
        self.note("get", began, &result, |object| match object {
            Some(object) => ("done", object.bytes.len()),
            None => ("absent", 0),
        });
        result
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let began = Instant::now();
        let result = self.inner.get_range(key, range).await;
        self.note("get", began, &result, |bytes| ("done", bytes.len()));
        result
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        let (began, bytes_n) = (Instant::now(), bytes.len());
        let result = self.inner.put(key, bytes, condition).await;
        self.note("put", began, &result, |put| match put {
            Put::Done(_) => (outcome(put), bytes_n),
            Put::ConditionFailed => (outcome(put), 0),
        });
        result
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        let inner = self.inner.begin(key).await?;
        let calls = Arc::clone(&self.calls);
        Ok(Box::new(CountedWriter { inner, calls }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let began = Instant::now();
        let result = self.inner.list(prefix).await;
        self.note("list", began, &result, |_| ("done", 0));
        result
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let began = Instant::now();
        let result = self.inner.delete(keys).await;
        self.note("delete", began, &result, |()| ("done", 0));
        result
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}
