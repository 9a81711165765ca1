//! The ledger of design.md §3, checked and shown.
//!
//! Owns: three questions about the counters of a manifest. Does every node's input end in exactly one
//! place (T3)? Does every edge deliver what was sent? And, if the oracle's counts are there, are they
//! the same? Start at: [`check_balance`], [`check_counts`].

use std::collections::BTreeMap;

use streamforge_core::ids::OperatorUid;
use streamforge_core::job_graph::{OperatorKind, Port, WindowSpec};
use streamforge_core::manifest::Counters;

use super::graph::Node;
use crate::table::Table;

/// The counters of a manifest.
pub type Ledger = BTreeMap<OperatorUid, Counters>;

/// Whether every record ended in one place and every edge delivers what was sent.
pub fn check_balance(nodes: &[Node<'_>], ledger: &Ledger) -> Vec<String> {
    let mut findings = Vec::new();
    let of = |node: &Node<'_>| ledger.get(&node.operator.uid).copied().unwrap_or_default();
    for node in nodes {
        let uid = &node.operator.uid;
        let counters = of(node);
        if !counters.balances() {
            findings.push(format!(
                "ledger of `{uid}`: in {} is not passed {} + filtered {} + late {} + bad {}",
                counters.rows_in, counters.passed, counters.filtered, counters.late, counters.bad
            ));
        }
        let sent = |(from, port): &(usize, Port)| {
            let counters = nodes.get(*from).map(&of).unwrap_or_default();
            match port {
                Port::Main => counters.out,
                Port::Bad => counters.bad + counters.bad_results,
                Port::Late => counters.late_windows,
            }
        };
        let sent: u64 = node.inputs.iter().map(sent).sum();
        if !node.inputs.is_empty() && sent != counters.rows_in {
            findings.push(format!(
                "ledger of `{uid}`: {sent} rows were sent to it, {} came in",
                counters.rows_in
            ));
        }
    }
    findings
}

/// A counter's name and how to read it.
type Field = (&'static str, fn(&Counters) -> u64);

const ROWS_IN: Field = ("in", |c| c.rows_in);
const PASSED: Field = ("passed", |c| c.passed);
const FILTERED: Field = ("filtered", |c| c.filtered);
const LATE: Field = ("late", |c| c.late);
const BAD: Field = ("bad", |c| c.bad);
const OUT: Field = ("out", |c| c.out);
const LATE_WINDOWS: Field = ("late windows", |c| c.late_windows);
const BAD_RESULTS: Field = ("bad results", |c| c.bad_results);

/// What the oracle can count as the engine does: a partial aggregate sends as many partials as its
/// batches happen to make, and a changelog as many steps as corrections came.
fn fields(nodes: &[Node<'_>], node: &Node<'_>) -> Vec<Field> {
    let updating_input = node
        .inputs
        .iter()
        .any(|(from, _)| nodes.get(*from).is_some_and(|n| n.operator.updating));
    if updating_input {
        return Vec::new();
    }
    let session = |window: &WindowSpec| matches!(window, WindowSpec::Session { .. });
    let mut fields = match &node.operator.kind {
        OperatorKind::WindowPartial(spec) if session(&spec.window) => vec![ROWS_IN, PASSED, BAD],
        OperatorKind::WindowPartial(_) => vec![ROWS_IN, PASSED, LATE, BAD, LATE_WINDOWS],
        OperatorKind::WindowFinal(spec) if session(&spec.window) => {
            vec![ROWS_IN, PASSED, LATE, LATE_WINDOWS]
        }
        OperatorKind::WindowFinal(_) => vec![],
        OperatorKind::Sink(_) => vec![ROWS_IN, PASSED, BAD],
        OperatorKind::Source(_)
        | OperatorKind::Filter { .. }
        | OperatorKind::Project { .. }
        | OperatorKind::Unnest { .. }
        | OperatorKind::Union => vec![ROWS_IN, PASSED, FILTERED, LATE, BAD, OUT],
    };
    if matches!(node.operator.kind, OperatorKind::WindowFinal(_)) && !node.operator.updating {
        fields.extend([OUT, BAD_RESULTS]);
    }
    fields
}

/// Where the job counted otherwise than the oracle: the node and what of it.
pub fn check_counts(
    nodes: &[Node<'_>],
    ledger: &Ledger,
    counted: &[Counters],
) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    for (idx, (node, counted)) in nodes.iter().zip(counted).enumerate() {
        let uid = &node.operator.uid;
        let counters = ledger.get(uid).copied().unwrap_or_default();
        for (name, value) in fields(nodes, node) {
            let (job, oracle) = (value(&counters), value(counted));
            if job != oracle {
                let text = format!("ledger of `{uid}`: {name} is {job}, {oracle} expected");
                findings.push((idx, text));
            }
        }
    }
    findings
}

/// The ledger for people, nodes in the order of the plan.
pub fn table(nodes: &[Node<'_>], ledger: &Ledger) -> Table {
    let fields: [Field; 8] = [
        ROWS_IN,
        PASSED,
        FILTERED,
        LATE,
        BAD,
        OUT,
        LATE_WINDOWS,
        BAD_RESULTS,
    ];
    let names = fields.iter().map(|(name, _)| name.to_uppercase());
    let mut table = Table::new(std::iter::once("NODE".to_owned()).chain(names));
    for node in nodes {
        let counters = ledger.get(&node.operator.uid).copied().unwrap_or_default();
        let values = fields.iter().map(|(_, value)| value(&counters).to_string());
        table.row(std::iter::once(node.operator.uid.0.clone()).chain(values));
    }
    table
}

#[cfg(test)]
mod tests {
    use streamforge_core::job_graph::ChangelogMode;
    use streamforge_core::job_graph::{
        Connector, Delivery, Input, JobGraph, Operator, SinkSpec, Stage,
    };

    use super::*;
    use crate::verify::graph::nodes;

    fn graph() -> JobGraph {
        let operator = |uid: &str, kind, inputs| Operator {
            uid: OperatorUid(uid.to_owned()),
            node: uid.to_owned(),
            kind,
            inputs,
            output: vec![],
            updating: false,
        };
        let connector = Connector {
            kind: "blackhole".to_owned(),
            config: serde_json::Value::Null,
        };
        let sink = OperatorKind::Sink(SinkSpec {
            connector,
            format: None,
            input: vec![],
            delivery: Delivery::AtLeastOnce,
            changelog: ChangelogMode::AppendOnly,
            rate_limit: None,
        });
        let read = |port| vec![Input::Chained { operator: 0, port }];
        JobGraph {
            format_version: 1,
            name: "job".to_owned(),
            max_parallelism: 1,
            bounded: true,
            stages: vec![Stage {
                operators: vec![
                    operator("all", OperatorKind::Union, vec![]),
                    operator("out", sink.clone(), read(Port::Main)),
                    operator("refused", sink, read(Port::Bad)),
                ],
            }],
            edges: vec![],
        }
    }

    fn ledger(counters: [(&str, u64, u64, u64); 3]) -> Ledger {
        let entry = |(uid, rows_in, bad, out): (&str, u64, u64, u64)| {
            let counters = Counters {
                rows_in,
                bad,
                out,
                passed: rows_in - bad,
                ..Counters::default()
            };
            (OperatorUid(uid.to_owned()), counters)
        };
        counters.into_iter().map(entry).collect()
    }

    #[test]
    fn every_edge_delivers_what_was_sent_t3() {
        let graph = graph();
        let nodes = nodes(&graph).unwrap();
        let good = ledger([("all", 10, 3, 7), ("out", 7, 0, 0), ("refused", 3, 0, 0)]);
        let lost = ledger([("all", 10, 3, 7), ("out", 6, 0, 0), ("refused", 3, 0, 0)]);
        let mut twice = good.clone();
        twice.get_mut(&OperatorUid("all".to_owned())).unwrap().late = 1;

        assert_eq!(check_balance(&nodes, &good), Vec::<String>::new());
        assert_eq!(
            check_balance(&nodes, &lost),
            ["ledger of `out`: 7 rows were sent to it, 6 came in"]
        );
        assert_eq!(check_balance(&nodes, &twice).len(), 1);
    }

    #[test]
    fn a_count_that_the_oracle_does_not_share_is_named() {
        let graph = graph();
        let nodes = nodes(&graph).unwrap();
        let job = ledger([("all", 10, 3, 7), ("out", 7, 0, 0), ("refused", 3, 0, 0)]);
        let mut oracle: Vec<Counters> = nodes.iter().map(|node| job[&node.operator.uid]).collect();

        assert_eq!(check_counts(&nodes, &job, &oracle), []);
        oracle[0].bad = 4;
        let findings = check_counts(&nodes, &job, &oracle);
        let text = "ledger of `all`: bad is 3, 4 expected".to_owned();
        assert_eq!(findings, [(0, text)]);
    }
}
