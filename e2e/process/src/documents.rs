//! Documents that several tests run.
//!
//! Owns: their text. What a test is about stands in the test.

/// Every kind of state: tumbling, hopping and session windows, corrections, windows of windows, over so
/// many clicks at 40,000 a second.
pub fn every_window(rows: u32) -> String {
    EVERY_WINDOW.replace("ROWS", &rows.to_string())
}

const EVERY_WINDOW: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {clicks: {rows: ROWS, users: 500, skew: 1.1, outOfOrderness: 3s, lateFraction: 0.01, badFraction: 0.001, seed: 7}}
      eventTime: {column: ts, maxOutOfOrderness: 3s}
      rateLimit: {rowsPerSecond: 40000}
  transforms:
    - {name: valid, from: clicks, filter: "amount > 0"}
    - name: per_user
      from: valid
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: 1s}}
        select: ["count(*) AS clicks", "sum(amount) AS spend", "count(DISTINCT page) AS pages"]
        emit: Once
    - name: rolling
      from: valid
      aggregate:
        groupBy: [page]
        window: {hopping: {size: 4s, slide: 1s}}
        select: ["count(*) AS clicks", "max(amount) AS most"]
        allowedLateness: 2s
    - name: visits
      from: valid
      aggregate:
        groupBy: [user_id]
        window: {session: {gap: 500ms}}
        select: ["count(*) AS clicks"]
        allowedLateness: 1s
    - name: busy
      from: per_user
      aggregate:
        groupBy: [pages]
        window: {tumbling: {size: 2s}}
        select: ["count(*) AS users"]
  sinks:
    - {name: results, from: per_user, file: {path: out/per_user/}, format: {json: {}}}
    - {name: rolled, from: rolling, file: {path: out/rolling/}, format: {json: {}}, changelog: Retract}
    - {name: visited, from: visits, file: {path: out/visits/}, format: {json: {}}, changelog: Retract}
    - {name: busiest, from: busy, file: {path: out/busy/}, format: {json: {}}}
    - {name: late, from: per_user.late, file: {path: out/late/}, format: {json: {}}}
    - {name: bad, from: clicks.bad, file: {path: out/bad/}, format: {json: {}}}
  checkpoint: {interval: 200ms}
  restart: {window: 30s}
"#;
