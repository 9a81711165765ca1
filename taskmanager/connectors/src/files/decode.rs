//! Decoding the chunks of a split, in order: in the caller's thread or in several at once.
//!
//! Owns: the decode threads of one split and the order of their answers. Start at:
//! [`Reading::next_piece`].
//!
//! Whoever decodes also reads: the thread that is next takes the following chunk from the sequence,
//! so no thread only reads. At most [`ahead_max`] chunks are decoded and not taken (B1). The answers
//! come in the file's order, so the rows and the watermark are those of one thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use arrow::error::ArrowError;
use streamforge_engine::batch::BATCH_ROWS;

use super::chunker::{CHUNK_BYTES, Piece};
use super::fingerprint::Fingerprint;
use super::sequence::{Error as SequenceError, Job, Sequence};
use crate::formats::decoded::{Chunk, Column, Decoded};
use crate::formats::decoder::{Decoder, TextFormat};

/// Smallest chunk that is aimed at.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// Chunks that may be in work or wait for their turn: each thread has one in its hands and one more
/// lies ready, so that a slow chunk does not stop the others.
pub fn ahead_max(threads: usize) -> usize {
    threads * 2 + 1
}

/// Why a split cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// The columns could not be built: a defect.
    #[error("build columns")]
    Arrow(#[from] ArrowError),
    /// A decode thread is gone: a defect.
    #[error("decode: a thread ended early")]
    ThreadLost,
    /// No thread could be started.
    #[error("start a decode thread")]
    Spawn(#[source] std::io::Error),
}

impl Error {
    /// Whether another attempt may do better.
    pub fn retry(&self) -> bool {
        match self {
            Error::Sequence(error) => error.retry(),
            Error::Arrow(_) | Error::ThreadLost | Error::Spawn(_) => true,
        }
    }
}

/// Decoded rows and where their file goes on.
#[derive(Debug)]
pub struct DecodedPiece {
    /// Index of the file within the split.
    pub file: usize,
    /// Uncompressed offset behind the rows.
    pub end_offset: u64,
    /// What was read of the file up to there, if that is known.
    pub read: Option<Fingerprint>,
    /// The rows, numbered from the first of this piece.
    pub decoded: Decoded,
}

/// Decodes jobs; keeps its decoder, and with it what it learned, from job to job.
#[derive(Debug)]
struct Worker {
    format: TextFormat,
    columns: Arc<Vec<Column>>,
    decoder: Option<(Arc<Vec<Option<usize>>>, Decoder)>,
    chunk_bytes: Arc<AtomicUsize>,
}

impl Worker {
    /// Decodes one job; also gives back the chunk's memory.
    fn decode(&mut self, job: Job) -> Result<(DecodedPiece, Vec<u8>), Error> {
        let Job {
            file,
            places,
            piece,
            end_offset,
            read,
        } = job;
        let fits = self
            .decoder
            .as_ref()
            .is_some_and(|(known, _)| *known == places);
        if !fits {
            let decoder = Decoder::new(&self.format, &self.columns, &places)?;
            self.decoder = Some((places, decoder));
        }
        let Some((_, decoder)) = &mut self.decoder else {
            return Err(Error::ThreadLost);
        };
        let (decoded, buffer) = match piece {
            Piece::Rows(chunk) => {
                let decoded = decoder.decode(&chunk)?;
                let row_bytes = chunk.len() / usize::try_from(decoded.rows_n).unwrap_or(1).max(1);
                let target = (row_bytes * BATCH_ROWS).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES);
                self.chunk_bytes.store(target, Ordering::Relaxed);
                (decoded, chunk.into_bytes())
            }
            Piece::TooLong(bad) => {
                let mut decoded = decoder.decode(&Chunk::new(Vec::new(), bad.offset))?;
                decoded.bad.push(bad);
                decoded.rows_n = 1;
                (decoded, Vec::new())
            }
        };
        Ok((
            DecodedPiece {
                file,
                end_offset,
                read,
                decoded,
            },
            buffer,
        ))
    }
}

/// A split that is being read.
#[derive(Debug)]
pub enum Reading {
    /// In the caller's thread.
    Inline(Box<Inline>),
    /// In several threads.
    Pool(Pool),
}

/// Reads and decodes in the caller's thread.
#[derive(Debug)]
pub struct Inline {
    sequence: Sequence,
    worker: Worker,
    buffer: Vec<u8>,
}

