//! Why rows stay unpublished until a person acts.
//!
//! Owns: the words. Each names the facts and what to do.

use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId};

use crate::kafka::marker::Marker;

/// What cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// X2.
    #[error(
        "publish {slot}: another attempt has taken over (it wrote `{marker}`); this one is over and \
         publishes nothing"
    )]
    Zombie {
        /// Which slot.
        slot: SlotId,
        /// What was found.
        marker: Marker,
    },
    /// X3.
    #[error(
        "publish {slot}: its marker is gone from group {group}, and {listed_n} staged intervals, the oldest \
         {oldest}, may have been published before it went: the output topic was deleted, or nothing was \
         published for {kept}. Look whether the topic has these rows; `--accept-lost-marker {sink}` \
         publishes them, perhaps a second time"
    )]
    Vanished {
        /// Which slot.
        slot: SlotId,
        /// Its group.
        group: String,
        /// How many intervals are listed.
        listed_n: usize,
        /// The oldest of them.
        oldest: CheckpointId,
        /// How long the broker keeps offsets.
        kept: String,
        /// The sink.
        sink: OperatorUid,
    },
    /// The topic is another one.
    #[error(
        "publish {slot}: topic `{topic}` was deleted and re-created since the rows were staged (its identity \
         was {stored} and is {now}): what was published before is gone with the old one. To write to the \
         new one, start the job anew with --fresh"
    )]
    AnotherTopic {
        /// Which slot.
        slot: SlotId,
        /// Which topic.
        topic: String,
        /// Identity when it was staged.
        stored: String,
        /// Identity now.
        now: String,
    },
    /// X1.
    #[error(
        "publish {slot}: interval {older} is half published and must be finished before {interval}"
    )]
    OlderUnfinished {
        /// Which slot.
        slot: SlotId,
        /// What was asked.
        interval: CheckpointId,
        /// What comes before it.
        older: CheckpointId,
    },
    /// X1.
    #[error(
        "publish {slot}: interval {interval} was begun as {marker} parts and is listed as {listed}; to go on \
         would lose or double rows"
    )]
    OtherCut {
        /// Which slot.
        slot: SlotId,
        /// Which interval.
        interval: CheckpointId,
        /// Parts by the marker.
        marker: u32,
        /// Parts by the manifest.
        listed: u32,
    },
    /// A listed object is not in the store.
    #[error("publish {slot}: staged object {key} is missing from the store")]
    Missing {
        /// Which slot.
        slot: SlotId,
        /// Which object.
        key: String,
    },
}
