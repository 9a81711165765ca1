//! The tasks of one process: they read splits, stage rows, keep parts, and answer barriers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use streamforge_core::event_time::Watermark;
use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId, StageIdx, SubtaskIdx, TaskId};
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::{
    self, BlockRef, CheckpointKind, Counters, HEAD_KEY, Head, PartRef, SlotState, SplitProgress,
    SplitState, StagedInterval,
};
use streamforge_core::messages::{Command, Deployment, Event, Stamp, TaskSnapshot};
use streamforge_core::object_key::{PARTS, Writer};
use streamforge_store::{Condition, MemoryStore, Put};

use crate::sink::Sink;
use crate::world::{ROWS_PER_SPLIT, Rng, SPLITS_N};

/// Parts a task keeps before it drops the oldest: makes manifests share objects.
const PARTS_MAX: usize = 4;

pub fn uid(name: &str) -> OperatorUid {
    OperatorUid(name.to_owned())
}

#[derive(Debug)]
struct Task {
    splits: Vec<SplitState>,
    /// Read since the last barrier.
    open: Vec<(String, u64)>,
    staged: Vec<StagedInterval>,
    parts: Vec<PartRef>,
    rows_in: u64,
    barriers: VecDeque<(CheckpointId, CheckpointKind)>,
    stopped: bool,
    end_said: bool,
    last_barrier: CheckpointId,
}

#[derive(Debug, Default)]
pub struct Tasks {
    stamp: Option<Stamp>,
    tasks: BTreeMap<SubtaskIdx, Task>,
    publishes: VecDeque<(SlotId, StagedInterval)>,
    pub out: VecDeque<(Stamp, Event)>,
    objects_n: u64,
    reading: bool,
}

fn slot(subtask: SubtaskIdx) -> SlotId {
    SlotId {
        sink: uid("out"),
        slot: subtask.0,
    }
}

fn task_id(subtask: SubtaskIdx) -> TaskId {
    TaskId {
        stage: StageIdx(0),
        subtask,
    }
}

fn number(progress: &SplitProgress) -> Option<u64> {
    match progress {
        SplitProgress::At(text) => Some(text.parse().expect("positions are numbers")),
        SplitProgress::End => None,
    }
}

impl Tasks {
    pub fn on_command(
        &mut self,
        stamp: Stamp,
        command: Command,
        sink: &mut Sink,
        store: &MemoryStore,
    ) {
        if self
            .stamp
            .as_ref()
            .is_some_and(|ours| (stamp.generation, stamp.epoch) < (ours.generation, ours.epoch))
        {
            return; // C5
        }
        match command {
            Command::Deploy(deployment) => self.deploy(stamp, &deployment, sink, store),
            // They failed while the command was on its way.
            Command::Start { .. } if self.tasks.is_empty() => {}
            Command::Start { splits } => {
                for (subtask, splits) in splits.into_values().flatten() {
                    let task = self
                        .tasks
                        .get_mut(&subtask)
                        .expect("splits go to tasks there are");
                    task.splits.extend(splits);
                }
                self.reading = true;
            }
            Command::Checkpoint { id, kind } => {
                for task in self.tasks.values_mut() {
                    task.barriers.push_back((id, kind));
                }
            }
            Command::Abort { id } => {
                for task in self.tasks.values_mut() {
                    task.barriers.retain(|(waiting, _)| *waiting != id);
                }
            }
            Command::Publish { slots, .. } => self.publishes.extend(slots),
            Command::Committed { .. }
            | Command::Adopt { .. }
            | Command::Prepare(_)
            | Command::Withdraw
            | Command::Receive(_) => {}
            Command::Cancel => {
                self.tasks.clear();
                self.publishes.clear();
            }
        }
    }

