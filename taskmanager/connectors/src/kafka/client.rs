//! What clients tell beside their answers.
//!
//! Owns: the callbacks of consumers and producers: statistics, errors, the identity of topics, and
//! anything that makes the outcome of a request doubtful. Decides nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message as _};
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use super::statistics::{Places, places};

/// An identity of nobody: what a client has before the first answer.
const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

/// Pause between two looks at what a producer has to tell.
const LOOK_PAUSE: Duration = Duration::from_micros(500);

/// Takes in what a producer has to tell, and pauses for a moment if that is nothing.
///
/// rdkafka's own poll with patience is a loop that hands librdkafka what is left in whole
/// milliseconds: its last one is spent without a wait, so that a poll of one keeps a core busy.
pub fn listen<C: ProducerContext>(producer: &BaseProducer<C>) {
    let before = producer.in_flight_count();
    producer.poll(Duration::ZERO);
    if producer.in_flight_count() == before {
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Something that went wrong outside of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind.
    pub code: RDKafkaErrorCode,
    /// The client's words.
    pub reason: String,
}

impl Trouble {
    /// Whether the broker refused the credentials.
    pub fn means_credentials(&self) -> bool {
        matches!(
            self.code,
            RDKafkaErrorCode::Authentication
                | RDKafkaErrorCode::SaslAuthenticationFailed
                | RDKafkaErrorCode::UnsupportedSASLMechanism
                | RDKafkaErrorCode::IllegalSASLState
        )
    }

    /// Whether the other follows from it, and must not hide it.
    fn causes(&self, other: &Self) -> bool {
        let all_down = other.code == RDKafkaErrorCode::AllBrokersDown;
        (self.means_credentials() && !other.means_credentials())
            || (self.code == RDKafkaErrorCode::SSL && all_down)
    }
}

/// The client's words; it knows the names of its own settings only.
fn with_cure(reason: &str) -> String {
    if reason.contains("certificate verify failed") {
        format!(
            "{reason}; the certificate of its authority belongs into `ca.crt` of `security.caSecret`"
        )
    } else {
        reason.to_owned()
    }
}

#[derive(Debug, Default)]
struct Told {
    places: Option<Places>,
    trouble: Option<Trouble>,
    /// Identities of topics in the order in which they were told; the last is the present one.
    topic_ids: BTreeMap<String, Vec<String>>,
    has_new_ids: bool,
    /// First failed delivery since it was asked for.
    failed_delivery: Option<KafkaError>,
    /// Partition -> offset of the last record delivered since it was asked for.
    delivered: BTreeMap<i32, i64>,
}

/// Shared between a client's callbacks and its owner.
#[derive(Debug, Default)]
pub struct Ear {
    told: Mutex<Told>,
    /// Broken connections and requests that timed out.
    disturbances_n: AtomicU64,
    /// Callbacks of any kind.
    heard_n: AtomicU64,
}

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Statistics that came since the last call.
    pub fn take_places(&self) -> Option<Places> {
        self.lock().places.take()
    }

    /// Statistics came.
    pub fn tell_places(&self, places: Places) {
        self.lock().places = Some(places);
    }

    /// A topic has this identity.
    pub fn tell_topic_id(&self, topic: &str, id: &str) {
        let mut told = self.lock();
        let ids = told.topic_ids.entry(topic.to_owned()).or_default();
        let is_new = ids.last().map(String::as_str) != Some(id);
        if is_new {
            ids.push(id.to_owned());
        }
        told.has_new_ids |= is_new;
    }

    /// What went wrong since the last call.
    pub fn take_trouble(&self) -> Option<Trouble> {
        self.lock().trouble.take()
    }

    /// All identities that a topic had since the client began.
    pub fn topic_ids(&self, topic: &str) -> Vec<String> {
        self.lock()
            .topic_ids
            .get(topic)
            .cloned()
            .unwrap_or_default()
    }

    /// Whether a topic got an identity since the last call.
    pub fn take_new_ids(&self) -> bool {
        std::mem::take(&mut self.lock().has_new_ids)
    }

    /// The first delivery that failed since the last call.
    pub fn take_failed_delivery(&self) -> Option<KafkaError> {
        self.lock().failed_delivery.take()
    }

    /// Where the records that were delivered since the last call end: partition -> offset.
    pub fn take_delivered(&self) -> BTreeMap<i32, i64> {
        std::mem::take(&mut self.lock().delivered)
    }

    /// Broken connections and requests that timed out, so far: a request that was outstanding when
    /// this grew may have an effect later (X2).
    pub fn disturbances_n(&self) -> u64 {
        self.disturbances_n.load(Ordering::Relaxed)
    }

    /// Callbacks so far, of any kind: a poll after which this is the same found nothing to tell.
    pub fn heard_n(&self) -> u64 {
        self.heard_n.load(Ordering::Relaxed)
    }

    fn on_callback(&self) {
        self.heard_n.fetch_add(1, Ordering::Relaxed);
    }

    fn on_error(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else {
            return;
        };
        if code == RDKafkaErrorCode::PartitionEOF {
            return;
        }
        self.disturbances_n.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(?code, reason, "kafka client");
        let trouble = Trouble {
            code,
            reason: with_cure(reason),
        };
        let mut told = self.lock();
        let is_hidden = told
            .trouble
            .as_ref()
            .is_some_and(|known| known.causes(&trouble));
        if !is_hidden {
            told.trouble = Some(trouble);
        }
    }

    fn on_log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // A connection that breaks with one request under way is no error to librdkafka, only a line.
        if matches!(facility, "REQTMOUT" | "FAIL") {
            self.disturbances_n.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((topic, id)) = topic_id(message) {
            self.tell_topic_id(topic, id);
        }
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => {
                tracing::debug!(target: "librdkafka", facility, message, "warning");
            }
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::trace!(target: "librdkafka", facility, message, "log");
            }
        }
    }
}

