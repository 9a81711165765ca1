//! A coordinator with a store in a map and tasks that say what a test makes them say.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use streamforge_core::event_time::Watermark;
use streamforge_core::frame;
use streamforge_core::ids::*;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::{self, *};
use streamforge_core::messages::{Command, Deployment, Event, Stamp, TaskManagerId, TaskSnapshot};

pub(crate) use super::words::*;
use crate::Input;
use crate::*;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answer,
    /// It does not arrive.
    Lose,
    /// It takes effect, and the answer is lost.
    LoseAnswer,
    /// It waits in `held` for the test.
    Hold,
    Refuse,
}

pub(crate) type Objects = Rc<RefCell<BTreeMap<String, (Vec<u8>, u64)>>>;

pub(crate) struct Rig {
    pub co: Coordinator,
    pub objects: Objects,
    pub now_ms: u64,
    pub fate: Box<dyn FnMut(&StoreRequest) -> Fate>,
    pub held: Vec<(RequestId, StoreRequest)>,
    pub sent: Vec<(Stamp, Command)>,
    /// To whom each of these was sent.
    pub sent_to: Vec<TaskManagerId>,
    /// Task managers that may end.
    pub released: Vec<TaskManagerId>,
    /// Task managers whose sessions were ended.
    pub disconnected: Vec<TaskManagerId>,
    pub reports: Vec<Report>,
    pub outcome: Option<Outcome>,
    /// Every key deleted, with the head's oldest retained id at that time.
    pub deleted: Vec<String>,
}

impl Rig {
    pub(crate) fn new(config: Config) -> Self {
        Self::on_store(config, Objects::default())
    }

    pub(crate) fn on_store(config: Config, objects: Objects) -> Self {
        let mut rig = Self::alone(config, objects);
        rig.register(&local(), u32::MAX);
        rig
    }

    /// Without a task manager.
    pub(crate) fn alone(config: Config, objects: Objects) -> Self {
        Self {
            co: Coordinator::new(config),
            objects,
            now_ms: 0,
            fate: Box::new(|_| Fate::Answer),
            held: Vec::new(),
            sent: Vec::new(),
            sent_to: Vec::new(),
            released: Vec::new(),
            disconnected: Vec::new(),
            reports: Vec::new(),
            outcome: None,
            deleted: Vec::new(),
        }
    }

    /// Another coordinator on the same store.
    pub(crate) fn successor(&self) -> Self {
        let config = Config {
            nonce_seed: self.co.config.nonce_seed + 1,
            ..config()
        };
        self.successor_with(config)
    }

    pub(crate) fn successor_with(&self, config: Config) -> Self {
        let nonce_seed = self.co.config.nonce_seed + 1;
        let config = Config {
            nonce_seed,
            ..config
        };
        Self {
            now_ms: self.now_ms,
            ..Self::on_store(config, Rc::clone(&self.objects))
        }
    }

