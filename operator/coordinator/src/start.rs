//! From nothing to a coordinator that may write.
//!
//! Owns: reading head, manifest and plan, refusing what must not be restored, and the takeover. All
//! reads come before the first write, so a start that is refused has changed nothing.
//!
//! Invariant C7: a restore never silently starts empty or from something older than the head's
//! manifest. A damaged newest one is noticed here, before any output, and the error names the newest
//! older one that is whole. Where an attempt may be running its state is not read for that: a
//! coordinator must not keep it without checkpoints meanwhile (F1). If it turns out to be over, that
//! follows before the next epoch begins.

mod before_epoch;

use std::collections::BTreeMap;

use streamforge_core::causes::with_causes;
use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, Generation, OperatorUid, SubtaskIdx};
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{self, HEAD_KEY, Head, Manifest, ManifestRef, Plan};
use streamforge_core::object_key::{MANIFESTS, PLANS, Writer};

use crate::compatibility::{mismatches, without};
use crate::coordinator::{Coordinator, Purpose};
use crate::decision::{Outcome, Report};
use crate::error::Error;
use crate::head::{Change, Table, TakeOver, successor};
use crate::lane::Answered;
use crate::retention::Retention;
use crate::status::Phase;
use crate::store_request::{PutCondition, StoreAnswer, StoreRequest, expected_objects};

/// How often a start begins anew because the coordinator before it is still at work. One that commits
/// every 100 ms leaves a start of a few milliseconds nine chances in ten.
const OUTRUN_N_MAX: u32 = 20;

/// How far a start is.
#[derive(Debug, Default)]
pub(crate) struct Starting {
    step: Step,
    /// The checkpoint that is being looked at, for restoring or for the way out.
    target: Option<ManifestRef>,
    manifest: Option<Manifest>,
    /// What of it the document has no place for and may be dropped, and why.
    pub(crate) dropped: BTreeMap<OperatorUid, Vec<String>>,
    /// Manifests that were found without a head.
    headless_n: usize,
    /// What was found wrong with the checkpoint to restore.
    damages: Vec<String>,
    /// Set once that checkpoint is known to be damaged.
    look_back: Option<LookBack>,
    /// Retained manifests still to be read, for retention.
    unread: Vec<ManifestRef>,
    plan_key: String,
    /// Hash of the plan that the head names, as this program reads it.
    pub(crate) deployed: Option<u64>,
    /// The newest checkpoint before the takeover.
    newest_before: Option<CheckpointId>,
    /// How often the coordinator that is taken over from changed the head in between.
    outrun_n: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    ReadHead,
    ListManifests,
    ReadManifest,
    ReadPlan,
    CheckObjects,
    /// The same after the takeover, when an attempt was to be adopted and is over.
    CheckBeforeEpoch,
    /// Something is damaged: has it been retired by one that took over from this coordinator?
    ReadHeadBeforeEpoch,
    /// Something is damaged: has it been retired by another coordinator meanwhile?
    ReadHeadAgain,
    ReadRetained,
    PutPlan,
}

/// The search for a way out of a damaged checkpoint.
#[derive(Debug)]
struct LookBack {
    damaged: CheckpointId,
    damages: Vec<String>,
    /// Older ones, the newest last.
    candidates: Vec<ManifestRef>,
    history_n: usize,
}

impl Coordinator {
    pub(crate) fn start(&mut self) {
        let (parallelism, max_parallelism) =
            (self.config.parallelism, self.config.graph.max_parallelism);
        if parallelism > max_parallelism {
            return self.fail(Error::ParallelismTooHigh {
                parallelism,
                max_parallelism,
            });
        }
        self.ask_start(
            Step::ReadHead,
            StoreRequest::Get {
                key: HEAD_KEY.to_owned(),
            },
        );
    }

    fn ask_start(&mut self, step: Step, request: StoreRequest) {
        self.starting.step = step;
        self.ask(Purpose::Start, request);
    }

