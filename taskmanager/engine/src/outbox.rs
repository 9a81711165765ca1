//! What an attempt says to the coordinator, and what of it must not be forgotten.
//!
//! Owns: the stamp under which events leave, which an adoption changes while tasks run; and which
//! tasks have ended or failed, for a coordinator that comes later (F1).

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use streamforge_core::ids::{Generation, SubtaskIdx, TaskId};
use streamforge_core::messages::{Event, Stamp};

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stamp: Stamp,
    ended: BTreeSet<TaskId>,
    /// The first failure: task, cause, whether another attempt may do better.
    failed: Option<(Option<TaskId>, String, bool)>,
    /// Subtasks that join or leave: a channel to one that does not come about, or is gone, ends
    /// nothing. What broke is remembered until it is known.
    unsettled: BTreeSet<SubtaskIdx>,
    broken: Vec<(SubtaskIdx, SubtaskIdx, String)>,
}

impl Outbox {
    /// Of an attempt that has said nothing.
    pub fn new(stamp: Stamp) -> Self {
        let state = State {
            stamp,
            ended: BTreeSet::new(),
            failed: None,
            unsettled: BTreeSet::new(),
            broken: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By whose command it runs.
    pub fn stamp(&self) -> Stamp {
        self.state().stamp.clone()
    }

    /// Its tasks that have ended.
    pub fn ended(&self) -> Vec<TaskId> {
        self.state().ended.iter().copied().collect()
    }

    /// Why it has failed, if it has.
    pub fn failed(&self) -> Option<String> {
        self.state()
            .failed
            .as_ref()
            .map(|(_, cause, _)| cause.clone())
    }

    /// Another coordinator goes on with it. Returns what that one must hear once more: it may have
    /// been said to the earlier one only.
    pub fn adopt(&self, generation: Generation) -> Vec<Event> {
        let mut state = self.state();
        state.stamp.generation = generation;
        let ended = state.ended.iter().map(|task| Event::Ended { task: *task });
        let mut again: Vec<Event> = ended.collect();
        if let Some((task, cause, retry)) = state.failed.clone() {
            again.push(Event::Failed { task, cause, retry });
        }
        again
    }

    /// A hand-over is prepared: these may come or go.
    pub fn unsettle(&self, subtasks: impl IntoIterator<Item = SubtaskIdx>) {
        self.state().unsettled.extend(subtasks);
    }

    /// These are here to stay; a channel between them that broke meanwhile has ended the attempt. Returns
    /// what must be said of that: whoever adopted it before heard that nothing had failed (F1).
    #[must_use]
    pub fn settle(&self, subtasks: &BTreeSet<SubtaskIdx>) -> Option<Event> {
        let mut state = self.state();
        state.unsettled.retain(|it| !subtasks.contains(it));
        let mut broken = std::mem::take(&mut state.broken).into_iter();
        let stay = |(sender, receiver, _): &(SubtaskIdx, SubtaskIdx, String)| {
            subtasks.contains(sender) && subtasks.contains(receiver)
        };
        let (sender, receiver, cause) = broken.find(stay)?;
        state.failed.get_or_insert((None, cause.clone(), true));
        Some(Event::ChannelBroke {
            sender,
            receiver,
            cause,
        })
    }

    /// Notes what must be known later; returns the stamp for the event.
    pub fn note(&self, event: &Event) -> Stamp {
        let mut state = self.state();
        match event {
            Event::Ended { task } => {
                state.ended.insert(*task);
            }
            // It may read again; if it does not, it says once more that it ended.
            Event::Received { task, .. } => {
                state.ended.remove(task);
            }
            Event::Failed { task, cause, retry } => {
                let failed = (*task, cause.clone(), *retry);
                state.failed.get_or_insert(failed);
            }
            Event::ChannelBroke {
                sender,
                receiver,
                cause,
            } => {
                let ends = [sender, receiver];
                if ends.iter().any(|end| state.unsettled.contains(end)) {
                    state.broken.push((*sender, *receiver, cause.clone()));
                } else {
                    state.failed.get_or_insert((None, cause.clone(), true));
                }
            }
            Event::Prepared { .. }
            | Event::Ack(_)
            | Event::Declined { .. }
            | Event::Published { .. }
            | Event::PublishFailed { .. }
            | Event::TakenOver { .. }
            | Event::HandOverPrepared
            | Event::HandOverRefused { .. }
            | Event::Progress(_) => {}
        }
        state.stamp.clone()
    }
}

#[cfg(test)]
mod tests {
    use streamforge_core::ids::{CheckpointId, Epoch, JobId, StageIdx};

    use super::*;

    fn stamp(generation: u64) -> Stamp {
        Stamp {
            job: JobId("j".to_owned()),
            generation: Generation::from_stored(generation),
            epoch: Epoch::from_stored(4),
        }
    }

    #[test]
    fn adopter_hears_once_more_what_its_predecessor_heard_last_f1() {
        let outbox = Outbox::new(stamp(1));
        let task = TaskId {
            stage: StageIdx(0),
            subtask: SubtaskIdx(1),
        };
        assert_eq!(outbox.note(&Event::Ended { task }), stamp(1));

        let again = outbox.adopt(Generation::from_stored(2));

        assert_eq!(again, [Event::Ended { task }]);
        assert_eq!(outbox.note(&Event::Ended { task }), stamp(2));
        assert_eq!(outbox.ended(), [task]);
        assert_eq!(outbox.failed(), None);

        // It gained splits: whoever comes next is not told that it is done.
        let id = CheckpointId::from_stored(7);
        outbox.note(&Event::Received { task, id });
        assert_eq!(outbox.adopt(Generation::from_stored(3)), []);
    }

    fn broke(sender: u32, receiver: u32) -> Event {
        Event::ChannelBroke {
            sender: SubtaskIdx(sender),
            receiver: SubtaskIdx(receiver),
            cause: "it broke".to_owned(),
        }
    }

    /// A coordinator that died heard of the break; its successor adopted an attempt that had not failed.
    #[test]
    fn break_of_a_channel_to_who_turns_out_to_stay_is_said_once_more_b2_f1() {
        let outbox = Outbox::new(stamp(1));
        outbox.unsettle([SubtaskIdx(1)]);
        outbox.note(&broke(0, 1));
        assert_eq!(outbox.adopt(Generation::from_stored(2)), []);
        let both = BTreeSet::from([SubtaskIdx(0), SubtaskIdx(1)]);

        assert_eq!(outbox.settle(&both), Some(broke(0, 1)));

        assert_eq!(outbox.failed(), Some("it broke".to_owned()));
        assert_eq!(outbox.settle(&both), None, "said");
    }

    #[test]
    fn break_of_a_channel_to_who_did_not_join_ends_nothing_k3() {
        let outbox = Outbox::new(stamp(1));
        outbox.unsettle([SubtaskIdx(1)]);
        outbox.note(&broke(0, 1));

        assert_eq!(outbox.settle(&BTreeSet::from([SubtaskIdx(0)])), None);

        assert_eq!(outbox.failed(), None);
    }
}
