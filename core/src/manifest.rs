//! What a checkpoint is, and the head that names the current one.
//!
//! Owns: the contents of the two small objects that commit a job's progress, and their encoding.
//! Invariant C2: a manifest counts only once a head names it; offsets, state, staged output and
//! ledger move together by that one swap. Layout of the store, under the job's prefix:
//! `head`, `manifests/…`, `plans/…`, `parts/…`, `late/…`, `savepoints/…`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event_time::Watermark;
use crate::frame;
use crate::ids::{CheckpointId, Epoch, Generation, JobId, OperatorUid, SlotId, SplitId, TaskId};
use crate::job_graph::JobGraph;
use crate::key_group::{Assignment, KeyGroup};

/// Key of the head object under the job's prefix.
pub const HEAD_KEY: &str = "head";

/// One small object per job, replaced only by compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Whose history it is.
    pub job: JobId,
    /// Term of the coordinator that wrote it.
    pub generation: Generation,
    /// Current attempt of the job.
    pub epoch: Epoch,
    /// Where that coordinator is to be found.
    pub coordinator: String,
    /// Key of the deployed plan.
    pub plan: String,
    /// Hash of its stages and exchanges.
    pub plan_hash: u64,
    /// Who owns which key group.
    pub assignment: Assignment,
    /// Subtasks per stage.
    pub parallelism: u32,
    /// The manifest a restore begins from; none: no row was ever read.
    pub newest: Option<ManifestRef>,
    /// All manifests kept, oldest first, the newest included.
    pub retained: Vec<ManifestRef>,
    /// Checkpoint ids up to this one may be in use.
    pub ids_reserved_to: CheckpointId,
    /// Differs with every swap, so that a writer whose answer was lost knows its own.
    pub nonce: u64,
    /// The job is done: its last output is published.
    pub finished: bool,
    /// The table that a hand-over under way leads to (K3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposed: Option<Assignment>,
    /// Subtasks of this epoch have had numbers below this; 0: there was no hand-over in it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub numbers_to: u32,
    /// Set by a person while the job ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled: Option<Scaled>,
}

/// A parallelism that was asked for while the job ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaled {
    /// The coordinator had been started with this one. Who starts it with another wants that.
    pub started_with: u32,
    /// And this one was asked for.
    pub to: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_false(is: &bool) -> bool {
    !*is
}

/// Names a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestRef {
    /// Key under the job's prefix.
    pub key: String,
    /// Its checkpoint.
    pub id: CheckpointId,
}

/// The deployed plan, stored beside the checkpoints: a newer coordinator drives it without planning
/// anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What runs.
    pub graph: JobGraph,
    /// The document it was made from, as written.
    pub document: String,
}

impl Plan {
    /// As [`Self::hash_of`].
    pub fn hash(&self) -> u64 {
        Self::hash_of(&self.graph)
    }

    /// Hash of stages and exchanges only; a task manager that runs another one is refused.
    pub fn hash_of(graph: &JobGraph) -> u64 {
        let stages_and_edges = (&graph.stages, &graph.edges);
        let json = serde_json::to_vec(&stages_and_edges)
            .expect("plans have string keys and no failing serializers");
        xxhash_rust::xxh3::xxh3_64(&json)
    }
}

/// Why a checkpoint was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointKind {
    /// Manifest 0: resolved start, nothing read (C10).
    Initial,
    /// On the interval.
    Ordinary,
    /// Key groups change their owners at its barrier (K3).
    HandOver,
    /// A person asked for it: files close at its barrier, and it is copied whole (C9).
    Savepoint,
    /// The job stops after it, at this place; nothing fires (C11).
    Stop,
    /// All sources ended and the last windows fired.
    Final,
}

impl fmt::Display for CheckpointKind {
    /// The word that a manifest writes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Initial => "Initial",
            Self::Ordinary => "Ordinary",
            Self::HandOver => "HandOver",
            Self::Savepoint => "Savepoint",
            Self::Stop => "Stop",
            Self::Final => "Final",
        })
    }
}