    pub(crate) fn on_start_answer(&mut self, answered: Answered<Purpose>) {
        let step = self.starting.step;
        match (step, answered.answer) {
            (_, StoreAnswer::Unknown { .. } | StoreAnswer::Refused { .. }) => {
                let again = Answered {
                    answer: StoreAnswer::Deleted,
                    ..answered
                };
                self.store.ask_again_later(self.now_ms, again);
            }
            (Step::ReadHead, StoreAnswer::Got(None)) => {
                let prefix = format!("{MANIFESTS}/");
                self.ask_start(Step::ListManifests, StoreRequest::List { prefix });
            }
            (Step::ReadHead, StoreAnswer::Got(Some((bytes, version)))) => {
                self.on_head(&bytes, version);
            }
            (Step::ReadHeadAgain, StoreAnswer::Got(object)) => self.on_head_again(object),
            (Step::ListManifests, StoreAnswer::Listed(keys)) if keys.is_empty() => {
                match (self.config.rewind_to, self.config.restore_from.clone()) {
                    (None, None) => self.put_plan(),
                    (None, Some(place)) => self.begin_import(place),
                    (Some(wanted), _) => self.fail(Error::NotRetained {
                        wanted,
                        kept: Vec::new(),
                    }),
                }
            }
            (Step::ListManifests, StoreAnswer::Listed(keys)) => {
                self.starting.headless_n = keys.len();
                let key = HEAD_KEY.to_owned();
                self.ask_start(Step::ReadHeadAgain, StoreRequest::Get { key });
            }
            (Step::ReadManifest, StoreAnswer::Got(object)) => self.on_manifest(object.as_ref()),
            (Step::ReadPlan, StoreAnswer::Got(object)) => self.on_plan(object.as_ref()),
            (Step::CheckObjects, StoreAnswer::Checked(damages)) => self.on_checked(damages),
            (Step::CheckBeforeEpoch, StoreAnswer::Checked(damages)) => {
                self.on_checked_before_epoch(damages);
            }
            (Step::ReadHeadBeforeEpoch, StoreAnswer::Got(object)) => {
                self.on_head_before_epoch(object);
            }
            (Step::ReadRetained, StoreAnswer::Got(object)) => self.on_retained(object.as_ref()),
            // The name holds a nonce of ours: an object of that name is our own earlier put.
            (Step::PutPlan, StoreAnswer::Put(_) | StoreAnswer::ConditionFailed) => self.take_over(),
            (_, answer) => {
                let reason = format!("an answer to another question: {answer:?}");
                self.fail(Error::Store {
                    request: "start",
                    reason,
                    attempts_n: 1,
                });
            }
        }
    }

    fn on_head(&mut self, bytes: &[u8], version: crate::Version) {
        match manifest::decode::<Head>(frame::HEAD, bytes) {
            Err(error) => self.fail(Error::HeadUnreadable {
                reason: with_causes(&error),
            }),
            Ok(head) => {
                self.head.found(head, version);
                self.choose_target();
            }
        }
    }

    /// The newest manifest, or the one asked for by id.
    fn choose_target(&mut self) {
        let Some(head) = self.head.head() else { return };
        let (retained, newest, plan) = (
            head.retained.clone(),
            head.newest.clone(),
            head.plan.clone(),
        );
        let finished = head.finished;
        self.starting.target = match self.config.rewind_to {
            None => newest,
            Some(wanted) => match retained.iter().find(|kept| kept.id == wanted) {
                Some(kept) => Some(kept.clone()),
                None => return self.look_for_savepoint(wanted),
            },
        };
        if let (None, Some(place)) = (self.config.rewind_to, self.config.restore_from.clone()) {
            if self.starting.target.is_none() {
                return self.begin_import(place);
            }
            self.report(Report::RestoreFromUnused { place });
        }
        match &self.starting.target {
            Some(target) if !(finished && self.config.rewind_to.is_none()) => {
                let key = target.key.clone();
                self.ask_start(Step::ReadManifest, StoreRequest::Get { key });
            }
            _ => {
                self.starting.target = None;
                self.ask_start(Step::ReadPlan, StoreRequest::Get { key: plan });
            }
        }
    }

