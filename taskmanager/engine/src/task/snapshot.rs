//! A task at a barrier.
//!
//! Owns: what a snapshot contains, and that the barrier leaves behind it.

use std::collections::BTreeMap;

use super::{Chained, CoreSnapshot, Effect, Element, TaskCore};
use crate::barrier::Barrier;
use crate::error::Error;

impl TaskCore {
    /// Snapshots every operator and sends the barrier on.
    pub(super) fn snapshot(&mut self, barrier: Barrier) -> Result<(), Error> {
        self.flush()?;
        let mut snapshot = CoreSnapshot {
            barrier,
            splits: BTreeMap::new(),
            operators: Vec::new(),
            counters: self.counters(),
            late_log: Vec::new(),
        };
        let mut declined = None;
        for node in &mut self.nodes {
            match &mut node.chained {
                Chained::Source(source) => {
                    snapshot.splits.insert(node.uid.clone(), source.splits());
                }
                Chained::Operator(operator) => {
                    let uid = &node.uid;
                    match operator.snapshot(barrier.id)? {
                        Some(part) if part.keyed => {
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
        Ok(())
    }
}
