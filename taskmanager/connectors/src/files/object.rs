//! Objects of a bucket as the files of a source.
//!
//! Owns: which objects a path means, and reading one by ranges: in order, with the next piece under
//! way, or here and there for Parquet. Start at: [`Shop::list`], [`ObjectReader`], [`ObjectChunks`].
//!
//! Whoever reads is a thread that waits: the calls run on a thread of this shop's own, so it does not
//! matter where it is waited for. Each read names the version that was listed: bytes of another one are never
//! taken for its. Memory is bounded (B1): two pieces in order, or [`BLOCKS_MAX`] blocks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};
use glob::{MatchOptions, Pattern};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use streamforge_core::s3::{AddressError, S3Place, SCHEME};
use streamforge_store::s3::{Bucket, Limits, Piece};
use streamforge_store::{ETag, Error as StoreError, ObjectMeta, Recovery};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use super::config::S3;
use super::identity::{self, FileFacts};
use super::listing::{self, is_hidden, literal_parts};

/// The begin of an object, read before it is known whether the rest is wanted: byte order marks and
/// headers lie there, and most small objects as a whole.
const BEGIN_BYTES: u64 = 64 << 10;

/// What is read at once further on.
const PIECE_BYTES: u64 = 4 << 20;

/// What Parquet reads at once.
const BLOCK_BYTES: u64 = 1 << 20;

/// How many of these are kept: a page or two of each of some columns.
const BLOCKS_MAX: usize = 32;

/// How globs are read: as those of folders.
const GLOB: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// A bucket that sources read from. It is connected to when it is first needed.
pub struct Shop {
    place: Arc<S3Place>,
    secrets: Option<PathBuf>,
    bucket: Arc<OnceCell<Bucket>>,
    /// Until it is dropped; its own way to end would wait.
    runtime: Option<Runtime>,
    /// The begin of the object that was opened last: it is opened for each thing that stands there.
    begin: Mutex<Option<(String, ETag, Bytes)>>,
}

