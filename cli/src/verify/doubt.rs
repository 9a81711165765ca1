//! What cannot be computed a second time.
//!
//! Owns: of which nodes the oracle's rows need not be the job's, though neither is wrong, and why. Which
//! rows are late depends on the order in which input came. A bounded job logs them; while a job has no end (a
//! watched folder, a topic) its log would have none either, so it keeps none. Start at: [`Doubts::of`].

use std::collections::BTreeSet;

use streamforge_core::job_graph::{OperatorKind, Port, WindowSpec};

use super::graph::Node;
use super::late::LateLog;
use super::ledger::Ledger;
use super::multiset::Difference;

/// By node. See the module.
#[derive(Debug, Default)]
pub struct Doubts {
    by_node: Vec<Option<Doubt>>,
}

/// Why what was computed need not be what the job made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// In words.
    pub why: String,
    /// Nodes that it comes from; the words are of the first.
    roots: BTreeSet<usize>,
    /// Rows in which both may differ at most, where that is known: those the job has are no others.
    wrong_max: Option<u64>,
}

impl Doubt {
    /// Whether this difference is more than it explains.
    pub fn explains(&self, difference: &Difference) -> bool {
        self.wrong_max.is_none_or(|max| {
            let differing = difference.missing.saturating_add(difference.wrong);
            difference.extra == 0 && u64::try_from(differing).is_ok_and(|n| n <= max)
        })
    }
}

