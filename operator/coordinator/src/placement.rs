//! Which task manager runs which subtask.
//!
//! Owns: dealing subtasks out. Invariant K2: whoever is still there keeps what it has, under another
//! number if there are fewer subtasks now; only what was lost, or is new, is dealt.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::SubtaskIdx;
use streamforge_core::messages::TaskManagerId;

/// Who runs which subtask.
pub(crate) type Places = BTreeMap<SubtaskIdx, TaskManagerId>;

/// Where the subtasks of the next attempt go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placing {
    /// Subtasks per stage.
    pub parallelism: u32,
    pub places: Places,
    /// Old subtask -> the number under which it goes on, on the same task manager.
    pub heirs: BTreeMap<SubtaskIdx, SubtaskIdx>,
}

/// Deals `wanted` subtasks, or as many as there are slots for. `None`: there are no slots.
pub(crate) fn place(
    slots: &BTreeMap<&TaskManagerId, u32>,
    wanted: u32,
    before: &Places,
) -> Option<Placing> {
    let total = slots.values().fold(0, |sum: u32, n| sum.saturating_add(*n));
    let parallelism = wanted.min(total);
    if parallelism == 0 {
        return None;
    }
    let mut free = slots.clone();
    let mut takes = |id: &TaskManagerId| match free.get_mut(id) {
        Some(n) if *n > 0 => {
            *n -= 1;
            true
        }
        _ => false,
    };
    let mut places = Places::new();
    let mut heirs = BTreeMap::new();
    // Those whose number stays come first, so that no number is given to another.
    let (stay, move_up): (Vec<_>, Vec<_>) = before.iter().partition(|(idx, _)| idx.0 < parallelism);
    for (idx, id) in stay {
        if takes(id) {
            places.insert(*idx, id.clone());
            heirs.insert(*idx, *idx);
        }
    }
    let mut open: BTreeSet<SubtaskIdx> = (0..parallelism).map(SubtaskIdx).collect();
    open.retain(|idx| !places.contains_key(idx));
    for (idx, id) in move_up {
        let Some(number) = open.first().copied() else {
            break;
        };
        if takes(id) {
            open.remove(&number);
            places.insert(number, id.clone());
            heirs.insert(*idx, number);
        }
    }
    for number in open {
        let running = |id: &TaskManagerId| places.values().filter(|it| *it == id).count();
        let least = free
            .iter()
            .filter(|(_, n)| **n > 0)
            .min_by_key(|(id, _)| (running(id), **id));
        let id = least.map(|(id, _)| (*id).clone())?;
        if let Some(n) = free.get_mut(&id) {
            *n -= 1;
        }
        places.insert(number, id);
    }
    Some(Placing {
        parallelism,
        places,
        heirs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> TaskManagerId {
        let name = name.to_owned();
        TaskManagerId { name, nonce: 1 }
    }

    fn placed(
        slots: &[(&str, u32)],
        wanted: u32,
        before: &[&str],
    ) -> (Vec<String>, Vec<(u32, u32)>) {
        let ids: Vec<(TaskManagerId, u32)> = slots.iter().map(|(name, n)| (id(name), *n)).collect();
        let slots = ids.iter().map(|(id, n)| (id, *n)).collect();
        let number = |idx: usize| SubtaskIdx(u32::try_from(idx).expect("few"));
        let before = before.iter().enumerate();
        let before = before.map(|(idx, name)| (number(idx), id(name))).collect();
        let placing = place(&slots, wanted, &before).expect("there are slots");
        assert_eq!(placing.places.len(), placing.parallelism as usize);
        let places = placing.places.into_values().map(|id| id.name).collect();
        let heirs = placing.heirs.into_iter().map(|(a, b)| (a.0, b.0));
        (places, heirs.collect())
    }

    #[test]
    fn subtasks_are_spread_evenly() {
        let (places, heirs) = placed(&[("a", 4), ("b", 4), ("c", 4)], 4, &[]);

        assert_eq!(places, ["a", "b", "c", "a"]);
        assert!(heirs.is_empty());
    }

    #[test]
    fn survivors_keep_theirs_and_spare_slots_take_what_was_lost_k2() {
        let (places, heirs) = placed(&[("a", 2), ("c", 2)], 3, &["a", "b", "c"]);

        assert_eq!(places, ["a", "a", "c"]);
        assert_eq!(heirs, [(0, 0), (2, 2)]);
    }

    #[test]
    fn fewer_slots_than_subtasks_renumber_survivors_and_move_nothing_of_theirs_k2() {
        let (places, heirs) = placed(&[("a", 1), ("c", 1)], 3, &["a", "b", "c"]);

        assert_eq!(places, ["a", "c"]);
        assert_eq!(heirs, [(0, 0), (2, 1)]);
    }

    #[test]
    fn returning_task_manager_gets_the_subtasks_that_are_missing() {
        let (places, heirs) = placed(&[("a", 1), ("b", 1), ("c", 1)], 3, &["a", "c"]);

        assert_eq!(places, ["a", "c", "b"]);
        assert_eq!(heirs, [(0, 0), (1, 1)]);
    }

    #[test]
    fn slots_are_never_overbooked_whatever_was_before() {
        let (places, _) = placed(&[("a", 2), ("b", 5)], 4, &["a", "a", "a", "a"]);

        assert_eq!(places, ["a", "a", "b", "b"]);
    }

    #[test]
    fn without_slots_there_is_no_place() {
        let a = id("a");
        let slots = BTreeMap::from([(&a, 0)]);

        assert_eq!(place(&slots, 3, &Places::new()), None);
        assert_eq!(place(&BTreeMap::new(), 3, &Places::new()), None);
    }
}
