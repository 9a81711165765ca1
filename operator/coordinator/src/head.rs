//! The head and its swaps.
//!
//! Owns: what the head is known to be, the swap that is under way, and what an answer says about
//! both. A swap is a [`Change`] applied to the head it replaces, so it can be redone on top of
//! another.
//!
//! Invariant C2: the swap is the commit point. After a lost answer or a failed condition the head is
//! read back: our nonce = done; unchanged = the same bytes again; an *earlier* swap of ours = that
//! one is committed, redo on top; an earlier coordinator's while ours is the takeover = it was still
//! at work, start again from its head; anything else = fenced. Invariant C4: every swap moves the range
//! of reserved ids on. Invariant C5: a coordinator that lost a swap writes nothing any more.

use std::collections::BTreeSet;

use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId};
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{self, HEAD_KEY, Head, ManifestRef, Scaled};

use crate::error::Error;
use crate::store_request::{PutCondition, StoreAnswer, StoreRequest, Version};

/// Ids a swap reserves beyond the next one. More than any run of failed attempts between two
/// swaps should need; when it is used up, a swap of its own reserves more.
pub const IDS_RESERVED_N: u64 = 16;

/// What a swap is to do to the head.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Generation + 1 and epoch + 1, with the plan of that epoch; or the epoch as it is (F1).
    TakeOver(Box<TakeOver>),
    /// Epoch + 1, at this table if it changes.
    BeginEpoch(Option<Table>),
    /// This manifest is the newest; the oldest beyond `retain_n` leave the list.
    Commit {
        /// The manifest.
        manifest: ManifestRef,
        /// How many are kept.
        retain_n: usize,
        /// Task managers that run the epoch, by name.
        task_managers: BTreeSet<String>,
    },
    /// This table is to hold from the barrier of a checkpoint on that is still to come (K3).
    Propose {
        /// The table.
        assignment: Assignment,
        /// Subtasks have numbers below this.
        numbers_to: u32,
    },
    /// It will not.
    Withdraw,
    /// This manifest is the newest, and the proposed table holds from now on.
    CommitHandOver {
        /// The manifest.
        manifest: ManifestRef,
        /// How many are kept.
        retain_n: usize,
        /// Task managers that run the epoch by that table, by name.
        task_managers: BTreeSet<String>,
    },
    /// This manifest, of the same moment, takes the newest one's place.
    Record(ManifestRef),
    /// A person asked for this parallelism.
    Scale(Scaled),
    /// Nothing but more ids.
    Reserve,
    /// The job is done.
    Finish,
}

/// Who owns which key group, and how many subtasks there are.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Who owns which key group.
    pub assignment: Assignment,
    /// Subtasks per stage.
    pub parallelism: u32,
}

/// What a new coordinator puts into the head.
#[derive(Clone, Debug, PartialEq)]
pub struct TakeOver {
    /// Identity of the history, when there is no head yet.
    pub job: JobId,
    /// Where it can be reached.
    pub coordinator: String,
    /// Key of the plan.
    pub plan: String,
    /// Hash of its stages and exchanges.
    pub plan_hash: u64,
    /// The table of the epoch that begins; `None`: the epoch goes on, and so does its table.
    pub table: Option<Table>,
    /// The parallelism that was asked for while the job ran, if that still counts.
    pub scaled: Option<Scaled>,
    /// A rewind: this one becomes the newest, and those above it leave the list.
    pub rewind_to: Option<CheckpointId>,
}

impl Change {
    /// The head after this change of `base`.
    fn apply(&self, base: Option<&Head>, next_id: CheckpointId, nonce: u64) -> Option<Head> {
        let mut head = match (self, base) {
            (Self::TakeOver(new), base) => new.apply(base)?,
            (_, None) => return None, // only a takeover creates a head
            (_, Some(base)) => base.clone(),
        };
        match self {
            Self::TakeOver(_) | Self::Reserve => {}
            Self::BeginEpoch(table) => {
                head.epoch = head.epoch.next();
                head.proposed = None;
                head.numbers_to = 0;
                head.task_managers.clear();
                if let Some(table) = table {
                    head.assignment = table.assignment.clone();
                    head.parallelism = table.parallelism;
                }
            }
            Self::Propose {
                assignment,
                numbers_to,
            } => {
                head.proposed = Some(assignment.clone());
                head.numbers_to = head.numbers_to.max(*numbers_to);
            }
            Self::Withdraw => head.proposed = None,
            Self::Scale(scaled) => head.scaled = Some(*scaled),
            Self::Commit {
                manifest,
                retain_n,
                task_managers,
            } => {
                commit(&mut head, manifest, *retain_n);
                head.task_managers.clone_from(task_managers);
            }
            Self::Record(manifest) => {
                head.retained.pop();
                head.retained.push(manifest.clone());
                head.newest = Some(manifest.clone());
            }
            Self::CommitHandOver {
                manifest,
                retain_n,
                task_managers,
            } => {
                commit(&mut head, manifest, *retain_n);
                head.task_managers.clone_from(task_managers);
                let table = head.proposed.take()?;
                head.parallelism = u32::try_from(table.subtasks().len()).unwrap_or(u32::MAX);
                head.assignment = table;
            }
            Self::Finish => head.finished = true,
        }
        let range_end = CheckpointId::from_stored(next_id.get() + IDS_RESERVED_N);
        head.ids_reserved_to = head.ids_reserved_to.max(range_end);
        head.nonce = nonce;
        Some(head)
    }
}

