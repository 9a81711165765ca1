//! What waits between a task's thread and its channel.
//!
//! Owns: back-pressure at the sending end (B1): rows wait for room, marks never do.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use streamforge_engine::batch::{BATCH_ROWS, StreamBatch};
use streamforge_engine::task::Element;
use tokio::sync::{Notify, watch};

use super::super::credit::{self, Credit};
use super::super::frame::{batch_bytes, can_join};
use super::super::lock;

/// Counted for each batch beside its columns, so that tiny ones fill a queue, too.
const BATCH_OVERHEAD: usize = 512;

#[derive(Debug)]
struct Waiting {
    element: Element,
    bytes: usize,
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    elements: VecDeque<Waiting>,
    /// Of the batches among them.
    queued_bytes: usize,
    credit: Option<Credit>,
    /// Tasks that wait for room: one, if any.
    blocked_n: usize,
    over: bool,
}

/// What a push came to.
pub struct Pushed {
    /// False: the channel is over.
    pub taken: bool,
    /// How long it had to wait.
    pub waited: Duration,
}

/// What the writer gets.
#[derive(Debug)]
pub enum Taken {
    /// Anything but rows.
    Mark(Element),
    /// Rows that can be one frame, or one batch that may be many.
    Rows(Vec<StreamBatch>),
    /// Few rows: wait for more until then.
    Early(Instant),
    /// Nothing.
    Empty,
    /// The channel is over.
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    bytes_max: usize,
    state: Mutex<State>,
    room: Condvar,
    /// For the writer: something came, credit or the end included.
    ready: Notify,
    /// For whoever listens.
    over: watch::Sender<bool>,
}

impl Queue {
    /// Without credit.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            state: Mutex::default(),
            room: Condvar::new(),
            ready: Notify::new(),
            over: watch::Sender::new(false),
        }
    }

    /// The first credit came.
    pub fn open(&self, window: u64) {
        lock(&self.state).credit = Some(Credit::full(window));
        self.ready.notify_one();
    }

    /// Adds an element; waits if it is rows and there is no room.
    pub fn push(&self, element: Element) -> Pushed {
        let bytes = match &element {
            Element::Batch(batch) => batch_bytes(batch) + BATCH_OVERHEAD,
            _ => 0,
        };
        let mut state = lock(&self.state);
        let mut waited = Duration::ZERO;
        if bytes > 0 && state.queued_bytes >= self.bytes_max && !state.over {
            let began = Instant::now();
            state.blocked_n += 1;
            state = self
                .room
                .wait_while(state, |state| {
                    state.queued_bytes >= self.bytes_max && !state.over
                })
                .unwrap_or_else(PoisonError::into_inner);
            state.blocked_n -= 1;
            waited = began.elapsed();
        }
        let taken = !state.over;
        if taken {
            let since = Instant::now();
            let last = state.elements.back_mut().map(|last| &mut last.element);
            match (last, element) {
                (Some(Element::Watermark(last)), Element::Watermark(newer)) => *last = newer,
                (_, element) => state.elements.push_back(Waiting {
                    element,
                    bytes,
                    since,
                }),
            }
            state.queued_bytes += bytes;
        }
        drop(state);
        self.ready.notify_one();
        Pushed { taken, waited }
    }

    /// Takes the next mark, or rows for one frame: `frame_bytes`, or what there is if a mark follows
    /// or the first rows may wait no longer. `rested`: when rows may go however few they are.
    pub fn take(&self, frame_bytes: usize, linger: Duration, rested: Instant) -> Taken {
        let mut state = lock(&self.state);
        if state.over {
            return Taken::Over;
        }
        let Some(first) = state.elements.front() else {
            return Taken::Empty;
        };
        if !matches!(first.element, Element::Batch(_)) {
            let mark = state.elements.pop_front().map(|first| first.element);
            return mark.map_or(Taken::Empty, Taken::Mark);
        }
        let due = rested.min(first.since + linger);
        let (batches_n, bytes) = joinable(&state.elements, frame_bytes);
        let all = batches_n == state.elements.len();
        let full = state.queued_bytes >= self.bytes_max;
        if all && !full && Instant::now() < due && of_columns(bytes, batches_n) < frame_bytes {
            return Taken::Early(due);
        }
        let batches = state.elements.drain(..batches_n);
        let batches = batches.filter_map(|waiting| match waiting.element {
            Element::Batch(batch) => Some(batch),
            _ => None,
        });
        let batches = batches.collect();
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
        let blocked = state.blocked_n > 0;
        drop(state);
        if blocked {
            self.room.notify_all();
        }
        Taken::Rows(batches)
    }

    /// What is left of it; `None`: none came yet.
    pub fn credit(&self) -> Option<i64> {
        lock(&self.state).credit.map(|credit| credit.available())
    }

    /// Spends credit, if there is enough.
    pub fn try_spend(&self, bytes: u64) -> bool {
        let mut state = lock(&self.state);
        let spent = state.credit.as_mut().map(|credit| credit.spend(bytes));
        matches!(spent, Some(Ok(())))
    }

    /// Credit came back.
    pub fn grant(&self, bytes: u64) -> Result<(), credit::Error> {
        if let Some(credit) = &mut lock(&self.state).credit {
            credit.grant(bytes)?;
        }
        self.ready.notify_one();
        Ok(())
    }

    /// Waits until something changed since the last time, or `until`.
    pub async fn changed(&self, until: Option<Instant>) {
        match until {
            None => self.ready.notified().await,
            Some(until) => {
                let until = tokio::time::Instant::from_std(until);
                let _ = tokio::time::timeout_at(until, self.ready.notified()).await;
            }
        }
    }

    /// Ends the channel; says whether it was open until now.
    pub fn end(&self) -> bool {
        let mut state = lock(&self.state);
        let first = !std::mem::replace(&mut state.over, true);
        state.elements.clear();
        drop(state);
        self.room.notify_all();
        self.ready.notify_one();
        self.over.send_replace(true);
        first
    }

    /// Whether the channel is over.
    pub fn is_over(&self) -> bool {
        lock(&self.state).over
    }

    /// Waits for the end.
    pub async fn ended(&self) {
        let mut over = self.over.subscribe();
        let _ = over.wait_for(|over| *over).await;
    }

    /// Bytes of rows that wait.
    pub fn queued_bytes(&self) -> usize {
        lock(&self.state).queued_bytes
    }
}

/// What so many batches have in columns.
fn of_columns(bytes: usize, batches_n: usize) -> usize {
    bytes.saturating_sub(batches_n * BATCH_OVERHEAD)
}

/// How many of the first batches can be one frame, and their bytes.
fn joinable(elements: &VecDeque<Waiting>, frame_bytes: usize) -> (usize, usize) {
    let (mut batches_n, mut bytes, mut rows_n) = (0, 0, 0);
    let mut first: Option<&StreamBatch> = None;
    for waiting in elements {
        let Element::Batch(batch) = &waiting.element else {
            break;
        };
        let joins = match first {
            None => true,
            Some(first) => {
                let together = of_columns(bytes + waiting.bytes, batches_n + 1);
                let room = together <= frame_bytes && rows_n < BATCH_ROWS;
                room && can_join(first, batch)
            }
        };
        if !joins {
            break;
        }
        first = first.or(Some(batch));
        batches_n += 1;
        bytes += waiting.bytes;
        rows_n += batch.len();
    }
    (batches_n, bytes)
}
