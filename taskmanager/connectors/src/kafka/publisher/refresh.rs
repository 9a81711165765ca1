//! Keeping the markers of idle slots.
//!
//! Owns: when a slot's marker is written again although nothing is published: a group's offsets are kept for
//! a while only, and a marker that is missing where intervals are listed is never a new start (X3).

use std::sync::{Arc, Weak};
use std::time::Duration;

use streamforge_core::ids::{CheckpointId, SlotId};
use streamforge_core::manifest::StagedInterval;
use streamforge_engine::error::Error;

use super::slots::lock;
use super::{Inner, KafkaPublisher, Taken};
use crate::error::failed;
use crate::kafka::marker::{Doubt, Listed};
use crate::kafka::topic_settings::TopicView;

/// A slot that published nothing for this long writes its marker again: a group's offsets are kept
/// for days after their commit, not for ever (X3).
const REFRESH_AFTER: Duration = Duration::from_hours(1);

/// How often is looked for such slots.
const REFRESH_LOOK: Duration = Duration::from_mins(10);

impl KafkaPublisher {
    /// Writes the markers of idle slots again, until the publisher is gone. Needs a runtime.
    pub fn refresh_in_background(&self) {
        let inner = Arc::downgrade(&self.inner);
        tokio::spawn(refresh(inner));
    }

    /// Writes the markers of slots again of which nothing was written for so long (X3).
    pub async fn refresh_idle(&self, after: Duration) {
        self.inner.refresh_idle(after).await;
    }
}

async fn refresh(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(REFRESH_LOOK).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.refresh_idle(REFRESH_AFTER).await;
    }
}

impl Inner {
    /// See [`KafkaPublisher::refresh_idle`]. What fails is tried again at the next look.
    async fn refresh_idle(self: &Arc<Self>, after: Duration) {
        let idle = self.slots.idle(after);
        if idle.is_empty() {
            return;
        }
        let tell = |error: &Error| {
            let error = error.with_causes();
            tracing::warn!(error, "an idle slot's marker could not be written again");
        };
        let view = match TopicView::look(&self.lookup(), &self.spec.config.topic).await {
            Ok(view) => view,
            Err(error) => return tell(&error),
        };
        for id in idle {
            let (inner, view) = (Arc::clone(self), view.clone());
            let refreshed = tokio::task::spawn_blocking(move || inner.refresh(&id, &view, after));
            match refreshed.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tell(&error),
                Err(error) => tell(&failed(self.action(), true, error)),
            }
        }
    }

    /// Writes the marker of a slot that has been idle for so long: by taking it over anew, because the
    /// connections of a producer that did nothing for so long are broken, so that it may not be used
    /// again (X2). Blocks.
    fn refresh(&self, id: &SlotId, view: &TopicView, after: Duration) -> Result<(), Error> {
        let mutex = self.slots.of(id);
        let mut slot = lock(&mutex);
        if !slot.is_idle(after) {
            return Ok(()); // it was published meanwhile
        }
        slot.producer = None;
        // Whatever the marker says is kept as it is; none is not written anew.
        let unknown = StagedInterval {
            id: CheckpointId::ZERO,
            objects: Vec::new(),
        };
        match self.take(&mut slot, id, (view, Listed::One(&unknown)), Doubt::Open)? {
            Taken::Mine | Taken::Zombie(_) => {}
            Taken::Vanished => tracing::warn!(slot = %id, "the marker of an idle slot is gone"),
        }
        Ok(())
    }
}
