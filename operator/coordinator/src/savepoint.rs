//! Savepoints: a checkpoint, copied whole to a folder of its own (C9).
//!
//! Owns: what was asked for, by name, and its steps: is there one already; a checkpoint at whose barrier
//! files close; all output up to it published; its objects copied; its manifest written, last, so that
//! nothing half made is ever taken for whole. Start at: [`Coordinator::on_savepoint`], then
//! [`Coordinator::go_on_saving`].
//!
//! Checkpoints go on meanwhile: copying has a lane of its own, and retention holds what is copied.
//! Nothing of it survives the coordinator, and need not: who asks its successor by the same name gets
//! the savepoint that is there, or a new attempt at it. Two coordinators may copy under one name;
//! their objects have different names, and the one that writes the manifest first has made it.

use std::collections::VecDeque;

use streamforge_core::frame;
use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{self, CheckpointKind, Departed, Manifest, Plan};
use streamforge_core::savepoint::{self, MANIFEST_KEY};

use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::decision::{Decision, Report};
use crate::lane::{Answered, Lane, RequestIds};
use crate::publish::Publisher;
use crate::status::Phase;
use crate::store_request::{
    ExpectedObject, PutCondition, RequestId, StoreAnswer, StoreRequest, expected_objects,
};

/// A savepoint without a checkpoint after this many checkpoint timeouts is given up.
const GIVE_UP_TIMEOUTS_N: u64 = 3;

/// How often the store is asked in vain for one thing: for about half a minute.
const STORE_ATTEMPTS_MAX: u32 = 10;

/// Most savepoints that are under way at once.
const ASKED_MAX: usize = 16;

/// How many ends are remembered for those who ask.
const ENDED_MAX: usize = 64;

/// How far a savepoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SavepointState {
    /// It waits for its checkpoint.
    Pending,
    /// Its checkpoint is committed; it is published and copied.
    InProgress,
    /// It is whole.
    Completed {
        /// The checkpoint that it is.
        id: CheckpointId,
        /// Bytes of state.
        bytes_n: u64,
        /// When its checkpoint was taken, in milliseconds since the epoch.
        time_ms: u64,
        /// It was there before it was asked for.
        before: bool,
    },
    /// It was given up.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What was asked for, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Savepoints {
    asked: Vec<Asked>,
    /// The newest last.
    ended: VecDeque<(String, SavepointState)>,
    /// Why the one that the job is stopping for came to nothing.
    failed_at_stop: Option<String>,
    /// Looks for one of them at a time, by name: a stop waits for that.
    looking: Lane<String>,
    /// Copies one of them at a time, by name.
    copying: Lane<String>,
}

#[derive(Debug)]
struct Asked {
    name: String,
    /// The job stops with it: it is made of that checkpoint, so nothing is done after it (KF-O12).
    stops: bool,
    since_ms: u64,
    step: Step,
    /// Why its last checkpoint came to nothing.
    failure: Option<String>,
}

#[derive(Debug)]
enum Step {
    /// There may be one of this name.
    Look,
    /// There is none: it waits for a checkpoint.
    Wait,
    /// This checkpoint is to be it.
    Taken(CheckpointId),
    /// That is committed, and its output has until then to be published.
    Publish(Box<Manifest>, u64),
    /// Its objects are copied.
    Copy(Box<Manifest>),
    /// Its manifest is written.
    Name(Box<Manifest>),
}

impl Asked {
    /// What is to be copied, once it is committed.
    fn manifest(&self) -> Option<&Manifest> {
        match &self.step {
            Step::Look | Step::Wait | Step::Taken(_) => None,
            Step::Publish(manifest, _) | Step::Copy(manifest) | Step::Name(manifest) => {
                Some(manifest)
            }
        }
    }
}

impl Savepoints {
    fn find(&mut self, name: &str) -> Option<&mut Asked> {
        self.asked.iter_mut().find(|asked| asked.name == name)
    }

    pub(crate) fn on_tick(&mut self, ids: &mut RequestIds, now_ms: u64) -> Vec<Decision> {
        let lanes = [&mut self.looking, &mut self.copying].into_iter();
        lanes.filter_map(|lane| lane.on_tick(ids, now_ms)).collect()
    }

