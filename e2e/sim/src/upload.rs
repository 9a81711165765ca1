//! Making a task's part of a checkpoint durable, in the order of `taskmanager/src/upload.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, OperatorUid};
use streamforge_core::manifest::PartRef;
use streamforge_core::messages::{Event, Stamp, TaskSnapshot};
use streamforge_core::object_key::{LATE, PARTS, Writer as ObjectWriter};
use streamforge_engine::staged::Staged;
use streamforge_engine::state::StatePart;
use streamforge_state::late_log::encode_late_log;
use streamforge_state::part::encode_part;
use streamforge_store::{Condition, MemoryStore, Put};

use crate::book::Book;
use crate::task::{Task, Upload};

/// The uploader works off the oldest snapshot.
pub fn upload(
    task: &mut Task,
    stamp: &Stamp,
    (store, book): (&MemoryStore, &mut Book),
    staged: &Staged,
) -> Event {
    let (id, upload) = (task.core.id(), task.uploads.pop_front());
    let Upload {
        snapshot,
        staged: intervals,
        puts,
    } = upload.expect("the caller saw one");
    let checkpoint = snapshot.barrier.id;
    let mut uploader = Uploader {
        task,
        stamp,
        store,
        book,
    };
    for key in puts {
        // Rows that a sink took and cannot make durable are lost to this attempt, and so is it.
        if let Err(cause) = uploader.write(&key, Bytes::from(key.clone())) {
            uploader.task.dead = true;
            return Event::Failed {
                task: Some(id),
                cause,
                retry: true,
            };
        }
    }
    // Staged output is remembered first: even if this checkpoint fails, the next one carries it
    // under the id of the barrier that closed it (C3).
    for (slot, interval) in intervals {
        staged.add(slot, interval);
    }
    let stored = uploader.store_all(snapshot.late_log, snapshot.operators, checkpoint);
    match stored {
        Err(reason) => Event::Declined {
            task: id,
            id: checkpoint,
            reason,
        },
        Ok(operators) => {
            let ack = TaskSnapshot {
                task: id,
                id: checkpoint,
                splits: snapshot.splits,
                operators,
                staged: staged.of_subtask(id, checkpoint),
                counters: snapshot.counters,
                late_log: uploader.task.late_log.clone(),
                freeze_us: 0,
                bytes: 0,
            };
            uploader.book.on_ack(&ack);
            Event::Ack(Box::new(ack))
        }
    }
}

struct Uploader<'a> {
    task: &'a mut Task,
    stamp: &'a Stamp,
    store: &'a MemoryStore,
    book: &'a mut Book,
}

type Stored = BTreeMap<OperatorUid, (Watermark, Vec<PartRef>)>;

impl Uploader<'_> {
    fn store_all(
        &mut self,
        late_log: Vec<(OperatorUid, arrow::array::RecordBatch)>,
        operators: Vec<(OperatorUid, streamforge_engine::operator::OperatorSnapshot)>,
        checkpoint: CheckpointId,
    ) -> Result<Stored, String> {
        // What an attempt could not write, the next one does (T3).
        self.task.late_rows.extend(late_log);
        while let Some((operator, rows)) = self.task.late_rows.front().cloned() {
            let key = self.name(LATE, checkpoint);
            let (object, stored) =
                encode_late_log(key, &operator, &rows).map_err(|error| error.to_string())?;
            self.write(&stored.key, object)?;
            self.task.late_log.push(stored);
            self.task.late_rows.pop_front();
        }
        let mut all = Stored::new();
        for (operator, snapshot) in operators {
            let mut stored = Vec::new();
            for part in snapshot.parts {
                let part = self.store_part(&part)?;
                if !part.blocks.is_empty() {
                    stored.push(part);
                }
            }
            all.insert(operator, (snapshot.watermark, stored));
        }
        Ok(all)
    }

    fn name(&mut self, folder: &str, checkpoint: CheckpointId) -> String {
        self.task.objects_n += 1;
        let Stamp {
            generation, epoch, ..
        } = *self.stamp;
        let writer = ObjectWriter {
            generation,
            epoch,
            checkpoint,
        };
        writer.task_key(folder, self.task.core.id(), self.task.objects_n)
    }

    fn store_part(&mut self, part: &Arc<StatePart>) -> Result<PartRef, String> {
        if let Some(stored) = part.stored() {
            return Ok(stored.clone());
        }
        let key = self.name(PARTS, part.sealed_by);
        let rows = part.rows()?;
        let (object, stored) =
            encode_part(key, part.kind, &rows).map_err(|error| error.to_string())?;
        if !stored.blocks.is_empty() {
            self.write(&stored.key, object)?;
        }
        self.book.on_written(&stored.key, &rows);
        part.set_stored(stored.clone());
        Ok(stored)
    }

    fn write(&self, key: &str, object: Bytes) -> Result<(), String> {
        let put = self
            .store
            .put_now(key, object.clone(), Condition::CreateIfAbsent);
        match put.map_err(|error| error.to_string())? {
            Put::Done(_) => Ok(()),
            Put::ConditionFailed => match self.store.get_now(key) {
                Ok(Some(there)) if there.bytes == object => Ok(()),
                _ => panic!("{key} exists with other contents (C4)"),
            },
        }
    }
}
