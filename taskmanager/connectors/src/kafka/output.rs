//! A topic read once from begin to end, for those who compare what was written.
//!
//! Owns: which end that is: the last stable offset, so that what a reader with `read_committed` sees is
//! what is compared. Start at: [`read_committed`]. Blocks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};
use streamforge_engine::error::Error;

use super::client::Context;
use super::config::cannot_open;
use super::lookup::{Ask as _, LookupPlace};
use crate::error::{failed, refused};

/// How long nothing may come before the read is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hands the value of every committed record to `take`; answers how many there were.
pub fn read_committed(
    place: &LookupPlace,
    topic: &str,
    take: &mut dyn FnMut(Option<&[u8]>),
) -> Result<u64, Error> {
    let action = || format!("read topic {topic}");
    let facts = place
        .open()?
        .topic(topic)
        .map_err(|error| failed(action(), error.may_pass(), error))?;
    let partitions_n = usize::try_from(facts.partitions_n).unwrap_or(0);
    let secrets = place.secrets.as_deref();
    let config = place
        .access
        .reader("streamforge-verify", partitions_n, secrets)?;
    let consumer: BaseConsumer<Context> = config
        .create_with_context(Context::default())
        .map_err(|error| cannot_open("a reader of kafka", error))?;
    let kafka = |error: KafkaError| failed(action(), true, error);
    let mut all = TopicPartitionList::new();
    for partition in 0..facts.partitions_n {
        all.add_partition_offset(topic, partition, Offset::Beginning)
            .map_err(kafka)?;
    }
    consumer.assign(&all).map_err(kafka)?;
    let (mut ended, mut records_n) = (BTreeSet::new(), 0);
    let mut last = Instant::now();
    while ended.len() < partitions_n {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                take(message.payload());
                records_n += 1;
                last = Instant::now();
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ended.insert(partition);
            }
            // The client mends what it can; what it cannot ends the patience.
            Some(Err(error)) => tracing::debug!(%error, topic, "kafka consumer"),
            None => {}
        }
        if last.elapsed() > PATIENCE {
            let reason = format!("nothing came for {} s", PATIENCE.as_secs());
            return Err(refused(action(), reason));
        }
    }
    Ok(records_n)
}
