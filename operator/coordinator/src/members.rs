//! Which task managers there are, and which of them still speak.
//!
//! Owns: registrations and silence. A process that takes the name of another replaces it; one that
//! says nothing for too long is lost. One that was replaced may still live and have a session: when its
//! replacer goes first, it is to register anew. In one process there is one task manager, which is
//! never silent.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::CheckpointId;
use streamforge_core::messages::{Registration, TaskManagerId};

/// Longest time that one tick may add to a silence. After a pause of this process itself the first
/// tick comes before what was heard meanwhile: that must not lose everybody.
const SILENCE_PER_TICK_MS_MAX: u64 = 200;

/// The task managers with a session.
#[derive(Debug, Default)]
pub(crate) struct Members {
    known: BTreeMap<TaskManagerId, Member>,
    /// Another process has their name; their sessions may live.
    replaced: BTreeSet<TaskManagerId>,
    passed_to_ms: u64,
}

#[derive(Debug)]
struct Member {
    registration: Registration,
    silent_ms: u64,
    /// It is to end: it gets no tasks any more. The newest checkpoint when it asked.
    leaves: Option<CheckpointId>,
    /// It waits to be told that it may end.
    ends: bool,
    /// It was told that it may end.
    released: bool,
}

impl Members {
    /// A session began. Returns who had that name before: an earlier process, or this one itself
    /// when its earlier session was not known as broken.
    pub(crate) fn register(
        &mut self,
        id: TaskManagerId,
        registration: Registration,
    ) -> Option<TaskManagerId> {
        let before = self.known.keys().find(|it| it.name == id.name).cloned();
        if let Some(before) = &before {
            self.known.remove(before);
            self.replaced.insert(before.clone());
        }
        self.replaced.remove(&id);
        let silent_ms = 0;
        self.known.insert(
            id,
            Member {
                registration,
                silent_ms,
                leaves: None,
                ends: false,
                released: false,
            },
        );
        before
    }

    /// A session ended. False: there was none.
    pub(crate) fn remove(&mut self, id: &TaskManagerId) -> bool {
        self.replaced.remove(id);
        self.known.remove(id).is_some()
    }

    /// The one that had this name is gone: those that it replaced, and that may live. They are told of
    /// once.
    pub(crate) fn take_replaced(&mut self, name: &str) -> Vec<TaskManagerId> {
        self.replaced.extract_if(.., |it| it.name == name).collect()
    }

    /// It is to end. False: that is known, or there is no such one.
    pub(crate) fn leave(&mut self, id: &TaskManagerId, newest: CheckpointId, ends: bool) -> bool {
        let Some(member) = self.known.get_mut(id) else {
            return false;
        };
        member.ends |= ends;
        let is_new = member.leaves.is_none();
        member.leaves.get_or_insert(newest);
        is_new
    }

    pub(crate) fn leaves(&self, id: &TaskManagerId) -> bool {
        let member = self.known.get(id);
        member.is_some_and(|member| member.leaves.is_some())
    }

    /// Whether nobody is left who does not leave.
    pub(crate) fn all_leave(&self) -> bool {
        self.known.values().all(|member| member.leaves.is_some())
    }

    /// Names of those that leave, or gave everything away.
    pub(crate) fn drained(&self) -> Vec<String> {
        let leave = self.known.iter().filter(|(_, it)| it.leaves.is_some());
        leave.map(|(id, _)| id.name.clone()).collect()
    }

    /// Whether somebody else is there who does not leave.
    pub(crate) fn any_stays_without(&self, id: &TaskManagerId) -> bool {
        let mut others = self.known.iter().filter(|(other, _)| *other != id);
        others.any(|(_, member)| member.leaves.is_none())
    }

    /// Those that are to end and were not told yet that they may; and since which checkpoint.
    pub(crate) fn leaving(&self) -> Vec<(TaskManagerId, CheckpointId)> {
        let members = self.known.iter();
        let waiting = members.filter(|(_, member)| member.ends && !member.released);
        waiting
            .filter_map(|(id, member)| Some((id.clone(), member.leaves?)))
            .collect()
    }

