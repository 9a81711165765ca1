//! Sessions over real sockets, with a task manager that says what a test makes it say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId};
use streamforge_core::messages::{Event, Progress, Registration};
use streamforge_proto::convert::coordinator::{PROTOCOL_MAX, from_command, to_event, to_register};
use streamforge_proto::v1::coordinator_client::CoordinatorClient;
use streamforge_proto::v1::from_task_manager::What as From;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::*;

/// Long enough for any machine; nothing that passes waits for it.
const LONG: Duration = Duration::from_secs(20);

fn config() -> SessionsConfig {
    SessionsConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tls: None,
        terms: terms(),
    }
}

fn terms() -> Terms {
    Terms {
        heartbeat: Duration::from_millis(20),
        timeout: LONG,
        alone_max: Some(Duration::from_secs(600)),
        unseen_max: Duration::from_secs(60),
        store_uri: "file:///store".to_owned(),
        store_settings: String::new(),
        accept_lost_markers: vec!["out".to_owned()],
        state_bytes_max: 1 << 20,
    }
}

fn id(nonce: u64) -> TaskManagerId {
    let name = "tm-1".to_owned();
    TaskManagerId { name, nonce }
}

fn stamp() -> Stamp {
    Stamp {
        job: JobId("job-1".to_owned()),
        generation: Generation::from_stored(1),
        epoch: Epoch::from_stored(1),
    }
}

fn register(nonce: u64) -> v1::Register {
    let registration = Registration {
        slots: 2,
        exchange: "127.0.0.1:1".to_owned(),
        runs: None,
    };
    to_register(id(nonce), registration)
}

/// The other end.
struct Client {
    out: mpsc::Sender<v1::FromTaskManager>,
    messages: Streaming<v1::ToTaskManager>,
}

impl Client {
    async fn call(endpoint: Endpoint, first: v1::Register) -> Result<Self, String> {
        let channel = endpoint.connect().await.map_err(|e| format!("{e:?}"))?;
        let (out, outgoing) = mpsc::channel(64);
        let client = Self::begin(&out, From::Register(first));
        let mut stub = CoordinatorClient::new(channel);
        let answer = stub.session(ReceiverStream::new(outgoing)).await;
        client.await;
        let messages = answer.map_err(|e| format!("{e:?}"))?.into_inner();
        Ok(Self { out, messages })
    }

    async fn begin(out: &mpsc::Sender<v1::FromTaskManager>, what: From) {
        let message = v1::FromTaskManager { what: Some(what) };
        let _gone = out.send(message).await;
    }

    async fn to(sessions: &Sessions, first: v1::Register) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", sessions.address()));
        Self::call(endpoint.unwrap(), first).await.unwrap()
    }

    async fn say(&self, what: From) {
        Self::begin(&self.out, what).await;
    }

    /// The next message that is no heartbeat; `None`: the session is over.
    async fn hear(&mut self) -> Option<What> {
        loop {
            let next = tokio::time::timeout(LONG, self.messages.message());
            match next.await.expect("something is said in time").ok()?? {
                v1::ToTaskManager {
                    what: Some(What::Heartbeat(_)),
                } => {}
                message => return message.what,
            }
        }
    }
}

/// The next news that is no heartbeat.
async fn news(sessions: &mut Sessions) -> News {
    loop {
        let next = tokio::time::timeout(LONG, sessions.recv()).await;
        match next.expect("news in time").expect("the listener lives") {
            News::Heard(_) => {}
            news => return news,
        }
    }
}

async fn welcomed(sessions: &mut Sessions, nonce: u64) -> Client {
    let mut client = Client::to(sessions, register(nonce)).await;
    assert!(matches!(client.hear().await, Some(What::Welcome(_))));
    assert!(matches!(news(sessions).await, News::Registered(who, _) if who == id(nonce)));
    client
}

fn lost(news: &News) -> &str {
    match news {
        News::Lost(_, cause) => cause,
        other => panic!("not lost: {other:?}"),
    }
}

fn progress() -> From {
    let progress = Event::Progress(Box::<Progress>::default());
    From::Event(to_event(stamp(), progress))
}