    /// The answer again if it is to another's question.
    pub(crate) fn on_answer(
        &mut self,
        id: RequestId,
        answer: StoreAnswer,
    ) -> Result<Answered<String>, StoreAnswer> {
        let answer = match self.looking.on_answer(id, answer) {
            Ok(answered) => return Ok(answered),
            Err(answer) => answer,
        };
        self.copying.on_answer(id, answer)
    }

    pub(crate) fn clear(&mut self) {
        self.looking.clear();
        self.copying.clear();
    }

    /// Whether one waits for a checkpoint.
    pub(crate) fn are_due(&self) -> bool {
        self.asked.iter().any(|it| matches!(it.step, Step::Wait))
    }

    /// Whether one has its checkpoint and needs nothing but the store, and publishing.
    pub(crate) fn are_in_progress(&self) -> bool {
        self.asked.iter().any(|it| it.manifest().is_some())
    }

    /// A checkpoint begins that is all that a savepoint needs.
    pub(crate) fn on_triggered(&mut self, id: CheckpointId) {
        let due = self
            .asked
            .iter_mut()
            .filter(|it| matches!(it.step, Step::Wait));
        due.for_each(|asked| asked.step = Step::Taken(id));
    }

    /// No head will name this checkpoint.
    pub(crate) fn on_checkpoint_failed(&mut self, id: CheckpointId, reason: &str) {
        let theirs = |asked: &&mut Asked| matches!(asked.step, Step::Taken(taken) if taken == id);
        for asked in self.asked.iter_mut().filter(theirs) {
            asked.step = Step::Wait;
            asked.failure = Some(reason.to_owned());
        }
    }

    /// The job stops: why the savepoint that it was to stop with is not there, if there was to be one.
    pub(crate) fn failed_at_stop(&mut self, note: Option<&str>) -> Option<String> {
        let unmade = self.asked.iter().find(|asked| asked.stops).map(|asked| {
            let why = note.unwrap_or("the job stopped before it was taken");
            format!("savepoint {}: {why}", asked.name)
        });
        self.failed_at_stop.take().or(unmade)
    }

    /// Of the savepoints that are waiting for it the first whose name is to be looked for.
    fn next_look(&self) -> Option<(String, StoreRequest)> {
        let mut asked = self.asked.iter();
        let next = asked.find(|it| matches!(it.step, Step::Look))?;
        let key = manifest_key(&next.name);
        Some((next.name.clone(), StoreRequest::Get { key }))
    }

    /// The first that is to be copied.
    fn next_copy(
        &mut self,
        publisher: &Publisher,
        config: &Config,
    ) -> Option<(String, StoreRequest)> {
        for asked in &mut self.asked {
            if let Step::Publish(manifest, _) = &asked.step
                && publisher.is_published_to(manifest.id)
            {
                let request = copy_of(&asked.name, manifest, &config.plan());
                asked.step = Step::Copy(manifest.clone());
                return Some((asked.name.clone(), request));
            }
        }
        None
    }
}

impl Coordinator {
    /// Whether a savepoint may be asked for.
    ///
    /// # Errors
    /// Why not.
    pub fn check_savepoint(&self, name: &str, stops: bool) -> Result<(), String> {
        savepoint::check_name(name).map_err(|bad| bad.to_string())?;
        let asked = &self.savepoints.asked;
        if let Some(known) = asked.iter().find(|it| it.name == name) {
            return if known.stops == stops {
                Ok(())
            } else {
                Err(format!("savepoint {name} is under way already"))
            };
        }
        match self.phase {
            Phase::Finishing | Phase::Ended => return Err("the job ends".to_owned()),
            _ if self.stop_since_ms.is_some() => return Err("the job stops".to_owned()),
            _ => {}
        }
        if asked.len() >= ASKED_MAX {
            return Err(format!("{ASKED_MAX} savepoints are under way already"));
        }
        Ok(())
    }

    /// How far the savepoint of this name is; `None`: this coordinator was not asked for it.
    #[must_use]
    pub fn savepoint(&self, name: &str) -> Option<SavepointState> {
        let asked = self.savepoints.asked.iter().find(|it| it.name == name);
        let state = asked.map(|asked| match asked.manifest() {
            None => SavepointState::Pending,
            Some(_) => SavepointState::InProgress,
        });
        let ended = self.savepoints.ended.iter().find(|(of, _)| of == name);
        state.or_else(|| ended.map(|(_, state)| state.clone()))
    }

