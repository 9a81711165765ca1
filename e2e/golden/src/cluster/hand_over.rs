//! Subtasks come and go while a story is played (K3).
//!
//! Owns: what coordinator and task managers do about a hand-over, without either: its plan, its
//! barrier, and what each task gains.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use streamforge_core::ids::{
    CheckpointId, Generation, OperatorUid, SplitId, StageIdx, SubtaskIdx, TaskId,
};
use streamforge_core::job_graph::{JobGraph, OperatorKind};
use streamforge_core::key_group::{Assignment, KeyGroup};
use streamforge_core::manifest::CheckpointKind;
use streamforge_core::messages::{Deployment, HandOver, Place, TaskManagerId};

use super::{Cluster, Written};

impl Cluster<'_> {
    /// The same at which only so many subtasks go on, the newest of those there are, or others join
    /// (K3). Returns the rows it publishes.
    pub fn hand_over(&mut self, subtasks_n: usize) -> Result<Written> {
        let hand_over = Arc::new(self.planned(subtasks_n));
        for task in self.tasks.values_mut() {
            let first = task.queues.len();
            task.core.prepare(Arc::clone(&hand_over), first, false);
            task.queues
                .resize_with(task.core.channels().count(), VecDeque::new);
        }
        let assignment = hand_over.deployment.assignment.clone();
        let old = std::mem::replace(&mut self.assignment, assignment);
        self.subtasks = hand_over.deployment.subtasks();
        for stage in (0..).map(StageIdx).take(self.graph.stages.len()) {
            for subtask in hand_over.joining.iter().copied() {
                let id = TaskId { stage, subtask };
                let mut task = self.load(id, Some(&hand_over))?;
                task.core.start()?;
                self.tasks.insert(id, task);
            }
        }
        let (mut taken, published) = self.checkpoint_of(CheckpointKind::HandOver)?;
        taken.assignment = Some(old.clone());
        self.before = taken;
        for (source, deal) in &hand_over.splits {
            self.readers
                .extend(deal.values().map(|reader| (source.clone(), *reader)));
        }
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in ids {
            if hand_over.leaving.contains(&id.subtask) {
                let left = self.tasks.remove(&id).context("it was there")?;
                for (uid, counters) in left.core.counters() {
                    self.counted.entry(uid).or_default().add(&counters);
                }
            } else {
                self.receive(id, &old)?;
            }
        }
        self.run()?;
        Ok(published)
    }

    fn planned(&self, subtasks_n: usize) -> HandOver {
        let mut after: BTreeSet<SubtaskIdx> = self
            .subtasks
            .iter()
            .rev()
            .take(subtasks_n)
            .copied()
            .collect();
        let mut next = self.subtasks.last().map_or(0, |last| last.0 + 1);
        while after.len() < subtasks_n {
            after.insert(SubtaskIdx(next));
            next += 1;
        }
        let place = |idx: &SubtaskIdx| {
            let place = Place {
                task_manager: TaskManagerId::local(),
                exchange: String::new(),
            };
            (*idx, place)
        };
        let deal = readers(self.graph, &after).into_iter();
        let deal = deal.map(|(uid, reader)| {
            let split = SplitId(uid.0.clone());
            (uid, BTreeMap::from([(split, reader)]))
        });
        HandOver {
            splits: deal.collect(),
            joining: after.difference(&self.subtasks).copied().collect(),
            leaving: self.subtasks.difference(&after).copied().collect(),
            deployment: Deployment {
                graph: self.graph.clone(),
                parallelism: u32::try_from(subtasks_n).unwrap_or(u32::MAX),
                assignment: self.assignment.dealt_to(&after),
                restore: None,
                first_id: CheckpointId::ZERO,
                placement: after.iter().map(place).collect(),
                born: Generation::ZERO,
                slots: BTreeMap::new(),
            },
        }
    }

    /// What a task gained, by way of stored bytes.
    fn receive(&mut self, id: TaskId, old: &Assignment) -> Result<()> {
        let stage = self.graph.stages.get(id.stage.0 as usize);
        let operators = stage.context("a stage")?.operators.iter().enumerate();
        let gained: Vec<KeyGroup> = self
            .assignment
            .gained(old, id.subtask)
            .into_iter()
            .collect();
        let mut states = Vec::new();
        let mut splits = Vec::new();
        for (idx, operator) in operators {
            if self.before.watermarks.contains_key(&operator.uid) {
                states.push((idx, self.restored(&operator.uid, &gained)?));
            }
            if matches!(operator.kind, OperatorKind::Source(_)) {
                splits = self.splits(&operator.uid, id.subtask);
            }
        }
        let core = &mut self.tasks.get_mut(&id).context("a task")?.core;
        if core.awaits_splits().is_some() {
            core.receive_splits(splits)?;
        }
        if core.awaits_groups() {
            core.receive(states)?;
        }
        Ok(())
    }
}

/// Each source is one split; they are dealt out by their numbers.
pub(super) fn readers(
    graph: &JobGraph,
    subtasks: &BTreeSet<SubtaskIdx>,
) -> BTreeMap<OperatorUid, SubtaskIdx> {
    let sources = graph.operators().map(|(_, operator)| operator);
    let sources = sources.filter(|it| matches!(it.kind, OperatorKind::Source(_)));
    let readers = subtasks.iter().copied().cycle();
    sources.map(|it| it.uid.clone()).zip(readers).collect()
}
