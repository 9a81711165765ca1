//! What a job may hold.

use streamforge_process::Workspace;

#[test]
fn state_over_its_limit_fails_the_job_with_a_reason_and_no_restart_b1() {
    let workspace = Workspace::new(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: hoarder}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {clicks: {users: 10000000, skew: 0, seed: 5}}
      eventTime: {column: ts}
  transforms:
    - name: per_user
      from: clicks
      aggregate: {groupBy: [user_id], window: {tumbling: {size: 365d}}, select: ["count(*) AS n"]}
  sinks:
    - {name: results, from: per_user, file: {path: out/}, format: {json: {}}}
  state: {memoryLimit: 4Mi}
"#,
    );

    let ended = workspace.run(&[]);

    ended.check_code(1);
    let said = &ended.stderr;
    assert!(said.contains("more than state.memoryLimit (4Mi)"), "{said}");
    assert_eq!(workspace.published().files_n(), 0);
}
