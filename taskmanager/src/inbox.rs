//! What waits for a task: one bounded queue per input channel, and what the coordinator says.
//!
//! Owns: back-pressure in one process. A sender of rows waits while the receiver is
//! [`LANE_BATCHES_MAX`] behind; barriers, watermarks and joins never wait, so an aligning task gets
//! the barrier it waits for (B1). What comes from another task manager never waits: credit bounds it,
//! see `exchange`. Of watermarks that nothing separates a lane keeps the last, the highest (T1).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, Generation, SubtaskIdx};
use streamforge_core::manifest::Manifest;
use streamforge_core::messages::HandOver;
use streamforge_engine::barrier::Barrier;
use streamforge_engine::operator::RestoredState;
use streamforge_engine::task::Element;
use tokio::sync::Notify;

use crate::exchange::{Outlet, Upstream};

/// Batches a sender may run ahead of one receiver: one being read, some being filled. Deeper lanes
/// hide back-pressure and delay barriers.
pub const LANE_BATCHES_MAX: usize = 4;

/// What the coordinator, or a receiver, says to a task.
#[derive(Clone, Debug)]
pub enum Control {
    /// To source tasks: take a checkpoint now.
    Checkpoint(Barrier),
    /// This attempt is given up.
    Abort(CheckpointId),
    /// Whatever this coordinator began is given up: nobody is left who would complete it (A2).
    Orphaned(Generation),
    /// A receiver of `edge` answers a rejoin.
    Answer {
        /// Which edge.
        edge: usize,
        /// Who answers.
        receiver: SubtaskIdx,
        /// With this.
        watermark: Watermark,
    },
    /// Channels for a hand-over are open; it comes with its barrier (K3).
    Prepare(Arc<Widening>),
    /// That hand-over will not be.
    Withdraw,
    /// All tasks have passed its barrier: go on with what is gained by it.
    Receive(Arc<Receipt>),
}

/// What one task gets to be ready for a hand-over.
#[derive(Debug)]
pub struct Widening {
    /// Who does what after it.
    pub hand_over: Arc<HandOver>,
    /// Number of the first channel from tasks that join.
    pub first_channel: usize,
    /// Readers of its source find new splits by themselves.
    pub looks_for_splits: bool,
    /// Ways to new receivers, by edge.
    pub routes: Vec<(usize, SubtaskIdx, Outlet)>,
    /// Ways back to new senders, by edge.
    pub senders: Vec<((usize, SubtaskIdx), Upstream)>,
}

/// What one task gains by a hand-over.
#[derive(Debug)]
pub struct Receipt {
    /// The hand-over's checkpoint.
    pub manifest: Arc<Manifest>,
    /// State by operator; taken once.
    pub states: Mutex<Vec<(usize, RestoredState)>>,
}

/// What a task gets to do next.
#[derive(Debug)]
pub enum Next {
    /// The coordinator or a receiver spoke.
    Control(Control),
    /// The next element of a channel.
    Element(usize, Element),
    /// Nothing came within the time given.
    Nothing,
    /// The attempt is over.
    Cancelled,
}

/// Hears that a task took rows of its channel from another task manager: the way back of credit.
pub trait Drained: fmt::Debug + Send + Sync {
    /// Rows of so many bytes were taken. Must not wait.
    fn on_taken(&self, bytes: u64);
}

/// One input channel.
#[derive(Debug, Default)]
struct Lane {
    /// With the bytes that they are counted for, if they came from another task manager.
    elements: VecDeque<(Element, u64)>,
    /// Batches of senders in this process.
    batches: usize,
    drained: Option<Arc<dyn Drained>>,
}