impl fmt::Debug for Shop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shop({})", self.place)
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Why there is no way to a bucket.
#[derive(Debug, thiserror::Error)]
pub enum ShopError {
    /// The path names none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No thread could be started.
    #[error("start a thread that reads objects")]
    Thread(#[source] io::Error),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind them is replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of a call that runs elsewhere.
fn wait<T>(answer: &Receiver<Result<T, StoreError>>, location: &str) -> Result<T, StoreError> {
    let gone = |_| StoreError::Unavailable {
        location: location.to_owned(),
        reason: "the thread that asks it is gone".to_owned(),
    };
    answer.recv().map_err(gone)?
}

impl Shop {
    /// The bucket of a source's path. Nobody is asked yet.
    ///
    /// # Errors
    /// When the path names no bucket, or no thread can be had.
    pub fn open(path: &str, s3: Option<&S3>, secrets: Option<PathBuf>) -> Result<Self, ShopError> {
        let (bucket, _) = parts_of(path);
        let place = S3Place::parse(&format!("{SCHEME}{bucket}"), S3::access(s3))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("objects")
            .enable_all()
            .build()
            .map_err(ShopError::Thread)?;
        Ok(Self {
            place: Arc::new(place),
            secrets,
            bucket: Arc::default(),
            runtime: Some(runtime),
            begin: Mutex::default(),
        })
    }

    /// Begins a call.
    fn ask<T, F>(
        &self,
        call: impl FnOnce(Bucket) -> F + Send + 'static,
    ) -> Receiver<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let (answers, answer) = sync_channel(1);
        let (bucket, place) = (Arc::clone(&self.bucket), Arc::clone(&self.place));
        let secrets = self.secrets.clone();
        let asking = async move {
            let connect = || Bucket::connect(&place, secrets.as_deref(), Limits::default());
            let said = match bucket.get_or_try_init(connect).await {
                Ok(bucket) => call(bucket.clone()).await,
                Err(error) => Err(error),
            };
            // Nobody may wait for it any more.
            let _ = answers.send(said);
        };
        if let Some(runtime) = &self.runtime {
            runtime.spawn(asking);
        }
        answer
    }

    /// The objects of a path, a prefix or a glob, by name. Those of which a part of the name behind what
    /// was written begins with `.` or `_` are hidden.
    pub fn list(&self, path: &str) -> Result<Vec<FileFacts>, listing::Error> {
        let (bucket, pattern) = parts_of(path);
        let failed = |source| listing::Error::Bucket {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let is_glob = pattern.contains(['*', '?', '[']);
        let location = self.place.to_string();
        if !is_glob && !pattern.is_empty() && !pattern.ends_with('/') {
            let key = pattern.to_owned();
            let answer = self.ask(|bucket| async move { bucket.head(&key).await });
            if let Some(head) = wait(&answer, &location).map_err(failed)? {
                return Ok(vec![facts_of(bucket, pattern, head.bytes_n, &head.etag)]);
            }
        }
        let glob = is_glob.then(|| Pattern::new(pattern)).transpose();
        let glob = glob.map_err(|source| listing::Error::Pattern {
            pattern: path.to_owned(),
            source,
        })?;
        let prefix = literal_prefix(pattern);
        let answer = self.ask(|bucket| async move { bucket.list_versions(&prefix).await });
        let mut found = wait(&answer, &location).map_err(failed)?;
        let below = literal_parts(pattern);
        found.retain(|(meta, _)| {
            let key = &meta.key;
            let is_meant = glob.as_ref().is_none_or(|it| it.matches_with(key, GLOB));
            // Some programs put an empty object where a folder would be.
            is_meant && !key.ends_with('/') && !is_hidden(Path::new(key), below)
        });
        found.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
        let facts = |(ObjectMeta { key, bytes_n }, etag): (ObjectMeta, ETag)| {
            facts_of(bucket, &key, bytes_n, &etag)
        };
        Ok(found.into_iter().map(facts).collect())
    }
}

/// Bucket and key, or what stands for keys.
fn parts_of(path: &str) -> (&str, &str) {
    let rest = path.strip_prefix(SCHEME).unwrap_or(path);
    rest.split_once('/').unwrap_or((rest, ""))
}

/// What the keys begin with that a pattern may mean.
fn literal_prefix(pattern: &str) -> String {
    match pattern.find(['*', '?', '[']) {
        Some(wild) => {
            let folder = pattern[..wild].rfind('/').map_or(0, |slash| slash + 1);
            pattern[..folder].to_owned()
        }
        None if pattern.is_empty() || pattern.ends_with('/') => pattern.to_owned(),
        None => format!("{pattern}/"),
    }
}

fn facts_of(bucket: &str, key: &str, size: u64, etag: &ETag) -> FileFacts {
    FileFacts {
        path: PathBuf::from(format!("{SCHEME}{bucket}/{key}")),
        size,
        changed_us: 0,
        head: 0,
        tail: 0,
        etag: Some(etag.as_str().to_owned()),
    }
}

/// A listed object.
#[derive(Clone, Debug)]
pub struct Object {
    path: PathBuf,
    key: String,
    size: u64,
    etag: ETag,
    shop: Arc<Shop>,
}

impl Object {
    /// The one that was listed.
    pub fn new(facts: &FileFacts, shop: &Arc<Shop>) -> Self {
        let path = facts.path.display().to_string();
        Object {
            path: facts.path.clone(),
            key: parts_of(&path).1.to_owned(),
            size: facts.size,
            etag: ETag::new(facts.etag.as_deref().unwrap_or_default()),
            shop: Arc::clone(shop),
        }
    }

    fn ask(&self, range: Range<u64>) -> Receiver<Result<Piece, StoreError>> {
        let (key, etag) = (self.key.clone(), self.etag.clone());
        self.shop
            .ask(move |bucket| async move { bucket.get_piece(&key, range, &etag).await })
    }

    fn wait(&self, answer: &Receiver<Result<Piece, StoreError>>) -> io::Result<Bytes> {
        let path = self.path.clone();
        let error = match wait(answer, &self.shop.place.to_string()) {
            Ok(Piece::Same(bytes)) => return Ok(bytes),
            Ok(Piece::Gone) => identity::Error::Vanished { path },
            Ok(Piece::Changed) => identity::Error::Changed {
                path,
                what: "it is another version",
            },
            Err(error) => {
                let kind = match error.recovery() {
                    Recovery::OutcomeUnknown => io::ErrorKind::TimedOut,
                    Recovery::Refused | Recovery::Fatal => io::ErrorKind::PermissionDenied,
                };
                return Err(io::Error::new(kind, error));
            }
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Waits for a range.
    fn get(&self, range: Range<u64>) -> io::Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.wait(&self.ask(range))
    }

    /// The first bytes.
    fn begin(&self) -> io::Result<Bytes> {
        let is_ours = |known: &&(String, ETag, Bytes)| known.0 == self.key && known.1 == self.etag;
        if let Some((.., bytes)) = lock(&self.shop.begin).as_ref().filter(is_ours) {
            return Ok(bytes.clone());
        }
        let bytes = self.get(0..self.size.min(BEGIN_BYTES))?;
        let begin = (self.key.clone(), self.etag.clone(), bytes.clone());
        *lock(&self.shop.begin) = Some(begin);
        Ok(bytes)
    }
}

/// Reads an object in order.
#[derive(Debug)]
pub struct ObjectReader {
    object: Object,
    at: u64,
    /// What was read, and where that begins.
    piece: (u64, Bytes),
    /// What is under way, and where that begins.
    next: Option<(u64, Receiver<Result<Piece, StoreError>>)>,
}

impl ObjectReader {
    /// At its start. Nothing is read yet.
    pub fn new(object: Object) -> Self {
        ObjectReader {
            object,
            at: 0,
            piece: (0, Bytes::new()),
            next: None,
        }
    }

    /// The object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    fn range_from(&self, at: u64) -> Range<u64> {
        at..at.saturating_add(PIECE_BYTES).min(self.object.size)
    }

    /// The piece that begins where it is.
    fn fetch(&mut self) -> io::Result<()> {
        let at = self.at;
        let asked = self.next.take().filter(|(from, _)| *from == at);
        let bytes = match asked {
            Some((_, answer)) => self.object.wait(&answer)?,
            None if at == 0 => self.object.begin()?,
            None => self.object.get(self.range_from(at))?,
        };
        let end = at + bytes.len() as u64;
        self.piece = (at, bytes);
        // Only who goes on behind the begin wants the rest.
        if at > 0 && end < self.object.size {
            self.next = Some((end, self.object.ask(self.range_from(end))));
        }
        Ok(())
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.object.size || buf.is_empty() {
            return Ok(0);
        }
        let within = |(from, bytes): &(u64, Bytes), at: u64| {
            (*from..*from + bytes.len() as u64).contains(&at)
        };
        if !within(&self.piece, self.at) {
            self.fetch()?;
        }
        let (from, bytes) = &self.piece;
        let skip = usize::try_from(self.at - from).unwrap_or(usize::MAX);
        let rest = bytes.get(skip..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        for (to, byte) in buf.iter_mut().zip(rest) {
            *to = *byte;
        }
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.object.size.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Reads an object here and there, as Parquet wants it.
#[derive(Clone, Debug)]
pub struct ObjectChunks {
    object: Object,
    blocks: Arc<Mutex<Blocks>>,
    fault: Arc<Mutex<Option<io::Error>>>,
}

#[derive(Debug, Default)]
struct Blocks {
    /// By number, with when each was wanted last.
    known: BTreeMap<u64, (u64, Bytes)>,
    wanted_n: u64,
}

impl Blocks {
    fn find(&mut self, number: u64) -> Option<Bytes> {
        self.wanted_n += 1;
        let (wanted, bytes) = self.known.get_mut(&number)?;
        *wanted = self.wanted_n;
        Some(bytes.clone())
    }

    fn keep(&mut self, number: u64, bytes: Bytes) {
        if self.known.len() >= BLOCKS_MAX {
            let oldest = self.known.iter().min_by_key(|(_, (wanted, _))| *wanted);
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(number, (self.wanted_n, bytes));
    }
}

impl ObjectChunks {
    /// Of this object.
    pub fn new(object: Object) -> Self {
        ObjectChunks {
            object,
            blocks: Arc::default(),
            fault: Arc::default(),
        }
    }

    /// Why a read failed: what Parquet makes of it is only a text.
    pub fn take_fault(&self) -> Option<io::Error> {
        lock(&self.fault).take()
    }

    fn failed(&self, error: io::Error) -> ParquetError {
        let text = error.to_string();
        *lock(&self.fault) = Some(error);
        ParquetError::General(text)
    }

    /// The bytes from `at` to the end of its block.
    fn from(&self, at: u64) -> io::Result<Bytes> {
        let number = at / BLOCK_BYTES;
        let begin = number * BLOCK_BYTES;
        let found = lock(&self.blocks).find(number);
        let bytes = match found {
            Some(bytes) => bytes,
            None => {
                let end = (begin + BLOCK_BYTES).min(self.object.size);
                let bytes = self.object.get(begin..end)?;
                lock(&self.blocks).keep(number, bytes.clone());
                bytes
            }
        };
        let skip = usize::try_from(at - begin).unwrap_or(usize::MAX);
        Ok(bytes.slice(skip.min(bytes.len())..))
    }
}

impl Length for ObjectChunks {
    fn len(&self) -> u64 {
        self.object.size
    }
}

impl ChunkReader for ObjectChunks {
    type T = ChunkRead;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(ChunkRead {
            chunks: self.clone(),
            at: start,
            block: Bytes::new(),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.saturating_add(length as u64);
        if end > self.object.size {
            return Err(ParquetError::EOF(format!(
                "bytes {start}..{end} of {}",
                self.object.size
            )));
        }
        let block = self.from(start).map_err(|error| self.failed(error))?;
        if block.len() >= length {
            return Ok(block.slice(..length));
        }
        // Longer than what is kept, or over the end of a block.
        if length as u64 > BLOCK_BYTES {
            let whole = self.object.get(start..end);
            return whole.map_err(|error| self.failed(error));
        }
        let mut all = Vec::with_capacity(length);
        all.extend_from_slice(&block);
        while all.len() < length {
            let at = start + all.len() as u64;
            let block = self.from(at).map_err(|error| self.failed(error))?;
            let missing = length - all.len();
            all.extend_from_slice(&block[..missing.min(block.len())]);
        }
        Ok(all.into())
    }
}

/// Reads on from one place of an object.
#[derive(Debug)]
pub struct ChunkRead {
    chunks: ObjectChunks,
    at: u64,
    block: Bytes,
}

impl Read for ChunkRead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.block.is_empty() && self.at < self.chunks.object.size {
            self.block = match self.chunks.from(self.at) {
                Ok(block) => block,
                Err(error) => {
                    let (kind, text) = (error.kind(), error.to_string());
                    *lock(&self.chunks.fault) = Some(error);
                    return Err(io::Error::new(kind, text));
                }
            };
        }
        let n = self.block.len().min(buf.len());
        self.block
            .copy_to_slice(buf.get_mut(..n).unwrap_or_default());
        self.at += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_begins_with_what_is_certain_of_a_pattern() {
        for (pattern, prefix) in [
            ("", ""),
            ("in", "in/"),
            ("in/", "in/"),
            ("*.ndjson", ""),
            ("in/a*", "in/"),
            ("in/day=[12]/*.gz", "in/"),
            ("in/sub/*/x", "in/sub/"),
        ] {
            assert_eq!(literal_prefix(pattern), prefix, "{pattern}");
        }
        assert_eq!(parts_of("s3://bucket"), ("bucket", ""));
        assert_eq!(parts_of("s3://bucket/"), ("bucket", ""));
        assert_eq!(parts_of("s3://bucket/a/b"), ("bucket", "a/b"));
    }

    #[test]
    fn only_so_many_blocks_are_kept_those_wanted_last_b1() {
        let mut blocks = Blocks::default();
        let all = BLOCKS_MAX as u64;
        for number in 0..all {
            assert_eq!(blocks.find(number), None);
            blocks.keep(number, Bytes::from_static(b"x"));
        }
        assert!(blocks.find(0).is_some());

        assert!(blocks.find(all).is_none());
        blocks.keep(all, Bytes::from_static(b"x"));

        assert_eq!(blocks.known.len(), BLOCKS_MAX);
        assert!(blocks.find(0).is_some(), "wanted again");
        assert!(blocks.find(1).is_none(), "wanted longest ago");
        assert!(blocks.find(all).is_some());
    }
}
