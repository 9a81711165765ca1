//! One partition that is being read.
//!
//! Owns: how far it is, whether it has more, and when a bounded one is at its end.
//!
//! The position is that of the *fetch*, which passes control records and what aborted transactions
//! left: a bounded read whose last offsets are such would otherwise never end (KF-K5).

use std::sync::Arc;
use std::time::{Duration, Instant};

use streamforge_core::ids::SplitId;

use super::trouble::Trouble;
use crate::kafka::split::Description;
use crate::kafka::statistics::{Place, Places};

/// A leader that is silent for so long is told to people, and what is there is unknown from then on: a newer
/// high watermark would have come. It counts as silent when it is away, or leaves a fetch without an answer for
/// 3 s, three times as long as the broker may wait with it at most; here eight statistics in a row (one every 250 ms)
/// must say so, for a connection that breaks is there again within one or two.
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
    /// Fetches that must have been sent before offsets count that may be older than the connection (T2): one
    /// over it, and the next, which is sent when that is answered.
    counts_from: u64,
    silent_since: Option<Instant>,
    /// What came instead of records last.
    error: Option<String>,
    /// The brokers do not have the position: nothing comes any more.
    pub is_out_of_range: bool,
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
            counts_from: 0,
            silent_since: None,
            error: None,
            is_out_of_range: false,
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
        let since = self.silent_since.unwrap_or(now);
        self.silent_since = place.leader_is_silent.then_some(since);
        if place.has_nothing_more() {
            self.error = None;
        }
        let known = self.place.replace(place);
        self.awaits_drain = Some(place);
        let is_another = known.is_some_and(|known| known.connection != place.connection);
        if is_another || !place.leader_answers {
            self.counts_from = place.fetches_n + 2;
        }
        if !place.leader_answers {
            self.drained = None;
        }
    }

    /// Whether a bounded partition is read to its end.
    pub fn is_at_end(&self) -> bool {
        self.end.is_some_and(|end| self.position >= end)
    }

    /// Whether its queue is to be looked into.
    pub fn may_have_more(&self) -> bool {
        !self.is_at_end() && !self.is_out_of_range
    }

    /// T2: asked, and told that there is nothing. What was told before the newest record came says
    /// nothing of those behind it.
    pub fn has_nothing_more(&self) -> bool {
        let newest = self.drained.filter(|_| self.awaits_drain.is_none());
        newest.is_some_and(|place| {
            place.fetches_n >= self.counts_from
                && place.has_nothing_more()
                && place.told_end >= self.position
        })
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
    pub fn on_error(&mut self, error: String) {
        self.error = Some(error);
    }

    /// What keeps it from being read.
    pub fn trouble(&self, id: &SplitId, now: Instant) -> Option<Trouble> {
        if let Some(error) = &self.error {
            return Some(Trouble::unreachable(format!("{id}: {error}")));
        }
        let silent = self.silent_since.map(|since| now.duration_since(since));
        if let Some(silent) = silent.filter(|silent| *silent >= SILENCE_TOLD) {
            let seconds = silent.as_secs();
            let text = format!("no answer from the leader of {id} for {seconds} s");
            return Some(Trouble::unreachable(text));
        }
        let place = self.drained.filter(Place::waits_for_transaction)?;
        let (stable, hidden) = (place.stable, place.high - place.stable);
        let text = format!(
            "{id} waits for an open transaction: {hidden} offsets from {stable} on are not committed"
        );
        Some(Trouble {
            text,
            is_unreachable: false,
        })
    }
}

/// A partition, its queue and its progress.
pub struct OpenSplit<Q> {
    /// Its name.
    pub id: SplitId,
    /// The topic, for origins.
    pub topic: Arc<str>,
    /// What it is.
    pub description: Description,
    /// Its records.
    pub queue: Q,
    /// The position that was told to the group last.
    pub told: i64,
    /// When it was said last that it has nothing more.
    nothing_said: Option<Instant>,
    progress: Progress,
}

impl<Q> std::ops::Deref for OpenSplit<Q> {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        &self.progress
    }
}

impl<Q> std::ops::DerefMut for OpenSplit<Q> {
    fn deref_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }
}

impl<Q> OpenSplit<Q> {
    /// A partition that is read from this offset on.
    pub fn new(description: Description, offset: i64, queue: Q) -> Self {
        OpenSplit {
            id: description.id(),
            topic: Arc::from(description.topic.as_str()),
            progress: Progress::new(offset, description.end),
            description,
            queue,
            told: -1,
            nothing_said: None,
        }
    }

    /// Takes its part of the statistics.
    pub fn find_place(&mut self, places: &Places, now: Instant) {
        let key = (self.description.topic.clone(), self.description.partition);
        if let Some(place) = places.get(&key) {
            self.progress.on_place(*place, now);
        }
    }

    /// Whether it has nothing more and that was not said in so long; then it counts as said.
    pub fn may_say_nothing(&mut self, now: Instant, pause: Duration) -> bool {
        let since = self.nothing_said.map(|said| now.duration_since(said));
        let says = self.progress.has_nothing_more() && since.is_none_or(|since| since >= pause);
        if says {
            self.nothing_said = Some(now);
        }
        says
    }

    /// Whether its position is not what the group was told.
    pub fn has_moved(&self) -> bool {
        self.told != self.progress.position
    }

    /// What keeps it from being read.
    pub fn trouble(&self, now: Instant) -> Option<Trouble> {
        self.progress.trouble(&self.id, now)
    }

    /// Records that are there and not read; `None`: not known.
    pub fn lag(&self) -> Option<u64> {
        self.progress.lag()
    }
}
