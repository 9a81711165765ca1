//! An outside system: what is staged is durable and invisible, publishing is a rename.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, SlotId};
use streamforge_core::manifest::{StagedInterval, StagedObject};

pub type Row = (String, u64);

#[derive(Debug, Default)]
pub struct Sink {
    staged: BTreeMap<String, Vec<Row>>,
    published: BTreeSet<String>,
    pub visible: Vec<Row>,
    /// Newest interval that became visible, by slot: X1's ascending order.
    newest: BTreeMap<SlotId, CheckpointId>,
}

impl Sink {
    pub fn stage(&mut self, name: &str, id: CheckpointId, rows: Vec<Row>) -> StagedInterval {
        let object = StagedObject {
            staged: name.to_owned(),
            published: format!("visible/{name}"),
            bytes: rows.len() as u64,
            rows: rows.len() as u64,
            detail: String::new(),
        };
        let again = self.staged.insert(name.to_owned(), rows);
        assert!(again.is_none(), "two intervals share the name {name} (C4)");
        StagedInterval {
            id,
            objects: vec![object],
        }
    }

    /// Idempotent: listed but missing means published.
    pub fn publish(&mut self, slot: &SlotId, interval: &StagedInterval) {
        for object in &interval.objects {
            match self.staged.remove(&object.staged) {
                Some(rows) => {
                    self.visible.extend(rows);
                    self.published.insert(object.staged.clone());
                    let newest = self.newest.entry(slot.clone()).or_default();
                    assert!(interval.id > *newest, "{slot} went back to {}", interval.id);
                    *newest = interval.id;
                }
                None => assert!(
                    self.published.contains(&object.staged),
                    "{} is listed, but it is neither staged nor published: rows are lost",
                    object.staged
                ),
            }
        }
    }

    /// At a restore: what dead attempts staged and the manifest does not list.
    pub fn discard_unlisted(&mut self, listed: &BTreeSet<String>, is_dead: impl Fn(&str) -> bool) {
        self.staged
            .retain(|name, _| listed.contains(name) || !is_dead(name));
    }
}
