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
pub mod windows;

pub use broker::Broker;
pub use proxy::EndHolder;
pub use topic::{Follower, Records, Seen, Topic, Writer};

/// A job without an end that passes numbers (`n`) from one topic to another, exactly once.
pub fn numbers_passed_on(broker: &Broker, from: &Topic, to: &Topic) -> String {
    let (servers, from, to) = (broker.servers(), &from.name, &to.name);
    format!(
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: numbers}}
spec:
  parallelism: 2
  sources:
  - name: rows
    kafka: {{bootstrapServers: "{servers}", topics: ["{from}"]}}
    format: {{json: {{}}}}
    schema: [{{name: n, type: BIGINT}}]
    rateLimit: {{rowsPerSecond: 2000}}
  sinks:
  - name: out
    from: rows
    kafka: {{bootstrapServers: "{servers}", topic: "{to}", key: [n]}}
    format: {{json: {{}}}}
  checkpoint: {{interval: 150ms}}
  restart: {{backoff: {{initial: 50ms, max: 1s}}}}
"#
    )
}

/// A name that no other test, and no earlier run, has used.
pub fn fresh_name(of: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ms = since.map_or(0, |since| since.as_millis());
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{of}-{ms:x}-{}-{n}", std::process::id())
}