    /// It may end.
    pub(crate) fn release(&mut self, id: &TaskManagerId) {
        if let Some(member) = self.known.get_mut(id) {
            member.released = true;
        }
    }

    /// Whether it was told that it may end.
    pub(crate) fn is_released(&self, id: &TaskManagerId) -> bool {
        self.known.get(id).is_some_and(|member| member.released)
    }

    pub(crate) fn contains(&self, id: &TaskManagerId) -> bool {
        self.known.contains_key(id)
    }

    pub(crate) fn get(&self, id: &TaskManagerId) -> Option<&Registration> {
        self.known.get(id).map(|member| &member.registration)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&TaskManagerId, &Registration)> {
        self.known.iter().map(|(id, it)| (id, &it.registration))
    }

    /// It spoke, whatever it said.
    pub(crate) fn heard(&mut self, id: &TaskManagerId) {
        if let Some(member) = self.known.get_mut(id) {
            member.silent_ms = 0;
        }
    }

    /// Time passed: who has been silent for longer than allowed?
    pub(crate) fn pass(&mut self, now_ms: u64, silence_ms_max: u64) -> Vec<TaskManagerId> {
        let passed_ms = now_ms.saturating_sub(self.passed_to_ms);
        self.passed_to_ms = now_ms;
        let mut silent = Vec::new();
        for (id, member) in &mut self.known {
            member.silent_ms += passed_ms.min(SILENCE_PER_TICK_MS_MAX);
            if member.silent_ms > silence_ms_max {
                silent.push(id.clone());
            }
        }
        silent
    }

    /// Subtasks that all of them can run.
    pub(crate) fn slots_n(&self) -> u32 {
        let slots = self.known.values().map(|it| it.registration.slots);
        slots.fold(0, u32::saturating_add)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str, nonce: u64) -> TaskManagerId {
        let name = name.to_owned();
        TaskManagerId { name, nonce }
    }

    fn slots(slots: u32) -> Registration {
        Registration {
            slots,
            exchange: String::new(),
            runs: None,
        }
    }

    #[test]
    fn second_process_of_a_name_replaces_the_first() {
        let mut members = Members::default();
        assert_eq!(members.register(id("a", 1), slots(2)), None);
        assert_eq!(members.register(id("b", 7), slots(2)), None);

        assert_eq!(members.register(id("a", 2), slots(3)), Some(id("a", 1)));

        assert!(!members.contains(&id("a", 1)));
        assert_eq!(members.slots_n(), 5);
    }

    #[test]
    fn replaced_one_is_remembered_until_its_own_session_ends() {
        let mut members = Members::default();
        members.register(id("a", 1), slots(1));
        members.register(id("a", 2), slots(1));
        members.register(id("a", 3), slots(1));
        members.register(id("b", 1), slots(1));
        members.register(id("b", 2), slots(1));

        assert!(!members.remove(&id("a", 1)), "its session is over, too");
        assert!(members.remove(&id("a", 3)));

        assert_eq!(members.take_replaced("a"), [id("a", 2)]);
        assert_eq!(members.take_replaced("a"), []);
        assert_eq!(members.take_replaced("b"), [id("b", 1)]);
    }

    #[test]
    fn who_says_nothing_for_longer_than_allowed_is_silent() {
        let mut members = Members::default();
        members.register(id("a", 1), slots(1));
        members.register(id("b", 1), slots(1));

        for tick in 1..=10 {
            assert!(members.pass(tick * 100, 1_000).is_empty());
            members.heard(&id("b", 1));
        }

        assert_eq!(members.pass(1_100, 1_000), [id("a", 1)]);
    }

    #[test]
    fn pause_of_the_coordinator_itself_loses_nobody() {
        let mut members = Members::default();
        members.register(id("a", 1), slots(1));
        members.pass(100, 1_000);

        // Frozen for a minute; what was heard meanwhile is read after the first ticks.
        assert!(members.pass(60_100, 1_000).is_empty());
        members.heard(&id("a", 1));
        assert!(members.pass(60_200, 1_000).is_empty());
    }
}
