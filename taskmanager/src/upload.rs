//! Making a task's part of a checkpoint durable, off its thread.
//!
//! Owns: converting sealed tables, writing parts and late log, and the acknowledgement. One uploader
//! per task works its checkpoints off in order, so what an acknowledgement lists is durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use streamforge_core::causes::with_causes;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId, TaskId};
use streamforge_core::manifest::{ObjectRef, PartRef};
use streamforge_core::messages::{Event, Stamp, TaskSnapshot};
use streamforge_core::object_key::{LATE, PARTS, Writer};
use streamforge_engine::error::Recovery;
use streamforge_engine::operator::OperatorSnapshot;
use streamforge_engine::sink::Staging;
use streamforge_engine::staged::Staged;
use streamforge_engine::state::StatePart;
use streamforge_engine::task::CoreSnapshot;
use streamforge_state::late_log::encode_late_log;
use streamforge_state::local::LocalCopies;
use streamforge_state::part::encode_part;
use streamforge_store::{Condition, ObjectStore, Put};
use tokio::sync::mpsc;

/// What a task hands over at a barrier.
pub struct Upload {
    /// From its core.
    pub snapshot: CoreSnapshot,
    /// What its sinks closed at this barrier, not durable yet.
    pub staged: Vec<(SlotId, Staging)>,
    /// How long the task stood still.
    pub freeze_us: u64,
}

/// Why an acknowledgement cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A sealed table could not be turned into rows.
    #[error("convert state of `{operator}`: {reason}")]
    Convert {
        /// Operator.
        operator: String,
        /// Why.
        reason: String,
    },
    /// Encoding failed.
    #[error(transparent)]
    State(#[from] streamforge_state::Error),
    /// The store failed.
    #[error("write `{key}`")]
    Store {
        /// Object.
        key: String,
        /// What the store said.
        source: streamforge_store::Error,
    },
    /// An object of this name is there with other bytes: another writer uses our names.
    #[error("write `{key}`: it exists with other contents")]
    Foreign {
        /// Object.
        key: String,
    },
}

/// One task's uploader.
pub struct Uploader {
    /// Which task.
    pub task: TaskId,
    /// Attempt, for object names (C4).
    pub stamp: Stamp,
    /// Where to.
    pub store: Arc<dyn ObjectStore>,
    /// Where copies of parts are kept for a recovery.
    pub local: Option<Arc<LocalCopies>>,
    /// Staged and not published, of all tasks.
    pub staged: Arc<Staged>,
    /// To the coordinator.
    pub events: mpsc::Sender<Event>,
    /// Objects written in this attempt.
    pub objects_n: u64,
    /// Late log objects of this attempt.
    pub late_log: Vec<ObjectRef>,
    /// Late rows that are not in an object yet: an attempt that could not be acknowledged leaves
    /// them to the next one, or a late record would end nowhere (T3).
    pub late_rows: VecDeque<(OperatorUid, RecordBatch)>,
}

/// One batch per operator: every object of the late log is listed by every later manifest.
fn merged(
    rows: &VecDeque<(OperatorUid, RecordBatch)>,
) -> Result<VecDeque<(OperatorUid, RecordBatch)>, Error> {
    let mut by_operator: BTreeMap<&OperatorUid, Vec<&RecordBatch>> = BTreeMap::new();
    for (operator, batch) in rows {
        by_operator.entry(operator).or_default().push(batch);
    }
    let concat = |(operator, batches): (&OperatorUid, Vec<&RecordBatch>)| {
        let schema = batches.first()?.schema();
        Some(match concat_batches(&schema, batches) {
            Ok(batch) => Ok((operator.clone(), batch)),
            Err(error) => Err(Error::Convert {
                operator: operator.0.clone(),
                reason: error.to_string(),
            }),
        })
    };
    by_operator.into_iter().filter_map(concat).collect()
}