/// More of them than may arrive at a time: each makes room for the next.
#[tokio::test(flavor = "multi_thread")]
async fn registrations_of_many_mebibytes_are_taken_one_after_the_other() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let mut clients = Vec::new();
    for nonce in 0..4 {
        let mut first = register(nonce);
        first.exchange_address = "x".repeat(5 << 20);
        clients.push(Client::to(&sessions, first).await);
    }
    for _ in &clients {
        let News::Registered(_, registration) = news(&mut sessions).await else {
            panic!("not registered");
        };
        assert_eq!(registration.exchange.len(), 5 << 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_is_welcomed_and_commands_and_events_pass() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let mut client = Client::to(&sessions, register(7)).await;

    let Some(What::Welcome(welcome)) = client.hear().await else {
        panic!("no welcome");
    };
    assert_eq!(welcome.protocol, PROTOCOL_MAX);
    assert_eq!(welcome.store_uri, "file:///store");
    assert_eq!(welcome.accept_lost_markers, ["out"]);
    let News::Registered(who, registration) = news(&mut sessions).await else {
        panic!("not registered");
    };
    assert_eq!((who, registration.slots), (id(7), 2));
    let abort = Command::Abort {
        id: CheckpointId::from_stored(3),
    };
    sessions.send(&id(7), stamp(), abort.clone()).unwrap();
    let Some(What::Command(command)) = client.hear().await else {
        panic!("no command");
    };
    assert_eq!(from_command(command), Ok((stamp(), abort)));
    client.say(progress()).await;
    assert!(
        matches!(news(&mut sessions).await, News::Said(who, it, Event::Progress(_))
        if who == id(7) && it == stamp())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn version_that_is_not_spoken_here_is_refused_and_named() {
    let sessions = Sessions::listen(config()).unwrap();
    let newer = v1::Register {
        protocol_min: PROTOCOL_MAX + 1,
        protocol_max: PROTOCOL_MAX + 2,
        ..register(1)
    };
    let mut client = Client::to(&sessions, newer).await;

    let Some(What::Refused(refused)) = client.hear().await else {
        panic!("not refused");
    };
    assert!(!refused.again);
    assert!(refused.reason.contains("4 to 5"), "{}", refused.reason);
    assert_eq!(client.hear().await, None, "and that was all");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_without_a_registration_first_is_refused() {
    let sessions = Sessions::listen(config()).unwrap();
    let mut nameless = register(1);
    nameless.sender = None;
    let mut no_slots = register(1);
    no_slots.slots = 0;
    for first in [nameless, no_slots] {
        let mut client = Client::to(&sessions, first).await;
        assert!(matches!(client.hear().await, Some(What::Refused(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_connection_is_a_loss_at_once() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let client = welcomed(&mut sessions, 1).await;

    drop(client);

    let over = news(&mut sessions).await;
    assert!(lost(&over).contains("session"), "{over:?}");
    let gone = sessions.send(&id(1), stamp(), Command::Cancel);
    assert!(gone.is_err(), "nothing can be sent any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_for_longer_than_allowed_is_a_loss_and_heartbeats_are_none() {
    let timeout = Duration::from_millis(300);
    let terms = Terms { timeout, ..terms() };
    let mut sessions = Sessions::listen(SessionsConfig { terms, ..config() }).unwrap();
    let client = welcomed(&mut sessions, 1).await;
    let began = tokio::time::Instant::now();
    while began.elapsed() < timeout * 2 {
        client.say(From::Heartbeat(v1::Heartbeat {})).await;
        let heard = tokio::time::timeout(LONG, sessions.recv()).await;
        assert!(matches!(heard, Ok(Some(News::Heard(_)))));
    }

    let over = news(&mut sessions).await;

    assert!(lost(&over).contains("nothing for 300 ms"), "{over:?}");
}

/// A network between a task manager and the listener.
struct Network {
    address: SocketAddr,
    passed_n: Arc<AtomicUsize>,
    freeze: watch::Sender<bool>,
}

impl Network {
    /// Passes a piece of 64 KiB on in this time, and answers at once.
    async fn to(sessions: &Sessions, a_piece_in: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let to = sessions.address();
        let passed_n = Arc::new(AtomicUsize::new(0));
        let (freeze, mut frozen) = watch::channel(false);
        let counter = Arc::clone(&passed_n);
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(to).await.unwrap();
            let (mut from, mut back_to) = client.split();
            let (mut back_from, mut to) = server.split();
            let there = async {
                let mut piece = vec![0; 64 << 10];
                while let Ok(bytes_n @ 1..) = from.read(&mut piece).await {
                    tokio::time::sleep(a_piece_in).await;
                    to.write_all(&piece[..bytes_n]).await.unwrap();
                    counter.fetch_add(bytes_n, Ordering::Relaxed);
                }
            };
            let back = tokio::io::copy(&mut back_from, &mut back_to);
            tokio::select! {
                _ended = async { tokio::join!(there, back) } => return,
                _frozen = frozen.wait_for(|frozen| *frozen) => {}
            }
            // Both connections stay, and nothing passes.
            let _dropped = frozen.wait_for(|frozen| !*frozen).await;
        });
        Self {
            address,
            passed_n,
            freeze,
        }
    }

    async fn welcomed(&self, sessions: &mut Sessions, nonce: u64) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let mut client = Client::call(endpoint, register(nonce)).await.unwrap();
        assert!(matches!(client.hear().await, Some(What::Welcome(_))));
        assert!(matches!(news(sessions).await, News::Registered(..)));
        client
    }
}

fn large(bytes_n: usize) -> From {
    let node = streamforge_core::ids::OperatorUid("node".to_owned());
    let progress = Progress {
        held_back_by: BTreeMap::from([(node, "x".repeat(bytes_n))]),
        ..Progress::default()
    };
    From::Event(to_event(stamp(), Event::Progress(Box::new(progress))))
}

#[tokio::test(flavor = "multi_thread")]
async fn large_message_that_takes_longer_than_the_longest_silence_is_no_silence() {
    let timeout = Duration::from_secs(1);
    let terms = Terms { timeout, ..terms() };
    let mut sessions = Sessions::listen(SessionsConfig { terms, ..config() }).unwrap();
    let network = Network::to(&sessions, Duration::from_millis(40)).await;
    let client = network.welcomed(&mut sessions, 1).await;

    let began = tokio::time::Instant::now();
    client.say(large(6 << 20)).await;

    let mut heard_n = 0;
    let said = loop {
        match sessions.recv().await.unwrap() {
            News::Heard(_) => heard_n += 1,
            other => break other,
        }
    };
    assert!(matches!(said, News::Said(..)), "{said:?}");
    assert!(began.elapsed() > timeout * 3, "{:?}", began.elapsed());
    // The coordinator counts silence, too.
    assert!(heard_n > 10, "{heard_n}");
    let over = news(&mut sessions).await;
    assert!(lost(&over).contains("nothing for 1000 ms"), "{over:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_with_a_large_message_is_not_silent_and_one_frozen_then_is() {
    let timeout = Duration::from_secs(2);
    let terms = Terms { timeout, ..terms() };
    let mut sessions = Sessions::listen(SessionsConfig { terms, ..config() }).unwrap();
    let mut slow = Vec::new();
    for nonce in 1..=2 {
        let network = Network::to(&sessions, Duration::from_millis(100)).await;
        let client = network.welcomed(&mut sessions, nonce).await;
        client.say(large(16 << 20)).await;
        slow.push((network, client));
    }
    let network = Network::to(&sessions, Duration::ZERO).await;
    let client = network.welcomed(&mut sessions, 3).await;
    let both_have_places = || {
        let passed = slow.iter().map(|(network, _)| &network.passed_n);
        passed
            .into_iter()
            .all(|n| n.load(Ordering::Relaxed) > 2 << 20)
    };
    while !both_have_places() {
        let heard = sessions.recv().await.unwrap();
        assert!(matches!(&heard, News::Heard(_)), "{heard:?}");
        // It has heartbeats until it has something large to say.
        client.say(From::Heartbeat(v1::Heartbeat {})).await;
    }

    client.say(large(3 << 20)).await;
    let began = tokio::time::Instant::now();
    while began.elapsed() < timeout * 3 / 2 {
        let heard = sessions.recv().await.unwrap();
        assert!(matches!(&heard, News::Heard(_)), "{heard:?}");
    }
    network.freeze.send_replace(true);

    let over = news(&mut sessions).await;
    assert!(lost(&over).contains("broke"), "{over:?}");
    assert!(matches!(over, News::Lost(who, _) if who == id(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_session_still_says_is_not_heard() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let first = welcomed(&mut sessions, 1).await;
    let mut second = Client::to(&sessions, register(1)).await;
    assert!(matches!(second.hear().await, Some(What::Welcome(_))));
    assert!(matches!(news(&mut sessions).await, News::Registered(..)));

    for _word in 0..10 {
        first.say(progress()).await;
    }
    drop(first);
    let marker = Event::Progress(Box::new(Progress {
        held_back_by: std::collections::BTreeMap::from([(
            streamforge_core::ids::OperatorUid("second".to_owned()),
            String::new(),
        )]),
        ..Progress::default()
    }));
    second
        .say(From::Event(to_event(stamp(), marker.clone())))
        .await;

    let News::Said(_, _, said) = news(&mut sessions).await else {
        panic!("nothing was said");
    };
    assert_eq!(said, marker, "neither words nor the loss of the first");
}

/// Else its session lives on, nobody listens to it, and it does not register again.
#[tokio::test(flavor = "multi_thread")]
async fn task_manager_that_counts_as_lost_loses_its_session_and_comes_again() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let mut client = welcomed(&mut sessions, 1).await;

    sessions.disconnect(&id(1));

    assert_eq!(client.hear().await, None, "it hears that it is over");
    let over = news(&mut sessions).await;
    assert!(lost(&over).contains("given up"), "{over:?}");
    let mut again = welcomed(&mut sessions, 1).await;
    sessions.send(&id(1), stamp(), Command::Withdraw).unwrap();
    assert!(matches!(again.hear().await, Some(What::Command(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_is_not_known_of_yet_outlives_the_loss_of_the_one_before() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let _first = welcomed(&mut sessions, 1).await;
    let mut second = Client::to(&sessions, register(1)).await;
    assert!(matches!(second.hear().await, Some(What::Welcome(_))));

    sessions.disconnect(&id(1));

    assert!(matches!(news(&mut sessions).await, News::Registered(..)));
    sessions.send(&id(1), stamp(), Command::Withdraw).unwrap();
    assert!(matches!(second.hear().await, Some(What::Command(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_takes_no_commands_is_over_once_it_takes_them() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let mut client = welcomed(&mut sessions, 1).await;

    // It reads nothing meanwhile, and whatever is between has room for some.
    let abort = |n| Command::Abort {
        id: CheckpointId::from_stored(n),
    };
    let refused = (0..).find_map(|n| sessions.send(&id(1), stamp(), abort(n)).err());

    let reason = refused.unwrap().reason;
    assert_eq!(reason, "it does not take its commands");
    while let Some(what) = client.hear().await {
        assert!(matches!(what, What::Command(_)), "{what:?}");
    }
    let over = news(&mut sessions).await;
    assert!(lost(&over).contains("given up"), "{over:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn job_that_is_over_says_goodbye_to_those_here_and_those_to_come() {
    let mut sessions = Sessions::listen(config()).unwrap();
    let mut client = welcomed(&mut sessions, 1).await;

    sessions.dismiss("the job is finished").await;

    let Some(What::Goodbye(goodbye)) = client.hear().await else {
        panic!("no goodbye");
    };
    assert_eq!(goodbye.reason, "the job is finished");
    let mut late = Client::to(&sessions, register(2)).await;
    assert!(matches!(late.hear().await, Some(What::Welcome(_))));
    assert!(matches!(late.hear().await, Some(What::Goodbye(_))));
}

/// An authority and a certificate that it signed.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    fn tls(&self) -> Tls {
        self.named("coordinator")
    }

    fn named(&self, name: &str) -> Tls {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Tls {
            ca: self.pem.clone().into_bytes(),
            certificate: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
            peer_name: "coordinator".to_owned(),
        }
    }
}

async fn call_with(sessions: &Sessions, tls: Option<&Tls>) -> Result<Option<What>, String> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let address = format!("{scheme}://{}", sessions.address());
    let mut endpoint = Endpoint::from_shared(address).unwrap();
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.client()).unwrap();
    }
    let mut client = Client::call(endpoint, register(1)).await?;
    Ok(client.hear().await)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_certificates_only_those_of_the_same_authority_are_heard() {
    let (ours, others) = (Authority::new(), Authority::new());
    let tls = Some(ours.tls());
    let sessions = Sessions::listen(SessionsConfig { tls, ..config() }).unwrap();

    let plain = call_with(&sessions, None).await;
    assert!(!matches!(plain, Ok(Some(What::Welcome(_)))), "{plain:?}");
    let foreign = call_with(&sessions, Some(&others.tls())).await;
    assert!(foreign.is_err(), "{foreign:?}");
    let mut impostor = others.tls();
    impostor.ca = ours.tls().ca;
    let impostor = call_with(&sessions, Some(&impostor)).await;
    assert!(
        !matches!(impostor, Ok(Some(What::Welcome(_)))),
        "{impostor:?}"
    );
    let own = call_with(&sessions, Some(&ours.tls())).await;
    assert!(matches!(own, Ok(Some(What::Welcome(_)))), "{own:?}");
}

fn register_of(job: &str) -> v1::Register {
    let job = job.to_owned();
    v1::Register { job, ..register(1) }
}

async fn answer_to(listener: &Listener, tls: Option<&Tls>, job: &str) -> (Client, What) {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let address = format!("{scheme}://{}", listener.address());
    let mut endpoint = Endpoint::from_shared(address).unwrap();
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.client()).unwrap();
    }
    let mut client = Client::call(endpoint, register_of(job)).await.unwrap();
    let answer = client.hear().await.expect("it is answered");
    (client, answer)
}

fn refused(answer: &What) -> (bool, &str) {
    match answer {
        What::Refused(refused) => (refused.again, &refused.reason),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_listener_serves_many_jobs_and_sends_others_away_for_now() {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::start(loopback, None).unwrap();
    let (mut a, mut b) = (listener.open("a", terms()), listener.open("b", terms()));

    let (mut of_a, welcome) = answer_to(&listener, None, "a").await;
    assert!(matches!(welcome, What::Welcome(_)), "{welcome:?}");
    assert!(matches!(news(&mut a).await, News::Registered(who, _) if who == id(1)));
    let (of_b, _welcome) = answer_to(&listener, None, "b").await;
    assert!(matches!(news(&mut b).await, News::Registered(..)));
    of_b.say(From::Leaving(v1::Leaving {})).await;
    assert!(matches!(news(&mut b).await, News::Leaving(who) if who == id(1)));
    let (_c, answer) = answer_to(&listener, None, "c").await;
    assert!(refused(&answer).0, "{answer:?}");
    let (_nameless, answer) = answer_to(&listener, None, "").await;
    assert!(!refused(&answer).0, "{answer:?}");

    // A job that is closed lets go of its task managers; another one's stay.
    drop(a);
    assert!(of_a.hear().await.is_none());
    let (_again, answer) = answer_to(&listener, None, "a").await;
    assert!(refused(&answer).0, "{answer:?}");
    b.release(&id(1));
    let mut of_b = of_b;
    assert!(matches!(of_b.hear().await, Some(What::Goodbye(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn task_manager_proves_whose_it_is_where_many_jobs_share_a_listener() {
    let authority = Authority::new();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::start(loopback, Some(&authority.tls())).unwrap();
    let _a = listener.open("a", terms());
    let of_b = authority.named(&listener::job_name("b"));

    let (_client, answer) = answer_to(&listener, Some(&of_b), "a").await;
    let (again, reason) = refused(&answer);
    assert!(!again && reason.contains("a.jobs.streamforge"), "{reason}");
    let of_a = authority.named(&listener::job_name("a"));
    let (_client, answer) = answer_to(&listener, Some(&of_a), "a").await;
    assert!(matches!(answer, What::Welcome(_)), "{answer:?}");
}