/// Everything a job is at one barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Whose history it is.
    pub job: JobId,
    /// Term of its coordinator.
    pub generation: Generation,
    /// Attempt it was taken in.
    pub epoch: Epoch,
    /// Its id.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// Key of the plan that ran.
    pub plan: String,
    /// Subtasks per stage.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Who owned which key group: says whose watermark a group goes on from (T6).
    pub assignment: Assignment,
    /// Milliseconds since the epoch, by the coordinator's clock; for people only.
    pub time_ms: u64,
    /// Milliseconds from barrier to last acknowledgement.
    pub duration_ms: u64,
    /// Tasks whose acknowledgement it needed, and had (C1).
    pub tasks: Vec<TaskId>,
    /// Every split of every source, ended ones included.
    pub sources: BTreeMap<OperatorUid, Vec<SplitState>>,
    /// Keyed state and watermarks.
    pub operators: BTreeMap<OperatorUid, OperatorState>,
    /// Per slot every interval not known as published, oldest first (C3).
    pub staged: Vec<SlotState>,
    /// Cumulative counters since the job's first row.
    pub ledger: BTreeMap<OperatorUid, Counters>,
    /// Objects with the job's late rows; bounded jobs only.
    pub late_log: Vec<ObjectRef>,
    /// Rows were read by a plan without an end, of which late rows are in no log.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ran_endless: bool,
    /// The table from its barrier on, where that is not `assignment` (K3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_to: Option<Assignment>,
    /// What the subtasks counted that left in this epoch: nobody reports it any more.
    #[serde(default, skip_serializing_if = "Departed::is_empty")]
    pub departed: Departed,
}

/// What subtasks leave behind that leave while their epoch goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// Rows they counted.
    pub counters: BTreeMap<OperatorUid, Counters>,
    /// Their objects of the late log.
    pub late_log: Vec<ObjectRef>,
}

impl Departed {
    /// Whether nobody left.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.late_log.is_empty()
    }
}

/// How far one split is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitState {
    /// Which split.
    pub split: SplitId,
    /// How far.
    pub progress: SplitProgress,
    /// Its own watermark.
    pub watermark: Watermark,
    /// What the connector must know to open it again and to notice that it changed; its own words.
    pub description: String,
    /// Work left, in the connector's unit, for dealing splits out evenly.
    pub weight: u64,
}

/// Position within a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SplitProgress {
    /// Everything before this position is in the checkpoint; the connector's own words.
    At(String),
    /// Read to its end; never opened again (C11).
    End,
}

/// State of one operator over all its tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorState {
    /// Watermark of each task that kept state, with the key groups it owned (T6).
    pub watermarks: Vec<(TaskId, Watermark)>,
    /// Live parts of all tasks.
    pub parts: Vec<PartRef>,
}

/// An immutable piece of keyed state, cut into one block per key group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRef {
    /// Key under the job's prefix.
    pub key: String,
    /// Length of the object.
    pub bytes: u64,
    /// What its rows are, in the operator's words (`slices`, `emitted`, `extents`).
    pub kind: String,
    /// Its blocks, by ascending key group; groups without rows are not listed.
    pub blocks: Vec<BlockRef>,
}

/// The rows of one key group within a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRef {
    /// Which key group.
    pub group: KeyGroup,
    /// First byte within the object.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// XXH3-64 of these bytes.
    pub checksum: u64,
    /// Number of rows.
    pub rows: u64,
}

/// A stored object outside the part format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Key under the job's prefix.
    pub key: String,
    /// Length.
    pub bytes: u64,
    /// XXH3-64 of all of it.
    pub checksum: u64,
}

/// What one slot has staged and not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotState {
    /// Which slot.
    pub slot: SlotId,
    /// Unpublished intervals, oldest first.
    pub intervals: Vec<StagedInterval>,
}

/// What a sink wrote between two barriers; durable, not visible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedInterval {
    /// The barrier that closed it, kept even if a later checkpoint carries it.
    pub id: CheckpointId,
    /// Pieces, in publishing order.
    pub objects: Vec<StagedObject>,
}

