//! A topic read once from begin to end, for those who compare what was written.
//!
//! Owns: which end that is: the last stable offset, so that what a reader with `read_committed` sees is
//! what is compared. A producer is told of its commit before the last partition has the transaction's end, which
//! is waited for. Start at: [`read_committed`]. Blocks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};
use streamforge_engine::error::Error;

use super::client::Context;
use super::config::{ANSWER_TIMEOUT, cannot_open};
use super::lookup::{Ask as _, Error as LookupError, LookupPlace};
use crate::error::{failed, refused};

/// How long nothing may come before the read is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the end of a committed transaction may be on its way to a partition.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Pause between two looks for it.
const PAUSE: Duration = Duration::from_millis(100);

/// The partitions that no reader sees up to these high watermarks: of one that cannot be asked that is not known.
fn held_back(high: &[i64], stable: &[Option<i64>]) -> Vec<usize> {
    let ends = high.iter().zip(stable).enumerate();
    ends.filter(|(_, (high, stable))| stable.is_none_or(|stable| stable < **high))
        .map(|(partition, _)| partition)
        .collect()
}

/// Waits for the ends of the transactions that are open now, for a while: one that nobody ends holds back what
/// is behind it for all readers.
fn wait_for_ends(topic: &str, high: &[i64], consumer: &BaseConsumer<Context>) {
    let began = Instant::now();
    let stable = |partition| {
        let range = consumer.fetch_watermarks(topic, partition, ANSWER_TIMEOUT);
        range.ok().map(|(_, stable)| stable)
    };
    loop {
        let stable: Vec<_> = (0..).take(high.len()).map(stable).collect();
        let partitions = held_back(high, &stable);
        if partitions.is_empty() {
            return;
        }
        if began.elapsed() > ENDS_WITHIN {
            tracing::warn!(
                topic,
                ?partitions,
                "a transaction is open there: what is behind its begin is not read"
            );
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Hands the value of every committed record to `take`; answers how many there were.
pub fn read_committed(
    place: &LookupPlace,
    topic: &str,
    take: &mut dyn FnMut(Option<&[u8]>),
) -> Result<u64, Error> {
    let action = || format!("read topic {topic}");
    let lookup = place.open()?;
    let refused_by = |error: LookupError| failed(action(), error.may_pass(), error);
    let facts = lookup.topic(topic).map_err(refused_by)?;
    let high = |partition| lookup.range(topic, partition).map(|(_, high)| high);
    let high = (0..facts.partitions_n).map(|partition| high(partition).map_err(refused_by));
    let high = high.collect::<Result<Vec<i64>, Error>>()?;
    let partitions_n = usize::try_from(facts.partitions_n).unwrap_or(0);
    let secrets = place.secrets.as_deref();
    let config = place
        .access
        .reader("streamforge-verify", partitions_n, secrets)?;
    let consumer: BaseConsumer<Context> = config
        .create_with_context(Context::default())
        .map_err(|error| cannot_open("a reader of kafka", error))?;
    wait_for_ends(topic, &high, &consumer);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_with_an_open_transaction_is_waited_for() {
        assert!(held_back(&[3, 0], &[Some(3), Some(0)]).is_empty());
        assert!(held_back(&[3], &[Some(9)]).is_empty(), "rows came since");
        assert_eq!(held_back(&[3, 3, 3], &[Some(3), Some(2), None]), [1, 2]);
    }
}