impl Reading {
    /// Begins to read with so many threads; one means the caller's.
    pub fn start(
        mut sequence: Sequence,
        format: &TextFormat,
        columns: &Arc<Vec<Column>>,
        threads: usize,
    ) -> Result<Self, Error> {
        sequence.check()?;
        let worker = || Worker {
            format: format.clone(),
            columns: Arc::clone(columns),
            decoder: None,
            chunk_bytes: sequence.chunk_bytes(),
        };
        if threads <= 1 {
            let worker = worker();
            return Ok(Reading::Inline(Box::new(Inline {
                sequence,
                worker,
                buffer: Vec::new(),
            })));
        }
        let workers = (0..threads).map(|_| worker()).collect();
        Ok(Reading::Pool(Pool::start(sequence, workers)?))
    }

    /// The next rows in order; `None` at the end of the split.
    pub fn next_piece(&mut self) -> Result<Option<DecodedPiece>, Error> {
        match self {
            Reading::Inline(inline) => {
                let buffer = std::mem::take(&mut inline.buffer);
                let Some(job) = inline.sequence.next_job(buffer)? else {
                    return Ok(None);
                };
                let (piece, buffer) = inline.worker.decode(job)?;
                inline.buffer = buffer;
                Ok(Some(piece))
            }
            Reading::Pool(pool) => pool.next_piece(),
        }
    }
}

type Answer = Result<Option<DecodedPiece>, Error>;

/// What the threads and the caller share.
#[derive(Debug)]
struct Shared {
    reader: Mutex<Reader>,
    state: Mutex<State>,
    /// An answer came.
    ready: Condvar,
    /// An answer was taken.
    room: Condvar,
}

#[derive(Debug)]
struct Reader {
    sequence: Sequence,
    next: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct State {
    answers: BTreeMap<u64, Answer>,
    /// Number of the answer that is taken next.
    next: u64,
    in_flight: usize,
    ahead_max: usize,
    buffers: Vec<Vec<u8>>,
    closed: bool,
    lost: bool,
}

/// The decode threads of one split.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A panic of a decode thread is told to the caller by `lost`, not by poison.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn start(sequence: Sequence, workers: Vec<Worker>) -> Result<Self, Error> {
        let state = State {
            ahead_max: ahead_max(workers.len()),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            reader: Mutex::new(Reader {
                sequence,
                next: 0,
                ended: false,
            }),
            state: Mutex::new(state),
            ready: Condvar::new(),
            room: Condvar::new(),
        });
        let mut pool = Pool {
            shared,
            threads: Vec::new(),
        };
        for (idx, worker) in workers.into_iter().enumerate() {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("decode-{idx}"))
                .spawn(move || {
                    let _notice = LossNotice(Arc::clone(&shared));
                    shared.work(worker);
                })
                .map_err(Error::Spawn)?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    fn next_piece(&mut self) -> Answer {
        let mut state = lock(&self.shared.state);
        loop {
            let next = state.next;
            if let Some(answer) = state.answers.remove(&next) {
                if matches!(answer, Ok(Some(_))) {
                    state.next += 1;
                    state.in_flight = state.in_flight.saturating_sub(1);
                } else {
                    // The end and an error stay: nothing comes after them.
                    state.closed = true;
                    if answer.is_ok() {
                        state.answers.insert(next, Ok(None));
                    }
                }
                self.shared.room.notify_one();
                return answer;
            }
            if state.lost || state.closed {
                return Err(Error::ThreadLost);
            }
            state = self
                .shared
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Wakes the caller when its thread ends by a panic.
struct LossNotice(Arc<Shared>);

impl Drop for LossNotice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.state).lost = true;
            self.0.ready.notify_all();
        }
    }
}

impl Shared {
    fn work(&self, mut worker: Worker) {
        while let Some(buffer) = self.wait_for_room() {
            let (number, job) = {
                let mut reader = lock(&self.reader);
                if reader.ended {
                    return;
                }
                let number = reader.next;
                reader.next += 1;
                let job = reader.sequence.next_job(buffer);
                reader.ended = !matches!(job, Ok(Some(_)));
                (number, job)
            };
            let mut used = None;
            let answer = match job {
                Ok(Some(job)) => worker.decode(job).map(|(piece, buffer)| {
                    used = Some(buffer);
                    Some(piece)
                }),
                Ok(None) => Ok(None),
                Err(error) => Err(error.into()),
            };
            let mut state = lock(&self.state);
            state.answers.insert(number, answer);
            state.buffers.extend(used);
            drop(state);
            self.ready.notify_one();
        }
    }

    /// Waits until another chunk may be read; `None`: nobody wants it any more.
    fn wait_for_room(&self) -> Option<Vec<u8>> {
        let mut state = lock(&self.state);
        while !state.closed && state.in_flight >= state.ahead_max {
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return None;
        }
        state.in_flight += 1;
        Some(state.buffers.pop().unwrap_or_default())
    }
}
