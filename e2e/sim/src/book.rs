//! What the state of each key group was at each barrier, as its owner wrote it down.
//!
//! Owns: O3: whoever restores a checkpoint, or gains groups by a hand-over, has what their owners had
//! at its barrier, row by row. Checks by panicking.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use streamforge_core::ids::{CheckpointId, OperatorUid, TaskId};
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::Manifest;
use streamforge_core::messages::TaskSnapshot;
use streamforge_engine::operator::RestoredState;
use streamforge_engine::state::PartRows;

/// Objects that hold rows of key groups.
type Blocks = BTreeSet<(KeyGroup, String)>;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Hash of the rows of a key group in an object.
    rows: BTreeMap<(String, KeyGroup), u64>,
    acks: BTreeMap<(CheckpointId, TaskId), BTreeMap<OperatorUid, Blocks>>,
}

fn hash(rows: &RecordBatch) -> u64 {
    let mut hasher = DefaultHasher::new();
    let options = FormatOptions::default().with_null("NULL");
    for column in rows.columns() {
        let text = ArrayFormatter::try_new(column, &options).expect("a column to print");
        for row in 0..rows.num_rows() {
            text.value(row).to_string().hash(&mut hasher);
        }
    }
    hasher.finish()
}

impl Book {
    /// A task wrote a part.
    pub fn on_written(&mut self, key: &str, part: &PartRows) {
        for (group, range) in &part.groups {
            let rows = part.rows.slice(range.start, range.len());
            self.rows.insert((key.to_owned(), *group), hash(&rows));
        }
    }

    /// A task acknowledged a checkpoint.
    pub fn on_ack(&mut self, ack: &TaskSnapshot) {
        let mut state = BTreeMap::new();
        for (uid, (_, parts)) in &ack.operators {
            let blocks = parts.iter().flat_map(|part| {
                let groups = part.blocks.iter().map(|block| block.group);
                groups.map(|group| (group, part.key.clone()))
            });
            state.insert(uid.clone(), blocks.collect::<Blocks>());
        }
        self.acks.insert((ack.id, ack.task), state);
    }

    /// What is published was recorded by a manifest more, of the same moment.
    pub fn on_recorded(&mut self, from: &Manifest, to: CheckpointId) {
        for task in &from.tasks {
            if let Some(state) = self.acks.get(&(from.id, *task)).cloned() {
                self.acks.insert((to, *task), state);
            }
        }
    }

    /// The book of a job that begins with copies of what this one's tasks wrote, object by object.
    pub fn copied(&self, from: &Manifest, to: &Manifest) -> Self {
        let mut rows = BTreeMap::new();
        for (uid, state) in &from.operators {
            let copies = to.operators.get(uid).into_iter().flat_map(|it| &it.parts);
            for (part, copy) in state.parts.iter().zip(copies) {
                for block in &part.blocks {
                    if let Some(hash) = self.rows.get(&(part.key.clone(), block.group)) {
                        rows.insert((copy.key.clone(), block.group), *hash);
                    }
                }
            }
        }
        let acks = BTreeMap::new();
        Self { rows, acks }
    }

    /// O3: it lists what the tasks acknowledged, all of it.
    pub fn check_whole(&self, manifest: &Manifest) {
        for (uid, state) in &manifest.operators {
            let blocks = state.parts.iter().flat_map(|part| {
                let groups = part.blocks.iter().map(|block| block.group);
                groups.map(|group| (group, part.key.clone()))
            });
            let groups = (0..).take(manifest.max_parallelism as usize).map(KeyGroup);
            self.check_listed(manifest, uid, &groups.collect(), &blocks.collect());
        }
    }

    /// O3: what was loaded of these groups is what their owners had.
    pub fn check(
        &self,
        manifest: &Manifest,
        uid: &OperatorUid,
        groups: &BTreeSet<KeyGroup>,
        loaded: &RestoredState,
    ) {
        let mut found = Blocks::new();
        for part in &loaded.parts {
            for (group, rows) in &part.blocks {
                let key = &part.stored.key;
                let written = self.rows.get(&(key.clone(), *group));
                assert_eq!(
                    Some(&hash(rows)),
                    written,
                    "{uid}: rows of {group:?} in {key} are not what was written (O3)"
                );
                found.insert((*group, key.clone()));
            }
        }
        self.check_listed(manifest, uid, groups, &found);
    }

    fn check_listed(
        &self,
        manifest: &Manifest,
        uid: &OperatorUid,
        groups: &BTreeSet<KeyGroup>,
        found: &Blocks,
    ) {
        if manifest.tasks.is_empty() {
            return; // it holds what the one before it held
        }
        let acks = manifest.tasks.iter();
        let acks = acks.filter_map(|task| self.acks.get(&(manifest.id, *task)));
        let blocks = acks.filter_map(|state| state.get(uid)).flatten();
        let expected: Blocks = blocks
            .filter(|(group, _)| groups.contains(group))
            .cloned()
            .collect();
        assert_eq!(
            *found, expected,
            "{uid}: not the state that checkpoint {} was taken of (O3)",
            manifest.id
        );
    }
}