impl Uploader {
    /// Works until the task is gone.
    pub async fn run(mut self, mut uploads: mpsc::Receiver<Upload>) {
        while let Some(upload) = uploads.recv().await {
            let Upload {
                snapshot,
                staged,
                freeze_us,
            } = upload;
            let id = snapshot.barrier.id;
            let task = self.task;
            // Staged output is remembered first: even if this checkpoint fails, the next one
            // carries it under the id of the barrier that closed it (C3).
            if let Err(error) = self.finish_staging(staged).await {
                let _gone = self.events.send(failed(Some(task), &error)).await;
                return;
            }
            let parts = snapshot.operators.iter().flat_map(|(_, it)| &it.parts);
            let parts: Vec<Arc<StatePart>> = parts.map(Arc::clone).collect();
            let event = match self.acknowledge(snapshot, freeze_us).await {
                Ok(snapshot) => Event::Ack(Box::new(snapshot)),
                Err(error) => {
                    convert(parts).await;
                    Event::Declined {
                        task,
                        id,
                        reason: with_causes(&error),
                    }
                }
            };
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }

    /// Rows that a sink took and cannot make durable are lost to this attempt, and so is it.
    async fn finish_staging(
        &self,
        staged: Vec<(SlotId, Staging)>,
    ) -> Result<(), streamforge_engine::error::Error> {
        for (slot, staging) in staged {
            if let Some(interval) = staging.await? {
                self.staged.add(slot, interval);
            }
        }
        Ok(())
    }

    async fn acknowledge(
        &mut self,
        snapshot: CoreSnapshot,
        freeze_us: u64,
    ) -> Result<TaskSnapshot, Error> {
        let id = snapshot.barrier.id;
        let mut bytes = 0;
        self.late_rows.extend(snapshot.late_log);
        self.late_rows = merged(&self.late_rows)?;
        while let Some((operator, rows)) = self.late_rows.front().cloned() {
            let key = self.name(LATE, id);
            let (object, stored) = encode_late_log(key, &operator, &rows)?;
            bytes += stored.bytes;
            self.write(&stored.key, object).await?;
            self.late_log.push(stored);
            self.late_rows.pop_front();
        }
        let mut operators = BTreeMap::new();
        for (
            operator,
            OperatorSnapshot {
                watermark, parts, ..
            },
        ) in snapshot.operators
        {
            let mut stored = Vec::with_capacity(parts.len());
            for part in parts {
                let (part, written) = self.store_part(&operator, part).await?;
                bytes += written;
                if !part.blocks.is_empty() {
                    stored.push(part);
                }
            }
            operators.insert(operator, (watermark, stored));
        }
        self.list_copies(id, &operators);
        Ok(TaskSnapshot {
            task: self.task,
            id,
            splits: snapshot.splits,
            operators,
            staged: self.staged.of_subtask(self.task, id),
            counters: snapshot.counters,
            late_log: self.late_log.clone(),
            freeze_us,
            bytes,
        })
    }

    fn name(&mut self, folder: &str, checkpoint: CheckpointId) -> String {
        self.objects_n += 1;
        let Stamp {
            generation, epoch, ..
        } = self.stamp;
        Writer {
            generation,
            epoch,
            checkpoint,
        }
        .task_key(folder, self.task, self.objects_n)
    }

    /// A part's object, and the bytes written for it now.
    async fn store_part(
        &mut self,
        operator: &OperatorUid,
        part: Arc<StatePart>,
    ) -> Result<(PartRef, u64), Error> {
        if let Some(stored) = part.stored() {
            return Ok((stored.clone(), 0));
        }
        let key = self.name(PARTS, part.sealed_by);
        let convert = Arc::clone(&part);
        let encoded = tokio::task::spawn_blocking(move || {
            convert
                .rows()
                .map(|rows| encode_part(key, convert.kind, &rows))
        });
        let failed = |reason: String| Error::Convert {
            operator: operator.0.clone(),
            reason,
        };
        let (object, stored) = encoded
            .await
            .map_err(|error| failed(error.to_string()))?
            .map_err(failed)??;
        let written = stored.bytes;
        if !stored.blocks.is_empty() {
            let copied = self.keep_copy(&stored.key, &object);
            let ((), written) = tokio::join!(copied, self.write(&stored.key, object.clone()));
            written?;
        }
        part.set_stored(stored.clone());
        Ok((stored, written))
    }

    /// Keeps a copy, unless there is no place for any. One at a time, so that no more is in memory
    /// than a checkpoint has there anyway.
    async fn keep_copy(&self, key: &str, object: &Bytes) {
        if let Some(local) = self.local.clone() {
            let (key, object) = (key.to_owned(), object.clone());
            let kept = tokio::task::spawn_blocking(move || local.keep(&key, 0, &object));
            let _ = kept.await;
        }
    }

    /// Tells the copies what this checkpoint needs; what no recent one does is dropped beside.
    fn list_copies(
        &self,
        id: CheckpointId,
        operators: &BTreeMap<OperatorUid, (Watermark, Vec<PartRef>)>,
    ) {
        if let Some(local) = self.local.clone() {
            let task = self.task;
            let parts = operators.values().flat_map(|(_, parts)| parts);
            let keys = parts.map(|part| part.key.clone()).collect();
            tokio::task::spawn_blocking(move || local.on_listed(task, id, keys));
        }
    }

    async fn write(&self, key: &str, object: Bytes) -> Result<(), Error> {
        let failed = |source| Error::Store {
            key: key.to_owned(),
            source,
        };
        match self
            .store
            .put(key, object.clone(), Condition::CreateIfAbsent)
            .await
            .map_err(failed)?
        {
            Put::Done(_) => Ok(()),
            // Our own earlier write whose answer was lost has the same bytes.
            Put::ConditionFailed => match self.store.get(key).await.map_err(failed)? {
                Some(there) if there.bytes == object => Ok(()),
                _ => Err(Error::Foreign {
                    key: key.to_owned(),
                }),
            },
        }
    }
}

/// Turns sealed tables into rows that could not be written: those that are not keep all later checkpoints from
/// being taken, which are the only ones who would do it.
async fn convert(parts: Vec<Arc<StatePart>>) {
    let converted = tokio::task::spawn_blocking(move || {
        // What is wrong with one is told when it is written.
        parts.iter().for_each(|part| drop(part.rows()));
    });
    let _panicked = converted.await;
}

/// What the coordinator is told of an error; a user's mistake does not go away by itself.
pub fn failed(task: Option<TaskId>, error: &streamforge_engine::error::Error) -> Event {
    Event::Failed {
        task,
        cause: with_causes(error),
        retry: error.recovery() == Recovery::Restart,
    }
}
