//! Nodes with everything resolved: what planning works with.

use std::collections::BTreeSet;

use streamforge_core::job_graph::{AggregateSpec, Column, Expr, NamedExpr, SinkSpec, SourceSpec};

use super::OutputName;

/// A node of the document, all names and types resolved.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub name: String,
    pub uid: String,
    pub inputs: Vec<OutputName>,
    /// Columns of the main output; none for a sink.
    pub columns: Vec<Column>,
    /// Columns that may be named but are not there unless named.
    pub hidden: Vec<Column>,
    /// Names of all columns of the inputs.
    pub input_columns: BTreeSet<String>,
    pub updating: bool,
    pub bounded: bool,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// `origin` is still to be decided.
    Source(SourceSpec),
    Filter(Expr),
    Select(Vec<NamedExpr>),
    Unnest(NamedExpr),
    Union,
    Aggregate(ResolvedAggregate),
    Sink(SinkSpec),
}

/// A windowed aggregate; `spec.input` is its full input, before columns nobody reads are left out.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedAggregate {
    pub spec: AggregateSpec,
    /// Computed after the window fired; empty if every item is one call.
    pub post: Vec<NamedExpr>,
}
