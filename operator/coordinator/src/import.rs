//! A start from a savepoint (C9).
//!
//! Owns: finding it, refusing what does not fit or is not whole before anything is written, and making
//! it the job's own: its objects are copied under names of this term, and a manifest of them is
//! committed, the job's first or, after a rewind, its newest. So a job never references what lies
//! outside of its own folders, and a savepoint may be deleted at any time. Start at:
//! [`Coordinator::begin_import`] (a new job) or [`Coordinator::look_for_savepoint`] (C7), then
//! [`Coordinator::copy_import`].
//!
//! A savepoint lists no staged output, all of it is published: so nothing is published again, whichever
//! job begins with it. One that is interrupted has a head that names no manifest, or still the old one,
//! and begins anew.

use std::collections::BTreeMap;

use streamforge_core::causes::with_causes;
use streamforge_core::frame;
use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{
    self, CheckpointKind, Departed, Head, Manifest, ManifestRef, Plan,
};
use streamforge_core::object_key::{MANIFESTS, Writer};
use streamforge_core::savepoint::{self, MANIFEST_KEY, SAVEPOINTS};

use crate::compatibility::without;
use crate::coordinator::{Coordinator, Purpose};
use crate::decision::Report;
use crate::error::Error;
use crate::head::Change;
use crate::lane::Answered;
use crate::status::Phase;
use crate::store_request::{
    ELSEWHERE, ExpectedObject, PutCondition, StoreAnswer, StoreRequest, expected_objects,
};

/// The savepoint that a job is to begin with.
#[derive(Debug)]
pub(crate) struct Import {
    /// Where its objects are, with a slash at its end.
    folder: String,
    /// The same for people.
    place: String,
    step: Step,
    /// It is looked for by its checkpoint's id.
    search: Option<Search>,
    /// As it is in the savepoint, without what is dropped.
    savepoint: Option<Manifest>,
    /// As it becomes the job's own.
    own: Option<(ManifestRef, Manifest)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    List,
    ReadManifest,
    ReadPlan,
    Check,
    Copy,
    PutManifest,
}

#[derive(Debug)]
struct Search {
    wanted: CheckpointId,
    /// Names of savepoints that have not been looked at.
    names: Vec<String>,
    /// What the others are.
    found: Vec<CheckpointId>,
}

impl Coordinator {
    /// The job has no state, and is to begin with the savepoint elsewhere.
    pub(crate) fn begin_import(&mut self, place: String) {
        self.import = Some(Import {
            folder: ELSEWHERE.to_owned(),
            place,
            step: Step::List,
            search: None,
            savepoint: None,
            own: None,
        });
        self.read_savepoint();
    }

    /// A rewind to what the head does not list, but one of the job's savepoints may be (C7).
    pub(crate) fn look_for_savepoint(&mut self, wanted: CheckpointId) {
        self.import = Some(Import {
            folder: String::new(),
            place: String::new(),
            step: Step::List,
            search: Some(Search {
                wanted,
                names: Vec::new(),
                found: Vec::new(),
            }),
            savepoint: None,
            own: None,
        });
        let prefix = format!("{SAVEPOINTS}/");
        self.ask(Purpose::Import, StoreRequest::List { prefix });
    }

    fn ask_import(&mut self, step: Step, request: StoreRequest) {
        if let Some(import) = &mut self.import {
            import.step = step;
        }
        self.ask(Purpose::Import, request);
    }

    fn read_savepoint(&mut self) {
        let Some(import) = &self.import else { return };
        let key = format!("{}{MANIFEST_KEY}", import.folder);
        self.ask_import(Step::ReadManifest, StoreRequest::Get { key });
    }

