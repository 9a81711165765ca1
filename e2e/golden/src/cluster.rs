//! All tasks of a job in one thread.
//!
//! Owns: queues, barriers and what a restore needs, as plain memory. Elements are delivered in a fixed
//! order until nothing moves, so every run of a story is the same. Start at: [`Cluster::start`].

mod hand_over;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use arrow::array::{RecordBatch, UInt64Array};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{
    CheckpointId, Generation, OperatorUid, SplitId, StageIdx, SubtaskIdx, TaskId,
};
use streamforge_core::job_graph::{JobGraph, OperatorKind, SourceSpec};
use streamforge_core::key_group::{Assignment, KeyGroup};
use streamforge_core::manifest::{CheckpointKind, Counters, PartRef, SplitProgress, SplitState};
use streamforge_core::messages::HandOver;
use streamforge_engine::barrier::Barrier;
use streamforge_engine::batch::{BadRows, Origin, StreamBatch};
use streamforge_engine::operator::RestoredState;
use streamforge_engine::source::SourceBatch;
use streamforge_engine::state::RestoredPart;
use streamforge_engine::task::{Channel, CoreSnapshot, Effect, Element, TaskCore, TaskPlan};
use streamforge_state::part::{block_bytes, decode_block, encode_part};

use crate::operators::build;
use hand_over::readers;

/// Rounds of delivery after which a job is stuck in a circle.
const ROUNDS_MAX: usize = 100_000;

/// Rows written to a sink.
pub type Written = Vec<(OperatorUid, StreamBatch)>;

/// A committed checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    parallelism: u32,
    assignment: Option<Assignment>,
    splits: BTreeMap<OperatorUid, Vec<SplitState>>,
    watermarks: BTreeMap<OperatorUid, Vec<(SubtaskIdx, Watermark)>>,
    /// Stored objects with the words a manifest has about them.
    parts: BTreeMap<OperatorUid, Vec<(PartRef, Vec<u8>)>>,
    /// Rows by fate since the job's first row.
    pub ledger: BTreeMap<OperatorUid, Counters>,
}

struct Task {
    core: TaskCore,
    /// By index of the channel.
    queues: Vec<VecDeque<Element>>,
    written: Written,
    staged: Written,
    snapshot: Option<Box<CoreSnapshot>>,
}

/// See the module.
pub struct Cluster<'g> {
    graph: &'g JobGraph,
    subtasks: BTreeSet<SubtaskIdx>,
    assignment: Assignment,
    /// Who reads each source.
    readers: BTreeMap<OperatorUid, SubtaskIdx>,
    tasks: BTreeMap<TaskId, Task>,
    before: Checkpoint,
    /// Rows by fate of attempts before this one, and of subtasks that left.
    counted: BTreeMap<OperatorUid, Counters>,
    checkpoints_n: u64,
}

impl<'g> Cluster<'g> {
    /// Loads and starts all tasks, from a checkpoint if there was one.
    pub fn start(graph: &'g JobGraph, parallelism: u32, before: Checkpoint) -> Result<Self> {
        let assignment = match &before.assignment {
            None => Assignment::even(graph.max_parallelism, parallelism),
            Some(table) if before.parallelism == parallelism => table.clone(),
            Some(table) => table.rescaled(parallelism),
        };
        let subtasks: BTreeSet<SubtaskIdx> = (0..parallelism).map(SubtaskIdx).collect();
        let mut cluster = Self {
            graph,
            readers: readers(graph, &subtasks),
            subtasks,
            assignment,
            tasks: BTreeMap::new(),
            counted: before.ledger.clone(),
            before,
            checkpoints_n: 0,
        };
        for stage in (0..).map(StageIdx).take(graph.stages.len()) {
            for subtask in (0..parallelism).map(SubtaskIdx) {
                let task = cluster.load(TaskId { stage, subtask }, None)?;
                cluster.tasks.insert(TaskId { stage, subtask }, task);
            }
        }
        for task in cluster.tasks.values_mut() {
            task.core.start()?;
        }
        cluster.run()?;
        cluster.end_readers_without_splits()?;
        cluster.run()?;
        Ok(cluster)
    }