impl Doubts {
    /// Of a job with this ledger and late log; `ran_endless`: rows were read by a plan that logs none.
    pub fn of(nodes: &[Node<'_>], ledger: &Ledger, late: &LateLog, ran_endless: bool) -> Self {
        let mut doubts = Self {
            by_node: vec![None; nodes.len()],
        };
        let mut bounded = Vec::new();
        for (idx, node) in nodes.iter().enumerate() {
            match &node.operator.kind {
                OperatorKind::WindowPartial(spec) if ran_endless => {
                    let unlogged_n = unlogged_n(node, nodes, ledger, late);
                    if unlogged_n == 0 {
                        continue;
                    }
                    doubts.spread(nodes, idx, idx, &of_late(node, unlogged_n));
                    if !matches!(spec.window, WindowSpec::Session { .. }) {
                        bounded.push((idx, unlogged_n));
                    }
                }
                OperatorKind::Sink(_) if reads_changelog(node, nodes) => {
                    doubts.of_corrected(nodes, idx);
                }
                _ => {}
            }
        }
        for (partial, unlogged_n) in bounded {
            doubts.bound(nodes, partial, unlogged_n);
        }
        doubts
    }

    /// What is known of a node.
    pub fn at(&self, idx: usize) -> Option<&Doubt> {
        self.by_node.get(idx)?.as_ref()
    }

    /// What is known of the node with this uid.
    pub fn of_uid(&self, nodes: &[Node<'_>], uid: &str) -> Option<&Doubt> {
        self.at(nodes.iter().position(|node| node.operator.uid.0 == uid)?)
    }

    /// Each late row is missing in one row of a result, where nothing but this is in doubt.
    fn bound(&mut self, nodes: &[Node<'_>], partial: usize, unlogged_n: u64) {
        let is_result = |(from, port): &(usize, Port)| {
            *port == Port::Main
                && nodes.get(*from).is_some_and(|node| {
                    matches!(node.operator.kind, OperatorKind::WindowFinal(_))
                        && !node.operator.updating
                        && node.inputs.iter().any(|(from, _)| *from == partial)
                })
        };
        for (node, known) in nodes.iter().zip(&mut self.by_node) {
            let is_sink = matches!(node.operator.kind, OperatorKind::Sink(_));
            if let Some(known) = known.as_mut().filter(|known| {
                is_sink && known.roots.len() == 1 && node.inputs.iter().all(is_result)
            }) {
                known.wrong_max = Some(unlogged_n);
            }
        }
    }

    /// A sink refuses a row each time that it is corrected.
    fn of_corrected(&mut self, nodes: &[Node<'_>], sink: usize) {
        let name = nodes.get(sink).map_or("", |node| &node.operator.node);
        let why = format!(
            "how often `{name}` refused a row depends on how often that was corrected, and so on the order in \
             which input came"
        );
        let consumers = nodes.get(sink).map(|node| node.consumers.as_slice());
        for (port, to, _) in consumers.unwrap_or_default() {
            if *port == Port::Bad {
                self.spread(nodes, *to, sink, &why);
            }
        }
    }

    /// To this node and all that read of it.
    fn spread(&mut self, nodes: &[Node<'_>], idx: usize, root: usize, why: &str) {
        let Some(known) = self.by_node.get_mut(idx) else {
            return;
        };
        let known = known.get_or_insert_with(|| Doubt {
            why: why.to_owned(),
            roots: BTreeSet::new(),
            wrong_max: None,
        });
        if !known.roots.insert(root) {
            return; // it has been there
        }
        let consumers = nodes.get(idx).map(|node| node.consumers.as_slice());
        for (_, to, _) in consumers.unwrap_or_default() {
            self.spread(nodes, *to, root, why);
        }
    }
}

/// Late rows of an aggregate that are in no log.
fn of_late(partial: &Node<'_>, unlogged_n: u64) -> String {
    let name = &partial.operator.node;
    let rows = if unlogged_n == 1 { "row" } else { "rows" };
    format!(
        "{unlogged_n} late {rows} of `{name}` depend on the order in which its input came, and a job keeps no \
         log of them while its input has no end"
    )
}

/// Pairs of a row and a window that an aggregate counted as late, and that no log names.
fn unlogged_n(partial: &Node<'_>, nodes: &[Node<'_>], ledger: &Ledger, late: &LateLog) -> u64 {
    let consumers = partial.consumers.iter();
    let halves = consumers
        .filter(|(port, ..)| *port == Port::Main)
        .filter_map(|(_, idx, _)| nodes.get(*idx))
        .chain([partial]);
    let mut unlogged_n: u64 = 0;
    for half in halves {
        let uid = &half.operator.uid;
        let counted_n = ledger.get(uid).map_or(0, |counters| counters.late_windows);
        unlogged_n += counted_n.saturating_sub(late.len_of(&uid.0));
    }
    unlogged_n
}

fn reads_changelog(sink: &Node<'_>, nodes: &[Node<'_>]) -> bool {
    let updating = |from: &usize| nodes.get(*from).is_some_and(|node| node.operator.updating);
    sink.inputs.iter().any(|(from, _)| updating(from))
}

#[cfg(test)]
mod tests {
    use streamforge_core::ids::OperatorUid;
    use streamforge_core::manifest::Counters;

    use super::super::graph;
    use super::*;

    const JOB: &str = "apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: job}
spec:
  sources:
    - name: rows
      file: {path: in/}
      format: {json: {}}
      schema: [{name: id, type: BIGINT}, {name: ts, type: TIMESTAMP}]
      eventTime: {column: ts, maxOutOfOrderness: 0s}
  transforms:
    - name: minutes
      from: rows
      aggregate: {groupBy: [id], window: {tumbling: {size: 1m}}, select: ['count(*) AS n']}
    - name: hours
      from: minutes
      aggregate: {window: {tumbling: {size: 1h}}, select: ['sum(n) AS n']}
  sinks:
    - {name: all, from: rows, blackhole: {}}
    - {name: per_minute, from: minutes, blackhole: {}}
    - {name: per_hour, from: hours, blackhole: {}}
";

    /// Whether these missing rows of each sink are explained; `None`: nothing is doubted.
    fn explained(late: &[(&str, u64)], ran_endless: bool, missing: i64) -> [Option<bool>; 3] {
        let loaded = streamforge_plan::load(JOB, "job.yaml").unwrap();
        let graph = streamforge_plan::plan(&loaded);
        let nodes = graph::nodes(&graph).unwrap();
        let counted = |idx: usize| Counters {
            late_windows: late
                .iter()
                .find(|(name, _)| {
                    let operator = &nodes[idx].operator;
                    operator.node == *name
                        && matches!(operator.kind, OperatorKind::WindowPartial(_))
                })
                .map_or(0, |(_, n)| *n),
            ..Counters::default()
        };
        let uid = |idx: usize| OperatorUid(nodes[idx].operator.uid.0.clone());
        let ledger: Ledger = (0..nodes.len()).map(|i| (uid(i), counted(i))).collect();
        let doubts = Doubts::of(&nodes, &ledger, &LateLog::default(), ran_endless);
        let difference = Difference {
            missing,
            ..Difference::default()
        };
        ["all", "per_minute", "per_hour"].map(|sink| {
            let doubt = doubts.of_uid(&nodes, sink);
            doubt.map(|doubt| doubt.explains(&difference))
        })
    }

    #[test]
    fn late_rows_in_no_log_explain_as_many_rows_of_their_results_and_any_behind_those() {
        assert_eq!(explained(&[("minutes", 2)], false, 1), [None; 3]);
        assert_eq!(explained(&[], true, 1), [None; 3]);
        let of = |missing| explained(&[("minutes", 2)], true, missing);
        assert_eq!(of(2), [None, Some(true), Some(true)]);
        assert_eq!(of(3), [None, Some(false), Some(true)]);
        let of = |missing| explained(&[("hours", 2)], true, missing);
        assert_eq!(of(3), [None, None, Some(false)]);
        // What comes from the first is not bounded by the second.
        let both = explained(&[("minutes", 2), ("hours", 2)], true, 3);
        assert_eq!(both, [None, Some(false), Some(true)]);
    }
}
