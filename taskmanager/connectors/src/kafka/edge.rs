//! The edge of a source: all that its reader wants of clients of Kafka and of the process it runs in.
//!
//! Owns: what must be offered for a reader to run, and nothing of how. [`super::brokers`] offers it by
//! librdkafka, threads and the clock of the machine; a simulation by a broker of its own, in one thread.
//! What comes of the answers is decided by the reader, here and there alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use streamforge_engine::error::Error;

use super::client::Ear;
use super::lookup::Ask;

/// One record of a partition.
pub trait Record {
    /// Where it lies.
    fn offset(&self) -> i64;
    /// When it was written, in milliseconds since the epoch.
    fn written_ms(&self) -> Option<i64>;
    /// Its key.
    fn key(&self) -> Option<&[u8]>;
    /// Its value; none: a tombstone.
    fn value(&self) -> Option<&[u8]>;
    /// Its headers.
    fn headers(&self) -> Vec<(String, Option<Vec<u8>>)>;
}

/// What may come instead of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// All that is there was fetched; statistics say where that is.
    End,
    /// The offset that is wanted is not there.
    OutOfRange(String),
    /// Another trouble, in words.
    Trouble(String),
}

/// Records of one partition that were fetched.
pub trait Queue: Send {
    /// A record in it.
    type Record<'a>: Record
    where
        Self: 'a;

    /// Takes the next one; `None`: there is nothing now.
    fn take(&self) -> Option<Result<Self::Record<'_>, Instead>>;
}

/// Fetches the partitions of one reader. A member of no group: it reads what it is told to, from where it
/// is told.
pub trait Consume: Send + Sync {
    /// Records of a partition.
    type Queue: Queue;

    /// Begins to read partitions at offsets, each into a queue of its own, in the same order.
    fn assign(&self, at: &[Start]) -> Result<Vec<Self::Queue>, Error>;

    /// Reads a partition no more.
    fn unassign(&self, topic: &str, partition: i32) -> Result<(), Error>;

    /// Lets it tell the oldest of what it has to tell beside records.
    fn serve(&self);

    /// Where it tells that.
    fn ear(&self) -> &Ear;

    /// Tells positions to the reader's group, for people; whether that works is of no consequence.
    fn tell(&self, positions: &[Start]);
}

/// A partition and an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// The next record to read.
    pub offset: i64,
}

/// See the module.
pub trait Edge: Clone + Send + Sync + 'static {
    /// Asks brokers about topics.
    type Asker: Ask + Send + Sync + 'static;
    /// Fetches records.
    type Consumer: Consume;

    /// The time.
    fn now(&self) -> Instant;

    /// Does what blocks, beside the reader; sooner or later, or never.
    fn spawn(&self, work: impl FnOnce() + Send + 'static);

    /// Waits until there may be records, at most so long; whether there may be some.
    fn wait(&self, patience: Duration) -> impl Future<Output = bool> + Send;

    /// Stands for what clients are made of now: another number after credentials were replaced.
    fn credentials(&self) -> u64;

    /// A client that asks.
    fn asker(&self) -> Result<Self::Asker, Error>;

    /// A client that reads so many partitions. One reader has one.
    fn consumer(&self, partitions_n: usize) -> Result<Self::Consumer, Error>;

    /// Closes a client that another one follows, beside the reader.
    fn close(&self, consumer: Arc<Self::Consumer>);
}
