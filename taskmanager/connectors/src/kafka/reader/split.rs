//! One partition that is being read.
//!
//! Owns: how far it is, whether it has more, and when a bounded one is at its end.
//!
//! The position is that of the *fetch*, which passes control records and what aborted transactions
//! left: a bounded read whose last offsets are such would otherwise never end (KF-K5).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use streamforge_core::ids::SplitId;

use crate::kafka::client::Context;
use crate::kafka::split::Description;
use crate::kafka::statistics::{Place, Places};

/// A leader that is silent for longer is told to people.
const SILENCE_TOLD: Duration = Duration::from_secs(2);

/// How far a partition is read.
#[derive(Debug)]
pub struct Progress {
    /// The next offset that is not known to be passed.
    pub position: i64,
    /// When the last record was written, in milliseconds since the epoch.
    pub written_ms: Option<i64>,
    end: Option<i64>,
    /// The newest statistics.
    place: Option<Place>,
    /// Statistics that say something only once the queue was seen empty after them: what they know
    /// as fetched may still lie in it.
    awaits_drain: Option<Place>,
    /// As `place`, with the queue seen empty since.
    drained: Option<Place>,
    silent_since: Option<Instant>,
    /// What came instead of records last.
    error: Option<String>,
}

impl Progress {
    /// At an offset, up to an end.
    pub fn new(position: i64, end: Option<i64>) -> Self {
        Progress {
            position,
            written_ms: None,
            end,
            place: None,
            awaits_drain: None,
            drained: None,
            silent_since: None,
            error: None,
        }
    }

    /// Whether a record at this offset belongs to what is read.
    pub fn takes(&self, offset: i64) -> bool {
        offset >= self.position && self.end.is_none_or(|end| offset < end)
    }

    /// A record came.
    #[inline]
    pub fn on_record(&mut self, offset: i64, written_ms: Option<i64>) {
        self.written_ms = written_ms.or(self.written_ms);
        self.position = self.position.max(offset.saturating_add(1));
        if self.error.is_some() {
            self.error = None;
        }
        if self.drained.is_some() || self.awaits_drain.is_some() {
            self.drained = None;
            self.awaits_drain = self.place;
        }
    }

    /// The queue is empty: all that was known as fetched was taken. True: the position moved, past
    /// control records.
    pub fn on_drained(&mut self) -> bool {
        let Some(place) = self.awaits_drain.take() else {
            return false;
        };
        self.drained = Some(place);
        let moved = place.told_end > self.position;
        self.position = self.position.max(place.told_end);
        moved
    }

    /// Statistics came.
    pub fn on_place(&mut self, place: Place, now: Instant) {
        self.silent_since = if place.leader_answers {
            None
        } else {
            Some(self.silent_since.unwrap_or(now))
        };
        if place.has_nothing_more() {
            self.error = None;
        }
        self.place = Some(place);
        self.awaits_drain = Some(place);
        if !place.leader_answers {
            self.drained = None;
        }
    }

    /// Whether a bounded partition is read to its end.
    pub fn is_at_end(&self) -> bool {
        self.end.is_some_and(|end| self.position >= end)
    }

    /// T2: asked, and told that there is nothing.
    pub fn has_nothing_more(&self) -> bool {
        self.drained.as_ref().is_some_and(Place::has_nothing_more)
    }

    /// Records between the position and the high watermark; `None`: not known.
    pub fn lag(&self) -> Option<u64> {
        let high = self
            .place
            .map(|place| place.high)
            .filter(|high| *high >= 0)?;
        Some(u64::try_from(high.saturating_sub(self.position)).unwrap_or(0))
    }

    /// An error of this partition came instead of a record.
    pub fn on_error(&mut self, error: &KafkaError) {
        self.error = Some(error.to_string());
    }

    /// What keeps it from being read, in words.
    pub fn trouble(&self, id: &SplitId, now: Instant) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(format!("{id}: {error}"));
        }
        let silent = self.silent_since.map(|since| now.duration_since(since));
        if let Some(silent) = silent.filter(|silent| *silent >= SILENCE_TOLD) {
            let seconds = silent.as_secs();
            return Some(format!("no answer from the leader of {id} for {seconds} s"));
        }
        let place = self.drained.filter(Place::waits_for_transaction)?;
        let (stable, hidden) = (place.stable, place.high - place.stable);
        Some(format!(
            "{id} waits for an open transaction: {hidden} offsets from {stable} on are not committed"
        ))
    }
}

/// A partition, its queue and its progress.
pub struct OpenSplit {
    /// Its name.
    pub id: SplitId,
    /// The topic, for origins.
    pub topic: Arc<str>,
    /// What it is.
    pub description: Description,
    /// Its records.
    pub queue: PartitionQueue<Context>,
    /// The position that was told to the group last.
    pub told: i64,
    progress: Progress,
}

impl std::ops::Deref for OpenSplit {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        &self.progress
    }
}

impl std::ops::DerefMut for OpenSplit {
    fn deref_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }
}

impl OpenSplit {
    /// A partition that is read from this offset on.
    pub fn new(description: Description, offset: i64, queue: PartitionQueue<Context>) -> Self {
        OpenSplit {
            id: description.id(),
            topic: Arc::from(description.topic.as_str()),
            progress: Progress::new(offset, description.end),
            description,
            queue,
            told: -1,
        }
    }

    /// Takes its part of the statistics.
    pub fn on_place(&mut self, places: &Places) {
        let key = (self.description.topic.clone(), self.description.partition);
        if let Some(place) = places.get(&key) {
            self.progress.on_place(*place, Instant::now());
        }
    }

    /// Whether its position is not what the group was told.
    pub fn has_moved(&self) -> bool {
        self.told != self.progress.position
    }

    /// What keeps it from being read, in words.
    pub fn trouble(&self) -> Option<String> {
        self.progress.trouble(&self.id, Instant::now())
    }

    /// Records that are there and not read; `None`: not known.
    pub fn lag(&self) -> Option<u64> {
        self.progress.lag()
    }
}

/// Whether an error says that the wanted offset is not there.
pub fn means_out_of_range(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange)
    )
}