fn commit(head: &mut Head, manifest: &ManifestRef, retain_n: usize) {
    head.retained.push(manifest.clone());
    let drop_n = head.retained.len().saturating_sub(retain_n.max(1));
    head.retained.drain(..drop_n);
    head.newest = Some(manifest.clone());
    // A finished job that goes back to a savepoint is no longer finished.
    head.finished = false;
}

impl TakeOver {
    fn apply(&self, base: Option<&Head>) -> Option<Head> {
        let (generation, next_epoch) = successor(base);
        let (epoch, table) = match (&self.table, base) {
            (Some(table), _) => (next_epoch, table.clone()),
            (None, Some(base)) => {
                let table = Table {
                    assignment: base.assignment.clone(),
                    parallelism: base.parallelism,
                };
                (base.epoch, table)
            }
            (None, None) => return None, // there is no epoch that could go on
        };
        let mut retained = base.map_or_else(Vec::new, |base| base.retained.clone());
        let mut newest = base.and_then(|base| base.newest.clone());
        if let Some(id) = self.rewind_to {
            retained.retain(|kept| kept.id <= id);
            newest = retained.last().cloned();
        }
        Some(Head {
            job: base.map_or_else(|| self.job.clone(), |base| base.job.clone()),
            generation,
            epoch,
            coordinator: self.coordinator.clone(),
            plan: self.plan.clone(),
            plan_hash: self.plan_hash,
            assignment: table.assignment,
            parallelism: table.parallelism,
            newest,
            retained,
            ids_reserved_to: base.map_or(CheckpointId::ZERO, |base| base.ids_reserved_to),
            nonce: 0,
            finished: base.is_some_and(|base| base.finished) && self.rewind_to.is_none(),
            proposed: None,
            numbers_to: match (&self.table, base) {
                (None, Some(base)) => base.numbers_to,
                _ => 0,
            },
            scaled: self.scaled,
            task_managers: match (&self.table, base) {
                (None, Some(base)) => base.task_managers.clone(),
                _ => BTreeSet::new(),
            },
        })
    }
}

/// Generation and epoch of whoever takes over from `base`.
pub fn successor(base: Option<&Head>) -> (Generation, Epoch) {
    base.map_or((Generation::ZERO.next(), Epoch::ZERO.next()), |base| {
        (base.generation.next(), base.epoch.next())
    })
}

/// What to do about a swap next.
#[derive(Debug, PartialEq)]
#[must_use]
pub enum Step {
    /// Ask this now.
    Ask(StoreRequest),
    /// Ask this after a while: the store is in trouble.
    AskLater(StoreRequest),
    /// Ask what was just answered again, after a while.
    AskAgainLater,
    /// The head is what the swap wanted.
    Done(Box<Change>, Box<Head>),
    /// The coordinator that is taken over from has swapped the head meanwhile; nothing is under way
    /// any more, and the head as found is the one that swaps are based on.
    Outrun,
    /// This coordinator may not go on.
    Failed(Error),
}

/// The head as known, and the swap under way.
#[derive(Debug, Default)]
pub struct HeadKeeper {
    base: Option<(Head, Version)>,
    pending: Option<Swap>,
    /// Swaps of ours that were given up for a newer one without knowing how they ended.
    unresolved: Vec<Head>,
    nonce_seed: u64,
    swaps_n: u64,
}

#[derive(Debug)]
struct Swap {
    change: Change,
    next_id: CheckpointId,
    head: Head,
}

impl HeadKeeper {
    /// A keeper that knows no head yet. The seed must differ between processes.
    #[must_use]
    pub fn new(nonce_seed: u64) -> Self {
        Self {
            nonce_seed,
            ..Self::default()
        }
    }

    /// The head was read: this is what swaps are based on.
    pub fn found(&mut self, head: Head, version: Version) {
        self.base = Some((head, version));
    }

