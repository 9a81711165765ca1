//! The world outside: what sinks stage is durable and invisible, publishing is a rename.
//!
//! Owns: what of C2, C4, X1, X5 and T3 can be seen from there. Checks by panicking: whoever runs a seed
//! prints it.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, Epoch, Generation, OperatorUid, SlotId};
use streamforge_core::manifest::{Manifest, StagedInterval, StagedObject};
use streamforge_core::object_key::writer_of;
use streamforge_store::MemoryStore;

use crate::book::Book;
use crate::broker::Broker;
use crate::job::OUT;

/// One row of a sink: what happened to it, and its columns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// As printed in `_op`.
    pub op: &'static str,
    /// Columns, as text.
    pub columns: Vec<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Outside {
    staged: BTreeMap<String, Vec<Row>>,
    published: BTreeSet<String>,
    /// What state was at each barrier.
    pub book: Book,
    /// The topic that the main output goes to; `None`: that is files, too.
    pub broker: Option<Broker>,
    /// Objects of intervals that a head has named.
    named: BTreeMap<String, (SlotId, CheckpointId)>,
    newest: BTreeMap<SlotId, CheckpointId>,
    /// Of each sink what heads have named and is not visible yet.
    waiting: BTreeMap<OperatorUid, BTreeMap<CheckpointId, BTreeSet<String>>>,
    /// Of each sink how many rows each interval made visible, in that order.
    shown: BTreeMap<OperatorUid, Vec<(CheckpointId, usize)>>,
    /// Everything visible, in the order it became so.
    pub visible: BTreeMap<OperatorUid, Vec<Row>>,
}

impl Outside {
    /// Whether this sink writes to the topic.
    pub fn is_topic(&self, sink: &OperatorUid) -> bool {
        self.broker.is_some() && sink.0 == OUT
    }

    /// Writes an object that nobody sees.
    pub fn stage(&mut self, name: String, rows: Vec<Row>) -> StagedObject {
        let rows_n = rows.len() as u64;
        let object = StagedObject {
            published: format!("visible/{name}"),
            staged: name.clone(),
            bytes: rows_n,
            rows: rows_n,
            detail: String::new(),
        };
        let again = self.staged.insert(name, rows);
        assert!(
            again.is_none(),
            "two objects share the name {} (C4)",
            object.staged
        );
        object
    }

    /// A head names this manifest: what it lists may be published.
    pub fn on_named(&mut self, manifest: &Manifest) {
        for slot in &manifest.staged {
            let waiting = self.waiting.entry(slot.slot.sink.clone()).or_default();
            for interval in &slot.intervals {
                for object in &interval.objects {
                    let name = &object.staged;
                    if !self.published.contains(name) {
                        waiting.entry(interval.id).or_default().insert(name.clone());
                    }
                    let place = (slot.slot.clone(), interval.id);
                    self.named.insert(name.clone(), place);
                }
            }
        }
    }

    /// Makes the first `objects_n` objects of an interval visible. Idempotent: listed but missing
    /// means published.
    pub fn publish(&mut self, slot: &SlotId, interval: &StagedInterval, objects_n: usize) {
        for object in interval.objects.iter().take(objects_n) {
            let name = &object.staged;
            let place = self.named.get(name);
            assert!(
                place.is_some_and(|(at, id)| at == slot && *id == interval.id),
                "{name} is published before a head names it (C2)"
            );
            if !self.published.contains(name) {
                self.show(name);
            }
        }
    }

    /// The end of a transaction arrives that its producer has given up. False: there is none.
    pub fn land(&mut self) -> bool {
        let landed = self.broker.as_mut().is_some_and(Broker::land);
        self.look_into_topic();
        landed
    }

    /// Rows of these staged objects are in the topic now.
    pub fn look_into_topic(&mut self) {
        let visible = self
            .broker
            .as_mut()
            .map(|it| std::mem::take(&mut it.visible));
        for name in visible.unwrap_or_default() {
            assert!(
                !self.published.contains(&name),
                "{name} is in the topic twice (X1)"
            );
            self.show(&name);
        }
    }