    fn deploy(&mut self, stamp: Stamp, what: &Deployment, sink: &mut Sink, store: &MemoryStore) {
        self.stamp = Some(stamp.clone());
        self.publishes.clear();
        self.reading = false;
        let mut parts: Vec<PartRef> = Vec::new();
        let mut first = BTreeMap::new();
        if let Some(manifest) = &what.restore {
            parts = manifest
                .operators
                .get(&uid("agg"))
                .map(|it| it.parts.clone())
                .unwrap_or_default();
            let gone = parts
                .iter()
                .find(|part| store.get_now(&part.key).is_ok_and(|it| it.is_none()));
            if let Some(part) = gone {
                // Only a zombie's deployment may come too late.
                let current = is_current(store, &stamp);
                assert!(!current, "{} is gone, a restore needs it (C6)", part.key);
                let cause = "gone".to_owned();
                self.tasks.clear();
                self.out.push_back((
                    stamp,
                    Event::Failed {
                        task: None,
                        cause,
                        retry: true,
                    },
                ));
                return;
            }
            let all = manifest
                .staged
                .iter()
                .flat_map(|it: &SlotState| &it.intervals);
            let listed = all
                .flat_map(|it| &it.objects)
                .map(|it| it.staged.clone())
                .collect();
            let ours = (stamp.generation.get(), stamp.epoch.get());
            sink.discard_unlisted(&listed, |name| writer_of(name) < ours);
        } else {
            let split = |n| SplitState {
                split: streamforge_core::ids::SplitId(format!("s{n}")),
                progress: SplitProgress::At("0".to_owned()),
                watermark: Watermark::NONE,
                description: String::new(),
                weight: n,
            };
            first.insert(uid("in"), (0..SPLITS_N).map(split).collect());
        }
        let task = |subtask: u32| {
            // Everybody restores a part; whoever owns its groups, it is one object.
            let mine = parts
                .iter()
                .skip(subtask as usize)
                .step_by(what.parallelism as usize);
            let task = Task {
                splits: Vec::new(),
                open: Vec::new(),
                staged: Vec::new(),
                parts: mine.cloned().collect(),
                rows_in: 0,
                barriers: VecDeque::new(),
                stopped: false,
                end_said: false,
                last_barrier: what.first_id,
            };
            (SubtaskIdx(subtask), task)
        };
        self.tasks = (0..what.parallelism).map(task).collect();
        self.out
            .push_back((stamp, Event::Prepared { splits: first }));
    }

    /// One small thing that these tasks do by themselves.
    pub fn step(&mut self, rng: &mut Rng, sink: &mut Sink, store: &MemoryStore, calm: bool) {
        let Some(stamp) = self.stamp.clone() else {
            return;
        };
        if self.tasks.is_empty() {
            return;
        }
        if let Some((slot, interval)) = self.publishes.pop_front() {
            let event = if !calm && rng.one_in(6) {
                let reason = "the broker is away".to_owned();
                Event::PublishFailed {
                    slot,
                    interval: interval.id,
                    reason,
                }
            } else {
                sink.publish(&slot, &interval);
                self.on_published(&slot, interval.id);
                Event::Published {
                    slot,
                    interval: interval.id,
                }
            };
            // The confirmation may get lost on its way; the notice comes again.
            if calm || !rng.one_in(8) {
                self.out.push_back((stamp, event));
            }
            return;
        }
        if !calm && rng.one_in(150) {
            let event = Event::Failed {
                task: None,
                cause: "a bug".to_owned(),
                retry: true,
            };
            self.tasks.clear();
            self.out.push_back((stamp, event));
            return;
        }
        let subtask = SubtaskIdx(rng.below(self.tasks.len() as u64) as u32);
        let event = match self.tasks[&subtask].barriers.front().copied() {
            Some(barrier) if rng.one_in(2) => {
                let declines = !calm && rng.one_in(12);
                Some(self.on_barrier(subtask, barrier, declines, (sink, store)))
            }
            _ if self.reading => self.read(subtask, rng),
            _ => None,
        };
        self.out.extend(event.map(|event| (stamp, event)));
    }

    fn read(&mut self, subtask: SubtaskIdx, rng: &mut Rng) -> Option<Event> {
        let task = self.tasks.get_mut(&subtask)?;
        if task.stopped {
            return None;
        }
        let open = task
            .splits
            .iter_mut()
            .find(|split| split.progress != SplitProgress::End);
        let Some(split) = open else {
            let first = !std::mem::replace(&mut task.end_said, true);
            return first.then(|| Event::Ended {
                task: task_id(subtask),
            });
        };
        let from = number(&split.progress)?;
        let to = (from + 1 + rng.below(4)).min(ROWS_PER_SPLIT);
        task.open
            .extend((from..to).map(|row| (split.split.0.clone(), row)));
        task.rows_in += to - from;
        split.progress = if to == ROWS_PER_SPLIT {
            SplitProgress::End
        } else {
            SplitProgress::At(to.to_string())
        };
        None
    }