    /// The head, as last known to be.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.base.as_ref().map(|(head, _)| head)
    }

    /// Is this the version of the head as last known?
    #[must_use]
    pub fn is_at(&self, version: &Version) -> bool {
        self.base
            .as_ref()
            .is_some_and(|(_, known)| known == version)
    }

    /// A number no other swap of any coordinator has.
    pub fn nonce(&mut self) -> u64 {
        self.swaps_n += 1;
        split_mix(
            self.nonce_seed
                .wrapping_add(self.swaps_n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        )
    }

    /// Begins a swap. One that is still under way is superseded: it may yet turn out to have taken
    /// effect, and is then adopted (C2).
    pub fn swap(&mut self, change: Change, next_id: CheckpointId) -> Step {
        if let Some(pending) = self.pending.take() {
            self.unresolved.push(pending.head);
        }
        let nonce = self.nonce();
        let Some(head) = change.apply(self.head(), next_id, nonce) else {
            return Step::Failed(Error::HeadVanished);
        };
        self.pending = Some(Swap {
            change,
            next_id,
            head,
        });
        self.put()
    }

    fn put(&self) -> Step {
        self.put_request().map_or(Step::AskAgainLater, Step::Ask)
    }

    fn put_later(&self) -> Step {
        self.put_request()
            .map_or(Step::AskAgainLater, Step::AskLater)
    }

    fn put_request(&self) -> Option<StoreRequest> {
        let pending = self.pending.as_ref()?;
        let condition = match &self.base {
            None => PutCondition::CreateIfAbsent,
            Some((_, version)) => PutCondition::IfMatch(version.clone()),
        };
        let bytes = manifest::encode(frame::HEAD, &pending.head);
        Some(StoreRequest::Put {
            key: HEAD_KEY.to_owned(),
            bytes,
            condition,
        })
    }

    /// The swap, or the reading back after it, was answered.
    pub fn on_answer(&mut self, answer: StoreAnswer) -> Step {
        match answer {
            StoreAnswer::Put(version) => self.done(version),
            StoreAnswer::Got(Some((bytes, version))) => self.on_read_back(&bytes, version),
            StoreAnswer::Got(None) if self.base.is_none() => self.put_later(),
            StoreAnswer::Got(None) => Step::Failed(Error::HeadVanished),
            // The condition failed, or the outcome is open: only the head itself can tell.
            StoreAnswer::ConditionFailed | StoreAnswer::Unknown { .. } => {
                Step::Ask(StoreRequest::Get {
                    key: HEAD_KEY.to_owned(),
                })
            }
            StoreAnswer::Refused { .. }
            | StoreAnswer::Listed(_)
            | StoreAnswer::Checked(_)
            | StoreAnswer::Deleted => Step::AskAgainLater,
        }
    }

    fn on_read_back(&mut self, bytes: &[u8], version: Version) -> Step {
        let found: Head = match manifest::decode(frame::HEAD, bytes) {
            Ok(head) => head,
            Err(error) => {
                return Step::Failed(Error::HeadUnreadable {
                    reason: error.to_string(),
                });
            }
        };
        let Some(pending) = &self.pending else {
            return Step::AskAgainLater;
        };
        if found.nonce == pending.head.nonce {
            return self.done(version);
        }
        if self.head().is_some_and(|base| base.nonce == found.nonce) {
            // Unchanged: the same bytes again, under the same condition.
            return self.put_later();
        }
        if let Some(at) = self
            .unresolved
            .iter()
            .position(|head| head.nonce == found.nonce)
        {
            // An earlier swap of ours took effect after all; later ones cannot have.
            let earlier = self.unresolved.swap_remove(at);
            self.base = Some((earlier, version));
            self.unresolved.clear();
            let Some(Swap {
                change, next_id, ..
            }) = self.pending.take()
            else {
                return Step::AskAgainLater;
            };
            return self.swap(change, next_id);
        }
        let ours = pending.head.generation;
        if matches!(pending.change, Change::TakeOver(_)) && found.generation < ours {
            // Our put's condition was the head before: it cannot take effect any more.
            self.pending = None;
            self.found(found, version);
            return Step::Outrun;
        }
        Step::Failed(Error::Fenced {
            theirs: found.generation,
            ours,
        })
    }

    fn done(&mut self, version: Version) -> Step {
        let Some(pending) = self.pending.take() else {
            return Step::AskAgainLater;
        };
        self.base = Some((pending.head.clone(), version));
        self.unresolved.clear();
        Step::Done(Box::new(pending.change), Box::new(pending.head))
    }
}

fn split_mix(seed: u64) -> u64 {
    let mut z = seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
