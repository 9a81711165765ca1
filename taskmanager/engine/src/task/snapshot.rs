//! A task at a barrier.
//!
//! Owns: what a snapshot contains, and that the barrier leaves behind it.

use std::collections::BTreeMap;

use streamforge_core::manifest::CheckpointKind;

use super::{Chained, CoreSnapshot, Effect, Element, TaskCore};
use crate::barrier::Barrier;
use crate::error::Error;

impl TaskCore {
    /// Snapshots every operator and sends the barrier on.
    pub(super) fn snapshot(&mut self, barrier: Barrier) -> Result<(), Error> {
        let hands_over = barrier.kind == CheckpointKind::HandOver;
        if let Some(reason) = self.why_not(hands_over) {
            let reason = reason.to_owned();
            let id = barrier.id;
            self.effects.push(Effect::Declined { id, reason });
            return Ok(());
        }
        if !self.hand_over.is_frozen() {
            self.flush()?;
        }
        let mut snapshot = CoreSnapshot {
            barrier,
            splits: BTreeMap::new(),
            operators: Vec::new(),
            counters: self.counters(),
            late_log: Vec::new(),
        };
        let mut declined = None;
        let mut parts = Vec::new();
        for (idx, node) in self.nodes.iter_mut().enumerate() {
            match &mut node.chained {
                Chained::Source(source) => {
                    snapshot.splits.insert(node.uid.clone(), source.splits());
                }
                Chained::Operator(operator) => {
                    let uid = &node.uid;
                    match operator.snapshot(barrier.id)? {
                        Some(part) if part.keyed => {
                            parts.push((idx, part.parts.clone()));
                            snapshot.operators.push((uid.clone(), part));
                        }
                        Some(_) => {}
                        None => declined = Some(format!("`{uid}` has two unconverted tables")),
                    }
                }
                Chained::Sink(_) => {}
            }
        }
        match declined {
            Some(reason) => self.effects.push(Effect::Declined {
                id: barrier.id,
                reason,
            }),
            None => {
                for node in &mut self.nodes {
                    if let Chained::Operator(operator) = &mut node.chained {
                        let log = operator.take_late_log().into_iter();
                        snapshot
                            .late_log
                            .extend(log.map(|rows| (node.uid.clone(), rows)));
                    }
                }
                self.effects.push(Effect::Snapshot(Box::new(snapshot)));
            }
        }
        if hands_over {
            self.widen_edges();
        }
        self.send_on(barrier);
        if hands_over {
            self.switch(parts);
            return self.propagate();
        }
        Ok(())
    }

    /// Why a barrier cannot be taken now, if it cannot.
    fn why_not(&self, hands_over: bool) -> Option<&'static str> {
        match (self.hand_over.is_whole(), self.hand_over.is_prepared()) {
            (false, _) => Some("key groups or splits are on their way here"),
            (true, false) if hands_over => Some("this task knows of no hand-over"),
            (true, _) => None,
        }
    }

    fn send_on(&mut self, barrier: Barrier) {
        for edge in &self.edges {
            for to in &edge.receivers {
                let element = Element::Barrier(barrier);
                self.effects.push(Effect::Send {
                    edge: edge.edge,
                    to: *to,
                    element,
                });
            }
        }
    }
}