    fn on_manifest(&mut self, object: Option<&(Vec<u8>, crate::Version)>) {
        let Some(target) = self.starting.target.clone() else {
            return;
        };
        let found = match object {
            None => Err(format!("manifest {} is missing", target.key)),
            Some((bytes, _)) => manifest::decode::<Manifest>(frame::MANIFEST, bytes)
                .map_err(|e| format!("manifest {}: {}", target.key, with_causes(&e))),
        };
        match found {
            Err(damage) => self.on_damaged(vec![damage]),
            Ok(manifest) => {
                let key = manifest.plan.clone();
                self.starting.manifest = Some(manifest);
                self.ask_start(Step::ReadPlan, StoreRequest::Get { key });
            }
        }
    }

    fn on_plan(&mut self, object: Option<&(Vec<u8>, crate::Version)>) {
        let plan = match object {
            None => Err("the stored plan is missing".to_owned()),
            Some((bytes, _)) => manifest::decode::<Plan>(frame::PLAN, bytes)
                .map_err(|e| format!("the stored plan: {}", with_causes(&e))),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(damage) => return self.on_damaged(vec![damage]),
        };
        if plan.graph.name != self.config.graph.name {
            let (theirs, ours) = (plan.graph.name, self.config.graph.name.clone());
            return self.fail(Error::OtherJob { theirs, ours });
        }
        let Some(manifest) = &self.starting.manifest else {
            return self.start_without_restore();
        };
        let head = self.head.head();
        let is_deployed = head.is_some_and(|head| head.plan == manifest.plan);
        self.starting.deployed = is_deployed.then(|| plan.hash());
        let dropped = match &self.starting.look_back {
            // It is only looked at whether it is whole.
            Some(_) => BTreeMap::new(),
            None => match self.check_document(&plan, manifest) {
                Ok(dropped) => dropped,
                Err(error) => return self.fail(error),
            },
        };
        let goes_on = self.starting.look_back.is_none() && self.may_go_on_from(manifest);
        let objects = expected_objects(&without(manifest.clone(), dropped.keys()));
        self.starting.dropped = dropped;
        if goes_on {
            return self.on_checked(Vec::new());
        }
        self.ask_start(Step::CheckObjects, StoreRequest::Check { objects });
    }

    /// Finished before, or never read a row.
    fn start_without_restore(&mut self) {
        if self
            .head
            .head()
            .is_some_and(|head| head.finished && self.config.rewind_to.is_none())
        {
            self.end(Outcome::Finished { before: true });
        } else {
            self.put_plan();
        }
    }

    /// Whether the document can go on from this manifest, and what of it is dropped for that. Output that is
    /// staged never is.
    pub(crate) fn check_document(
        &self,
        stored: &Plan,
        manifest: &Manifest,
    ) -> Result<BTreeMap<OperatorUid, Vec<String>>, Error> {
        let wanted = self.config.graph.max_parallelism;
        if manifest.max_parallelism != wanted && !manifest.operators.is_empty() {
            return Err(Error::MaxParallelismChanged {
                stored: manifest.max_parallelism,
                wanted,
            });
        }
        let mut mismatches = mismatches(&stored.graph, &self.config.graph, manifest);
        let dropped = if self.config.drop_state {
            std::mem::take(&mut mismatches.state)
        } else {
            BTreeMap::new()
        };
        if mismatches.is_empty() {
            Ok(dropped)
        } else {
            Err(Error::IncompatibleDocument {
                id: manifest.id,
                mismatches: mismatches.into_sentences(),
            })
        }
    }

    fn on_checked(&mut self, damages: Vec<String>) {
        if !damages.is_empty() {
            return self.on_damaged(damages);
        }
        if let Some(look_back) = self.starting.look_back.take() {
            let intact = self.starting.target.as_ref().map(|target| target.id);
            return self.fail(Error::Damaged {
                id: look_back.damaged,
                damages: look_back.damages,
                intact,
                history_n: look_back.history_n,
            });
        }
        // What is restored is whole. Retention must know what the others reference.
        let Some(manifest) = self.starting.manifest.take() else {
            return;
        };
        if let Some(target) = &self.starting.target {
            self.retention.learn(&target.key, &manifest);
        }
        let id = manifest.id;
        self.committed = Some(without(manifest, self.starting.dropped.keys()));
        let retained = self
            .head
            .head()
            .map(|head| head.retained.clone())
            .unwrap_or_default();
        self.starting.unread = retained.into_iter().filter(|kept| kept.id < id).collect();
        self.read_next_retained();
    }