    /// A task with what it restores, or one that joins at a hand-over's barrier.
    fn load(&self, id: TaskId, joins: Option<&Arc<HandOver>>) -> Result<Task> {
        let stage = self
            .graph
            .stages
            .get(id.stage.0 as usize)
            .context("a stage")?;
        let plan = TaskPlan {
            graph: self.graph,
            id,
            subtasks: self.subtasks.iter().copied().collect(),
            assignment: &self.assignment,
        };
        let operators = stage
            .operators
            .iter()
            .map(|operator| build(self.graph, id.stage, operator));
        let mut core = TaskCore::new(&plan, operators.collect::<Result<_>>()?);
        if let Some(hand_over) = joins {
            core.join_at_barrier(Arc::clone(hand_over));
        }
        let restored = stage.operators.iter().enumerate();
        for (idx, operator) in restored.filter(|_| joins.is_none()) {
            match &operator.kind {
                OperatorKind::Source(_) => {
                    core.add_splits(idx, self.splits(&operator.uid, id.subtask));
                }
                _ if self.before.watermarks.contains_key(&operator.uid) => {
                    let mine = self.assignment.groups_of(id.subtask);
                    core.restore(idx, self.restored(&operator.uid, &mine)?)?;
                }
                _ => {}
            }
        }
        let queues = core.channels().map(|_| VecDeque::new()).collect();
        Ok(Task {
            core,
            queues,
            written: vec![],
            staged: vec![],
            snapshot: None,
        })
    }

    /// The splits that a subtask reads: each source is one split, dealt by the source's number, so
    /// that at a higher parallelism sources are read in different subtasks.
    fn splits(&self, source: &OperatorUid, subtask: SubtaskIdx) -> Vec<SplitState> {
        if self.readers.get(source) != Some(&subtask) {
            return Vec::new();
        }
        let first = || {
            vec![SplitState {
                split: SplitId(source.0.clone()),
                progress: SplitProgress::At("0".to_owned()),
                watermark: Watermark::NONE,
                description: String::new(),
                weight: 1,
            }]
        };
        let stored = self
            .before
            .splits
            .get(source)
            .cloned()
            .unwrap_or_else(first);
        stored
            .into_iter()
            .filter(|split| split.progress != SplitProgress::End)
            .collect()
    }

    /// State by way of stored bytes, as a restore reads it.
    fn restored(&self, uid: &OperatorUid, mine: &[KeyGroup]) -> Result<RestoredState> {
        let old = self
            .before
            .assignment
            .as_ref()
            .context("a checkpoint has its assignment")?;
        let watermarks = self
            .before
            .watermarks
            .get(uid)
            .context("the operator was there")?;
        let keeper = |group: KeyGroup| {
            let owner = old.owner(group);
            let kept = watermarks
                .iter()
                .find(|(subtask, _)| Some(*subtask) == owner);
            kept.map_or(Watermark::NONE, |(_, watermark)| *watermark)
        };
        let groups: Vec<(KeyGroup, Watermark)> = mine.iter().map(|g| (*g, keeper(*g))).collect();
        let mut parts = Vec::new();
        for (stored, bytes) in self.before.parts.get(uid).into_iter().flatten() {
            let mut mine = stored.clone();
            mine.blocks
                .retain(|block| groups.iter().any(|(group, _)| *group == block.group));
            if mine.blocks.is_empty() {
                continue;
            }
            let block = |block: &streamforge_core::manifest::BlockRef| -> Result<_> {
                let bytes = block_bytes(bytes, block).context("a block within its object")?;
                Ok((block.group, decode_block(&stored.key, block, bytes)?))
            };
            let blocks = mine.blocks.iter().map(block).collect::<Result<_>>()?;
            parts.push(RestoredPart {
                kind: stored.kind.clone(),
                stored: mine,
                blocks,
            });
        }
        let watermark = groups
            .iter()
            .map(|(_, watermark)| *watermark)
            .max()
            .unwrap_or_default();
        Ok(RestoredState {
            groups,
            watermark,
            parts,
        })
    }

    fn end_readers_without_splits(&mut self) -> Result<()> {
        for (id, operator, source) in self.sources() {
            if self.splits(&source, id.subtask).is_empty()
                && let Some(task) = self.tasks.get_mut(&id)
            {
                task.core.on_source_ended(operator)?;
            }
        }
        Ok(())
    }

