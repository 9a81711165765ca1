//! Checkpoints and failures as pure state machines: events in, decisions out.
