//! Keys of stored objects.
//!
//! Owns: how a key says who wrote the object and under which checkpoint, and reading that back.
//! Invariant C4: a key carries generation, epoch, checkpoint (and task, where a task writes it), so
//! no two writers ever mean the same key. Invariant C6: retention compares the checkpoint id in the
//! key; a key it cannot read is never deleted.

use crate::ids::{CheckpointId, Epoch, Generation, TaskId};

/// Folder of manifests under the job's prefix.
pub const MANIFESTS: &str = "manifests";
/// Folder of deployed plans.
pub const PLANS: &str = "plans";
/// Folder of parts of keyed state.
pub const PARTS: &str = "parts";
/// Folder of output that is staged in the store until it is published.
pub const STAGED: &str = "staged";
/// Folder of the late log.
pub const LATE: &str = "late";

/// Who writes an object, and under which checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Term of the coordinator.
    pub generation: Generation,
    /// Attempt of the job.
    pub epoch: Epoch,
    /// The checkpoint it belongs to: the barrier that closed it or, when it was written before its
    /// barrier, the last barrier seen (after a restore: the deployment's `first_id`).
    pub checkpoint: CheckpointId,
}

impl Writer {
    /// Key of an object of the coordinator.
    pub fn key(self, folder: &str) -> String {
        format!(
            "{folder}/g{}-e{}-c{}",
            self.generation, self.epoch, self.checkpoint
        )
    }

    /// Key of object number `n` of a task; the task counts up over all its objects of an attempt.
    pub fn task_key(self, folder: &str, task: TaskId, n: u64) -> String {
        format!("{}-t{task}-{n}", self.key(folder))
    }
}

/// The writer that a key names; `None` for a key of another form.
pub fn writer_of(key: &str) -> Option<Writer> {
    let (_, name) = key.rsplit_once('/')?;
    let mut fields = name.split('-');
    let generation = number(fields.next()?, 'g')?;
    let epoch = number(fields.next()?, 'e')?;
    let checkpoint = number(fields.next()?, 'c')?;
    Some(Writer {
        generation: Generation::from_stored(generation),
        epoch: Epoch::from_stored(epoch),
        checkpoint: CheckpointId::from_stored(checkpoint),
    })
}

fn number(field: &str, mark: char) -> Option<u64> {
    field.strip_prefix(mark)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{StageIdx, SubtaskIdx};

    fn writer() -> Writer {
        Writer {
            generation: Generation::from_stored(3),
            epoch: Epoch::from_stored(7),
            checkpoint: CheckpointId::from_stored(42),
        }
    }

    #[test]
    fn keys_carry_generation_epoch_checkpoint_and_task_c4() {
        let task = TaskId {
            stage: StageIdx(1),
            subtask: SubtaskIdx(2),
        };

        assert_eq!(writer().key(MANIFESTS), "manifests/g3-e7-c42");
        assert_eq!(writer().task_key(PARTS, task, 5), "parts/g3-e7-c42-t1.2-5");
    }

    #[test]
    fn writer_is_read_back_from_every_key_of_ours_and_from_no_other_c6() {
        let task = TaskId {
            stage: StageIdx(1),
            subtask: SubtaskIdx(2),
        };

        assert_eq!(writer_of(&writer().key(PLANS)), Some(writer()));
        assert_eq!(writer_of(&writer().task_key(LATE, task, 0)), Some(writer()));
        for foreign in [
            "head",
            "parts/readme",
            "parts/g1-e2",
            "parts/g1-e2-cx",
            "g1-e2-c3",
        ] {
            assert_eq!(writer_of(foreign), None, "{foreign}");
        }
    }
}