/// `Topic clicks changed id from X to Y`: the name and Y.
fn topic_id(message: &str) -> Option<(&str, &str)> {
    let (_, rest) = message.split_once("Topic ")?;
    let (topic, rest) = rest.split_once(" changed id from ")?;
    let (_, id) = rest.split_once(" to ")?;
    let id = id.trim();
    (id != NO_ID && !id.is_empty()).then_some((topic, id))
}

/// The context of every client.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Where its owner listens.
    pub ear: Arc<Ear>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.ear.on_callback();
        self.ear.on_log(level, facility, message);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.ear.on_callback();
        if let Some(places) = places(statistics) {
            self.ear.tell_places(places);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.ear.on_callback();
        self.ear.on_error(&error, reason);
    }
}

impl ConsumerContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let mut told = self.ear.lock();
        match result {
            Ok(message) => {
                told.delivered.insert(message.partition(), message.offset());
            }
            Err((error, _)) => {
                if told.failed_delivery.is_none() {
                    told.failed_delivery = Some(error.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rdkafka::config::ClientConfig;
    use rdkafka::producer::BaseRecord;

    use super::*;

    /// Nanoseconds that this thread has had a core.
    fn on_core_ns() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn waiting_for_a_delivery_leaves_the_core_to_others() {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1");
        let producer: BaseProducer<Context> =
            config.create_with_context(Context::default()).unwrap();
        let record = BaseRecord::<(), str>::to("topic").payload("never delivered");
        producer.send(record).unwrap();

        let (began, before) = (Instant::now(), on_core_ns());
        while began.elapsed() < Duration::from_millis(300) {
            listen(&producer);
        }
        let waited = u64::try_from(began.elapsed().as_nanos()).unwrap();
        let used = on_core_ns() - before;
        assert!(used < waited / 4, "{used} ns of {waited} ns on a core");
    }

    #[test]
    fn certificate_that_cannot_be_verified_is_told_with_its_cure_and_not_hidden_by_what_follows() {
        let ear = Ear::default();
        let hear = |code, reason: &str| ear.on_error(&KafkaError::Global(code), reason);

        hear(RDKafkaErrorCode::BrokerTransportFailure, "refused");
        hear(RDKafkaErrorCode::SSL, "certificate verify failed");
        hear(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");

        let trouble = ear.take_trouble().unwrap();
        assert_eq!(trouble.code, RDKafkaErrorCode::SSL);
        assert!(
            trouble.reason.contains("`security.caSecret`"),
            "{trouble:?}"
        );
        hear(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
        let trouble = ear.take_trouble().unwrap();
        assert_eq!(trouble.reason, "1/1 brokers are down");
    }

    #[test]
    fn identity_of_a_topic_is_read_from_the_log() {
        let ear = Ear::default();
        let log = |text: &str| ear.on_log(RDKafkaLogLevel::Debug, "METADATA", text);

        log(
            "[thrd:main]: Topic a.b changed id from AAAAAAAAAAAAAAAAAAAAAA to xYz_-0123456789abcdefgh",
        );
        log(
            "[thrd:main]: Topic a.b changed id from xYz_-0123456789abcdefgh to AAAAAAAAAAAAAAAAAAAAAA",
        );
        log("[thrd:main]: Topic other partition 0 Leader 1 Epoch 0");

        assert_eq!(ear.topic_ids("a.b"), ["xYz_-0123456789abcdefgh"]);
        assert!(ear.topic_ids("other").is_empty());
    }

    #[test]
    fn requests_that_time_out_and_connections_that_break_are_disturbances_x2() {
        let ear = Ear::default();

        ear.on_log(
            RDKafkaLogLevel::Warning,
            "REQTMOUT",
            "Timed out 1 in-flight",
        );
        ear.on_log(
            RDKafkaLogLevel::Debug,
            "FAIL",
            "Disconnected (_TRANSPORT): identical to last error: error log suppressed",
        );
        ear.on_error(
            &KafkaError::Global(RDKafkaErrorCode::BrokerTransportFailure),
            "broken",
        );

        assert_eq!(ear.disturbances_n(), 3);
        let trouble = ear.take_trouble().unwrap();
        assert_eq!(trouble.code, RDKafkaErrorCode::BrokerTransportFailure);
        assert_eq!(ear.take_trouble(), None);
    }
}
