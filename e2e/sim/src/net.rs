//! The exchange between task managers, without sockets.
//!
//! Owns: frames under way, in order per channel, late, refused or lost with their channel. A channel is
//! named by the attempt it belongs to, so a receiver tells frames of older epochs from its own; a
//! channel that broke stays broken (B2).

use std::collections::{BTreeMap, VecDeque};

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{Epoch, Generation, SubtaskIdx};
use streamforge_engine::task::Element;

use crate::rng::Rng;

/// Wires that are remembered before those of ended attempts are forgotten.
const WIRES_MAX: usize = 300;

/// One direction of one channel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    /// Term that began the attempt, and the attempt.
    pub born: (Epoch, Generation),
    /// Process that says it.
    pub from: u64,
    /// Process that hears it.
    pub to: u64,
    /// Index into the job graph's edges.
    pub edge: usize,
    /// The subtask that sends rows.
    pub sender: SubtaskIdx,
    /// The subtask that receives rows.
    pub receiver: SubtaskIdx,
}

/// What travels.
#[derive(Clone, Debug)]
pub enum What {
    /// To the receiver.
    Element(Element),
    /// Back: an answer to a rejoin.
    Answer(Watermark),
    /// Back: the receiving task took a batch.
    Credit,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(u64, What)>,
    sent_n: u64,
    taken_n: u64,
    broken: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Net {
    queues: BTreeMap<Wire, Queue>,
}

impl Net {
    /// A frame leaves; on a broken channel it is lost.
    pub fn send(&mut self, wire: Wire, what: What) {
        if self.queues.len() > WIRES_MAX {
            let newest = self.queues.keys().map(|wire| wire.born).max();
            self.queues
                .retain(|wire, queue| Some(wire.born) == newest || !queue.frames.is_empty());
        }
        let queue = self.queues.entry(wire).or_default();
        if !queue.broken {
            queue.sent_n += 1;
            queue.frames.push_back((queue.sent_n, what));
        }
    }

    /// The next frame of some channel whose receiver is awake.
    pub fn next(&mut self, rng: &mut Rng, awake: impl Fn(u64) -> bool) -> Option<(Wire, What)> {
        let is_ready = |wire: &Wire, queue: &Queue| !queue.frames.is_empty() && awake(wire.to);
        let ready: Vec<&Wire> = self
            .queues
            .iter()
            .filter(|(wire, queue)| is_ready(wire, queue))
            .map(|(wire, _)| wire)
            .collect();
        let wire = (*ready.get(rng.pick(ready.len()))?).clone();
        let queue = self.queues.get_mut(&wire)?;
        let (number, what) = queue.frames.pop_front()?;
        assert_eq!(number, queue.taken_n + 1, "a frame is missing (B2)");
        queue.taken_n = number;
        Some((wire, what))
    }

    /// The channel that this wire is of is no more: what was under way on it is lost.
    pub fn cut(&mut self, wire: &Wire) {
        let back = Wire {
            from: wire.to,
            to: wire.from,
            ..wire.clone()
        };
        for wire in [wire.clone(), back] {
            let queue = self.queues.entry(wire).or_default();
            queue.broken = true;
            queue.frames.clear();
        }
    }

    /// Some channel of the newest attempt that has not broken.
    pub fn pick(&self, rng: &mut Rng) -> Option<Wire> {
        let newest = self.queues.keys().map(|wire| wire.born).max();
        let whole = self.queues.iter();
        let whole = whole.filter(|(wire, queue)| Some(wire.born) == newest && !queue.broken);
        let whole: Vec<&Wire> = whole.map(|(wire, _)| wire).collect();
        whole.get(rng.pick(whole.len())).map(|wire| (*wire).clone())
    }

    /// Whether anything is under way.
    pub fn is_quiet(&self) -> bool {
        self.queues.values().all(|queue| queue.frames.is_empty())
    }
}
