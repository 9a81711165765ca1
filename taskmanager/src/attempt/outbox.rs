//! Events of an attempt on their way to the coordinator.
//!
//! Owns: the queue between the tasks and the session. What is stamped how, and what is remembered, is
//! [`Outbox`]'s.

use std::sync::Arc;

use streamforge_core::messages::{Event, Stamp};
use streamforge_engine::outbox::Outbox;
use tokio::sync::mpsc;

/// Events that a task may be ahead of the coordinator.
const EVENTS_MAX: usize = 64;

/// Begins to stamp what is sent to the second, and passes it on.
pub fn begin(
    stamp: &Stamp,
    to_coordinator: mpsc::Sender<(Stamp, Event)>,
) -> (Arc<Outbox>, mpsc::Sender<Event>) {
    let (events, stamped) = mpsc::channel(EVENTS_MAX);
    let outbox = Arc::new(Outbox::new(stamp.clone()));
    tokio::spawn(stamp_events(Arc::clone(&outbox), stamped, to_coordinator));
    (outbox, events)
}

/// Stamps events until the attempt and all its tasks are gone.
async fn stamp_events(
    outbox: Arc<Outbox>,
    mut events: mpsc::Receiver<Event>,
    to_coordinator: mpsc::Sender<(Stamp, Event)>,
) {
    while let Some(event) = events.recv().await {
        let stamp = outbox.note(&event);
        if to_coordinator.send((stamp, event)).await.is_err() {
            return;
        }
    }
}
