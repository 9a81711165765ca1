//! A topic as others see it.
//!
//! Owns: writers and `read_committed` readers that share no code with ours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

/// How long a reader waits for the end of a topic.
const PATIENCE: Duration = Duration::from_secs(60);

/// One record as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Key.
    pub key: Option<String>,
    /// Value; none: a tombstone.
    pub value: Option<String>,
}

impl Seen {
    fn of(message: &impl Message) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(text),
            value: message.payload().map(text),
        }
    }
}

/// What a reader saw, in order per partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records(pub Vec<Seen>);

impl Records {
    /// Values, sorted, each as often as it was seen.
    pub fn values(&self) -> Vec<String> {
        let mut values: Vec<String> = self
            .0
            .iter()
            .filter_map(|seen| seen.value.clone())
            .collect();
        values.sort();
        values
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// O2: what was seen earlier is still there, at the same offsets.
    pub fn is_continued_by(&self, later: &Records) -> bool {
        let place = |seen: &Seen| ((seen.partition, seen.offset), seen.value.clone());
        let later: BTreeMap<_, _> = later.0.iter().map(place).collect();
        self.0
            .iter()
            .map(place)
            .all(|(place, value)| later.get(&place) == Some(&value))
    }
}

/// A topic.
#[derive(Clone, Debug)]
pub struct Topic {
    client: ClientConfig,
    /// Its name.
    pub name: String,
    /// How many partitions it has.
    pub partitions_n: i32,
}

impl Topic {
    pub(crate) fn new(client: ClientConfig, name: &str, partitions_n: i32) -> Self {
        Topic {
            client,
            name: name.to_owned(),
            partitions_n,
        }
    }

    /// The same topic, reached at another address.
    pub fn through(&self, servers: &str) -> Self {
        let mut other = self.clone();
        other.client.set("bootstrap.servers", servers);
        other
    }

    /// The node that leads a partition.
    pub fn leader(&self, partition: i32) -> i32 {
        let found = self
            .client("read_committed")
            .fetch_metadata(Some(&self.name), PATIENCE);
        let found = found.expect("the broker answers");
        let mut partitions = found.topics()[0].partitions().iter();
        let found = partitions.find(|it| it.id() == partition);
        found.expect("there is such a partition").leader()
    }

    /// A writer without transactions; a retry writes nothing twice.
    pub fn writer(&self) -> Writer {
        self.writer_as(None)
    }

    /// A writer of one transaction at a time; it fences an earlier one of the same id.
    pub fn transactional_writer(&self, id: &str) -> Writer {
        self.writer_as(Some(id))
    }

    fn writer_as(&self, id: Option<&str>) -> Writer {
        let mut config = self.client.clone();
        config
            .set("linger.ms", "2")
            .set("enable.idempotence", "true");
        if let Some(id) = id {
            config.set("transactional.id", id);
        }
        let producer: BaseProducer = config.create().expect("a producer can be made");
        if id.is_some() {
            producer
                .init_transactions(PATIENCE)
                .expect("the broker knows transactions");
        }
        Writer {
            producer,
            topic: self.name.clone(),
        }
    }

    /// Writes values to one partition.
    pub fn write<'a>(&self, partition: i32, values: impl IntoIterator<Item = &'a str>) {
        let writer = self.writer();
        for value in values {
            writer.send(partition, None, Some(value));
        }
        writer.drain();
    }

    /// All that a `read_committed` reader sees now, to the last stable offset.
    pub fn committed(&self) -> Records {
        self.read("read_committed")
    }

    /// All that was ever written, committed or not.
    pub fn written(&self) -> Records {
        self.read("read_uncommitted")
    }

