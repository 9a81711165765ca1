//! Tests of the Kafka source and sink against a real broker.
//!
//! Owns: the broker (shared, or one of a test's own that may be killed), topics of a test's own, and
//! readers and writers that are not ours: what they see is what others see. The tests are in
//! `tests/`; those of one connector drive it alone, `jobs.rs` runs the real binary.
//! Start at: [`Broker`].

mod broker;
pub mod kills;
mod proxy;
pub mod sink;
pub mod source;
mod topic;

pub use broker::Broker;
pub use proxy::EndHolder;
pub use topic::{Follower, Records, Seen, Topic, Writer};

/// A name that no other test, and no earlier run, has used.
pub fn fresh_name(of: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ms = since.map_or(0, |since| since.as_millis());
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{of}-{ms:x}-{}-{n}", std::process::id())
}
