//! What a stop has published is recorded before it ends (X3).
//!
//! Owns: one more manifest, of the same moment, that no longer lists what is visible, and its swap,
//! which puts it in the place of the stop's own. So the next start finds nothing to publish: a marker that
//! was forgotten meanwhile is nothing to worry about, and a sink may be removed.
//!
//! Who dies in between has told the next start to publish again, which does nothing (X1). A stop whose
//! publish was not confirmed in time records nothing.

use streamforge_core::frame;
use streamforge_core::manifest::{self, CheckpointKind, Head, Manifest, ManifestRef};

use crate::checkpoint::manifest_key;
use crate::coordinator::{Coordinator, Purpose};
use crate::head::Change;
use crate::status::Phase;
use crate::store_request::{PutCondition, StoreRequest};

/// How far that is.
#[derive(Debug, Default)]
pub(crate) enum Recording {
    /// There was nothing to record yet.
    #[default]
    No,
    /// This manifest is written, and named; the store has until then.
    UnderWay(Box<Manifest>, u64),
    /// It is named, or the store did not take it in time.
    Over,
}

impl Recording {
    pub(crate) fn manifest(&self) -> Option<&Manifest> {
        match self {
            Self::UnderWay(manifest, _) => Some(manifest),
            Self::No | Self::Over => None,
        }
    }
}

impl Coordinator {
    /// Begins to record if that is what the stop still has to do. True: it has begun.
    pub(crate) fn record_if_due(&mut self) -> bool {
        let Some(committed) = &self.committed else {
            return false;
        };
        let lists = |manifest: &Manifest| manifest.staged.iter().any(|it| !it.intervals.is_empty());
        let is_due = self.phase == Phase::Stopping
            && committed.kind == CheckpointKind::Stop
            && lists(committed)
            && (self.is_of_attempt() || self.attempt.is_none())
            && self.publisher.unpublished_n() == 0
            && matches!(self.recording, Recording::No);
        if !is_due {
            return false;
        }
        let committed = committed.clone();
        let Some(id) = self.reserved_id() else {
            self.swap(Change::Reserve);
            return true;
        };
        let manifest = Manifest {
            id,
            staged: self.publisher.list([]),
            time_ms: self.now_ms,
            ..committed
        };
        let key = manifest_key(&manifest);
        let bytes = manifest::encode(frame::MANIFEST, &manifest);
        let until_ms = self.now_ms + self.config.checkpoint.timeout_ms;
        self.recording = Recording::UnderWay(Box::new(manifest), until_ms);
        let condition = PutCondition::CreateIfAbsent;
        let put = StoreRequest::Put {
            key,
            bytes,
            condition,
        };
        self.ask(Purpose::PutManifest, put);
        true
    }

    /// The store has had its time: the stop ends without. What is on its way may still arrive, and is
    /// true.
    pub(crate) fn give_up_recording_if_late(&mut self) {
        if matches!(&self.recording, Recording::UnderWay(_, until_ms) if *until_ms <= self.now_ms) {
            self.recording = Recording::Over;
            self.store.clear();
        }
    }

    /// The manifest is durable.
    pub(crate) fn name_record(&mut self, reference: ManifestRef) {
        self.swap(Change::Record(reference));
    }

    /// The head names it.
    pub(crate) fn on_recorded(&mut self, head: &Head) {
        let recording = std::mem::replace(&mut self.recording, Recording::Over);
        let Recording::UnderWay(manifest, _) = recording else {
            return;
        };
        self.retention.learn(&manifest_key(&manifest), &manifest);
        self.retention.on_head(head);
        self.committed = Some(*manifest);
    }
}
