//! One session with one task manager.
//!
//! Owns: the registration, heartbeats both ways, and the moment at which the session is over: the
//! stream broke, it was silent for too long, or a later session of the same process took its place.

use std::sync::Arc;
use std::time::Duration;

use streamforge_core::messages::{Registration, TaskManagerId};
use streamforge_proto::convert::coordinator::{NoCommonVersion, agree, from_event, from_register};
use streamforge_proto::v1::coordinator_server::Coordinator;
use streamforge_proto::v1::from_task_manager::What;
use streamforge_proto::v1::to_task_manager::What as To;
use streamforge_proto::{tls, v1};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::large::Meter;
use super::listener::{Nobody, Whose};
use super::{Link, Shared};
use crate::task_managers::{COMMANDS_MAX, News};

/// How long the first message may take; one of which bytes come takes longer.
const FIRST_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Service {
    pub(super) whose: Whose,
}

type Answers = tokio_stream::adapters::Map<
    ReceiverStream<v1::ToTaskManager>,
    fn(v1::ToTaskManager) -> Result<v1::ToTaskManager, Status>,
>;

#[tonic::async_trait]
impl Coordinator for Service {
    type SessionStream = Answers;

    async fn session(
        &self,
        request: Request<Streaming<v1::FromTaskManager>>,
    ) -> Result<Response<Answers>, Status> {
        let (out, answers) = mpsc::channel(COMMANDS_MAX);
        let whose = self.whose.clone();
        let shown = request.peer_certs();
        let meter = request.extensions().get::<Meter>().cloned();
        let meter = meter.ok_or_else(|| Status::internal("the listener meters all calls"))?;
        let messages = Messages {
            stream: request.into_inner(),
            meter,
        };
        tokio::spawn(async move { begin(&whose, shown, messages, out).await });
        let answers = ReceiverStream::new(answers);
        Ok(Response::new(answers.map(
            Ok as fn(v1::ToTaskManager) -> Result<v1::ToTaskManager, Status>,
        )))
    }
}

/// What a task manager says.
struct Messages {
    stream: Streaming<v1::FromTaskManager>,
    meter: Meter,
}

impl Messages {
    async fn next(&mut self) -> Result<Option<v1::FromTaskManager>, Status> {
        let message = self.stream.message().await?;
        self.meter.on_message();
        Ok(message)
    }
}

fn message(what: To) -> v1::ToTaskManager {
    v1::ToTaskManager { what: Some(what) }
}

fn refusal(reason: impl Into<String>) -> To {
    To::Refused(v1::Refused {
        reason: reason.into(),
        again: false,
    })
}

impl From<Nobody> for To {
    fn from(nobody: Nobody) -> Self {
        match nobody {
            Nobody::Never(reason) => refusal(reason),
            Nobody::NotNow(reason) => To::Refused(v1::Refused {
                reason,
                again: true,
            }),
        }
    }
}

/// What the first message says; the error is the answer to it.
async fn first(
    whose: &Whose,
    shown: Option<&tls::Certificates>,
    messages: &mut Messages,
) -> Result<(Arc<Shared>, u32, TaskManagerId, Registration), To> {
    let first = loop {
        if let Ok(first) = timeout(FIRST_WITHIN, messages.next()).await {
            break first;
        }
        if !messages.meter.shows_life() {
            let reason = "the first message did not come in time".to_owned();
            return Err(Nobody::NotNow(reason).into());
        }
    };
    let Ok(Some(v1::FromTaskManager {
        what: Some(What::Register(register)),
    })) = first
    else {
        return Err(refusal("the first message is no registration"));
    };
    let (theirs_min, theirs_max) = (register.protocol_min, register.protocol_max);
    let Some(protocol) = agree(theirs_min, theirs_max) else {
        let text = NoCommonVersion {
            theirs_min,
            theirs_max,
        };
        return Err(refusal(text.to_string()));
    };
    let shared = whose.find(&register.job, shown)?;
    let (id, registration) = from_register(register).map_err(|error| refusal(error.to_string()))?;
    if id.name.is_empty() || registration.slots == 0 {
        return Err(refusal("a task manager needs a name and at least one slot"));
    }
    Ok((shared, protocol, id, registration))
}