    /// A `read_committed` reader that reads on from the beginning until it is stopped.
    pub fn follow(&self) -> Follower {
        let (over, seen_n) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (topic, told, n) = (self.clone(), Arc::clone(&over), Arc::clone(&seen_n));
        let thread = std::thread::spawn(move || {
            let consumer = topic.consumer("read_committed");
            let mut seen = Vec::new();
            while !told.load(Ordering::Relaxed) {
                // Trouble of a broker passes; the reader reads on.
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    seen.push(Seen::of(&message));
                    n.store(seen.len(), Ordering::Relaxed);
                }
            }
            Records(seen)
        });
        Follower {
            over,
            seen_n,
            thread,
        }
    }

    /// Whether a transaction is open in it: rows are there that a `read_committed` reader waits for.
    pub fn has_open_transaction(&self) -> bool {
        let ends = |isolation: &str| {
            let mut wanted = TopicPartitionList::new();
            for partition in 0..self.partitions_n {
                wanted
                    .add_partition_offset(&self.name, partition, Offset::End)
                    .expect("an offset is an offset");
            }
            let found = self.client(isolation).offsets_for_times(wanted, PATIENCE);
            let found = found.expect("the broker answers").to_topic_map();
            found
                .into_iter()
                .map(|((_, partition), offset)| (partition, offset.to_raw()))
                .collect::<BTreeMap<_, _>>()
        };
        let high = ends("read_uncommitted");
        let stable = ends("read_committed");
        high.iter()
            .any(|(partition, end)| stable.get(partition).is_some_and(|stable| stable < end))
    }

    fn client(&self, isolation: &str) -> BaseConsumer {
        let mut config = self.client.clone();
        config
            .set("group.id", "streamforge-tests")
            .set("isolation.level", isolation)
            .set("enable.partition.eof", "true")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest");
        config.create().expect("a consumer can be made")
    }

    fn consumer(&self, isolation: &str) -> BaseConsumer {
        let consumer = self.client(isolation);
        let mut all = TopicPartitionList::new();
        for partition in 0..self.partitions_n {
            all.add_partition_offset(&self.name, partition, Offset::Beginning)
                .expect("an offset is an offset");
        }
        consumer.assign(&all).expect("partitions are assigned");
        consumer
    }

    fn read(&self, isolation: &str) -> Records {
        let consumer = self.consumer(isolation);
        let mut seen = Vec::new();
        let mut ended = std::collections::BTreeSet::new();
        let began = Instant::now();
        while ended.len() < usize::try_from(self.partitions_n).unwrap_or(0) {
            assert!(began.elapsed() < PATIENCE, "{} has no end", self.name);
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => seen.push(Seen::of(&message)),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    ended.insert(partition);
                }
                Some(Err(_)) | None => {}
            }
        }
        Records(seen)
    }
}

/// A reader beside.
#[derive(Debug)]
pub struct Follower {
    over: Arc<AtomicBool>,
    seen_n: Arc<AtomicUsize>,
    thread: JoinHandle<Records>,
}

impl Follower {
    /// How many records it has seen so far.
    pub fn seen_n(&self) -> usize {
        self.seen_n.load(Ordering::Relaxed)
    }

    /// Ends it: all that it saw, in the order in which it came.
    pub fn stop(self) -> Records {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("a reader does not panic")
    }
}

/// Writes to a topic.
pub struct Writer {
    producer: BaseProducer,
    topic: String,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({})", self.topic)
    }
}

impl Writer {
    /// Hands one record over.
    pub fn send(&self, partition: i32, key: Option<&str>, value: Option<&str>) {
        let mut record: BaseRecord<'_, str, str> = BaseRecord::to(&self.topic).partition(partition);
        record.key = key;
        record.payload = value;
        loop {
            match self.producer.send(record) {
                Ok(()) => return,
                Err((error, back)) => {
                    assert!(matches!(error, KafkaError::MessageProduction(_)), "{error}");
                    record = back;
                    self.producer.poll(Duration::from_millis(5));
                }
            }
        }
    }

    /// Waits until all is written.
    pub fn drain(&self) {
        let began = Instant::now();
        while self.producer.in_flight_count() > 0 {
            assert!(began.elapsed() < PATIENCE, "records are not taken");
            // A poll with patience spends its last millisecond without a wait.
            self.producer.poll(Duration::ZERO);
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Begins a transaction.
    pub fn begin(&self) {
        self.producer
            .begin_transaction()
            .expect("a transaction begins");
    }

    /// Commits it.
    pub fn commit(&self) {
        self.drain();
        self.producer
            .commit_transaction(PATIENCE)
            .expect("the transaction is committed");
    }

    /// Gives it up.
    pub fn abort(&self) {
        self.drain();
        self.producer
            .abort_transaction(PATIENCE)
            .expect("the transaction is aborted");
    }
}
