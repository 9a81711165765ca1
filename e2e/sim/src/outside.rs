//! The world outside: what sinks stage is durable and invisible, publishing is a rename.
//!
//! Owns: what of C2, C4, X1 and T3 can be seen from there. Checks by panicking: whoever runs a seed
//! prints it.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, Epoch, Generation, OperatorUid, SlotId};
use streamforge_core::manifest::{Manifest, StagedInterval, StagedObject};
use streamforge_core::object_key::writer_of;

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
    /// Objects of intervals that a head has named, with the intervals' ids.
    named: BTreeMap<String, CheckpointId>,
    /// Per sink how many rows are visible up to which interval, in that order (X5).
    marks: BTreeMap<OperatorUid, Vec<(CheckpointId, usize)>>,
    newest: BTreeMap<SlotId, CheckpointId>,
    /// Everything visible, in the order it became so.
    pub visible: BTreeMap<OperatorUid, Vec<Row>>,
}

impl Outside {
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
        let intervals = manifest.staged.iter().flat_map(|slot| &slot.intervals);
        let objects = intervals.flat_map(|interval| {
            let objects = interval.objects.iter();
            objects.map(|object| (object.staged.clone(), interval.id))
        });
        self.named.extend(objects);
    }

    /// Makes the first `objects_n` objects of an interval visible. Idempotent: listed but missing
    /// means published.
    pub fn publish(&mut self, slot: &SlotId, interval: &StagedInterval, objects_n: usize) {
        for object in interval.objects.iter().take(objects_n) {
            let name = &object.staged;
            assert!(
                self.named.contains_key(name),
                "{name} is published before a head names it (C2)"
            );
            let Some(rows) = self.staged.remove(name) else {
                let there = self.published.contains(name);
                assert!(
                    there,
                    "{name} is listed, but neither staged nor published: rows are lost"
                );
                continue;
            };
            let newest = self.newest.entry(slot.clone()).or_default();
            assert!(
                interval.id >= *newest,
                "{slot} went back to interval {} (X1)",
                interval.id
            );
            *newest = interval.id;
            let visible = self.visible.entry(slot.sink.clone()).or_default();
            visible.extend(rows);
            let marks = self.marks.entry(slot.sink.clone()).or_default();
            marks.push((interval.id, visible.len()));
            self.published.insert(name.clone());
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
        let folder = format!("{sink}/");
        self.staged.retain(|name, _| {
            let is_dead = writer_of(name).is_some_and(|it| (it.generation, it.epoch) < ours);
            !name.starts_with(&folder) || listed.contains(name.as_str()) || !is_dead
        });
    }

    /// Objects of intervals up to this one that a head has named and that are not visible.
    pub fn unpublished_to(&self, id: CheckpointId) -> Vec<&str> {
        let named = self.named.iter().filter(|(_, interval)| **interval <= id);
        let hidden = named.filter(|(name, _)| !self.published.contains(*name));
        hidden.map(|(name, _)| name.as_str()).collect()
    }

    /// As it looks to a job that writes on behind this interval.
    pub fn up_to(&self, id: CheckpointId) -> Self {
        let rows_n = |sink: &OperatorUid| {
            let marks = self.marks.get(sink).into_iter().flatten();
            let before = marks.take_while(|(interval, _)| *interval <= id);
            before.last().map_or(0, |(_, rows_n)| *rows_n)
        };
        let visible = self.visible.iter().map(|(sink, rows)| {
            let rows = rows.iter().take(rows_n(sink)).cloned();
            (sink.clone(), rows.collect())
        });
        Self {
            visible: visible.collect(),
            ..Self::default()
        }
    }

    /// All rows of a sink.
    pub fn rows(&self, sink: &str) -> &[Row] {
        let rows = self.visible.get(&OperatorUid(sink.to_owned()));
        rows.map(Vec::as_slice).unwrap_or_default()
    }
}