    pub(crate) fn on_savepoint(&mut self, name: String, stops: bool) {
        if self.savepoints.find(&name).is_some() {
            return;
        }
        self.savepoints.ended.retain(|(ended, _)| *ended != name);
        self.savepoints.asked.push(Asked {
            name,
            stops,
            since_ms: self.now_ms,
            step: Step::Look,
            failure: None,
        });
    }

    /// Whatever is due of the savepoints that were asked for.
    pub(crate) fn go_on_saving(&mut self) {
        self.give_savepoints_up();
        let (savepoints, ids) = (&mut self.savepoints, &mut self.requests);
        if savepoints.looking.is_free()
            && let Some((name, request)) = savepoints.next_look()
        {
            self.out.push(savepoints.looking.ask(ids, name, request));
        }
        if savepoints.copying.is_free()
            && let Some((name, request)) = savepoints.next_copy(&self.publisher, &self.config)
        {
            self.out.push(savepoints.copying.ask(ids, name, request));
        }
    }

    /// Those that have waited for too long, or wait for what will not be.
    fn give_savepoints_up(&mut self) {
        let timeout_ms = self.config.checkpoint.timeout_ms;
        let give_up_ms = timeout_ms.saturating_mul(GIVE_UP_TIMEOUTS_N);
        let finishing = self.phase == Phase::Finishing;
        let mut given_up = Vec::new();
        for asked in &self.savepoints.asked {
            let reason = match &asked.step {
                Step::Look | Step::Wait if finishing => "the job has come to its end".to_owned(),
                Step::Look | Step::Wait | Step::Taken(_)
                    if asked.since_ms + give_up_ms <= self.now_ms =>
                {
                    let failure = asked.failure.iter();
                    let failure = failure.map(|it| format!("; the last attempt: {it}"));
                    let failure: String = failure.collect();
                    format!("no checkpoint was completed in {give_up_ms} ms{failure}")
                }
                Step::Publish(manifest, until_ms)
                    if *until_ms <= self.now_ms && !self.publisher.is_published_to(manifest.id) =>
                {
                    format!(
                        "the output of checkpoint {} was not published in {timeout_ms} ms",
                        manifest.id
                    )
                }
                _ => continue,
            };
            given_up.push((asked.name.clone(), reason));
        }
        for (name, reason) in given_up {
            self.end_savepoint(&name, SavepointState::Failed { reason });
        }
    }

    /// A checkpoint is committed that is all that a savepoint needs, if one waited for it.
    pub(crate) fn on_savepoint_committed(&mut self, committed: &Manifest) {
        let until_ms = self.now_ms + self.config.checkpoint.timeout_ms;
        for asked in &mut self.savepoints.asked {
            if matches!(asked.step, Step::Taken(id) if id == committed.id) {
                let manifest = Box::new(complete_in_itself(committed));
                asked.step = Step::Publish(manifest, until_ms);
            }
        }
        self.hold_copied();
    }

    fn hold_copied(&mut self) {
        let asked = self.savepoints.asked.iter();
        let held = asked.filter_map(|it| it.manifest().map(|manifest| manifest.id));
        self.retention.hold(held.collect());
    }

