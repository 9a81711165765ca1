//! A task manager's process in this one, against a coordinator that says what a test makes it say.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, SubtaskIdx};
use streamforge_core::job_graph::{JobGraph, PLAN_FORMAT_VERSION};
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{self, HEAD_KEY, Head};
use streamforge_core::messages::{Command, Deployment, Place};
use streamforge_proto::convert::coordinator::{from_event, from_register, to_command};
use streamforge_proto::v1::coordinator_server::{Coordinator, CoordinatorServer};
use streamforge_proto::v1::from_task_manager::What as From;
use streamforge_proto::v1::to_task_manager::What as To;
use streamforge_store::{Condition, FolderStore, ObjectStore, Put};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request as Call, Response, Status, Streaming};

use super::*;
use crate::budget::StateBudget;
use crate::exchange::Config as ExchangeConfig;

/// Long enough for any machine; nothing that passes waits for it.
const LONG: Duration = Duration::from_secs(20);

/// Silence that breaks a session, and the time between two looks into the head.
const TIMEOUT: Duration = Duration::from_millis(400);

/// One session, as the coordinator sees it.
struct Peer {
    messages: Streaming<v1::FromTaskManager>,
    out: mpsc::Sender<Result<v1::ToTaskManager, Status>>,
}

impl Peer {
    async fn say(&self, what: To) {
        let message = v1::ToTaskManager { what: Some(what) };
        self.out.send(Ok(message)).await.expect("the session lives");
    }

    async fn command(&self, stamp: Stamp, command: Command) {
        self.say(To::Command(to_command(stamp, command))).await;
    }

    /// The next message that is no heartbeat; `None`: the session is over.
    async fn hear(&mut self) -> Option<From> {
        loop {
            let next = tokio::time::timeout(LONG, self.messages.message()).await;
            match next.expect("something is said in time").ok()??.what {
                Some(From::Heartbeat(_)) => {}
                what => return what,
            }
        }
    }

    /// Ends the session once everything said has arrived.
    async fn close(self) {
        let Self { mut messages, out } = self;
        drop(out);
        while let Ok(Ok(Some(_))) = tokio::time::timeout(LONG, messages.message()).await {}
    }

    async fn event(&mut self) -> (Stamp, Event) {
        match self.hear().await {
            Some(From::Event(event)) => from_event(event).expect("it is whole"),
            other => panic!("no event: {other:?}"),
        }
    }
}

struct Service(mpsc::Sender<Peer>);

#[tonic::async_trait]
impl Coordinator for Service {
    type SessionStream = ReceiverStream<Result<v1::ToTaskManager, Status>>;

