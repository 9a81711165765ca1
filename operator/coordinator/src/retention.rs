//! What may be deleted, and when.
//!
//! Owns: the references of all retained manifests. Invariant C6: an object goes only if its id is
//! below the oldest retained manifest's *and* no retained manifest references it; a manifest leaves
//! the head's list, by a swap, before this is asked.
//!
//! So nothing in flight (its id is above every committed one) and nothing carried (a newer manifest
//! references it) is touched, and a stale coordinator's late deletes do no harm. A retained manifest
//! that cannot be read may reference anything: then nothing is deleted.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{Head, Manifest};
use streamforge_core::object_key::{LATE, MANIFESTS, PARTS, PLANS, STAGED, writer_of};

/// Folders that hold objects of checkpoints.
pub const SWEPT_FOLDERS: [&str; 5] = [MANIFESTS, PLANS, PARTS, LATE, STAGED];

/// Most objects deleted by one request, so that a long list does not hold up the store.
pub const DELETES_PER_REQUEST_MAX: usize = 500;

/// References of the retained manifests, and what waits to be deleted.
#[derive(Debug, Default)]
pub struct Retention {
    /// Objects of each known manifest, retained or just retired.
    objects: BTreeMap<CheckpointId, BTreeSet<String>>,
    /// Retired or not, these are being copied.
    held: BTreeSet<CheckpointId>,
    doomed: BTreeSet<String>,
}

impl Retention {
    /// The objects of a manifest, from its own bytes.
    pub fn learn(&mut self, key: &str, manifest: &Manifest) {
        self.objects.insert(manifest.id, objects_of(key, manifest));
    }

    /// Of these, and of no others, objects stay even if the head's list does not name them.
    pub fn hold(&mut self, held: BTreeSet<CheckpointId>) {
        self.held = held;
    }

    /// The head's list changed: what left it, and is not referenced by what stays, is doomed.
    pub fn on_head(&mut self, head: &Head) {
        let retained: BTreeSet<CheckpointId> = head.retained.iter().map(|kept| kept.id).collect();
        let gone: Vec<CheckpointId> = self
            .objects
            .keys()
            .filter(|id| !retained.contains(id) && !self.held.contains(id))
            .copied()
            .collect();
        let candidates: Vec<String> = gone
            .iter()
            .filter_map(|id| self.objects.remove(id))
            .flatten()
            .collect();
        self.doom(head, candidates);
    }

    /// Keys found in the store: what C6 lets go is doomed, dead attempts' leftovers among it.
    pub fn on_listed(&mut self, head: &Head, keys: Vec<String>) {
        self.doom(head, keys);
    }

    fn doom(&mut self, head: &Head, keys: Vec<String>) {
        let Some(oldest) = head.retained.iter().map(|kept| kept.id).min() else {
            return;
        };
        if head
            .retained
            .iter()
            .any(|kept| !self.objects.contains_key(&kept.id))
        {
            return; // what an unread manifest references is not known
        }
        let deletable = |key: &String| {
            writer_of(key).is_some_and(|writer| writer.checkpoint < oldest)
                && *key != head.plan
                && !self.objects.values().any(|objects| objects.contains(key))
        };
        self.doomed.extend(keys.into_iter().filter(deletable));
    }

    /// What to delete next; stays on the list until [`Retention::on_deleted`].
    #[must_use]
    pub fn next_deletes(&self) -> Vec<String> {
        self.doomed
            .iter()
            .take(DELETES_PER_REQUEST_MAX)
            .cloned()
            .collect()
    }

    /// These are gone.
    pub fn on_deleted(&mut self, keys: &[String]) {
        for key in keys {
            self.doomed.remove(key);
        }
    }
}

fn objects_of(key: &str, manifest: &Manifest) -> BTreeSet<String> {
    let parts = manifest.operators.values().flat_map(|state| &state.parts);
    let late = manifest.late_log.iter().map(|object| object.key.clone());
    let staged = manifest.staged.iter().flat_map(|slot| &slot.intervals);
    let staged = staged
        .flat_map(|interval| &interval.objects)
        .map(|object| object.staged.clone());
    let own = [key.to_owned(), manifest.plan.clone()];
    own.into_iter()
        .chain(parts.map(|part| part.key.clone()))
        .chain(late)
        .chain(staged)
        .collect()
}
