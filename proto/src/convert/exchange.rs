//! The exchange's messages in the words of the domain.
//!
//! Owns: the opening of a channel, marks and watermarks. Rows stay Arrow IPC bytes; the task manager
//! encodes and decodes them.

use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, SubtaskIdx};
use streamforge_core::manifest::CheckpointKind;
use streamforge_core::messages::Stamp;

use super::Error;
use crate::v1;

/// Version of the exchange's protocol. Both ends run the same: a task manager of another version is
/// refused when it opens a channel.
pub const PROTOCOL: u32 = 1;

/// What a channel is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Version of the protocol.
    pub protocol: u32,
    /// In which attempt.
    pub stamp: Stamp,
    /// Index into the job graph's edges.
    pub edge: u32,
    /// Who sends.
    pub sender: SubtaskIdx,
    /// Who receives.
    pub receiver: SubtaskIdx,
    /// Name of the task manager that sends.
    pub task_manager: String,
}

impl From<Opening> for v1::Opening {
    fn from(opening: Opening) -> Self {
        Self {
            protocol: opening.protocol,
            job: opening.stamp.job.0,
            generation: opening.stamp.generation.get(),
            epoch: opening.stamp.epoch.get(),
            edge: opening.edge,
            sender: opening.sender.0,
            receiver: opening.receiver.0,
            task_manager: opening.task_manager,
        }
    }
}

impl From<v1::Opening> for Opening {
    fn from(opening: v1::Opening) -> Self {
        Self {
            protocol: opening.protocol,
            stamp: Stamp {
                job: JobId(opening.job),
                generation: Generation::from_stored(opening.generation),
                epoch: Epoch::from_stored(opening.epoch),
            },
            edge: opening.edge,
            sender: SubtaskIdx(opening.sender),
            receiver: SubtaskIdx(opening.receiver),
            task_manager: opening.task_manager,
        }
    }
}

/// A barrier as a message; in a command the stamp says who began it.
pub fn encode_barrier(id: CheckpointId, kind: CheckpointKind) -> v1::BarrierMark {
    let purpose = match kind {
        CheckpointKind::Initial => v1::CheckpointPurpose::Initial,
        CheckpointKind::Ordinary => v1::CheckpointPurpose::Ordinary,
        CheckpointKind::HandOver => v1::CheckpointPurpose::HandOver,
        CheckpointKind::Savepoint => v1::CheckpointPurpose::Savepoint,
        CheckpointKind::Stop => v1::CheckpointPurpose::Stop,
        CheckpointKind::Final => v1::CheckpointPurpose::Final,
    };
    v1::BarrierMark {
        checkpoint: id.get(),
        purpose: purpose.into(),
        generation: 0,
    }
}

/// A barrier from a message.
///
/// # Errors
/// A purpose that this version does not know.
pub fn decode_barrier(mark: &v1::BarrierMark) -> Result<(CheckpointId, CheckpointKind), Error> {
    let kind = match v1::CheckpointPurpose::try_from(mark.purpose) {
        Ok(v1::CheckpointPurpose::Initial) => CheckpointKind::Initial,
        Ok(v1::CheckpointPurpose::Ordinary) => CheckpointKind::Ordinary,
        Ok(v1::CheckpointPurpose::HandOver) => CheckpointKind::HandOver,
        Ok(v1::CheckpointPurpose::Savepoint) => CheckpointKind::Savepoint,
        Ok(v1::CheckpointPurpose::Stop) => CheckpointKind::Stop,
        Ok(v1::CheckpointPurpose::Final) => CheckpointKind::Final,
        Ok(v1::CheckpointPurpose::Unspecified) | Err(_) => {
            return Err(Error::Unknown {
                message: "BarrierMark",
                field: "purpose",
                value: i64::from(mark.purpose),
            });
        }
    };
    Ok((CheckpointId::from_stored(mark.checkpoint), kind))
}

/// Bytes of rows, as credit counts them: what the receiver keeps until its task took them.
pub fn rows_bytes(rows: &v1::Rows) -> u64 {
    let dictionaries = rows.dictionaries.iter();
    let beside: usize = dictionaries.map(|d| d.header.len() + d.body.len()).sum();
    u64::try_from(rows.header.len() + rows.body.len() + beside).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_barrier_arrives_as_it_was_sent() {
        for kind in [
            CheckpointKind::Initial,
            CheckpointKind::Ordinary,
            CheckpointKind::HandOver,
            CheckpointKind::Savepoint,
            CheckpointKind::Stop,
            CheckpointKind::Final,
        ] {
            let mark = encode_barrier(CheckpointId::from_stored(7), kind);

            assert_eq!(
                decode_barrier(&mark),
                Ok((CheckpointId::from_stored(7), kind))
            );
        }
    }

    #[test]
    fn barrier_of_an_unknown_purpose_is_refused() {
        for purpose in [0, 99] {
            let mark = v1::BarrierMark {
                checkpoint: 7,
                purpose,
                generation: 0,
            };

            assert!(matches!(decode_barrier(&mark), Err(Error::Unknown { .. })));
        }
    }

    #[test]
    fn opening_arrives_as_it_was_sent() {
        let opening = Opening {
            protocol: PROTOCOL,
            stamp: Stamp {
                job: JobId("j".to_owned()),
                generation: Generation::from_stored(3),
                epoch: Epoch::from_stored(5),
            },
            edge: 2,
            sender: SubtaskIdx(1),
            receiver: SubtaskIdx(4),
            task_manager: "tm-1".to_owned(),
        };

        assert_eq!(Opening::from(v1::Opening::from(opening.clone())), opening);
    }
}