async fn begin(
    whose: &Whose,
    shown: Option<tls::Certificates>,
    mut messages: Messages,
    out: mpsc::Sender<v1::ToTaskManager>,
) {
    let first = first(whose, shown.as_ref(), &mut messages).await;
    let (shared, protocol, id, registration) = match first {
        Ok(first) => first,
        Err(answer) => {
            let _gone = out.send(message(answer)).await;
            return;
        }
    };
    let welcome = To::Welcome(v1::Welcome {
        protocol,
        store_uri: shared.terms.store_uri.clone(),
        store_settings: shared.terms.store_settings.clone(),
        heartbeat_ms: ms(shared.terms.heartbeat),
        timeout_ms: ms(shared.terms.timeout),
        alone_ms_max: shared.terms.alone_max.map_or(0, ms),
        accept_lost_markers: shared.terms.accept_lost_markers.clone(),
        state_bytes_max: shared.terms.state_bytes_max,
        unseen_ms_max: ms(shared.terms.unseen_max),
    });
    // A fresh queue has room.
    let _fits = out.try_send(message(welcome));
    let session = match enter(&shared, &id, &out) {
        Ok(session) => session,
        Err(reason) => {
            let _gone = out.send(message(To::Goodbye(v1::Goodbye { reason }))).await;
            return;
        }
    };
    let registered = News::Registered(id.clone(), Box::new(registration));
    if shared
        .news
        .send((session, Box::new(registered)))
        .await
        .is_ok()
    {
        let cause = talk(&shared, &id, session, messages, out).await;
        let _host_gone = shared
            .news
            .send((session, Box::new(News::Lost(id.clone(), cause))))
            .await;
    }
    let mut links = shared.links();
    if links
        .by_id
        .get(&id)
        .is_some_and(|link| link.session == session)
    {
        links.by_id.remove(&id);
    }
}

/// Gives the session a number and a place in the table; an earlier one loses its own.
fn enter(
    shared: &Shared,
    id: &TaskManagerId,
    out: &mpsc::Sender<v1::ToTaskManager>,
) -> Result<u64, String> {
    let mut links = shared.links();
    if let Some(reason) = &links.dismissed {
        return Err(reason.clone());
    }
    links.sessions_n += 1;
    let session = links.sessions_n;
    let out = out.clone();
    links.by_id.insert(id.clone(), Link { session, out });
    Ok(session)
}

/// Until the session is over; says why it is.
async fn talk(
    shared: &Shared,
    id: &TaskManagerId,
    session: u64,
    mut messages: Messages,
    out: mpsc::Sender<v1::ToTaskManager>,
) -> String {
    let weak = out.downgrade();
    drop(out);
    let mut beats = interval(shared.terms.heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut deadline = tokio::time::Instant::now() + shared.terms.timeout;
    loop {
        let next = tokio::select! {
            next = messages.next() => Some(next),
            _ = beats.tick() => {
                // The table holds the queue; a session that lost its place there is over.
                let Some(out) = weak.upgrade() else {
                    return "its place was given up, or a later session took it".to_owned();
                };
                if out.is_closed() {
                    return "its session broke".to_owned();
                }
                // A full queue says as much.
                let _full = out.try_send(message(To::Heartbeat(v1::Heartbeat {})));
                if !messages.meter.shows_life() {
                    continue;
                }
                // Its heartbeats come behind a large message.
                None
            }
            () = tokio::time::sleep_until(deadline) => {
                return format!("it has said nothing for {} ms", ms(shared.terms.timeout));
            }
        };
        let news = match next.map_or(Ok(News::Heard(id.clone())), |next| heard(id, next)) {
            Ok(news) => news,
            Err(over) => return over,
        };
        if shared.news.send((session, Box::new(news))).await.is_err() {
            return "the coordinator is gone".to_owned();
        }
        deadline = tokio::time::Instant::now() + shared.terms.timeout;
    }
}

/// What it says; the error is why its session is over.
fn heard(
    id: &TaskManagerId,
    next: Result<Option<v1::FromTaskManager>, Status>,
) -> Result<News, String> {
    match next {
        Ok(Some(v1::FromTaskManager { what: Some(what) })) => match what {
            What::Heartbeat(_) => Ok(News::Heard(id.clone())),
            What::Event(event) => match from_event(event) {
                Ok((stamp, event)) => Ok(News::Said(id.clone(), stamp, event)),
                Err(error) => Err(error.to_string()),
            },
            What::Leaving(_) => Ok(News::Leaving(id.clone())),
            What::Register(_) => Err("it registered twice in one session".to_owned()),
        },
        Ok(Some(v1::FromTaskManager { what: None })) => {
            Err("it sent a message that this version does not know".to_owned())
        }
        Ok(None) => Err("it closed its session".to_owned()),
        Err(status) => Err(format!("its session broke: {}", status.message())),
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
