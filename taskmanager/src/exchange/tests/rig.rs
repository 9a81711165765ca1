//! Two exchanges, an attempt in each, and what they report.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use streamforge_core::ids::{Epoch, Generation, JobId, SubtaskIdx};
use streamforge_core::messages::Stamp;
use streamforge_engine::batch::StreamBatch;
use streamforge_engine::task::Element;

use super::super::*;
use crate::inbox::Next;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn stamp(generation: u64, epoch: u64) -> Stamp {
    Stamp {
        job: JobId("j".to_owned()),
        generation: Generation::from_stored(generation),
        epoch: Epoch::from_stored(epoch),
    }
}

/// Small, so that limits are reached soon.
pub fn config() -> Config {
    Config {
        window_bytes: 64 * 1024,
        queue_bytes: 32 * 1024,
        frame_bytes: 16 * 1024,
        ..Config::default()
    }
}

pub fn channel(edge: u32) -> ChannelName {
    ChannelName {
        edge,
        sender: SubtaskIdx(0),
        receiver: SubtaskIdx(0),
    }
}

/// Rows of one column of eight bytes, all with the value `value`.
pub fn batch(value: i64, rows_n: usize) -> StreamBatch {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![value; rows_n]));
    StreamBatch::plain(RecordBatch::try_from_iter([("v", column)]).unwrap())
}

#[track_caller]
pub fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "nothing happened");
        std::thread::yield_now();
    }
}

/// A receiving task.
pub struct Receiver {
    pub inbox: Arc<Inbox>,
    pub uplink: Arc<Uplink>,
}

impl Receiver {
    /// The next element.
    #[track_caller]
    pub fn next(&self) -> Element {
        match self.inbox.next(|_, _| true, PATIENCE) {
            Next::Element(0, element) => element,
            other => panic!("no element: {other:?}"),
        }
    }
}

pub type Reports = Arc<Mutex<Vec<Broken>>>;

pub fn report(reports: &Reports) -> Report {
    let reports = Arc::clone(reports);
    Arc::new(move |broken| reports.lock().unwrap().push(broken))
}

pub struct Rig {
    pub sending: AttemptExchange,
    pub receiving: AttemptExchange,
    pub own: Arc<Inbox>,
    pub there: Exchange,
    pub here: Exchange,
    reports: (Reports, Reports),
}

impl Rig {
    pub fn start(config: Config) -> Self {
        Self::new(config, stamp(1, 1), stamp(1, 1))
    }

    pub fn with_stamps(sending: Stamp, receiving: Stamp) -> Self {
        Self::new(config(), sending, receiving)
    }

    fn new(config: Config, sending: Stamp, receiving: Stamp) -> Self {
        let here = Exchange::start(config.clone()).unwrap();
        let there = Exchange::start(config).unwrap();
        let reports = (Reports::default(), Reports::default());
        Self {
            sending: here.attempt(sending, "here".to_owned(), report(&reports.0)),
            receiving: there.attempt(receiving, "there".to_owned(), report(&reports.1)),
            own: Arc::new(Inbox::new(0)),
            here,
            there,
            reports,
        }
    }

    pub fn address(&self) -> String {
        self.there.address().to_string()
    }

    pub fn accept(&self, channel: ChannelName) -> Receiver {
        let inbox = Arc::new(Inbox::new(1));
        let uplink = self
            .receiving
            .accept(channel, "here", Arc::clone(&inbox), 0);
        Receiver { inbox, uplink }
    }

    pub fn try_open(&self, channel: ChannelName) -> Result<Sender, Error> {
        self.try_open_at(channel, &self.address())
    }

    pub fn try_open_at(&self, channel: ChannelName, address: &str) -> Result<Sender, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let own = Arc::clone(&self.own);
        runtime.block_on(self.sending.open(channel, address, own))
    }

    pub fn open(&self, channel: ChannelName) -> Sender {
        self.try_open(channel).unwrap()
    }

    /// Reports of the sending and of the receiving end.
    pub fn broken(&self) -> (Vec<Broken>, Vec<Broken>) {
        let of = |reports: &Reports| reports.lock().unwrap().clone();
        (of(&self.reports.0), of(&self.reports.1))
    }

    /// Openings that the receiving end told to wait or go.
    pub fn openings_refused(&self) -> u64 {
        let totals = self.there.totals();
        totals.refused.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// What was said to the sending task.
    #[track_caller]
    pub fn own_control(&self) -> Control {
        match self.own.next(|_, _| true, PATIENCE) {
            Next::Control(control) => control,
            other => panic!("nothing was said: {other:?}"),
        }
    }
}
