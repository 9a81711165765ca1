//! Rows that ended where nobody looks.
//!
//! Owns: which nodes' `.bad` and `.late` nothing reads, and what is said of them when a run ends. A job
//! whose every row is bad would otherwise end without a word.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::OperatorUid;
use streamforge_core::job_graph::{Input, JobGraph, Port};
use streamforge_core::manifest::Counters;

/// See the module.
#[derive(Debug)]
pub struct Unread {
    /// Operator -> its node's name; whether its bad and its late rows have a reader.
    operators: BTreeMap<OperatorUid, (String, [bool; 2])>,
}

impl Unread {
    /// Of a plan.
    pub fn of(graph: &JobGraph) -> Self {
        let mut read: BTreeSet<(usize, usize, Port)> = BTreeSet::new();
        for (stage_idx, stage) in graph.stages.iter().enumerate() {
            let inputs = stage.operators.iter().flat_map(|it| &it.inputs);
            read.extend(inputs.filter_map(|input| match input {
                Input::Chained { operator, port } => Some((stage_idx, *operator, *port)),
                Input::Edge(_) => None,
            }));
        }
        let edges = graph.edges.iter();
        read.extend(edges.map(|it| (it.from_stage.0 as usize, it.from_operator, it.port)));
        let mut operators = BTreeMap::new();
        for (stage_idx, stage) in graph.stages.iter().enumerate() {
            for (idx, operator) in stage.operators.iter().enumerate() {
                let is_read =
                    [Port::Bad, Port::Late].map(|port| read.contains(&(stage_idx, idx, port)));
                operators.insert(operator.uid.clone(), (operator.node.clone(), is_read));
            }
        }
        Self { operators }
    }

    /// One line per node and kind, for people.
    pub fn lines(&self, ledger: &BTreeMap<OperatorUid, Counters>) -> Vec<String> {
        let mut rows: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (uid, counters) in ledger {
            let Some((node, [bad_is_read, late_is_read])) = self.operators.get(uid) else {
                continue;
            };
            let bad = counters.bad + counters.bad_results;
            for (is_read, kind, n) in [
                (bad_is_read, "bad", bad),
                (late_is_read, "late", counters.late),
            ] {
                if !is_read && n > 0 {
                    *rows.entry((node, kind)).or_default() += n;
                }
            }
        }
        let line = |((node, kind), n): ((&str, &str), u64)| {
            let (rows, were) = if n == 1 {
                ("row", "was")
            } else {
                ("rows", "were")
            };
            format!(
                "note: {n} {rows} of `{node}` {were} {kind} and went nowhere: a sink with \
                 `from: {node}.{kind}` keeps them"
            )
        };
        rows.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: unread}
spec:
  sources:
    - name: rows
      file: {path: "in/*.ndjson"}
      format: {json: {}}
      schema: [{name: k, type: INT}, {name: ts, type: TIMESTAMP}]
      eventTime: {column: ts}
  transforms:
    - {name: counts, from: rows, aggregate: {groupBy: [k], window: {tumbling: {size: 1m}}, select: ["count(*) AS n"]}}
  sinks:
    - {name: out, from: counts, blackhole: {}}
    - {name: late, from: counts.late, blackhole: {}}
"#;

    #[test]
    fn bad_and_late_rows_are_told_where_nothing_reads_them() {
        let loaded = streamforge_plan::load(JOB, "job.yaml").expect("a good document");
        let graph = streamforge_plan::plan(&loaded);
        let counters = Counters {
            bad: 3,
            late: 1,
            ..Counters::default()
        };
        let all = graph.operators();
        let ledger = all.map(|(_, it)| (it.uid.clone(), counters)).collect();

        let lines = Unread::of(&graph).lines(&ledger);

        let told = |node, kind| {
            let start = format!("of `{node}` ");
            let found = lines.iter().filter(|line| line.contains(&start));
            found
                .filter(|line| line.contains(&format!(" {kind} and")))
                .count()
        };
        assert_eq!(
            (told("rows", "bad"), told("counts", "bad")),
            (1, 1),
            "{lines:?}"
        );
        // The half of the aggregate that judges lateness is read.
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("note: 3 rows of `rows` were bad"))
        );
    }
}