    pub(crate) fn on_import_answer(&mut self, answered: Answered<Purpose>) {
        let Some(step) = self.import.as_ref().map(|import| import.step) else {
            return;
        };
        match (step, answered.answer) {
            (_, StoreAnswer::Unknown { .. } | StoreAnswer::Refused { .. }) => {
                let again = Answered {
                    answer: StoreAnswer::Deleted,
                    ..answered
                };
                self.store.ask_again_later(self.now_ms, again);
            }
            (Step::List, StoreAnswer::Listed(keys)) => {
                let names = keys.iter().filter_map(|key| savepoint::name_of(key));
                let names = names.map(str::to_owned).collect();
                if let Some(search) = self.import.as_mut().and_then(|it| it.search.as_mut()) {
                    search.names = names;
                }
                self.look_at_next();
            }
            (Step::ReadManifest, StoreAnswer::Got(object)) => self.on_savepoint_read(object),
            (Step::ReadPlan, StoreAnswer::Got(object)) => self.on_savepoint_plan(object),
            (Step::Check | Step::Copy, StoreAnswer::Checked(damages)) if !damages.is_empty() => {
                self.refuse_import(damages);
            }
            (Step::Check, StoreAnswer::Checked(_)) => self.start_with_import(),
            (Step::Copy, StoreAnswer::Checked(_)) => self.put_imported(),
            // Only this coordinator writes names of its generation.
            (Step::PutManifest, StoreAnswer::Put(_) | StoreAnswer::ConditionFailed) => {
                self.commit_imported();
            }
            (_, answer) => {
                let reason = format!("an answer to another question: {answer:?}");
                self.fail(Error::Store {
                    request: "restore a savepoint",
                    reason,
                    attempts_n: 1,
                });
            }
        }
    }

    fn refuse_import(&mut self, damages: Vec<String>) {
        // The folder is named beside; the mark of where it is looked for is ours.
        let damages = damages.iter().map(|it| it.replace(ELSEWHERE, "")).collect();
        let place = self.import.as_ref().map(|import| import.place.clone());
        let place = place.unwrap_or_default();
        self.fail(Error::SavepointDamaged { place, damages });
    }

    fn look_at_next(&mut self) {
        let Some(import) = &mut self.import else {
            return;
        };
        let Some(search) = &mut import.search else {
            return;
        };
        if let Some(name) = search.names.pop() {
            import.folder = savepoint::folder(&name);
            import.place = format!("{name:?}");
            return self.read_savepoint();
        }
        let (wanted, mut kept) = (search.wanted, std::mem::take(&mut search.found));
        let retained = self.head.head().map(|head| head.retained.clone());
        kept.extend(retained.unwrap_or_default().iter().map(|kept| kept.id));
        kept.sort_unstable();
        kept.dedup();
        self.fail(Error::NotRetained { wanted, kept });
    }

    fn on_savepoint_read(&mut self, object: Option<(Vec<u8>, crate::Version)>) {
        let job = self.head.head().map(|head| head.job.clone());
        let Some(import) = &mut self.import else {
            return;
        };
        let found = match object {
            None => Err(format!(
                "there is no {MANIFEST_KEY:?} in it, which is written last: it was never completed, or is \
                 the folder of something else"
            )),
            Some((bytes, _)) => manifest::decode::<Manifest>(frame::MANIFEST, &bytes)
                .map_err(|error| with_causes(&error)),
        };
        if let Some(search) = &mut import.search {
            let own = found
                .as_ref()
                .ok()
                .filter(|it| Some(&it.job) == job.as_ref());
            if own.is_none_or(|it| it.id != search.wanted) {
                search.found.extend(own.map(|it| it.id));
                return self.look_at_next();
            }
        }
        match found {
            Err(damage) => self.refuse_import(vec![damage]),
            Ok(savepoint) => {
                let key = format!("{}{}", import.folder, savepoint.plan);
                import.savepoint = Some(savepoint);
                self.ask_import(Step::ReadPlan, StoreRequest::Get { key });
            }
        }
    }

    fn on_savepoint_plan(&mut self, object: Option<(Vec<u8>, crate::Version)>) {
        let Some(import) = &self.import else { return };
        let Some(savepoint) = &import.savepoint else {
            return;
        };
        let plan = match object {
            None => Err(format!("object {} is missing", savepoint.plan)),
            Some((bytes, _)) => manifest::decode::<Plan>(frame::PLAN, &bytes)
                .map_err(|e| format!("object {}: {}", savepoint.plan, with_causes(&e))),
        };
        let fits = match &plan {
            Err(damage) => return self.refuse_import(vec![damage.clone()]),
            Ok(plan) => self.check_document(plan, savepoint),
        };
        match fits {
            Ok(dropped) => {
                let savepoint = without(savepoint.clone(), dropped.keys());
                let objects = objects_of(&import.folder, &savepoint);
                if let Some(import) = &mut self.import {
                    import.savepoint = Some(savepoint);
                }
                self.starting.dropped = dropped;
                self.ask_import(Step::Check, StoreRequest::Check { objects });
            }
            Err(Error::IncompatibleDocument { mismatches, .. }) => {
                let place = import.place.clone();
                self.fail(Error::IncompatibleSavepoint { place, mismatches });
            }
            Err(error) => self.fail(error),
        }
    }