impl Lane {
    fn push(&mut self, element: Element, bytes: u64) {
        match (self.elements.back_mut(), element) {
            (Some((Element::Watermark(last), _)), Element::Watermark(newer)) => *last = newer,
            (_, element) => self.elements.push_back((element, bytes)),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    control: VecDeque<Control>,
    lanes: Vec<Lane>,
    next_lane: usize,
    /// The task waits in [`Inbox::next`]: else nobody need be woken.
    waits: bool,
    /// Senders that wait for room.
    blocked_n: usize,
    cancelled: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    drained: Condvar,
    /// Wakes a source task that waits for its reader.
    pub notify: Notify,
}

impl Inbox {
    /// For a task with this many input channels.
    pub fn new(channels_n: usize) -> Self {
        let state = State {
            lanes: (0..channels_n).map(|_| Lane::default()).collect(),
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            drained: Condvar::new(),
            notify: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the queues whole, so a panic elsewhere does not matter here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More channels, for good; returns the number of the first.
    pub fn add_lanes(&self, n: usize) -> usize {
        let mut state = self.lock();
        let first = state.lanes.len();
        state.lanes.extend((0..n).map(|_| Lane::default()));
        first
    }

    /// Adds an element to a channel; waits for room if it is rows. False: the attempt is over.
    #[must_use]
    pub fn push(&self, channel: usize, element: Element) -> bool {
        let is_batch = matches!(element, Element::Batch(_));
        let mut state = self.lock();
        if is_batch {
            state.blocked_n += 1;
            state = self
                .drained
                .wait_while(state, |state| {
                    let lane = state.lanes.get(channel);
                    lane.is_some_and(|lane| lane.batches >= LANE_BATCHES_MAX) && !state.cancelled
                })
                .unwrap_or_else(PoisonError::into_inner);
            state.blocked_n -= 1;
        }
        if state.cancelled {
            return false;
        }
        if let Some(lane) = state.lanes.get_mut(channel) {
            lane.batches += usize::from(is_batch);
            lane.push(element, 0);
        }
        self.wake(state);
        true
    }

    /// Makes a channel one from another task manager: `drained` hears of rows taken.
    pub fn attach(&self, channel: usize, drained: Arc<dyn Drained>) {
        if let Some(lane) = self.lock().lanes.get_mut(channel) {
            lane.drained = Some(drained);
        }
    }

    /// Adds an element of a channel from another task manager, rows with the bytes they count for.
    /// Never waits.
    pub fn arrive(&self, channel: usize, element: Element, bytes: u64) {
        let mut state = self.lock();
        if state.cancelled {
            return;
        }
        if let Some(lane) = state.lanes.get_mut(channel) {
            lane.push(element, bytes);
        }
        self.wake(state);
    }

    /// Wakes the task, if it waits: a wake is a system call.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waits = std::mem::take(&mut state.waits);
        drop(state);
        if waits {
            self.arrived.notify_one();
        }
    }

    /// Elements that wait in a channel's lane.
    pub fn elements_n(&self, channel: usize) -> usize {
        let state = self.lock();
        state
            .lanes
            .get(channel)
            .map_or(0, |lane| lane.elements.len())
    }

    /// Adds a control message.
    pub fn control(&self, control: Control) {
        self.lock().control.push_back(control);
        self.arrived.notify_one();
        self.notify.notify_one();
    }

    /// Ends the attempt: every waiting sender and the receiver return.
    pub fn cancel(&self) {
        self.lock().cancelled = true;
        self.arrived.notify_all();
        self.drained.notify_all();
        self.notify.notify_one();
    }

    /// Waits for the end of the attempt.
    pub async fn cancelled(&self) {
        while !self.lock().cancelled {
            self.notify.notified().await;
        }
    }

    /// The next control message that `takes_control` allows, without waiting.
    pub fn try_control(&self, takes_control: impl Fn(&Control) -> bool) -> Next {
        let mut state = self.lock();
        if state.cancelled {
            return Next::Cancelled;
        }
        let allowed = state.control.iter().position(takes_control);
        allowed
            .and_then(|idx| state.control.remove(idx))
            .map_or(Next::Nothing, Next::Control)
    }

    fn take(&self, state: &mut State, idx: usize) -> Option<Element> {
        let lane = state.lanes.get_mut(idx)?;
        let (element, bytes) = lane.elements.pop_front()?;
        if matches!(element, Element::Batch(_)) {
            if let Some(drained) = &lane.drained {
                drained.on_taken(bytes);
            } else {
                lane.batches -= 1;
                if state.blocked_n > 0 {
                    self.drained.notify_all();
                }
            }
        }
        state.next_lane = idx + 1;
        Some(element)
    }

    /// The next thing to do; waits at most `patience`. Channels are served in turn; of each only its
    /// first element is offered to `takes`.
    pub fn next(&self, takes: impl Fn(usize, &Element) -> bool, patience: Duration) -> Next {
        let mut state = self.lock();
        loop {
            if state.cancelled {
                return Next::Cancelled;
            }
            if let Some(control) = state.control.pop_front() {
                return Next::Control(control);
            }
            let lanes_n = state.lanes.len();
            for step in 0..lanes_n {
                let lane = (state.next_lane + step) % lanes_n;
                let first = state.lanes.get(lane).and_then(|it| it.elements.front());
                if !first.is_some_and(|(element, _)| takes(lane, element)) {
                    continue;
                }
                if let Some(element) = self.take(&mut state, lane) {
                    return Next::Element(lane, element);
                }
            }
            state.waits = true;
            let (woken, timeout) = self
                .arrived
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.waits = false;
            if timeout.timed_out() {
                return if state.cancelled {
                    Next::Cancelled
                } else {
                    Next::Nothing
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Watermarks need no credit, so nothing else bounds them.
    #[test]
    fn watermarks_that_nothing_separates_are_one_element_b1() {
        let inbox = Inbox::new(1);
        for us in [1, 2, 3] {
            inbox.arrive(0, Element::Watermark(Watermark(us)), 0);
        }
        inbox.arrive(0, Element::Rejoin, 0);
        inbox.arrive(0, Element::Watermark(Watermark(4)), 0);

        assert_eq!(inbox.elements_n(0), 3);
        let first = inbox.next(|_, _| true, Duration::ZERO);
        let highest = matches!(first, Next::Element(0, Element::Watermark(Watermark(3))));
        assert!(highest, "{first:?}");
    }
}