    async fn session(
        &self,
        call: Call<Streaming<v1::FromTaskManager>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (out, answers) = mpsc::channel(64);
        let messages = call.into_inner();
        let peer = Peer { messages, out };
        let gone = |_| Status::unavailable("the test is over");
        self.0.send(peer).await.map_err(gone)?;
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// A coordinator's listener.
struct Listener {
    address: SocketAddr,
    peers: mpsc::Receiver<Peer>,
    serving: tokio::task::JoinHandle<()>,
}

impl Listener {
    async fn start() -> Self {
        let (peers_in, peers) = mpsc::channel(4);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = CoordinatorServer::new(Service(peers_in));
        let server = tonic::transport::Server::builder().add_service(service);
        let serving = server.serve_with_incoming(TcpIncoming::from(listener));
        let serving = tokio::spawn(async move { drop(serving.await) });
        Self {
            address,
            peers,
            serving,
        }
    }

    /// The next call, welcomed; with what it registered.
    async fn welcome(&mut self, store: &std::path::Path) -> (Peer, Registration) {
        let peer = tokio::time::timeout(LONG, self.peers.recv()).await;
        let mut peer = peer.expect("a call in time").expect("the listener lives");
        let Some(From::Register(register)) = peer.hear().await else {
            panic!("no registration");
        };
        peer.say(To::Welcome(v1::Welcome {
            protocol: register.protocol_max,
            ..welcome(store)
        }))
        .await;
        assert_eq!(register.job, "job-uid");
        let (who, registration) = from_register(register).expect("it is whole");
        assert_eq!(who, me());
        (peer, registration)
    }
}

fn welcome(store: &std::path::Path) -> v1::Welcome {
    v1::Welcome {
        protocol: 0,
        store_uri: format!("file://{}", store.display()),
        store_settings: String::new(),
        heartbeat_ms: 50,
        timeout_ms: u64::try_from(TIMEOUT.as_millis()).unwrap(),
        alone_ms_max: 60_000,
        accept_lost_markers: Vec::new(),
        state_bytes_max: u64::MAX,
        unseen_ms_max: 0,
    }
}

fn me() -> TaskManagerId {
    let name = "tm-1".to_owned();
    TaskManagerId { name, nonce: 7 }
}

fn stamp(generation: u64, epoch: u64) -> Stamp {
    Stamp {
        job: JobId("job-1".to_owned()),
        generation: Generation::from_stored(generation),
        epoch: Epoch::from_stored(epoch),
    }
}

/// A job without a stage: it loads and starts, and does nothing.
fn deployment() -> Deployment {
    let place = Place {
        task_manager: me(),
        exchange: String::new(),
    };
    Deployment {
        graph: JobGraph {
            format_version: PLAN_FORMAT_VERSION,
            name: "job".to_owned(),
            max_parallelism: 4,
            bounded: true,
            stages: Vec::new(),
            edges: Vec::new(),
        },
        parallelism: 1,
        assignment: Assignment::even(4, 1),
        restore: None,
        first_id: CheckpointId::from_stored(1),
        placement: BTreeMap::from([(SubtaskIdx(0), place)]),
        born: Generation::ZERO,
        slots: BTreeMap::new(),
    }
}

type Running = tokio::task::JoinHandle<Result<String, Error>>;

fn start(coordinator: SocketAddr, data: Handle) -> Running {
    // Nobody can ask it to end any more.
    start_with(coordinator, data, false, watch::channel(false).1)
}

fn start_with(
    coordinator: SocketAddr,
    data: Handle,
    stay: bool,
    leaving: watch::Receiver<bool>,
) -> Running {
    let exchange = Exchange::start(ExchangeConfig::default()).expect("a port is free");
    let config = SessionConfig {
        stay,
        leaving,
        ..config(coordinator.to_string(), &exchange)
    };
    tokio::spawn(run(config, Arc::new(exchange), data))
}

/// Nobody can ask it to end.
fn config(coordinator: String, exchange: &Exchange) -> SessionConfig {
    SessionConfig {
        coordinator,
        job: "job-uid".to_owned(),
        stay: false,
        leaving: watch::channel(false).1,
        me: me(),
        slots: 2,
        exchange_address: exchange.address().to_string(),
        tls: None,
        secrets: None,
        local_copies: None,
        metrics: crate::metrics::Metrics::default(),
    }
}

async fn ended(session: tokio::task::JoinHandle<Result<String, Error>>) -> Result<String, Error> {
    let ended = tokio::time::timeout(LONG, session).await;
    ended.expect("it ends in time").expect("it does not panic")
}

/// Keeps a session alive until the peer is dropped.
fn beat(peer: &Peer) {
    let out = peer.out.downgrade();
    tokio::spawn(async move {
        while let Some(out) = out.upgrade() {
            let heartbeat = v1::ToTaskManager {
                what: Some(To::Heartbeat(v1::Heartbeat {})),
            };
            if out.send(Ok(heartbeat)).await.is_err() {
                return;
            }
            drop(out);
            tokio::time::sleep(TIMEOUT / 8).await;
        }
    });
}

/// What comes from this address arrives here as by a slow network.
async fn slowly(to: SocketAddr) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = tokio::net::TcpStream::connect(to).await.unwrap();
        let (mut from, mut back_to) = client.into_split();
        let (mut back_from, mut to) = server.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
        let mut piece = vec![0; 64 << 10];
        while let Ok(bytes_n @ 1..) = back_from.read(&mut piece).await {
            tokio::time::sleep(Duration::from_millis(40)).await;
            back_to.write_all(&piece[..bytes_n]).await.unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn large_message_that_takes_longer_than_the_longest_silence_is_no_silence() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Listener::start().await;
    let address = slowly(listener.address).await;
    let session = start(address, Handle::current());
    let (peer, _) = listener.welcome(folder.path()).await;

    let reason = "x".repeat(3 << 20);
    peer.say(To::Goodbye(v1::Goodbye { reason })).await;

    let said = ended(session).await.unwrap();
    assert_eq!(said.len(), 3 << 20, "{}", &said[..80.min(said.len())]);
}

/// Deploys and waits until it is loaded.
async fn deploy(peer: &mut Peer, stamp: Stamp) {
    let deploy = Command::Deploy(Box::new(deployment()));
    peer.command(stamp.clone(), deploy).await;
    let (of, event) = peer.event().await;
    assert_eq!(of, stamp);
    assert!(matches!(event, Event::Prepared { .. }), "{event:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn next_coordinator_is_told_what_runs_and_heard_after_it_adopts_f1() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Listener::start().await;
    let session = start(listener.address, Handle::current());
    let (mut first, registration) = listener.welcome(folder.path()).await;
    beat(&first);
    assert_eq!(registration.slots, 2);
    assert_eq!(registration.runs, None);
    deploy(&mut first, stamp(1, 4)).await;
    drop(first);

    let (second, registration) = listener.welcome(folder.path()).await;
    beat(&second);
    let runs = registration.runs.expect("it still runs");
    assert_eq!((runs.stamp, runs.deployment), (stamp(1, 4), deployment()));
    let void_to = CheckpointId::from_stored(9);
    second
        .command(stamp(2, 4), Command::Adopt { void_to })
        .await;
    // C5: the old coordinator's words count for nothing now, the new one's do.
    second.command(stamp(1, 5), Command::Cancel).await;
    second.close().await;
    let (third, registration) = listener.welcome(folder.path()).await;
    assert_eq!(registration.runs.expect("not cancelled").stamp, stamp(2, 4));
    let goodbye = v1::Goodbye {
        reason: "the job is finished".to_owned(),
    };
    third.say(To::Goodbye(goodbye)).await;

    assert_eq!(ended(session).await.unwrap(), "the job is finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_coordinator_is_left_and_called_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Listener::start().await;
    let session = start(listener.address, Handle::current());
    let (mut silent, _) = listener.welcome(folder.path()).await;

    assert_eq!(silent.hear().await.map(drop), None, "it closes the session");
    let (again, _) = listener.welcome(folder.path()).await;
    again
        .say(To::Goodbye(v1::Goodbye {
            reason: "over".to_owned(),
        }))
        .await;

    assert_eq!(ended(session).await.unwrap(), "over");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_obeys_the_terms_of_the_newest_welcome() {
    let folder = tempfile::tempdir().unwrap();
    let exchange = Exchange::start(ExchangeConfig::default()).expect("a port is free");
    let mut session = Session {
        config: config("nowhere:1".to_owned(), &exchange),
        exchange: Arc::new(exchange),
        data: Handle::current(),
        events_in: mpsc::channel(EVENTS_MAX).0,
        hosted: None,
    };
    let first = v1::Welcome {
        state_bytes_max: 100,
        ..welcome(folder.path())
    };
    session.host("a:1", first).await.unwrap();
    let context = session.hosted.as_ref().unwrap().context.clone();
    let budget = StateBudget::new(Arc::clone(&context.terms));
    assert!(budget.hold(0, 100).is_ok(), "it is not over its limit");

    let second = v1::Welcome {
        state_bytes_max: 99,
        accept_lost_markers: vec!["out".to_owned()],
        heartbeat_ms: 1,
        timeout_ms: 2,
        alone_ms_max: 3,
        unseen_ms_max: 4,
        ..welcome(folder.path())
    };
    session.host("b:1", second).await.unwrap();

    assert!(budget.hold(100, 100).is_err(), "it is now");
    assert_eq!(context.surroundings().accept_lost_markers, ["out"]);
    let times = Times {
        heartbeat: ms(1),
        timeout: ms(2),
        alone_max: Some(ms(3)),
        unseen_max: Some(ms(4)),
    };
    assert_eq!(session.hosted.as_ref().unwrap().times, times);

    let raised = v1::Welcome {
        state_bytes_max: 200,
        ..welcome(folder.path())
    };
    session.host("b:1", raised).await.unwrap();
    assert!(budget.hold(100, 200).is_ok(), "and again it is not");
}

async fn put_head(store: &FolderStore, epoch: u64, coordinator: SocketAddr) {
    let head = Head {
        job: JobId("job-1".to_owned()),
        generation: Generation::from_stored(2),
        epoch: Epoch::from_stored(epoch),
        coordinator: coordinator.to_string(),
        plan: String::new(),
        plan_hash: 0,
        assignment: Assignment::even(4, 1),
        parallelism: 1,
        newest: None,
        retained: Vec::new(),
        ids_reserved_to: CheckpointId::ZERO,
        nonce: 1,
        finished: false,
        proposed: None,
        numbers_to: 0,
        scaled: None,
        task_managers: Default::default(),
    };
    let bytes = manifest::encode(frame::HEAD, &head);
    let put = store.put(HEAD_KEY, bytes.into(), Condition::None).await;
    assert!(matches!(put.unwrap(), Put::Done(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_epoch_in_the_head_ends_the_tasks_and_its_coordinator_is_called_f4() {
    for (epoch, still_runs) in [(5, false), (4, true)] {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore::open(folder.path()).unwrap();
        let mut first = Listener::start().await;
        let mut second = Listener::start().await;
        let session = start(first.address, Handle::current());
        let (mut peer, _) = first.welcome(folder.path()).await;
        beat(&peer);
        deploy(&mut peer, stamp(1, 4)).await;
        put_head(&store, epoch, second.address).await;
        // Cut off: the address answers no more.
        first.serving.abort();
        drop((peer, first));

        let (peer, registration) = second.welcome(folder.path()).await;

        assert_eq!(registration.runs.is_some(), still_runs, "epoch {epoch}");
        peer.say(To::Goodbye(v1::Goodbye {
            reason: "over".to_owned(),
        }))
        .await;
        assert_eq!(ended(session).await.unwrap(), "over");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_ends_the_process_with_the_coordinators_words() {
    let mut listener = Listener::start().await;
    let session = start(listener.address, Handle::current());
    let mut peer = listener.peers.recv().await.unwrap();
    assert!(matches!(peer.hear().await, Some(From::Register(_))));

    peer.say(To::Refused(v1::Refused {
        reason: "run both from one release".to_owned(),
        again: false,
    }))
    .await;

    let error = ended(session).await.unwrap_err().to_string();
    assert!(error.contains("run both from one release"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_of_another_store_is_not_served() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut listener = Listener::start().await;
    let session = start(listener.address, Handle::current());
    let (first, _) = listener.welcome(folder.path()).await;
    drop(first);

    let (_second, _) = listener.welcome(other.path()).await;

    assert!(matches!(
        ended(session).await,
        Err(Error::OtherStore { .. })
    ));
}

fn goodbye() -> To {
    To::Goodbye(v1::Goodbye {
        reason: "over".to_owned(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_stays_runs_nothing_after_the_job_and_waits_for_the_next_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Listener::start().await;
    let (to_leave, leaving) = watch::channel(false);
    let session = start_with(listener.address, Handle::current(), true, leaving);
    let (mut first, _) = listener.welcome(folder.path()).await;
    beat(&first);
    deploy(&mut first, stamp(1, 4)).await;
    first.say(goodbye()).await;
    first.close().await;

    let (second, registration) = listener.welcome(folder.path()).await;
    assert_eq!(registration.runs, None);
    to_leave.send_replace(true);
    second.say(goodbye()).await;

    assert_eq!(ended(session).await.unwrap(), "over");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_to_end_asks_each_coordinator_to_be_let_go_attack_45() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Listener::start().await;
    let (to_leave, leaving) = watch::channel(false);
    let session = start_with(listener.address, Handle::current(), true, leaving);
    let (mut first, _) = listener.welcome(folder.path()).await;
    beat(&first);

    to_leave.send_replace(true);

    assert!(matches!(first.hear().await, Some(From::Leaving(_))));
    drop(first);
    // The next one knows nothing of it.
    let (mut second, _) = listener.welcome(folder.path()).await;
    beat(&second);
    assert!(matches!(second.hear().await, Some(From::Leaving(_))));
    second.say(goodbye()).await;
    assert_eq!(ended(session).await.unwrap(), "over");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_to_end_and_never_had_a_session_ends() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let (to_leave, leaving) = watch::channel(false);
    let session = start_with(address, Handle::current(), true, leaving);

    to_leave.send_replace(true);

    assert!(ended(session).await.is_ok());
}