    /// The head names this coordinator: what it writes now is the job's own.
    pub(crate) fn copy_import(&mut self) {
        let Some(id) = self.reserved_id() else { return };
        let (Some(head), Some(import)) = (self.head.head(), &mut self.import) else {
            return;
        };
        let Some(savepoint) = &import.savepoint else {
            return;
        };
        let writer = Writer {
            generation: head.generation,
            epoch: head.epoch,
            checkpoint: id,
        };
        let mut keys = BTreeMap::new();
        for (n, object) in expected_objects(savepoint).into_iter().enumerate() {
            let (folder, _) = object.key.split_once('/').unwrap_or(("parts", ""));
            let own = format!("{}-s{n}", writer.key(folder));
            keys.insert(object.key, own);
        }
        let own_key = |key: &str| keys.get(key).cloned().unwrap_or_else(|| key.to_owned());
        let manifest = Manifest {
            max_parallelism: self.config.graph.max_parallelism,
            time_ms: self.now_ms,
            ..owned(savepoint::with_keys(savepoint, own_key), head, id)
        };
        let key = writer.key(MANIFESTS);
        let objects = objects_of(&import.folder, savepoint).into_iter();
        let to = |object: ExpectedObject| {
            let known = object.key.get(import.folder.len()..).unwrap_or_default();
            let to = own_key(known);
            (object, to)
        };
        let objects = objects.map(to).collect();
        import.own = Some((ManifestRef { key, id }, manifest));
        self.status.waits_for = Some("the savepoint to be copied".to_owned());
        self.ask_import(Step::Copy, StoreRequest::Copy { objects });
    }

    fn put_imported(&mut self) {
        let own = self.import.as_ref().and_then(|import| import.own.as_ref());
        let Some((named, manifest)) = own else { return };
        let request = StoreRequest::Put {
            key: named.key.clone(),
            bytes: manifest::encode(frame::MANIFEST, manifest),
            condition: PutCondition::CreateIfAbsent,
        };
        self.ask_import(Step::PutManifest, request);
    }

    fn commit_imported(&mut self) {
        let own = self.import.as_ref().and_then(|import| import.own.as_ref());
        let Some((named, _)) = own else { return };
        let (manifest, retain_n) = (named.clone(), self.config.checkpoint.retain_n);
        self.swap(Change::Commit {
            manifest,
            retain_n,
            task_managers: Default::default(), // nothing runs yet
        });
    }

    /// A swap has committed a manifest. If it is the imported one, the job begins with it.
    pub(crate) fn on_imported(&mut self, head: &Head) {
        let Some(import) = self.import.take() else {
            return;
        };
        let (Some(savepoint), Some((named, manifest))) = (import.savepoint, import.own) else {
            return;
        };
        self.retention.learn(&named.key, &manifest);
        self.retention.on_head(head);
        self.publisher.on_committed(&manifest);
        self.committed = Some(manifest);
        self.report(Report::Restored {
            from: import.place,
            savepoint: savepoint.id,
            to: named.id,
        });
        self.status.waits_for = None;
        self.phase = Phase::Deploying;
        self.undeployed = true;
    }
}

/// What a restore would read of it, where it is.
fn objects_of(folder: &str, savepoint: &Manifest) -> Vec<ExpectedObject> {
    let objects = expected_objects(savepoint).into_iter();
    let there = |object: ExpectedObject| ExpectedObject {
        key: format!("{folder}{}", object.key),
        ..object
    };
    objects.map(there).collect()
}

/// The same state as this job's, at its beginning or after a rewind.
fn owned(savepoint: Manifest, head: &Head, id: CheckpointId) -> Manifest {
    Manifest {
        job: head.job.clone(),
        generation: head.generation,
        epoch: head.epoch,
        id,
        kind: CheckpointKind::Initial,
        plan: head.plan.clone(),
        duration_ms: 0,
        tasks: Vec::new(),
        staged: Vec::new(),
        departed: Departed::default(),
        handed_to: None,
        ..savepoint
    }
}