    fn sources(&self) -> Vec<(TaskId, usize, OperatorUid)> {
        let mut sources = Vec::new();
        for id in self.tasks.keys() {
            let stage = self.graph.stages.get(id.stage.0 as usize);
            for (idx, operator) in stage
                .into_iter()
                .flat_map(|s| s.operators.iter().enumerate())
            {
                if matches!(operator.kind, OperatorKind::Source(_)) {
                    sources.push((*id, idx, operator.uid.clone()));
                }
            }
        }
        sources
    }

    /// What the plan says about a source, and the columns that are read of it.
    pub fn source(
        &self,
        name: &str,
    ) -> Result<(&'g SourceSpec, &'g [streamforge_core::job_graph::Column])> {
        let found = self
            .graph
            .operators()
            .find_map(|(_, operator)| match &operator.kind {
                OperatorKind::Source(spec) if operator.node == name => {
                    Some((spec, operator.output.as_slice()))
                }
                _ => None,
            });
        found.with_context(|| format!("no source is named {name}"))
    }

    /// Reads record number `n` of a source: a row or, without one, a bad record.
    pub fn read(
        &mut self,
        source: &str,
        n: u64,
        row: Option<RecordBatch>,
        raw: &str,
    ) -> Result<()> {
        let owner = self
            .sources()
            .into_iter()
            .find(|(id, _, uid)| uid.0 == source && !self.splits(uid, id.subtask).is_empty());
        let (id, operator, uid) = owner.with_context(|| format!("nobody reads {source}"))?;
        let (_, columns) = self.source(source)?;
        let name: std::sync::Arc<str> = source.into();
        let position = UInt64Array::from(vec![n; usize::from(row.is_some())]);
        let mut bad = BadRows::default();
        if row.is_none() {
            bad.push(
                Some(raw.as_bytes()),
                "not a row".to_owned(),
                Some((&name, format!("{n}:{n}"))),
                None,
            );
        }
        let origin = Some(Origin {
            source: name,
            row: position.clone(),
            offset: position,
        });
        let split = SplitId(uid.0);
        let empty = || RecordBatch::new_empty(streamforge_engine::types::schema(columns));
        let batch = SourceBatch {
            split: split.clone(),
            bad_n: u64::from(row.is_none()),
            rows: row.unwrap_or_else(empty),
            origin,
            bad,
            unknown_fields: 0,
            progress: SplitProgress::At((n + 1).to_string()),
        };
        let task = self.tasks.get_mut(&id).context("a source's task")?;
        ensure!(
            task.core.wake(operator, &split)?,
            "a bounded split is never idle"
        );
        task.core.on_source_batch(operator, batch)?;
        self.run()
    }

    /// All sources are read to their ends.
    pub fn end(&mut self) -> Result<()> {
        for (id, operator, source) in self.sources() {
            for split in self.splits(&source, id.subtask) {
                let task = self.tasks.get_mut(&id).context("a source's task")?;
                task.core.on_split_ended(operator, &split.split)?;
                task.core.on_source_ended(operator)?;
            }
        }
        self.run()?;
        ensure!(
            self.tasks.values().all(|task| task.core.is_ended()),
            "a task does not end"
        );
        Ok(())
    }