    /// What is restored is a savepoint, and is whole. Retention must know what all others reference.
    pub(crate) fn start_with_import(&mut self) {
        let retained = self.head.head().map(|head| head.retained.clone());
        self.starting.unread = retained.unwrap_or_default();
        self.read_next_retained();
    }

    /// The looked-at checkpoint cannot be restored.
    fn on_damaged(&mut self, damages: Vec<String>) {
        if self.starting.target.is_none() {
            // Only the job's name was wanted of the damaged plan.
            self.start_without_restore();
        } else if self.starting.look_back.is_some() {
            self.look_back(Vec::new());
        } else {
            self.starting.damages = damages;
            let key = HEAD_KEY.to_owned();
            self.ask_start(Step::ReadHeadAgain, StoreRequest::Get { key });
        }
    }

    /// A coordinator that is still at work may have retired what was just looked for, or made the
    /// first head: then the head is another one, and the start begins anew from it.
    fn on_head_again(&mut self, object: Option<(Vec<u8>, crate::Version)>) {
        let damages = std::mem::take(&mut self.starting.damages);
        if object
            .as_ref()
            .is_some_and(|(_, version)| self.head.is_at(version))
        {
            return self.look_back(damages);
        }
        let manifests_n = self.starting.headless_n;
        self.begin_anew();
        match object {
            Some((bytes, version)) => self.on_head(&bytes, version),
            None if self.head.head().is_none() => self.fail(Error::HeadMissing { manifests_n }),
            None => self.fail(Error::HeadVanished),
        }
    }

    /// The coordinator that is taken over from swapped the head while this start was reading: what was
    /// read is not the newest any more.
    pub(crate) fn on_outrun(&mut self) {
        let outrun_n = self.starting.outrun_n + 1;
        if outrun_n > OUTRUN_N_MAX {
            let theirs = self
                .head
                .head()
                .map_or(Generation::ZERO, |it| it.generation);
            return self.fail(Error::Outrun {
                theirs,
                times_n: outrun_n,
            });
        }
        self.begin_anew();
        self.starting.outrun_n = outrun_n;
        self.choose_target();
    }

    /// Forgets what was read.
    fn begin_anew(&mut self) {
        let outrun_n = self.starting.outrun_n;
        self.starting = Starting {
            outrun_n,
            ..Starting::default()
        };
        self.retention = Retention::default();
        self.committed = None;
        // Whoever was outrun may find that the job has a state of its own.
        self.import = None;
    }

    /// Looks for the newest older checkpoint that is whole, to name it.
    fn look_back(&mut self, damages: Vec<String>) {
        let Some(target) = self.starting.target.clone() else {
            return;
        };
        self.starting.manifest = None;
        if self.starting.look_back.is_none() {
            let retained = self
                .head
                .head()
                .map(|head| head.retained.clone())
                .unwrap_or_default();
            let candidates: Vec<ManifestRef> = retained
                .into_iter()
                .filter(|kept| kept.id < target.id)
                .collect();
            let history_n = candidates.len();
            let damaged = target.id;
            let look_back = LookBack {
                damaged,
                damages,
                candidates,
                history_n,
            };
            self.starting.look_back = Some(look_back);
        }
        let Some(look_back) = &mut self.starting.look_back else {
            return;
        };
        match look_back.candidates.pop() {
            Some(candidate) => {
                let key = candidate.key.clone();
                self.starting.target = Some(candidate);
                self.ask_start(Step::ReadManifest, StoreRequest::Get { key });
            }
            None => {
                let (id, history_n) = (look_back.damaged, look_back.history_n);
                let damages = std::mem::take(&mut look_back.damages);
                self.fail(Error::Damaged {
                    id,
                    damages,
                    intact: None,
                    history_n,
                });
            }
        }
    }

    fn read_next_retained(&mut self) {
        match self.starting.unread.last() {
            Some(kept) => {
                let key = kept.key.clone();
                self.ask_start(Step::ReadRetained, StoreRequest::Get { key });
            }
            None => self.put_plan(),
        }
    }