    pub(crate) fn feed(&mut self, input: Input) {
        let mut inputs = std::collections::VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for decision in self.co.on(self.now_ms, input) {
                match decision {
                    Decision::Store(id, request) => match (self.fate)(&request) {
                        Fate::Hold => self.held.push((id, request)),
                        fate => {
                            let answer = self.answer(request, fate);
                            inputs.push_back(Input::Store(id, answer));
                        }
                    },
                    Decision::Send(to, stamp, command) => {
                        self.sent.push((stamp, command));
                        self.sent_to.push(to);
                    }
                    Decision::Release(id) => self.released.push(id),
                    Decision::Disconnect(id) => self.disconnected.push(id),
                    Decision::Report(report) => self.reports.push(report),
                    Decision::End(outcome) => {
                        assert!(self.outcome.is_none(), "ended twice");
                        self.outcome = Some(outcome);
                    }
                }
            }
        }
    }

    fn answer(&mut self, request: StoreRequest, fate: Fate) -> StoreAnswer {
        let unknown = || StoreAnswer::Unknown {
            reason: "lost".to_owned(),
        };
        match fate {
            Fate::Lose => unknown(),
            Fate::Refuse => StoreAnswer::Refused {
                reason: "disk full".to_owned(),
            },
            Fate::LoseAnswer => {
                self.apply(request);
                unknown()
            }
            Fate::Answer | Fate::Hold => self.apply(request),
        }
    }

    fn apply(&mut self, request: StoreRequest) -> StoreAnswer {
        let mut objects = self.objects.borrow_mut();
        match request {
            StoreRequest::Get { key } => StoreAnswer::Got(
                objects
                    .get(&key)
                    .map(|(bytes, v)| (bytes.clone(), Version(v.to_string()))),
            ),
            StoreRequest::List { prefix } => StoreAnswer::Listed(
                objects
                    .keys()
                    .filter(|key| key.starts_with(&prefix))
                    .cloned()
                    .collect(),
            ),
            StoreRequest::Put {
                key,
                bytes,
                condition,
            } => {
                let version = objects.get(&key).map(|(_, v)| v.to_string());
                let holds = match condition {
                    PutCondition::CreateIfAbsent => version.is_none(),
                    PutCondition::IfMatch(Version(wanted)) => version == Some(wanted),
                };
                if !holds {
                    return StoreAnswer::ConditionFailed;
                }
                let next = objects.values().map(|(_, v)| *v).max().unwrap_or(0) + 1;
                objects.insert(key, (bytes, next));
                StoreAnswer::Put(Version(next.to_string()))
            }
            StoreRequest::Check { objects: expected } => StoreAnswer::Checked(
                expected
                    .iter()
                    .filter(|it| !objects.contains_key(&it.key))
                    .map(|it| format!("object {} is missing", it.key))
                    .collect(),
            ),
            StoreRequest::Copy { objects: copied } => {
                let mut damages = Vec::new();
                for (from, to) in copied {
                    match objects.get(&from.key).cloned() {
                        Some(found) => drop(objects.entry(to).or_insert(found)),
                        None => damages.push(format!("object {} is missing", from.key)),
                    }
                }
                StoreAnswer::Checked(damages)
            }
            StoreRequest::Delete { keys } => {
                for key in keys {
                    objects.remove(&key);
                    self.deleted.push(key);
                }
                StoreAnswer::Deleted
            }
        }
    }

    /// Lets held request number `idx` reach the store, and its answer the coordinator.
    pub(crate) fn release(&mut self, idx: usize) {
        let (id, request) = self.held.remove(idx);
        let answer = self.apply(request);
        self.feed(Input::Store(id, answer));
    }

    /// Lets a held put land without anybody being told.
    pub(crate) fn land(&mut self, idx: usize) -> StoreAnswer {
        let (_, request) = self.held.remove(idx);
        self.apply(request)
    }

    pub(crate) fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        self.feed(Input::Tick);
    }

    pub(crate) fn say(&mut self, event: Event) {
        let stamp = self.stamp();
        self.say_as(&local(), stamp, event);
    }

    pub(crate) fn say_as(&mut self, from: &TaskManagerId, stamp: Stamp, event: Event) {
        self.feed(Input::Task(from.clone(), stamp, event));
    }

    pub(crate) fn register(&mut self, id: &TaskManagerId, slots: u32) {
        self.feed(Input::Registered {
            task_manager: id.clone(),
            registration: Box::new(offers(slots)),
        });
    }

    pub(crate) fn lose(&mut self, id: &TaskManagerId) {
        self.feed(Input::SessionLost {
            task_manager: id.clone(),
            cause: "session broke".to_owned(),
        });
    }

    pub(crate) fn stamp(&self) -> Stamp {
        self.sent.last().expect("something was sent").0.clone()
    }

    pub(crate) fn prepared(&mut self, splits: &[&str]) {
        let splits = splits.iter().map(|name| split_at(name, at(0))).collect();
        self.say(Event::Prepared {
            splits: BTreeMap::from([(uid("in"), splits)]),
        });
    }

    /// From nothing to running, with splits `a` and `b`.
    pub(crate) fn run(config: Config) -> Self {
        let mut rig = Self::new(config);
        rig.wait(1);
        rig.prepared(&["a", "b"]);
        assert_eq!(rig.co.status().phase, Phase::Running, "{:?}", rig.outcome);
        rig
    }

    /// From what is stored to running.
    pub(crate) fn resume(&mut self) {
        self.wait(1);
        self.say(Event::Prepared {
            splits: BTreeMap::new(),
        });
        assert_eq!(self.co.status().phase, Phase::Running, "{:?}", self.outcome);
    }

    /// The checkpoint in flight.
    pub(crate) fn check_fenced(&self) {
        let is_fenced = matches!(self.failure(), Error::Fenced { .. });
        assert!(is_fenced, "{:?}", self.outcome);
    }

    /// Whether no checkpoint is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.co.status().checkpoint.in_flight.is_none()
    }

    pub(crate) fn in_flight(&self) -> CheckpointId {
        self.co
            .status()
            .checkpoint
            .in_flight
            .expect("a checkpoint is in flight")
            .0
    }

    pub(crate) fn snapshot(&self, of: TaskId, n: CheckpointId) -> TaskSnapshot {
        let splits = if of.stage.0 == 0 {
            let name = if of.subtask.0 == 0 { "a" } else { "b" };
            BTreeMap::from([(uid("in"), vec![split_at(name, at(n.get()))])])
        } else {
            BTreeMap::new()
        };
        let part = PartRef {
            key: object_key(&self.stamp(), n, of),
            bytes: 1,
            kind: "slices".to_owned(),
            blocks: vec![BlockRef {
                group: KeyGroup(0),
                offset: 0,
                length: 1,
                checksum: 0,
                rows: 1,
            }],
        };
        let operators = if of.stage.0 == 1 {
            self.objects
                .borrow_mut()
                .insert(part.key.clone(), (vec![0], 0));
            BTreeMap::from([(uid("agg"), (Watermark(1), vec![part]))])
        } else {
            BTreeMap::new()
        };
        let counters = Counters {
            rows_in: 10,
            passed: 10,
            ..Counters::default()
        };
        TaskSnapshot {
            task: of,
            id: n,
            splits,
            operators,
            staged: Vec::new(),
            counters: BTreeMap::from([(uid("in"), counters)]),
            late_log: Vec::new(),
            freeze_us: 1,
            bytes: 1,
        }
    }

    pub(crate) fn ack_all(&mut self) {
        self.ack_all_with(|_| {});
    }

    /// All tasks acknowledge the checkpoint in flight.
    pub(crate) fn ack_all_with(&mut self, mut change: impl FnMut(&mut TaskSnapshot)) {
        let n = self.in_flight();
        for of in graph().tasks(2) {
            let mut snapshot = self.snapshot(of, n);
            change(&mut snapshot);
            self.say(Event::Ack(Box::new(snapshot)));
        }
    }

    /// A checkpoint from trigger to commit.
    pub(crate) fn checkpoint(&mut self) -> CheckpointId {
        self.checkpoint_with(|_| {})
    }

    pub(crate) fn checkpoint_with(
        &mut self,
        change: impl FnMut(&mut TaskSnapshot),
    ) -> CheckpointId {
        self.wait(1_000);
        if self.is_idle() {
            self.wait(1_000); // held back for a sink that is behind
        }
        let n = self.in_flight();
        self.ack_all_with(change);
        assert_eq!(self.newest().id, n, "committed");
        n
    }

    /// A checkpoint in which slot 0 staged one interval.
    pub(crate) fn checkpoint_staging(&mut self, n: u64) -> CheckpointId {
        self.checkpoint_with(|ack| {
            if ack.task == task(1, 0) {
                ack.staged.push((slot(0), interval(n)));
            }
        })
    }

    pub(crate) fn head(&self) -> Head {
        let objects = self.objects.borrow();
        manifest::decode(frame::HEAD, &objects[HEAD_KEY].0).expect("the head is whole")
    }

    pub(crate) fn newest(&self) -> Manifest {
        let key = self.head().newest.expect("a manifest is named").key;
        self.manifest(&key)
    }

    pub(crate) fn manifest(&self, key: &str) -> Manifest {
        let objects = self.objects.borrow();
        manifest::decode(frame::MANIFEST, &objects[key].0).expect("the manifest is whole")
    }

    pub(crate) fn deployment(&self) -> Deployment {
        let deploys = self
            .sent
            .iter()
            .rev()
            .filter_map(|(_, command)| match command {
                Command::Deploy(deployment) => Some((**deployment).clone()),
                _ => None,
            });
        deploys.into_iter().next().expect("deployed")
    }

    /// Per publish notice sent so far: (slot, interval) pairs.
    pub(crate) fn notices(&self) -> Vec<Vec<(u32, u64)>> {
        let notice = |(_, command): &(Stamp, Command)| match command {
            Command::Publish { slots, .. } => Some(
                slots
                    .iter()
                    .map(|(slot, it)| (slot.slot, it.id.get()))
                    .collect(),
            ),
            _ => None,
        };
        self.sent.iter().filter_map(notice).collect()
    }

    /// What the newest manifest lists: (slot, interval) pairs.
    pub(crate) fn listed(&self) -> Vec<(u32, u64)> {
        let newest = self.newest();
        let of = |state: &SlotState| -> Vec<(u32, u64)> {
            state
                .intervals
                .iter()
                .map(|it| (state.slot.slot, it.id.get()))
                .collect()
        };
        newest.staged.iter().flat_map(of).collect()
    }

    pub(crate) fn published(&mut self, n: u32, of: u64) {
        self.say(Event::Published {
            slot: slot(n),
            interval: id(of),
        });
    }

    pub(crate) fn sent_names(&self) -> Vec<&'static str> {
        self.sent.iter().map(|(_, command)| name(command)).collect()
    }

    pub(crate) fn failure(&self) -> &Error {
        match &self.outcome {
            Some(Outcome::Failed(error)) => error,
            other => panic!("did not fail: {other:?}"),
        }
    }
}