/// One piece of a staged interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedObject {
    /// Where it is now, in the sink's words.
    pub staged: String,
    /// Where it will be seen.
    pub published: String,
    /// Length.
    pub bytes: u64,
    /// Rows in it.
    pub rows: u64,
    /// What the sink must know to finish it after a crash; its own words.
    pub detail: String,
}

/// Rows by fate (T3): `rows_in = passed + filtered + late + bad`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Input records.
    pub rows_in: u64,
    /// Contributed to the main output.
    pub passed: u64,
    /// Rejected by a predicate, or a list without elements.
    pub filtered: u64,
    /// Had no open window.
    pub late: u64,
    /// To `.bad`.
    pub bad: u64,
    /// Rows of the main output.
    pub out: u64,
    /// (record, window) pairs missed.
    pub late_windows: u64,
    /// Result rows that went to `.bad` (a sum out of range).
    pub bad_results: u64,
    /// Times a split came back from being idle.
    pub idle_returns: u64,
    /// Fields of records that the schema does not know.
    pub unknown_fields: u64,
}

impl Counters {
    /// Adds another task's, or an earlier attempt's, counts. No job counts so far that it saturates;
    /// a stored manifest can say anything.
    pub fn add(&mut self, other: &Counters) {
        self.rows_in = self.rows_in.saturating_add(other.rows_in);
        self.passed = self.passed.saturating_add(other.passed);
        self.filtered = self.filtered.saturating_add(other.filtered);
        self.late = self.late.saturating_add(other.late);
        self.bad = self.bad.saturating_add(other.bad);
        self.out = self.out.saturating_add(other.out);
        self.late_windows = self.late_windows.saturating_add(other.late_windows);
        self.bad_results = self.bad_results.saturating_add(other.bad_results);
        self.idle_returns = self.idle_returns.saturating_add(other.idle_returns);
        self.unknown_fields = self.unknown_fields.saturating_add(other.unknown_fields);
    }

    /// T3: every record ended in exactly one place.
    pub fn balances(&self) -> bool {
        let fates = [self.passed, self.filtered, self.late, self.bad];
        u128::from(self.rows_in) == fates.into_iter().map(u128::from).sum()
    }
}

/// Why a stored head, manifest or plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The envelope is broken.
    #[error(transparent)]
    Frame(#[from] frame::Error),
    /// The envelope is whole, its contents are not what this program knows.
    #[error("decode {name}: contents not understood")]
    Contents {
        /// Kind of object.
        name: &'static str,
        /// What serde said.
        source: serde_json::Error,
    },
}

/// An object of which older programs read what has nothing of a newer version in it.
pub trait Versioned {
    /// The oldest version of the format that has all that is in it.
    fn needs_version(&self) -> u16;
}

impl Versioned for Head {
    fn needs_version(&self) -> u16 {
        let hands_over = self.proposed.is_some() || self.numbers_to > 0 || self.scaled.is_some();
        1 + u16::from(hands_over)
    }
}

impl Versioned for Manifest {
    fn needs_version(&self) -> u16 {
        let hands_over = self.kind == CheckpointKind::HandOver || !self.departed.is_empty();
        match self.kind {
            CheckpointKind::Savepoint => 3,
            _ => 1 + u16::from(hands_over),
        }
    }
}

impl Versioned for Plan {
    fn needs_version(&self) -> u16 {
        1
    }
}

/// Bytes of a stored object of this kind.
pub fn encode<T: Serialize + Versioned>(kind: frame::Kind, value: &T) -> Vec<u8> {
    let json = serde_json::to_vec(value)
        .expect("heads, manifests and plans have string keys and no failing serializers");
    let version = value.needs_version();
    frame::encode(frame::Kind { version, ..kind }, &json)
}

/// The object that these bytes are.
pub fn decode<T: for<'de> Deserialize<'de>>(
    kind: frame::Kind,
    bytes: &[u8],
) -> Result<T, DecodeError> {
    let (_, payload) = frame::decode(kind, bytes)?;
    serde_json::from_slice(payload).map_err(|source| DecodeError::Contents {
        name: kind.name,
        source,
    })
}

#[cfg(test)]
mod tests;
