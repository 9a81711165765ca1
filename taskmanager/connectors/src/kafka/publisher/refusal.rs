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
         published for {kept}. Look whether the topic has these rows; to publish them, perhaps a second \
         time, run it with `--accept-lost-marker {sink}` (in a cluster: annotate the StreamJob with \
         `streamforge.io/accept-lost-marker={sink}`)"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vanished_marker_names_its_cure_for_a_laptop_and_for_a_cluster_x3() {
        let sink = OperatorUid("out".to_owned());
        let refusal = Refusal::Vanished {
            slot: SlotId {
                sink: sink.clone(),
                slot: 0,
            },
            group: "streamforge-job-out-0".to_owned(),
            listed_n: 2,
            oldest: CheckpointId::from_stored(7),
            kept: "7 days".to_owned(),
            sink,
        };

        let text = refusal.to_string();

        for cure in [
            "`--accept-lost-marker out`",
            "`streamforge.io/accept-lost-marker=out`",
        ] {
            assert!(text.contains(cure), "{text}");
        }
    }
}