    fn on_retained(&mut self, object: Option<&(Vec<u8>, crate::Version)>) {
        let Some(kept) = self.starting.unread.pop() else {
            return;
        };
        // One that cannot be read keeps retention from deleting anything until it has left.
        if let Some((bytes, _)) = object
            && let Ok(manifest) = manifest::decode::<Manifest>(frame::MANIFEST, bytes)
        {
            self.retention.learn(&kept.key, &manifest);
        }
        self.read_next_retained();
    }

    fn put_plan(&mut self) {
        let base = self.head.head();
        let (generation, epoch) = successor(base);
        // C4: ids of a new generation start above everything reserved before.
        self.next_id = base
            .map_or(CheckpointId::ZERO, |head| head.ids_reserved_to)
            .next();
        let writer = Writer {
            generation,
            epoch,
            checkpoint: self.next_id,
        };
        // Two that take over at once use the same numbers until one of them wins.
        self.starting.plan_key = format!("{}-{:016x}", writer.key(PLANS), self.head.nonce());
        let key = self.starting.plan_key.clone();
        let bytes = manifest::encode(frame::PLAN, &self.config.plan());
        let condition = PutCondition::CreateIfAbsent;
        self.ask_start(
            Step::PutPlan,
            StoreRequest::Put {
                key,
                bytes,
                condition,
            },
        );
    }

    fn take_over(&mut self) {
        // What was asked for while the job ran holds until somebody starts it with another number.
        let asked = self.config.parallelism;
        let scaled = self.head.head().and_then(|head| head.scaled);
        let scaled = scaled.filter(|scaled| scaled.started_with == asked);
        self.wanted = scaled.map_or(asked, |scaled| scaled.to);
        // An order while it ran may be more than there are slots for; the job ran on with those.
        self.may_run_smaller = scaled.is_some();
        let parallelism = self.wanted;
        let groups_n = self.config.graph.max_parallelism;
        let assignment = match self.head.head() {
            Some(head) if head.assignment.groups_n() != groups_n => {
                Assignment::even(groups_n, parallelism)
            }
            Some(head) if is_numbered(head, parallelism) => head.assignment.clone(),
            Some(head) => head.assignment.rescaled(parallelism),
            None => Assignment::even(groups_n, parallelism),
        };
        let newest = self.head.head().and_then(|head| head.newest.as_ref());
        self.starting.newest_before = newest.map(|newest| newest.id);
        let table = Table {
            assignment,
            parallelism,
        };
        let goes_on = self.may_adopt();
        self.swap(Change::TakeOver(Box::new(TakeOver {
            job: self.config.new_job.clone(),
            coordinator: self.config.address.clone(),
            plan: self.starting.plan_key.clone(),
            plan_hash: Plan::hash_of(&self.config.graph),
            table: (!goes_on).then_some(table),
            scaled,
            // A savepoint becomes the newest once it is copied.
            rewind_to: self.config.rewind_to.filter(|_| self.import.is_none()),
        })));
    }

    pub(crate) fn on_taken_over(&mut self, head: &Head) {
        let (generation, epoch) = (head.generation, head.epoch);
        let restored = self.committed.as_ref().map(|manifest| manifest.id);
        if let (Some(from), Some(to)) = (self.starting.newest_before, restored)
            && to < from
        {
            self.report(Report::Rewound { from, to });
        }
        self.report(Report::TookOver {
            generation,
            epoch,
            restored,
        });
        let dropped = std::mem::take(&mut self.starting.dropped);
        if !dropped.is_empty() {
            let what = dropped.into_values().flatten().collect();
            self.report(Report::StateDropped { what });
        }
        if let Some(manifest) = &self.committed {
            self.publisher.on_committed(manifest);
        }
        self.retention.on_head(head);
        self.status.generation = generation;
        self.status.epoch = epoch;
        if self.import.is_some() {
            return self.copy_import();
        }
        self.phase = Phase::Deploying;
        if self.adoption_begins {
            self.await_adoption();
        } else {
            self.undeployed = true;
        }
    }
}

/// Whether its subtasks are numbered from 0 on, without a gap.
fn is_numbered(head: &Head, parallelism: u32) -> bool {
    let subtasks = head.assignment.subtasks();
    head.parallelism == parallelism && subtasks.into_iter().eq((0..parallelism).map(SubtaskIdx))
}