    /// C6: what is listed and was never published lies in the store.
    pub fn check_kept(&self, store: &MemoryStore, interval: &StagedInterval) {
        for object in &interval.objects {
            let name = &object.staged;
            let gone = matches!(store.get_now(name), Ok(None));
            assert!(
                !gone || self.published.contains(name),
                "{name} is listed, but not in the store: rows are lost (C6)"
            );
        }
    }

    /// A staged object becomes visible.
    fn show(&mut self, name: &str) {
        let Some((slot, id)) = self.named.get(name).cloned() else {
            panic!("{name} is published before a head names it (C2)");
        };
        let Some(rows) = self.staged.remove(name) else {
            panic!("{name} is listed, but neither staged nor published: rows are lost");
        };
        let newest = self.newest.entry(slot.clone()).or_default();
        assert!(id >= *newest, "{slot} went back to interval {id} (X1)");
        *newest = id;
        self.check_prefix(&slot.sink, id, name);
        let shown = self.shown.entry(slot.sink.clone()).or_default();
        shown.push((id, rows.len()));
        let visible = self.visible.entry(slot.sink).or_default();
        visible.extend(rows);
        self.published.insert(name.to_owned());
    }

    /// O2, X5: what is visible is a prefix of what heads have named, over all slots of a sink.
    fn check_prefix(&mut self, sink: &OperatorUid, id: CheckpointId, name: &str) {
        let waiting = self.waiting.entry(sink.clone()).or_default();
        let first = waiting.first_key_value().map_or(id, |(first, _)| *first);
        assert!(
            first >= id,
            "{name} of interval {id} is visible before all of {first} (O2, X5)"
        );
        if let Some(objects) = waiting.get_mut(&id) {
            objects.remove(name);
            if objects.is_empty() {
                waiting.remove(&id);
            }
        }
    }

    /// At a restore: what dead attempts staged and the restored manifest does not list is removed.
    pub fn discard_unlisted(
        &mut self,
        sink: &OperatorUid,
        listed: &[StagedInterval],
        ours: (Generation, Epoch),
    ) {
        let objects = listed.iter().flat_map(|interval| &interval.objects);
        let listed: BTreeSet<&str> = objects.map(|object| object.staged.as_str()).collect();
        // What is staged for a topic lies in the store, and retention removes it.
        let folder = format!("{sink}/");
        self.staged.retain(|name, _| {
            let is_dead = writer_of(name).is_some_and(|it| (it.generation, it.epoch) < ours);
            !name.starts_with(&folder) || listed.contains(name.as_str()) || !is_dead
        });
    }

    /// Objects of intervals up to this one that a head has named and that are not visible.
    pub fn unpublished_to(&self, id: CheckpointId) -> Vec<&str> {
        let intervals = self.waiting.values().flat_map(|by_id| by_id.range(..=id));
        let objects = intervals.flat_map(|(_, objects)| objects);
        objects.map(String::as_str).collect()
    }

    /// As it looks to a job that writes on behind this interval, wherever to.
    pub fn up_to(&self, id: CheckpointId) -> Self {
        let rows_n = |sink: &OperatorUid| {
            let shown = self.shown.get(sink).into_iter().flatten();
            let before = shown.take_while(|(interval, _)| *interval <= id);
            before.map(|(_, rows_n)| rows_n).sum()
        };
        let visible = self.visible.iter().map(|(sink, rows)| {
            let rows = rows.iter().take(rows_n(sink)).cloned();
            (sink.clone(), rows.collect())
        });
        Self {
            visible: visible.collect(),
            book: self.book.clone(),
            ..Self::default()
        }
    }

    /// All rows of a sink.
    pub fn rows(&self, sink: &str) -> &[Row] {
        let rows = self.visible.get(&OperatorUid(sink.to_owned()));
        rows.map(Vec::as_slice).unwrap_or_default()
    }
}
