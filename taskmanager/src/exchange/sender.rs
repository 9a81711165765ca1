//! The sending end of a channel.
//!
//! Owns: the queue between a task's thread and its stream, joining and cutting batches into frames,
//! waiting for credit, numbering. The thread waits in [`Sender::push`], everything else runs on the
//! exchange's runtime. Elements leave in the order they came (A1 stands on it). Start at:
//! [`Opener::open`].

mod queue;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use streamforge_engine::task::Element;
use streamforge_proto::convert::exchange::{Opening, PROTOCOL};
use streamforge_proto::v1;
use streamforge_proto::v1::exchange_client::ExchangeClient;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::receiver::Admitted;
use super::{Broken, ChannelName, End, Error, MESSAGE_BYTES_MAX, Shared, Totals};
use crate::inbox::{Control, Inbox};
use queue::Queue;
use writer::Writer;

/// How long before a receiver that is not that far is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The task's handle of an open channel. Clones are the same channel.
#[derive(Clone, Debug)]
pub struct Sender {
    queue: Arc<Queue>,
    totals: Arc<Totals>,
}

impl Sender {
    /// Hands an element over; rows wait for room, which credit makes. False: the channel is over.
    /// Blocks the thread: for tasks, never within a runtime.
    #[must_use]
    pub fn push(&self, element: Element) -> bool {
        let pushed = self.queue.push(element);
        if !pushed.waited.is_zero() {
            let waited_us = u64::try_from(pushed.waited.as_micros()).unwrap_or(u64::MAX);
            Totals::add(&self.totals.blocked_us, waited_us);
        }
        pushed.taken
    }

    /// Ends the channel here: a waiting [`Sender::push`] returns.
    pub fn cancel(&self) {
        self.queue.end();
    }

    /// Bytes that may be sent now; `None`: the receiver has not given any yet.
    pub fn credit(&self) -> Option<i64> {
        self.queue.credit()
    }

    /// Bytes of rows that wait for credit, as columns; at most `queue_bytes` and one batch (B1).
    pub fn queued_bytes(&self) -> usize {
        self.queue.queued_bytes()
    }
}

/// Reports the end of a channel, once, and only if nobody ended it on purpose.
#[derive(Clone, Debug)]
struct Ending {
    channel: ChannelName,
    queue: Arc<Queue>,
    admitted: Arc<Admitted>,
    totals: Arc<Totals>,
}

impl Ending {
    fn broken(&self, cause: impl Into<String>) {
        if self.queue.end() {
            Totals::add(&self.totals.broken, 1);
            self.admitted.report(Broken {
                channel: self.channel,
                end: End::Sending,
                cause: cause.into(),
            });
        }
    }
}

/// Opens one channel.
pub struct Opener {
    pub channel: ChannelName,
    pub address: String,
    pub task_manager: String,
    pub admitted: Arc<Admitted>,
    pub shared: Arc<Shared>,
    pub own: Arc<Inbox>,
}

/// How one try to open a channel ended.
enum Try {
    Opened(Sender),
    /// The other end does not know the channel yet, or is not there: nothing was sent.
    NotYet(String),
    Refused(String),
}

