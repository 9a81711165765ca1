//! What is read of each output.
//!
//! Owns: which nodes lead to a sink, which columns of each output anybody reads, and which sources
//! must say where each record came from. Columns that nobody reads are not decoded at all.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::job_graph::{Column, Expr, Port, SourceSpec};

use crate::document::{Kind, OutputName, Resolved, ResolvedAggregate};
use crate::expression::columns_of;

/// What is read of each output.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Names of nodes that lead to a sink.
    live: BTreeSet<String>,
    /// Outputs that a live node reads.
    read: BTreeSet<OutputName>,
    /// Per node: columns of its main output that are read.
    columns: BTreeMap<String, BTreeSet<String>>,
    /// Nodes whose records must say where they came from, because a bad or late one may be written.
    origin: BTreeSet<String>,
    /// The same, if the job is bounded and keeps a late log.
    origin_if_bounded: BTreeSet<String>,
}

impl Needs {
    pub fn of(nodes: &[Resolved]) -> Self {
        let mut needs = Self::default();
        // Nodes stand in topological order: when a node's turn comes, all its readers had theirs.
        for node in nodes.iter().rev() {
            if matches!(node.kind, Kind::Sink(_)) || needs.is_read(node) {
                needs.live.insert(node.name.clone());
                needs.read.extend(node.inputs.iter().cloned());
                needs.read_columns(node);
                needs.read_origin(node);
            }
        }
        needs
    }

    pub fn live<'a>(&'a self, nodes: &'a [Resolved]) -> impl Iterator<Item = &'a Resolved> {
        nodes.iter().filter(|node| self.live.contains(&node.name))
    }

    /// Columns of a node's main output that are read.
    pub fn columns(&self, node: &str) -> BTreeSet<String> {
        self.columns.get(node).cloned().unwrap_or_default()
    }

    /// Columns that a source must decode, in the order of its schema.
    pub fn source_columns(&self, node: &Resolved, source: &SourceSpec) -> Vec<Column> {
        let mut needed = self.columns(&node.name);
        if let Some(event_time) = &source.event_time {
            needed.extend(columns_of(&event_time.expr.sql));
        }
        let declared = node
            .columns
            .iter()
            .filter(|column| needed.contains(&column.name));
        let mut columns: Vec<Column> = declared.cloned().collect();
        columns.extend(
            node.hidden
                .iter()
                .filter(|column| needed.contains(&column.name))
                .cloned(),
        );
        if columns.is_empty() {
            // Rows are still counted, so something must be decoded.
            columns.extend(node.columns.first().cloned());
        }
        columns
    }

    /// Whether a source must say where each record came from.
    pub fn origin(&self, node: &Resolved, bounded: bool) -> bool {
        self.origin.contains(&node.name) || (bounded && self.origin_if_bounded.contains(&node.name))
    }

    fn is_read(&self, node: &Resolved) -> bool {
        [Port::Main, Port::Bad, Port::Late]
            .into_iter()
            .any(|port| self.reads(node, port))
    }

    fn reads(&self, node: &Resolved, port: Port) -> bool {
        self.read.contains(&OutputName {
            node: node.name.clone(),
            port,
        })
    }

    fn read_columns(&mut self, node: &Resolved) {
        let own = self.columns(&node.name);
        let all = match &node.kind {
            Kind::Source(_) => return,
            Kind::Sink(_) => true,
            // A missed window shows the whole record, and a bad row is shown as JSON.
            _ => self.reads(node, Port::Bad) || self.reads(node, Port::Late),
        };
        // A filter, an unnest or a union hands on what its readers name, hidden columns too.
        let handed_on = match &node.kind {
            Kind::Filter(_) | Kind::Unnest(_) | Kind::Union => own,
            _ => BTreeSet::new(),
        };
        let named = named_columns(node);
        for input in node.inputs.iter().filter(|input| input.port == Port::Main) {
            let columns = self.columns.entry(input.node.clone()).or_default();
            columns.extend(named.iter().chain(&handed_on).cloned());
            if all {
                columns.extend(node.input_columns.iter().cloned());
            }
        }
    }

    fn read_origin(&mut self, node: &Resolved) {
        let side_is_read = self.reads(node, Port::Bad) || self.reads(node, Port::Late);
        let is_aggregate = matches!(node.kind, Kind::Aggregate(_));
        // Behind an aggregate a row no longer has one origin.
        let passes_on = !is_aggregate;
        let inherited = passes_on && self.origin.contains(&node.name);
        let inherited_if_bounded = passes_on && self.origin_if_bounded.contains(&node.name);
        for input in node.inputs.iter().filter(|input| input.port == Port::Main) {
            if side_is_read || inherited {
                self.origin.insert(input.node.clone());
            }
            if is_aggregate || inherited_if_bounded {
                self.origin_if_bounded.insert(input.node.clone());
            }
        }
        if side_is_read && matches!(node.kind, Kind::Source(_)) {
            self.origin.insert(node.name.clone());
        }
    }
}

/// Columns that the node's own expressions name.
fn named_columns(node: &Resolved) -> BTreeSet<String> {
    let of = |exprs: Vec<&Expr>| {
        exprs
            .iter()
            .flat_map(|expr| columns_of(&expr.sql))
            .collect()
    };
    match &node.kind {
        Kind::Source(_) | Kind::Union | Kind::Sink(_) => BTreeSet::new(),
        Kind::Filter(predicate) => of(vec![predicate]),
        Kind::Unnest(item) => of(vec![&item.expr]),
        Kind::Select(items) => of(items.iter().map(|item| &item.expr).collect()),
        Kind::Aggregate(ResolvedAggregate { spec, .. }) => {
            let keys = spec.keys.iter().map(|key| &key.expr);
            let args = spec.calls.iter().filter_map(|call| call.arg.as_ref());
            let filters = spec.calls.iter().filter_map(|call| call.filter.as_ref());
            of(keys.chain(args).chain(filters).collect())
        }
    }
}
