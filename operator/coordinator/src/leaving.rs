//! Task managers that are to end, and when they may.
//!
//! Owns: letting go of a task manager that asked for it (a pod that is being deleted). It may go when
//! it runs nothing, no hand-over is open, and what it staged is published; a hand-over takes its
//! subtasks away before. When all are to end there is nobody to hand over to: then a checkpoint is
//! taken, so that little is done twice, and all may go.

use streamforge_core::ids::CheckpointId;
use streamforge_core::messages::TaskManagerId;

use crate::coordinator::Coordinator;
use crate::decision::Decision;
use crate::status::Phase;

impl Coordinator {
    pub(crate) fn on_leaving(&mut self, id: &TaskManagerId, ends: bool) {
        let newest = self.newest_committed();
        if self.members.leave(id, newest, ends) {
            self.hurry();
        }
    }

    /// Lets go whoever is to end and is not needed any more.
    pub(crate) fn release_leaving(&mut self) {
        let nobody_stays = self.members.all_leave();
        for (id, asked_at) in self.members.leaving() {
            if self.is_free(&id) || (nobody_stays && self.may_all_go(asked_at)) {
                self.members.release(&id);
                self.out.push(Decision::Release(id));
            }
        }
    }

    /// Whether nothing depends on it any more.
    fn is_free(&self, id: &TaskManagerId) -> bool {
        let Some(attempt) = &self.attempt else {
            return true;
        };
        let unpublished = self.publisher.unpublished_slots();
        let mut slots = attempt.deployment.slots.iter();
        attempt.hand_over.is_none()
            && attempt.places.values().all(|it| it != id)
            && !slots.any(|(slot, owner)| owner == id && unpublished.contains(slot))
    }

    /// Whether another checkpoint was completed since the first of them asked, or none is to come.
    fn may_all_go(&self, asked_at: CheckpointId) -> bool {
        self.phase != Phase::Running || self.newest_committed() > asked_at
    }

    fn newest_committed(&self) -> CheckpointId {
        let committed = self.committed.as_ref();
        committed.map_or(CheckpointId::ZERO, |manifest| manifest.id)
    }
}