    /// Delivers until nothing moves, then lets every task send what it holds, until that is still too.
    fn run(&mut self) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            if self.deliver_all()? {
                continue;
            }
            for task in self.tasks.values_mut() {
                task.core.on_quiet()?;
            }
            if !self.deliver_all()? {
                return Ok(());
            }
        }
        bail!("the job goes round in circles")
    }

    /// One element of each channel that takes one; whether anything moved.
    fn deliver_all(&mut self) -> Result<bool> {
        let mut moved = false;
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in &ids {
            moved |= self.perform(*id)?;
            let channels_n = self.tasks.get(id).map_or(0, |task| task.queues.len());
            for channel in 0..channels_n {
                let Some(task) = self.tasks.get_mut(id) else {
                    continue;
                };
                if !task.core.takes(channel) {
                    continue;
                }
                let element = task.queues.get_mut(channel).and_then(VecDeque::pop_front);
                if let Some(element) = element {
                    task.core.on_element(channel, element)?;
                    moved = true;
                    self.perform(*id)?;
                }
            }
        }
        Ok(moved)
    }

    fn perform(&mut self, id: TaskId) -> Result<bool> {
        let task = self.tasks.get_mut(&id).context("a task")?;
        let effects = task.core.take_effects();
        let moved = !effects.is_empty();
        for effect in effects {
            self.perform_one(id, effect)?;
        }
        Ok(moved)
    }

    fn perform_one(&mut self, id: TaskId, effect: Effect) -> Result<()> {
        match effect {
            Effect::Send { edge, to, element } => {
                let stage = self.graph.edges.get(edge).context("an edge")?.to_stage;
                let receiver = TaskId { stage, subtask: to };
                let receiver = self.tasks.get_mut(&receiver).context("a receiver")?;
                let channel = Channel {
                    edge,
                    sender: id.subtask,
                };
                let at = receiver.core.channels().position(|other| other == channel);
                let queue = at
                    .and_then(|at| receiver.queues.get_mut(at))
                    .context("a channel")?;
                queue.push_back(element);
            }
            Effect::Answer { channel, watermark } => {
                let stage = self
                    .graph
                    .edges
                    .get(channel.edge)
                    .context("an edge")?
                    .from_stage;
                let sender = TaskId {
                    stage,
                    subtask: channel.sender,
                };
                let sender = self.tasks.get_mut(&sender).context("a sender")?;
                sender.core.on_answer(channel.edge, id.subtask, watermark)?;
            }
            Effect::Write { operator, batch } => {
                let stage = self
                    .graph
                    .stages
                    .get(id.stage.0 as usize)
                    .context("a stage")?;
                let uid = stage.operators.get(operator).context("a sink")?.uid.clone();
                self.tasks
                    .get_mut(&id)
                    .context("a task")?
                    .written
                    .push((uid, batch));
            }
            Effect::Snapshot(snapshot) => {
                let task = self.tasks.get_mut(&id).context("a task")?;
                let written = std::mem::take(&mut task.written);
                task.staged.extend(written);
                task.snapshot = Some(snapshot);
            }
            Effect::Declined { id, reason } => bail!("checkpoint {id} declined: {reason}"),
            Effect::Release => self.tasks.get_mut(&id).context("a task")?.core.release()?,
            Effect::Ended
            | Effect::Reopen { .. }
            | Effect::CloseReader
            | Effect::Left
            | Effect::Received(_) => {}
        }
        Ok(())
    }

    /// Takes a checkpoint: what it is, and the rows it publishes.
    pub fn checkpoint(&mut self) -> Result<(Checkpoint, Written)> {
        self.checkpoint_of(CheckpointKind::Ordinary)
    }

    fn checkpoint_of(&mut self, kind: CheckpointKind) -> Result<(Checkpoint, Written)> {
        self.checkpoints_n += 1;
        let id = CheckpointId::from_stored(self.checkpoints_n);
        let begun_by = Generation::ZERO;
        let barrier = Barrier { id, kind, begun_by };
        for task in self
            .tasks
            .values_mut()
            .filter(|task| task.queues.is_empty())
        {
            task.core.on_checkpoint(barrier)?;
        }
        self.run()?;
        let mut published = Vec::new();
        let mut checkpoint = Checkpoint {
            parallelism: u32::try_from(self.subtasks.len()).unwrap_or(u32::MAX),
            assignment: Some(self.assignment.clone()),
            // Splits that ended in an earlier attempt are in no task's snapshot.
            splits: self.before.splits.clone(),
            ledger: self.counted.clone(),
            ..Checkpoint::default()
        };
        for (id, task) in &mut self.tasks {
            let snapshot = task
                .snapshot
                .take()
                .with_context(|| format!("task {id}: no snapshot"))?;
            published.append(&mut task.staged);
            for (uid, counters) in &snapshot.counters {
                checkpoint
                    .ledger
                    .entry(uid.clone())
                    .or_default()
                    .add(counters);
            }
            for (uid, splits) in snapshot.splits {
                if !splits.is_empty() {
                    checkpoint.splits.insert(uid, splits);
                }
            }
            for (uid, state) in snapshot.operators {
                let watermarks = checkpoint.watermarks.entry(uid.clone()).or_default();
                watermarks.push((id.subtask, state.watermark));
                let parts = checkpoint.parts.entry(uid).or_default();
                for (number, part) in state.parts.iter().enumerate() {
                    let rows = part.rows().map_err(anyhow::Error::msg)?;
                    let key = format!("parts/{id}-{number}");
                    let (bytes, stored) = encode_part(key, part.kind, &rows)?;
                    parts.push((stored, bytes.to_vec()));
                }
            }
        }
        Ok((checkpoint, published))
    }
}
