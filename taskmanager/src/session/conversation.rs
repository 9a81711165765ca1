//! One session: the stream to one coordinator.
//!
//! Owns: the call with its deadlines, the first two messages, and passing messages on until either
//! end is silent or gone. Bytes of a message that is large are no silence.

use std::time::Duration;

use streamforge_core::causes::with_causes;
use streamforge_core::messages::{Event, Stamp};
use streamforge_proto::convert::coordinator::{
    PROTOCOL_LEAVING, PROTOCOL_MAX, PROTOCOL_MIN, from_command, to_event,
};
use streamforge_proto::tls::Tls;
use streamforge_proto::v1;
use streamforge_proto::v1::coordinator_client::CoordinatorClient;
use streamforge_proto::v1::from_task_manager::What as From;
use streamforge_proto::v1::to_task_manager::What as To;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::counted::{Bytes, Counted};
use crate::manager::Request;

/// How long a call may take to be answered.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Messages waiting to be sent.
const OUT_MAX: usize = 64;

/// Largest message, as the coordinator's.
const MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How a session, or a call for one, ended.
#[derive(Debug)]
pub(super) enum Over {
    /// The job is over.
    Goodbye(String),
    /// The coordinator does not want this task manager.
    Refused { reason: String, again: bool },
    /// The stream broke, or was silent.
    Broken(String),
    /// Nobody answered.
    NoAnswer(String),
}

/// A stream to a coordinator that has welcomed this task manager.
pub(super) struct Conversation {
    out: mpsc::Sender<v1::FromTaskManager>,
    messages: Streaming<v1::ToTaskManager>,
    bytes: Bytes,
    /// The version that both ends speak.
    protocol: u32,
}

fn message(what: From) -> v1::FromTaskManager {
    v1::FromTaskManager { what: Some(what) }
}

impl Conversation {
    /// Calls and registers.
    pub(super) async fn open(
        address: &str,
        tls: Option<&Tls>,
        connect_within: Duration,
        register: v1::Register,
    ) -> Result<(Self, v1::Welcome), Over> {
        let opening = Self::open_in_time(address, tls, connect_within, register);
        match timeout(CALL_MAX, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(Over::NoAnswer(format!("no answer for {CALL_MAX:?}"))),
        }
    }