    pub(crate) fn on_saved(&mut self, answered: Answered<String>) {
        let name = answered.purpose.clone();
        let (ids, key) = (&mut self.requests, manifest_key(&name));
        let Savepoints {
            asked,
            looking,
            copying,
            ..
        } = &mut self.savepoints;
        let Some(asked) = asked.iter_mut().find(|it| it.name == name) else {
            return; // given up
        };
        if let StoreAnswer::Refused { reason } | StoreAnswer::Unknown { reason } = &answered.answer
        {
            if answered.attempts_n >= STORE_ATTEMPTS_MAX {
                let reason = format!("the store: {reason}");
                return self.end_savepoint(&name, SavepointState::Failed { reason });
            }
            let lane = match asked.step {
                Step::Look => looking,
                _ => copying,
            };
            return lane.ask_again_later(self.now_ms, answered);
        }
        let end = match (&mut asked.step, &answered.answer) {
            (Step::Look, StoreAnswer::Got(None)) if !asked.stops => {
                asked.step = Step::Wait;
                return;
            }
            (Step::Look, StoreAnswer::Got(None)) if self.phase == Phase::Running => {
                asked.step = Step::Wait;
                return self.on_stop();
            }
            (Step::Look, StoreAnswer::Got(None)) => SavepointState::Failed {
                reason: "the job does not run now, and was not stopped".to_owned(),
            },
            (Step::Look, StoreAnswer::Got(Some(_))) if asked.stops => SavepointState::Failed {
                reason: "there is one of this name already, and the job was not stopped".to_owned(),
            },
            (Step::Look, StoreAnswer::Got(Some((bytes, _)))) => found(bytes, true),
            // An earlier put of ours, or that of another coordinator.
            (Step::Name(_), StoreAnswer::Got(Some((bytes, _)))) => found(bytes, false),
            (Step::Copy(manifest), StoreAnswer::Checked(damages)) if damages.is_empty() => {
                let bytes = manifest::encode(frame::MANIFEST, &**manifest);
                asked.step = Step::Name(manifest.clone());
                let condition = PutCondition::CreateIfAbsent;
                let request = StoreRequest::Put {
                    key,
                    bytes,
                    condition,
                };
                return self.out.push(copying.ask(ids, name, request));
            }
            (Step::Copy(_), StoreAnswer::Checked(damages)) => SavepointState::Failed {
                reason: damages.join("; "),
            },
            (Step::Name(manifest), StoreAnswer::Put(_)) => completed(manifest, false),
            (Step::Name(_), StoreAnswer::ConditionFailed) => {
                let read_back = StoreRequest::Get { key };
                return self.out.push(copying.ask(ids, name, read_back));
            }
            (_, answer) => SavepointState::Failed {
                reason: format!("the store answered another question: {answer:?}"),
            },
        };
        self.end_savepoint(&name, end);
    }

    fn end_savepoint(&mut self, name: &str, end: SavepointState) {
        let asked = &mut self.savepoints.asked;
        let Some(at) = asked.iter().position(|it| it.name == name) else {
            return;
        };
        let gone = asked.remove(at);
        let took_ms = self.now_ms - gone.since_ms;
        if let SavepointState::Failed { reason } = &end
            && gone.stops
            && self.stop_since_ms.is_some()
        {
            self.savepoints.failed_at_stop = Some(format!("savepoint {name}: {reason}"));
        }
        let name = name.to_owned();
        self.report(match end.clone() {
            SavepointState::Completed { id, bytes_n, .. } => Report::SavepointCompleted {
                name: name.clone(),
                id,
                bytes_n,
                took_ms,
            },
            SavepointState::Failed { reason } => Report::SavepointFailed {
                name: name.clone(),
                reason,
            },
            SavepointState::Pending | SavepointState::InProgress => return,
        });
        let ended = &mut self.savepoints.ended;
        ended.push_back((name, end));
        if ended.len() > ENDED_MAX {
            ended.pop_front();
        }
        self.hold_copied();
    }
}

/// The manifest as it is stored with a savepoint: all output up to it is visible, and what subtasks
/// left behind is part of its sums.
fn complete_in_itself(committed: &Manifest) -> Manifest {
    Manifest {
        kind: CheckpointKind::Savepoint,
        staged: Vec::new(),
        departed: Departed::default(),
        ..committed.clone()
    }
}

fn manifest_key(name: &str) -> String {
    format!("{}{MANIFEST_KEY}", savepoint::folder(name))
}

fn copy_of(name: &str, manifest: &Manifest, plan: &Plan) -> StoreRequest {
    let plan = ExpectedObject {
        key: manifest.plan.clone(),
        bytes_n: manifest::encode(frame::PLAN, plan).len() as u64,
        // It has a checksum in itself.
        pieces: Vec::new(),
    };
    let folder = savepoint::folder(name);
    let objects = expected_objects(manifest).into_iter().chain([plan]);
    let to = |from: ExpectedObject| {
        let to = format!("{folder}{}", from.key);
        (from, to)
    };
    StoreRequest::Copy {
        objects: objects.map(to).collect(),
    }
}

fn completed(manifest: &Manifest, before: bool) -> SavepointState {
    let parts = manifest.operators.values().flat_map(|state| &state.parts);
    SavepointState::Completed {
        id: manifest.id,
        bytes_n: parts.map(|part| part.bytes).sum(),
        time_ms: manifest.time_ms,
        before,
    }
}

/// What has this name already.
fn found(bytes: &[u8], before: bool) -> SavepointState {
    match manifest::decode::<Manifest>(frame::MANIFEST, bytes) {
        Ok(manifest) => completed(&manifest, before),
        Err(error) => SavepointState::Failed {
            reason: format!("there is an object of this name, and it is no savepoint: {error}"),
        },
    }
}
