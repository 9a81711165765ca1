//! A reader at brokers that are played here: time stands still but for its pauses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use streamforge_core::ids::SplitId;
use streamforge_engine::error::Error;
use streamforge_engine::source::{SourceEvent, SourceReader};

use super::place;
use crate::formats::decoder::TextFormat;
use crate::kafka::client::Ear;
use crate::kafka::edge::{Consume, Edge, Instead, Queue, Record, Start};
use crate::kafka::layout::Layout;
use crate::kafka::lookup::{Ask, Error as LookupError, TopicFacts};
use crate::kafka::reader::{KafkaPlace, KafkaReader, KafkaSourceSpec};
use crate::kafka::split::Description;

/// What is there, and what a reader made of it.
#[derive(Default)]
struct Cluster {
    partitions_n: i32,
    passed: Duration,
    /// Of each client that there was: how many partitions it was made for, and which it reads from where.
    clients: Vec<(usize, BTreeMap<i32, i64>)>,
    closed_n: usize,
    /// The next record of partition 0, if it always has one.
    flows_at: Option<i64>,
}

#[derive(Clone)]
struct Played {
    began: Instant,
    cluster: Arc<Mutex<Cluster>>,
}

impl Played {
    fn new(partitions_n: i32) -> Self {
        let cluster = Cluster {
            partitions_n,
            ..Cluster::default()
        };
        Played {
            began: Instant::now(),
            cluster: Arc::new(Mutex::new(cluster)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }
}

impl Edge for Played {
    type Asker = Played;
    type Consumer = Client;

    fn now(&self) -> Instant {
        self.began + self.lock().passed
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        work();
    }

    async fn wait(&self, patience: Duration) -> bool {
        self.lock().passed += patience;
        false
    }

    fn credentials(&self) -> u64 {
        0
    }

    fn asker(&self) -> Result<Played, Error> {
        Ok(self.clone())
    }

    fn consumer(&self, partitions_n: usize) -> Result<Client, Error> {
        self.lock().clients.push((partitions_n, BTreeMap::new()));
        Ok(Client {
            cluster: self.clone(),
            ear: Ear::default(),
        })
    }

    fn close(&self, _consumer: Arc<Client>) {
        self.lock().closed_n += 1;
    }
}

impl Ask for Played {
    fn topics(&self) -> Result<Vec<String>, LookupError> {
        Ok(vec!["t".to_owned()])
    }

    fn topic(&self, _topic: &str) -> Result<TopicFacts, LookupError> {
        let partitions_n = self.lock().partitions_n;
        Ok(TopicFacts {
            partitions_n,
            id: None,
            leaders: vec![1; usize::try_from(partitions_n).unwrap()],
        })
    }

    fn range(&self, _topic: &str, _partition: i32) -> Result<(i64, i64), LookupError> {
        Ok((0, 1_000_000))
    }

    fn first_since(
        &self,
        _topic: &str,
        _partitions_n: i32,
        _time_ms: i64,
    ) -> Result<Vec<Option<i64>>, LookupError> {
        Ok(Vec::new())
    }
}

struct Client {
    cluster: Played,
    ear: Ear,
}

impl Consume for Client {
    type Queue = Partition;

    fn assign(&self, at: &[Start]) -> Result<Vec<Partition>, Error> {
        let mut cluster = self.cluster.lock();
        let (_, reads) = cluster.clients.last_mut().unwrap();
        reads.extend(at.iter().map(|start| (start.partition, start.offset)));
        let queue = |start: &Start| Partition(self.cluster.clone(), start.partition);
        Ok(at.iter().map(queue).collect())
    }

    fn unassign(&self, _topic: &str, _partition: i32) -> Result<(), Error> {
        Ok(())
    }

    /// Partition 0 has more; of the others all was fetched.
    fn serve(&self) {
        let (_, reads) = self.cluster.lock().clients.last().unwrap().clone();
        let places = reads.into_iter().map(|(partition, offset)| {
            let high = if partition == 0 { 1_000_000 } else { offset };
            (("t".to_owned(), partition), place(offset, high, high))
        });
        self.ear.tell_places(places.collect());
    }

    fn ear(&self) -> &Ear {
        &self.ear
    }

    fn tell(&self, _positions: &[Start]) {}
}

struct Partition(Played, i32);

impl Queue for Partition {
    type Record<'a> = Line;

    fn take(&self) -> Option<Result<Line, Instead>> {
        let mut cluster = self.0.lock();
        let next = cluster.flows_at.as_mut().filter(|_| self.1 == 0)?;
        *next += 1;
        Some(Ok(Line(*next - 1)))
    }
}

struct Line(i64);

impl Record for Line {
    fn offset(&self) -> i64 {
        self.0
    }

    fn written_ms(&self) -> Option<i64> {
        None
    }

    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn value(&self) -> Option<&[u8]> {
        Some(b"x")
    }

    fn headers(&self) -> Vec<(String, Option<Vec<u8>>)> {
        Vec::new()
    }
}

/// One reader of all partitions there are.
async fn reader(cluster: &Played) -> KafkaReader<Played> {
    let config = r#"{"bootstrapServers":"a:9092","topicPattern":"t"}"#;
    let spec = KafkaSourceSpec {
        node: "clicks".to_owned(),
        config: serde_json::from_str(config).unwrap(),
        format: TextFormat::Raw,
        layout: Layout::new(&[], &[]),
        origin: false,
        secrets: None,
    };
    let split = |partition| Description {
        topic: "t".to_owned(),
        partition,
        topic_id: None,
        start: 0,
        end: None,
    };
    let partitions_n = cluster.lock().partitions_n;
    let known: Vec<_> = (0..partitions_n).map(|n| split(n).at(7)).collect();
    let place = KafkaPlace {
        parallelism: 1,
        known: known.clone(),
        ..KafkaPlace::default()
    };
    let mut reader = KafkaReader::at(cluster.clone(), spec, place);
    reader.assign(known).await.unwrap();
    reader
}

/// Until so much time has passed; what was found meanwhile.
async fn go_on(reader: &mut KafkaReader<Played>, cluster: &Played, time: Duration) -> usize {
    let until = cluster.lock().passed + time;
    let mut found_n = 0;
    while cluster.lock().passed < until {
        let event = reader.next().await.unwrap();
        found_n += usize::from(matches!(event, SourceEvent::Discovered(_)));
    }
    found_n
}

/// A topic pattern finds ever more partitions. What a client holds unread of each is fixed when it is made.
#[tokio::test]
async fn memory_of_prefetched_records_stays_bounded_while_partitions_are_found_b1() {
    let cluster = Played::new(1);
    let mut reader = reader(&cluster).await;
    go_on(&mut reader, &cluster, Duration::from_secs(1)).await;
    assert_eq!(cluster.lock().clients, [(1, [(0, 7)].into())]);

    cluster.lock().partitions_n = 2;
    assert_eq!(
        go_on(&mut reader, &cluster, Duration::from_secs(12)).await,
        1
    );
    assert_eq!(cluster.lock().clients, [(1, [(0, 7), (1, 0)].into())]);

    cluster.lock().partitions_n = 200;
    let found_n = go_on(&mut reader, &cluster, Duration::from_secs(12)).await;
    assert_eq!(found_n, 198);
    let cluster = cluster.lock();
    assert_eq!((cluster.clients.len(), cluster.closed_n), (2, 1));
    let (shares_n, reads) = cluster.clients.last().unwrap();
    assert_eq!((*shares_n, reads.len()), (200, 200));
    let from = (reads.get(&0), reads.get(&1), reads.get(&199));
    assert_eq!(from, (Some(&7), Some(&0), Some(&0)), "where it stood");
}

/// A partition of others says nothing of one that is silent: it must become idle beside one that always has
/// rows, and the task counts no pause in which nothing is said of it.
#[tokio::test]
async fn attack_32_nothing_is_told_of_a_silent_partition_also_while_others_have_rows_t2() {
    let cluster = Played::new(2);
    let mut reader = reader(&cluster).await;
    reader.prefer_rows(1);
    go_on(&mut reader, &cluster, Duration::from_secs(1)).await;
    cluster.lock().flows_at = Some(7);

    let (mut batches_n, mut said_n) = (0, 0);
    for _ in 0..1_000 {
        match reader.next().await.unwrap() {
            SourceEvent::Batch(_) => {
                batches_n += 1;
                cluster.lock().passed += Duration::from_millis(5);
            }
            SourceEvent::NothingNew(split) => {
                assert_eq!(split, SplitId("t/1".to_owned()));
                said_n += 1;
            }
            SourceEvent::Quiet => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(batches_n > 900, "{batches_n} batches");
    // In five seconds.
    assert!((40..=60).contains(&said_n), "said {said_n} times");
}