    async fn open_in_time(
        address: &str,
        tls: Option<&Tls>,
        connect_within: Duration,
        register: v1::Register,
    ) -> Result<(Self, v1::Welcome), Over> {
        let no_answer = |error: &dyn std::error::Error| Over::NoAnswer(with_causes(error));
        let endpoint = endpoint(address, tls).map_err(|error| no_answer(&error))?;
        let endpoint = endpoint.connect_timeout(connect_within);
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| no_answer(&error))?;
        let bytes = Bytes::default();
        let mut client = CoordinatorClient::new(Counted::new(channel, bytes.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let (out, outgoing) = mpsc::channel(OUT_MAX);
        // A fresh queue has room.
        let _fits = out.try_send(message(From::Register(register)));
        let answer = client.session(ReceiverStream::new(outgoing)).await;
        let mut messages = answer.map_err(|status| no_answer(&status))?.into_inner();
        let first = messages.message().await;
        let first = first.map_err(|status| no_answer(&status))?;
        match first.and_then(|first| first.what) {
            Some(To::Welcome(welcome)) if speaks(welcome.protocol) => {
                let protocol = welcome.protocol;
                let conversation = Self {
                    out,
                    messages,
                    bytes,
                    protocol,
                };
                Ok((conversation, welcome))
            }
            Some(To::Welcome(welcome)) => Err(Over::Refused {
                reason: format!(
                    "it speaks version {} of the protocol, this task manager {PROTOCOL_MIN} to \
                     {PROTOCOL_MAX}",
                    welcome.protocol
                ),
                again: false,
            }),
            Some(To::Refused(v1::Refused { reason, again })) => {
                Err(Over::Refused { reason, again })
            }
            Some(To::Goodbye(goodbye)) => Err(Over::Goodbye(goodbye.reason)),
            Some(To::Heartbeat(_) | To::Command(_)) | None => Err(Over::NoAnswer(
                "it did not welcome this task manager".to_owned(),
            )),
        }
    }

    /// Asks to be let go; says whether there was room for that.
    fn ask_to_leave(&self) -> bool {
        self.protocol < PROTOCOL_LEAVING
            || self
                .out
                .try_send(message(From::Leaving(v1::Leaving {})))
                .is_ok()
    }

    /// Passes messages on until the session is over; the two times are
    /// that between heartbeats and the longest silence.
    pub(super) async fn go_on(
        &mut self,
        requests: &mpsc::Sender<Request>,
        events: &mut mpsc::Receiver<(Stamp, Event)>,
        (heartbeat, silence_max): (Duration, Duration),
        leaving: &mut watch::Receiver<bool>,
    ) -> Over {
        let (mut asked_to_leave, mut unasked) = (false, false);
        let mut beats = interval(heartbeat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deadline = Instant::now() + silence_max;
        // What the coordinator has no room for yet: it is reading something large.
        let mut unsent = None;
        loop {
            tokio::select! {
                next = self.messages.message() => {
                    // Those were of this one.
                    self.bytes.came();
                    deadline = Instant::now() + silence_max;
                    if let Some(over) = on_message(next, requests).await {
                        return over;
                    }
                }
                Some((stamp, event)) = events.recv(), if unsent.is_none() => {
                    unsent = Some(message(From::Event(to_event(stamp, event))));
                }
                room = self.out.reserve(), if unsent.is_some() => {
                    let (Ok(room), Some(event)) = (room, unsent.take()) else {
                        return Over::Broken("it takes no events".to_owned());
                    };
                    room.send(event);
                }
                true = is_told(leaving), if !asked_to_leave => {
                    asked_to_leave = true;
                    unasked = !self.ask_to_leave();
                }
                _ = beats.tick() => {
                    // It may have been full.
                    unasked = unasked && !self.ask_to_leave();
                    // A full queue says as much.
                    let _full = self.out.try_send(message(From::Heartbeat(v1::Heartbeat {})));
                }
                () = sleep_until(deadline) => {
                    if self.bytes.came() {
                        deadline = Instant::now() + silence_max;
                        continue;
                    }
                    return Over::Broken(format!("it has said nothing for {silence_max:?}"));
                }
            }
        }
    }
}

async fn on_message(
    next: Result<Option<v1::ToTaskManager>, tonic::Status>,
    requests: &mpsc::Sender<Request>,
) -> Option<Over> {
    let what = match next {
        Ok(Some(message)) => message.what,
        Ok(None) => return Some(Over::Broken("it closed the session".to_owned())),
        Err(status) => return Some(Over::Broken(with_causes(&status))),
    };
    match what {
        Some(To::Heartbeat(_)) => None,
        Some(To::Command(command)) => match from_command(command) {
            Ok((stamp, command)) => {
                let request = Request::Command(stamp, command);
                let gone = requests.send(request).await.is_err();
                gone.then(|| Over::Broken("the manager is gone".to_owned()))
            }
            Err(error) => Some(Over::Broken(error.to_string())),
        },
        Some(To::Goodbye(goodbye)) => Some(Over::Goodbye(goodbye.reason)),
        Some(To::Refused(v1::Refused { reason, again })) => Some(Over::Refused { reason, again }),
        Some(To::Welcome(_)) | None => {
            let reason = "it sent a message that this version does not know";
            Some(Over::Broken(reason.to_owned()))
        }
    }
}

/// Waits until this process is to end. False: whoever could say so is gone.
async fn is_told(leaving: &mut watch::Receiver<bool>) -> bool {
    leaving.wait_for(|leaving| *leaving).await.is_ok()
}

fn speaks(protocol: u32) -> bool {
    (PROTOCOL_MIN..=PROTOCOL_MAX).contains(&protocol)
}

fn endpoint(address: &str, tls: Option<&Tls>) -> Result<Endpoint, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?.tcp_nodelay(true);
    match tls {
        Some(tls) => endpoint.tls_config(tls.client()),
        None => Ok(endpoint),
    }
}
