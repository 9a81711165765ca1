//! One session with one task manager.
//!
//! Owns: the registration, heartbeats both ways, and the moment at which the session is over: the
//! stream broke, it was silent for too long, or a later session of the same process took its place.

use std::sync::Arc;

use streamforge_core::messages::{Registration, TaskManagerId};
use streamforge_proto::convert::coordinator::{NoCommonVersion, agree, from_event, from_register};
use streamforge_proto::v1;
use streamforge_proto::v1::coordinator_server::Coordinator;
use streamforge_proto::v1::from_task_manager::What as From;
use streamforge_proto::v1::to_task_manager::What as To;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Link, Shared};
use crate::task_managers::{COMMANDS_MAX, News};

pub(super) struct Service {
    pub(super) shared: Arc<Shared>,
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
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move { begin(shared, request.into_inner(), out).await });
        let answers = ReceiverStream::new(answers);
        Ok(Response::new(answers.map(
            Ok as fn(v1::ToTaskManager) -> Result<v1::ToTaskManager, Status>,
        )))
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

/// What the first message says; the error is the answer to it.
async fn first(
    shared: &Shared,
    messages: &mut Streaming<v1::FromTaskManager>,
) -> Result<(u32, TaskManagerId, Registration), To> {
    let first = timeout(shared.config.timeout, messages.message()).await;
    let Ok(Ok(Some(v1::FromTaskManager {
        what: Some(From::Register(register)),
    }))) = first
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
    let (id, registration) = from_register(register).map_err(|error| refusal(error.to_string()))?;
    if id.name.is_empty() || registration.slots == 0 {
        return Err(refusal("a task manager needs a name and at least one slot"));
    }
    Ok((protocol, id, registration))
}

async fn begin(
    shared: Arc<Shared>,
    mut messages: Streaming<v1::FromTaskManager>,
    out: mpsc::Sender<v1::ToTaskManager>,
) {
    let (protocol, id, registration) = match first(&shared, &mut messages).await {
        Ok(first) => first,
        Err(answer) => {
            let _gone = out.send(message(answer)).await;
            return;
        }
    };
    let welcome = To::Welcome(v1::Welcome {
        protocol,
        store_uri: shared.config.store_uri.clone(),
        store_settings: shared.config.store_settings.clone(),
        heartbeat_ms: ms(shared.config.heartbeat),
        timeout_ms: ms(shared.config.timeout),
        alone_ms_max: shared.config.alone_max.map_or(0, ms),
        accept_lost_markers: shared.config.accept_lost_markers.clone(),
        state_bytes_max: shared.config.state_bytes_max,
        unseen_ms_max: ms(shared.config.unseen_max),
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
    if shared.news.send((session, registered)).await.is_ok() {
        let cause = talk(&shared, &id, session, messages, out).await;
        let _host_gone = shared
            .news
            .send((session, News::Lost(id.clone(), cause)))
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
    mut messages: Streaming<v1::FromTaskManager>,
    out: mpsc::Sender<v1::ToTaskManager>,
) -> String {
    let weak = out.downgrade();
    drop(out);
    let mut beats = interval(shared.config.heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut deadline = tokio::time::Instant::now() + shared.config.timeout;
    loop {
        let next = tokio::select! {
            next = messages.message() => next,
            _ = beats.tick() => {
                // The table holds the queue; a session that lost its place there is over.
                let Some(out) = weak.upgrade() else {
                    return "a later session took its place".to_owned();
                };
                // A full queue says as much.
                let _full = out.try_send(message(To::Heartbeat(v1::Heartbeat {})));
                continue;
            }
            () = tokio::time::sleep_until(deadline) => {
                return format!("it has said nothing for {} ms", ms(shared.config.timeout));
            }
        };
        let news = match next {
            Ok(Some(v1::FromTaskManager { what: Some(what) })) => match what {
                From::Heartbeat(_) => News::Heard(id.clone()),
                From::Event(event) => match from_event(event) {
                    Ok((stamp, event)) => News::Said(id.clone(), stamp, event),
                    Err(error) => return error.to_string(),
                },
                From::Register(_) => return "it registered twice in one session".to_owned(),
            },
            Ok(Some(v1::FromTaskManager { what: None })) => {
                return "it sent a message that this version does not know".to_owned();
            }
            Ok(None) => return "it closed its session".to_owned(),
            Err(status) => return format!("its session broke: {}", status.message()),
        };
        if shared.news.send((session, news)).await.is_err() {
            return "the coordinator is gone".to_owned();
        }
        deadline = tokio::time::Instant::now() + shared.config.timeout;
    }
}

fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
