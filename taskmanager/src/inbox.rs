//! What waits for a task: one bounded queue per input channel, and what the coordinator says.
//!
//! Owns: back-pressure in one process. A sender of rows waits while the receiver is
//! [`LANE_BATCHES_MAX`] behind; barriers, watermarks and joins never wait, so an aligning task gets
//! the barrier it waits for (B1). Never looks into an element.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, SubtaskIdx};
use streamforge_engine::barrier::Barrier;
use streamforge_engine::task::Element;
use tokio::sync::Notify;

/// Batches a sender may run ahead of one receiver: one being read, some being filled. Deeper lanes
/// hide back-pressure and delay barriers.
pub const LANE_BATCHES_MAX: usize = 4;

/// What the coordinator, or a receiver, says to a task.
#[derive(Clone, Copy, Debug)]
pub enum Control {
    /// To source tasks: take a checkpoint now.
    Checkpoint(Barrier),
    /// This attempt is given up.
    Abort(CheckpointId),
    /// A receiver of `edge` answers a rejoin.
    Answer {
        /// Which edge.
        edge: usize,
        /// Who answers.
        receiver: SubtaskIdx,
        /// With this.
        watermark: Watermark,
    },
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

#[derive(Debug, Default)]
struct State {
    control: VecDeque<Control>,
    lanes: Vec<VecDeque<Element>>,
    batches: Vec<usize>,
    next_lane: usize,
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
            lanes: (0..channels_n).map(|_| VecDeque::new()).collect(),
            batches: vec![0; channels_n],
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

    /// Adds an element to a channel; waits for room if it is rows. False: the attempt is over.
    #[must_use]
    pub fn push(&self, channel: usize, element: Element) -> bool {
        let is_batch = matches!(element, Element::Batch(_));
        let mut state = self.lock();
        if is_batch {
            state = self
                .drained
                .wait_while(state, |state| {
                    let full = state
                        .batches
                        .get(channel)
                        .is_some_and(|n| *n >= LANE_BATCHES_MAX);
                    full && !state.cancelled
                })
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.cancelled {
            return false;
        }
        if is_batch && let Some(batches) = state.batches.get_mut(channel) {
            *batches += 1;
        }
        if let Some(lane) = state.lanes.get_mut(channel) {
            lane.push_back(element);
        }
        drop(state);
        self.arrived.notify_one();
        true
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

    /// The next thing to do; waits at most `patience`. Channels are served in turn.
    pub fn next(&self, takes: impl Fn(usize) -> bool, patience: Duration) -> Next {
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
                if !takes(lane) {
                    continue;
                }
                if let Some(element) = state.lanes.get_mut(lane).and_then(VecDeque::pop_front) {
                    state.next_lane = lane + 1;
                    if matches!(element, Element::Batch(_)) {
                        if let Some(batches) = state.batches.get_mut(lane) {
                            *batches -= 1;
                        }
                        self.drained.notify_all();
                    }
                    return Next::Element(lane, element);
                }
            }
            let (woken, timeout) = self
                .arrived
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
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
