//! Barrier alignment of one task.
//!
//! Owns: deciding when a task with several inputs may snapshot. Does no I/O, reads no clock.
//! Start at: [`Aligner::on_barrier`].
//!
//! Invariant A1: once an input delivered the barrier of a checkpoint, none of its records reach the
//! operators until all inputs have; otherwise the snapshot would count them twice.
//! Invariant A2: an alignment that is given up releases its inputs, drops nothing, is reported, and
//! its later barriers are ignored. A hand-over's barrier is the exception: whoever has passed it sends
//! by another table, so an attempt of it that is given up ends the epoch, and until that comes the
//! inputs stay where they are (K3).

use streamforge_core::ids::{CheckpointId, Generation};
use streamforge_core::manifest::CheckpointKind;

/// The mark between the records before and after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// Which checkpoint.
    pub id: CheckpointId,
    /// Why it is taken.
    pub kind: CheckpointKind,
    /// Which coordinator began it.
    pub begun_by: Generation,
}

/// What to do after a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Take nothing more from this input until the alignment ends.
    Block,
    /// All inputs delivered it: snapshot, forward it, unblock all inputs.
    Snapshot(Barrier),
    /// The attempt was given up or completed before; drop the barrier.
    Ignore,
}

/// Alignment state of one task.
#[derive(Debug)]
pub struct Aligner {
    current: Option<Barrier>,
    delivered: Vec<bool>,
    /// Inputs that ended with their senders: nothing comes, and nothing is waited for.
    retired: Vec<bool>,
    /// Barriers up to this id are void.
    done_to: CheckpointId,
    /// Coordinators up to this one are gone: some inputs may never get the barriers they began. Those of the next one
    /// may come before its word does, as they take another way.
    gone: Option<Generation>,
}

impl Aligner {
    /// For a task with `inputs_n` input channels.
    pub fn new(inputs_n: usize) -> Self {
        Self {
            current: None,
            delivered: vec![false; inputs_n],
            retired: vec![false; inputs_n],
            done_to: CheckpointId::ZERO,
            gone: None,
        }
    }

    /// One more input, whose first element is a barrier that has not come yet (K3).
    pub fn add_input(&mut self) {
        self.delivered.push(false);
        self.retired.push(false);
    }

    /// This input's sender is no more, or never was.
    pub fn retire(&mut self, input: usize) {
        if let Some(retired) = self.retired.get_mut(input) {
            *retired = true;
        }
    }

    /// Whether this input's sender is no more.
    pub fn is_retired(&self, input: usize) -> bool {
        self.retired.get(input).copied().unwrap_or(true)
    }

    /// Whether records of this input must wait (A1).
    pub fn is_blocked(&self, input: usize) -> bool {
        self.current.is_some() && self.delivered.get(input).copied().unwrap_or(false)
    }

    /// Whether some input waits for others.
    pub fn aligning(&self) -> Option<CheckpointId> {
        self.current.map(|barrier| barrier.id)
    }

    /// Whether this attempt is over, so that its barriers count for nothing.
    pub fn is_void(&self, id: CheckpointId) -> bool {
        id <= self.done_to
    }

    /// Whether nobody is left who would complete it. A hand-over's has been passed by others for good.
    fn is_orphan(&self, barrier: Barrier) -> bool {
        let is_gone = self.gone.is_some_and(|gone| barrier.begun_by <= gone);
        is_gone && barrier.kind != CheckpointKind::HandOver
    }

    /// The coordinator is gone; returns what it had under way here (A2, F1).
    pub fn on_orphaned(&mut self, gone: Generation) -> Option<CheckpointId> {
        let current = self.current.filter(|current| current.begun_by <= gone);
        let given_up = current.and_then(|current| self.on_abort(current.id));
        self.gone = Some(gone);
        given_up
    }

    /// An input delivered a barrier. The second value is an older attempt given up for it (A2).
    pub fn on_barrier(&mut self, input: usize, barrier: Barrier) -> (Step, Option<CheckpointId>) {
        if barrier.id <= self.done_to || self.is_orphan(barrier) {
            return (Step::Ignore, None);
        }
        let mut given_up = None;
        match self.current {
            Some(current) if current.id == barrier.id => {}
            Some(current) if current.id > barrier.id => return (Step::Ignore, None),
            Some(current) => {
                given_up = Some(current.id);
                self.release(current.id);
                self.current = Some(barrier);
            }
            None => self.current = Some(barrier),
        }
        if let Some(delivered) = self.delivered.get_mut(input) {
            *delivered = true;
        }
        let mut inputs = self.delivered.iter().zip(&self.retired);
        if inputs.all(|(delivered, retired)| *delivered || *retired) {
            self.release(barrier.id);
            return (Step::Snapshot(barrier), given_up);
        }
        (Step::Block, given_up)
    }

    /// The coordinator gave the attempt up; returns it if it was under way here (A2).
    pub fn on_abort(&mut self, id: CheckpointId) -> Option<CheckpointId> {
        self.gone = None; // whoever says so is there, and says what is void
        let current = self.current.filter(|current| current.id <= id);
        if current.is_some_and(|current| current.kind == CheckpointKind::HandOver) {
            return current.map(|barrier| barrier.id);
        }
        let current = current.map(|barrier| barrier.id);
        if current.is_some() {
            self.release(id);
        } else if id > self.done_to && self.current.is_none() {
            self.done_to = id;
        }
        current
    }

    fn release(&mut self, done_to: CheckpointId) {
        self.current = None;
        self.delivered
            .iter_mut()
            .for_each(|delivered| *delivered = false);
        self.done_to = self.done_to.max(done_to);
    }
}

#[cfg(test)]
mod tests;