fn object_key(stamp: &Stamp, checkpoint: CheckpointId, of: TaskId) -> String {
    let (generation, epoch) = (stamp.generation, stamp.epoch);
    streamforge_core::object_key::Writer {
        generation,
        epoch,
        checkpoint,
    }
    .task_key("parts", of, 0)
}

pub(crate) fn name(command: &Command) -> &'static str {
    match command {
        Command::Deploy(_) => "deploy",
        Command::Adopt { .. } => "adopt",
        Command::Start { .. } => "start",
        Command::Checkpoint { .. } => "checkpoint",
        Command::Abort { .. } => "abort",
        Command::Publish { .. } => "publish",
        Command::Committed { .. } => "committed",
        Command::Prepare(_) => "prepare",
        Command::Withdraw => "withdraw",
        Command::Receive(_) => "receive",
        Command::Cancel => "cancel",
    }
}

/// Puts of the head.
pub(crate) fn is_swap(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::Put { key, .. } if key == HEAD_KEY)
}

/// Puts of a manifest.
pub(crate) fn is_manifest_put(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::Put { key, .. } if key.starts_with("manifests/"))
}

/// Fates for the next requests that match, in order; all others are answered.
pub(crate) fn fates(
    matches: impl Fn(&StoreRequest) -> bool + 'static,
    fates: impl IntoIterator<Item = Fate>,
) -> Box<dyn FnMut(&StoreRequest) -> Fate> {
    let mut fates: std::collections::VecDeque<Fate> = fates.into_iter().collect();
    Box::new(move |request| {
        if matches(request) {
            fates.pop_front().unwrap_or(Fate::Answer)
        } else {
            Fate::Answer
        }
    })
}
