//! Numbers and names that identify a job, its attempts and its parts.
//!
//! Owns: the newtypes and what may be done with them. A generation is a coordinator's term, an
//! epoch an attempt of the job, a checkpoint id an attempt of a checkpoint. Invariants C4 and C5:
//! all three only grow, and a lower generation is refused whatever its epoch.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The value before the first one; never given to anything that runs.
            pub const ZERO: Self = Self(0);

            /// The number read back from storage or the wire.
            pub const fn from_stored(n: u64) -> Self {
                Self(n)
            }

            /// The number itself, for names and display.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The one after this.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter! {
    /// Term of a coordinator: raised by one head swap before a new coordinator sends anything.
    Generation
}
counter! {
    /// Attempt of a job: raised by one head swap before anything of the attempt runs.
    Epoch
}
counter! {
    /// Number of a checkpoint attempt. Grows by one per attempt; never reused, not even after failover.
    CheckpointId
}

/// Identity of a job's history. Made at the first start and kept in the head; a job deleted and made
/// anew, or restored from another job's savepoint, has another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One stage of a job graph.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StageIdx(pub u32);

/// One parallel instance within a stage; `0..parallelism`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SubtaskIdx(pub u32);

/// One task: a stage's operators in one subtask.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct TaskId {
    /// Which stage.
    pub stage: StageIdx,
    /// Which of its parallel instances.
    pub subtask: SubtaskIdx,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.stage.0, self.subtask.0)
    }
}

/// Name under which an operator keeps state and counts rows: the node's `uid`, and for operators that
/// a node is split into, a suffix (`per_user`, `per_user/partial`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperatorUid(pub String);

impl fmt::Display for OperatorUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where output of a sink is published in order: one per subtask that ever wrote (design §7, slots).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotId {
    /// The sink's uid.
    pub sink: OperatorUid,
    /// Number of the slot; a fact of the manifest, not of the parallelism.
    pub slot: u32,
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.sink, self.slot)
    }
}

/// A source's unit of reading that has an order and a position of its own: a file, a partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SplitId(pub String);

impl fmt::Display for SplitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
