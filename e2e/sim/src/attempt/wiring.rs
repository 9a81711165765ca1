//! Which task hears what, here or elsewhere.

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{SubtaskIdx, TaskId};
use streamforge_engine::task::{Channel, Element};

use super::Attempt;
use crate::net::{What, Wire};
use crate::task::Control;

impl Attempt {
    pub(super) fn send(&mut self, from: TaskId, edge: usize, to: SubtaskIdx, element: Element) {
        let Some(spec) = self.deployment.graph.edges.get(edge) else {
            return;
        };
        let receiver = TaskId {
            stage: spec.to_stage,
            subtask: to,
        };
        let channel = Channel {
            edge,
            sender: from.subtask,
        };
        if let Some(receiver) = self.tasks.get_mut(&receiver) {
            let known = receiver.arrive(channel, element);
            assert!(known, "every edge has its channels");
            return;
        }
        match self.places.get(&to) {
            Some(place) if *place != self.me => {
                if matches!(element, Element::Batch(_)) {
                    *self.unpaid.entry((edge, from.subtask, to)).or_default() += 1;
                }
                let wire = self.wire(place.nonce, channel, to);
                self.frames.push((wire, What::Element(element)));
            }
            // As the real one: a task whose receiver here is no more goes without a word.
            _ => {
                if let Some(task) = self.tasks.get_mut(&from) {
                    task.dead = true;
                }
            }
        }
    }

    fn wire(&self, to: u64, Channel { edge, sender }: Channel, receiver: SubtaskIdx) -> Wire {
        Wire {
            born: self.born(),
            from: self.me.nonce,
            to,
            edge,
            sender,
            receiver,
        }
    }

    pub(super) fn answer(&mut self, id: TaskId, channel: Channel, watermark: Watermark) {
        let Some(spec) = self.deployment.graph.edges.get(channel.edge) else {
            return;
        };
        let sender = TaskId {
            stage: spec.from_stage,
            subtask: channel.sender,
        };
        match self.tasks.get_mut(&sender) {
            Some(sender) => sender.control.push_back(Control::Answer {
                edge: channel.edge,
                receiver: id.subtask,
                watermark,
            }),
            None => self.send_back(id, channel, What::Answer(watermark)),
        }
    }

    fn send_back(&mut self, id: TaskId, channel: Channel, what: What) {
        let place = self.places.get(&channel.sender);
        if let Some(place) = place.filter(|place| **place != self.me) {
            let wire = self.wire(place.nonce, channel, id.subtask);
            self.frames.push((wire, what));
        }
    }

    /// A frame of this attempt came. False: nobody here knows its channel.
    pub fn on_frame(&mut self, wire: &Wire, what: What) -> bool {
        let Some(spec) = self.deployment.graph.edges.get(wire.edge) else {
            return false;
        };
        let channel = Channel {
            edge: wire.edge,
            sender: wire.sender,
        };
        match what {
            What::Element(element) => {
                let receiver = TaskId {
                    stage: spec.to_stage,
                    subtask: wire.receiver,
                };
                // To one that has left: as the real one, it is dropped.
                let receiver = self.tasks.get_mut(&receiver);
                receiver.is_none_or(|receiver| receiver.arrive(channel, element))
            }
            What::Answer(watermark) => {
                let sender = TaskId {
                    stage: spec.from_stage,
                    subtask: wire.sender,
                };
                if let Some(sender) = self.tasks.get_mut(&sender) {
                    sender.control.push_back(Control::Answer {
                        edge: wire.edge,
                        receiver: wire.receiver,
                        watermark,
                    });
                }
                true
            }
            What::Credit => {
                let key = (wire.edge, wire.sender, wire.receiver);
                // That of one that has left counts for nothing any more.
                if let Some(n) = self.unpaid.get_mut(&key) {
                    *n = n.checked_sub(1).expect("credit comes once (B1)");
                }
                true
            }
        }
    }

    /// A task took a batch: its sender elsewhere gets credit.
    pub(super) fn pay(&mut self, id: TaskId, Channel { edge, sender }: Channel) {
        let Some(spec) = self.deployment.graph.edges.get(edge) else {
            return;
        };
        let sender = TaskId {
            stage: spec.from_stage,
            subtask: sender,
        };
        if !self.tasks.contains_key(&sender) {
            self.send_back(
                id,
                Channel {
                    edge,
                    sender: sender.subtask,
                },
                What::Credit,
            );
        }
    }
}
