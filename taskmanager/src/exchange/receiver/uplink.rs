//! What goes back from a channel's receiver to its sender: credit and answers.
//!
//! Owns: the receiver's account of credit, and that its end of the channel is reported once (B2).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures::Stream;
use streamforge_core::event_time::Watermark;
use streamforge_proto::v1;
use streamforge_proto::v1::upstream::What;
use tokio::sync::{Notify, watch};
use tonic::Status;

use super::super::credit::{self, Ledger};
use super::super::{Broken, ChannelName, End, Totals, lock};
use super::registry::Admitted;
use crate::inbox::Drained;

#[derive(Debug)]
struct State {
    ledger: Ledger,
    credit: u64,
    answers: VecDeque<Watermark>,
    /// Why the channel is over.
    over: Option<String>,
}

/// The receiving task's handle of a channel: answers the sender's joins.
#[derive(Debug)]
pub struct Uplink {
    channel: ChannelName,
    state: Mutex<State>,
    ready: Notify,
    over: watch::Sender<bool>,
    admitted: Arc<Admitted>,
    totals: Arc<Totals>,
}

impl Uplink {
    /// Of a channel that is not open yet; the first credit is all of the window.
    pub fn new(
        channel: ChannelName,
        window: u64,
        admitted: Arc<Admitted>,
        totals: Arc<Totals>,
    ) -> Self {
        let ledger = Ledger::new(window);
        let state = State {
            credit: ledger.window(),
            ledger,
            answers: VecDeque::new(),
            over: None,
        };
        Self {
            channel,
            state: Mutex::new(state),
            ready: Notify::new(),
            over: watch::Sender::new(false),
            admitted,
            totals,
        }
    }

    /// Answers a join.
    pub fn answer(&self, watermark: Watermark) {
        lock(&self.state).answers.push_back(watermark);
        self.ready.notify_one();
    }

    /// Bytes of rows that wait for the task.
    pub fn queued_bytes(&self) -> u64 {
        lock(&self.state).ledger.queued()
    }

    /// A frame came.
    pub fn on_frame(&self, bytes: u64) -> Result<(), credit::Error> {
        lock(&self.state).ledger.on_frame(bytes)
    }

    /// The channel broke here: reported, unless the attempt or the channel was over already.
    pub fn broken(&self, cause: &str) {
        if self.end(cause) {
            Totals::add(&self.totals.broken, 1);
            self.admitted.report(Broken {
                channel: self.channel,
                end: End::Receiving,
                cause: cause.to_owned(),
            });
        }
    }

    /// The attempt is over.
    pub fn close(&self) {
        self.end("the attempt is over");
    }

    fn end(&self, cause: &str) -> bool {
        let mut state = lock(&self.state);
        let first = state.over.is_none();
        if first {
            state.over = Some(cause.to_owned());
        }
        drop(state);
        self.ready.notify_one();
        self.over.send_replace(true);
        first
    }

    /// Waits for the end.
    pub async fn closed(&self) {
        let mut over = self.over.subscribe();
        let _ = over.wait_for(|over| *over).await;
    }

    fn take(&self) -> Result<Option<What>, String> {
        let mut state = lock(&self.state);
        if let Some(cause) = &state.over {
            return Err(cause.clone());
        }
        let credit = std::mem::take(&mut state.credit);
        if credit > 0 {
            return Ok(Some(What::Credit(credit)));
        }
        let answer = state.answers.pop_front();
        Ok(answer.map(|watermark| What::Answer(watermark.0)))
    }

    async fn next(&self) -> Result<What, String> {
        loop {
            if let Some(what) = self.take()? {
                return Ok(what);
            }
            self.ready.notified().await;
        }
    }

    /// What is said to the sender; an error is the last.
    pub fn into_stream(
        self: Arc<Self>,
    ) -> impl Stream<Item = Result<v1::Upstream, Status>> + Send + 'static {
        let began = Some((self, 0));
        futures::stream::unfold(began, |went_on| async move {
            let (uplink, number) = went_on?;
            match uplink.next().await {
                Ok(what) => {
                    let number = number + 1;
                    let what = Some(what);
                    let message = v1::Upstream { number, what };
                    Some((Ok(message), Some((uplink, number))))
                }
                Err(cause) => Some((Err(Status::aborted(cause)), None)),
            }
        })
    }
}

impl Drained for Uplink {
    fn on_taken(&self, bytes: u64) {
        let mut state = lock(&self.state);
        if let Some(back) = state.ledger.on_taken(bytes) {
            state.credit += back;
            drop(state);
            self.ready.notify_one();
        }
    }
}