impl Opener {
    /// Tries until the receiver has the channel, refuses it, or `open_timeout` is over. Trying again
    /// heals nothing: before the first credit no element has left (B2).
    pub async fn open(self, connection: Channel) -> Result<Sender, Error> {
        let channel = self.channel;
        let began = Instant::now();
        let deadline = began + self.shared.config.open_timeout;
        loop {
            if self.admitted.is_closed() {
                return Err(Error::Closed { channel });
            }
            let once = tokio::time::timeout_at(deadline, self.open_once(connection.clone()));
            let reason = match once.await {
                Ok(Try::Opened(sender)) => return Ok(sender),
                Ok(Try::Refused(reason)) => {
                    let address = self.address;
                    return Err(Error::Refused {
                        channel,
                        address,
                        reason,
                    });
                }
                Ok(Try::NotYet(reason)) => reason,
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() + ASK_AGAIN >= deadline {
                let waited_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                let address = self.address;
                return Err(Error::Unreachable {
                    channel,
                    address,
                    reason,
                    waited_ms,
                });
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    async fn open_once(&self, connection: Channel) -> Try {
        let queue = Arc::new(Queue::new(self.shared.config.queue_bytes));
        let ending = Ending {
            channel: self.channel,
            queue: Arc::clone(&queue),
            admitted: Arc::clone(&self.admitted),
            totals: Arc::clone(&self.shared.totals),
        };
        let writer = Writer::new(
            self.opening(),
            Arc::clone(&queue),
            Arc::clone(&self.shared),
            ending.clone(),
        );
        let mut client = ExchangeClient::new(connection)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut answers = match client.channel(writer.into_stream()).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return not_opened(&status),
        };
        let window = match next_answer(&mut answers, 1).await {
            Ok(v1::upstream::What::Credit(window)) => window,
            Ok(v1::upstream::What::Answer(_)) => {
                return Try::Refused("an answer before the first credit".to_owned());
            }
            Err(AnswerError::Status(status)) => return not_opened(&status),
            Err(AnswerError::Protocol(reason)) => return Try::Refused(reason),
        };
        queue.open(window);
        tokio::spawn(listen(answers, Arc::clone(&self.own), ending));
        let totals = Arc::clone(&self.shared.totals);
        Try::Opened(Sender { queue, totals })
    }

    fn opening(&self) -> Opening {
        Opening {
            protocol: PROTOCOL,
            stamp: self.admitted.stamp().clone(),
            edge: self.channel.edge,
            sender: self.channel.sender,
            receiver: self.channel.receiver,
            task_manager: self.task_manager.clone(),
        }
    }
}

fn not_opened(status: &Status) -> Try {
    match status.code() {
        Code::Unavailable => Try::NotYet(describe(status)),
        _ => Try::Refused(describe(status)),
    }
}

/// A status with what caused it, for people.
pub(super) fn describe(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

enum AnswerError {
    Status(Status),
    Protocol(String),
}

async fn next_answer(
    answers: &mut Streaming<v1::Upstream>,
    number: u64,
) -> Result<v1::upstream::What, AnswerError> {
    match answers.message().await {
        Ok(Some(message)) if message.number != number => Err(AnswerError::Protocol(format!(
            "message {} came where {number} was due",
            message.number
        ))),
        Ok(Some(message)) => message
            .what
            .ok_or_else(|| AnswerError::Protocol("a message of an unknown kind came".to_owned())),
        Ok(None) => Err(AnswerError::Protocol("the receiver ended it".to_owned())),
        Err(status) => Err(AnswerError::Status(status)),
    }
}

/// Takes what the receiver says, until the channel is over.
async fn listen(mut answers: Streaming<v1::Upstream>, own: Arc<Inbox>, ending: Ending) {
    let queue = Arc::clone(&ending.queue);
    let ChannelName { edge, receiver, .. } = ending.channel;
    for number in 2.. {
        let answer = tokio::select! {
            answer = next_answer(&mut answers, number) => answer,
            () = queue.ended() => return,
        };
        let cause = match answer {
            Ok(v1::upstream::What::Credit(bytes)) => match queue.grant(bytes) {
                Ok(()) => continue,
                Err(error) => error.to_string(),
            },
            Ok(v1::upstream::What::Answer(watermark)) => {
                own.control(Control::Answer {
                    edge: edge as usize,
                    receiver,
                    watermark: streamforge_core::event_time::Watermark(watermark),
                });
                continue;
            }
            Err(AnswerError::Status(status)) => describe(&status),
            Err(AnswerError::Protocol(cause)) => cause,
        };
        ending.broken(cause);
        return;
    }
}