    fn on_barrier(
        &mut self,
        subtask: SubtaskIdx,
        (id, kind): (CheckpointId, CheckpointKind),
        declines: bool,
        (sink, store): (&mut Sink, &MemoryStore),
    ) -> Event {
        let stamp = self
            .stamp
            .clone()
            .expect("barriers come after a deployment");
        let task = self
            .tasks
            .get_mut(&subtask)
            .expect("barriers go to tasks there are");
        task.barriers.pop_front();
        task.stopped |= kind == CheckpointKind::Stop;
        if declines {
            let reason = "no spare table".to_owned();
            return Event::Declined {
                task: task_id(subtask),
                id,
                reason,
            };
        }
        let writer = Writer {
            generation: stamp.generation,
            epoch: stamp.epoch,
            checkpoint: id,
        };
        let rows = std::mem::take(&mut task.open);
        if !rows.is_empty() {
            let name = writer.task_key("staged", task_id(subtask), id.get());
            task.staged.push(sink.stage(&name, id, rows));
        }
        self.objects_n += 1;
        let sealed = Writer {
            checkpoint: task.last_barrier,
            ..writer
        };
        let key = sealed.task_key(PARTS, task_id(subtask), self.objects_n);
        let content = Bytes::from(key.clone());
        let put = store.put_now(&key, content.clone(), Condition::CreateIfAbsent);
        assert!(
            matches!(put, Ok(Put::Done(_))),
            "two tasks share the name {key} (C4): {put:?}"
        );
        task.last_barrier = id;
        if task.parts.len() >= PARTS_MAX {
            task.parts.remove(0);
        }
        task.parts.push(part(key, &content));
        let counters = Counters {
            rows_in: task.rows_in,
            passed: task.rows_in,
            ..Counters::default()
        };
        Event::Ack(Box::new(TaskSnapshot {
            task: task_id(subtask),
            id,
            splits: BTreeMap::from([(uid("in"), task.splits.clone())]),
            operators: BTreeMap::from([(uid("agg"), (Watermark::NONE, task.parts.clone()))]),
            staged: task
                .staged
                .iter()
                .map(|it| (slot(subtask), it.clone()))
                .collect(),
            counters: BTreeMap::from([(uid("in"), counters)]),
            late_log: Vec::new(),
            freeze_us: 0,
            bytes: 0,
        }))
    }

    fn on_published(&mut self, slot: &SlotId, interval: CheckpointId) {
        if let Some(task) = self.tasks.get_mut(&SubtaskIdx(slot.slot)) {
            task.staged.retain(|staged| staged.id != interval);
        }
    }
}

fn part(key: String, content: &Bytes) -> PartRef {
    let checksum = xxhash_rust::xxh3::xxh3_64(content);
    let length = content.len() as u64;
    let block = BlockRef {
        group: KeyGroup(0),
        offset: 0,
        length,
        checksum,
        rows: 1,
    };
    PartRef {
        key,
        bytes: length,
        kind: "x".to_owned(),
        blocks: vec![block],
    }
}

fn is_current(store: &MemoryStore, stamp: &Stamp) -> bool {
    let object = store
        .get_now(HEAD_KEY)
        .expect("the world's own client never fails");
    let bytes = object.expect("who deploys has taken over").bytes;
    let head: Head = manifest::decode(frame::HEAD, &bytes).expect("the head is whole");
    (head.generation, head.epoch) == (stamp.generation, stamp.epoch)
}

fn writer_of(name: &str) -> (u64, u64) {
    let writer = streamforge_core::object_key::writer_of(name).expect("named by a writer");
    (writer.generation.get(), writer.epoch.get())
}

/// Names of all rows there are.
pub fn all_rows() -> BTreeSet<(String, u64)> {
    (0..SPLITS_N)
        .flat_map(|n| (0..ROWS_PER_SPLIT).map(move |row| (format!("s{n}"), row)))
        .collect()
}
