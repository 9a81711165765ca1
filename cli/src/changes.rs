//! What an edited document means for a job that goes on.
//!
//! Owns: the sentences about edits that a start takes, and that mean less than a person may think: what was
//! read stays read, and what was written stays where it is, as it is. Edits that cannot be taken are refused by the
//! coordinator. Pure. Start at: [`changes`].

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use streamforge_core::job_graph::{
    Connector, Format, Input, JobGraph, Operator, OperatorKind, Port, SinkSpec, SourceSpec,
};

/// One sentence per edit that deserves one.
#[must_use]
pub fn changes(ran: &JobGraph, now: &JobGraph) -> Vec<String> {
    let mut said = Vec::new();
    of_inputs(ran, now, &mut said);
    for (_, before) in ran.operators() {
        let mut after = now.operators().map(|(_, it)| it);
        if let Some(after) = after.find(|it| it.uid == before.uid) {
            of_node(before, after, &mut said);
        }
    }
    said
}

/// Nodes that read from others than before. One that is new may do so, too: it has read nothing yet.
fn of_inputs(ran: &JobGraph, now: &JobGraph, said: &mut Vec<String>) {
    let (before, after) = (Node::all(ran), Node::all(now));
    for (uid, node) in &after {
        let Some(earlier) = before.get(uid) else {
            continue;
        };
        if node.inputs == earlier.inputs {
            continue;
        }
        let names = |of: &BTreeMap<&str, Node<'_>>, inputs: &BTreeSet<(&str, Port)>| {
            let name = |(uid, port): &(&str, Port)| {
                let node = of.get(uid).map_or(*uid, |node| node.name);
                match port {
                    Port::Main => format!("`{node}`"),
                    Port::Bad => format!("`{node}.bad`"),
                    Port::Late => format!("`{node}.late`"),
                }
            };
            inputs.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        let state = if node.is_aggregate {
            ", in windows that are open, too"
        } else {
            ""
        };
        said.push(format!(
            "`{}` reads {} now, and read {}: what came of rows that were read already stays as it is{state}",
            node.name,
            names(&after, &node.inputs),
            names(&before, &earlier.inputs)
        ));
    }
}

/// A node of the document, whatever operators it became.
struct Node<'g> {
    name: &'g str,
    is_aggregate: bool,
    /// The nodes that it reads, by uid.
    inputs: BTreeSet<(&'g str, Port)>,
}

impl<'g> Node<'g> {
    /// By uid.
    fn all(graph: &'g JobGraph) -> BTreeMap<&'g str, Self> {
        // The uids of a node's helpers are its own and a word more.
        let mut uids: BTreeMap<&str, &str> = BTreeMap::new();
        for (_, operator) in graph.operators() {
            let uid = uids.entry(&operator.node).or_insert(&operator.uid.0);
            if operator.uid.0.len() < uid.len() {
                *uid = &operator.uid.0;
            }
        }
        let mut nodes = BTreeMap::new();
        for stage in &graph.stages {
            for operator in &stage.operators {
                let name = operator.node.as_str();
                let node = nodes.entry(uids.get(name).copied().unwrap_or(name));
                let node: &mut Self = node.or_insert_with(|| Self {
                    name,
                    is_aggregate: false,
                    inputs: BTreeSet::new(),
                });
                node.is_aggregate |= matches!(operator.kind, OperatorKind::WindowFinal(_));
                for input in &operator.inputs {
                    let from = match input {
                        Input::Chained { operator, port } => {
                            stage.operators.get(*operator).map(|from| (from, *port))
                        }
                        Input::Edge(idx) => graph.edges.get(*idx).and_then(|edge| {
                            let stage = graph.stages.get(edge.from_stage.0 as usize)?;
                            Some((stage.operators.get(edge.from_operator)?, edge.port))
                        }),
                    };
                    if let Some((from, port)) = from
                        && from.node != name
                    {
                        let uid = uids.get(from.node.as_str()).copied();
                        node.inputs.insert((uid.unwrap_or(&from.node), port));
                    }
                }
            }
        }
        nodes
    }
}

fn of_node(before: &Operator, after: &Operator, said: &mut Vec<String>) {
    use OperatorKind::{Filter, Project, Sink, Source, Unnest};
    let name = &after.node;
    let changed = match (&before.kind, &after.kind) {
        (Source(old), Source(new)) => {
            of_source(name, old, new, said);
            return of_columns(after, old, new, said);
        }
        (Sink(old), Sink(new)) => return of_sink(name, old, new, said),
        (Filter { predicate: old }, Filter { predicate: new }) => old.sql != new.sql,
        (Unnest { item: old }, Unnest { item: new }) => old.expr.sql != new.expr.sql,
        (Project { items: old }, Project { items: new }) => old.iter().any(|old| {
            let same = new.iter().find(|new| new.name == old.name);
            same.is_some_and(|new| new.expr.sql != old.expr.sql)
        }),
        _ => false,
    };
    if changed {
        said.push(format!(
            "`{name}` is another one than before: rows that were read already went through it as it was"
        ));
    }
}

fn of_source(name: &str, old: &SourceSpec, new: &SourceSpec, said: &mut Vec<String>) {
    let (before, after) = (&old.connector, &new.connector);
    if before.kind != after.kind {
        return; // refused
    }
    match after.kind.as_str() {
        "generator" => of_generator(name, &before.config, &after.config, said),
        "file" => {
            if let Some((path, earlier)) = changed(before, after, "path") {
                said.push(format!(
                    "`{name}` names {path} now, and named {earlier}: {}",
                    of_files(after)
                ));
            }
        }
        "kafka" => {
            for field in ["startFrom", "startTimestamp"] {
                if changed(before, after, field).is_some() {
                    said.push(format!(
                        "`{field}` of `{name}` changed, and says only where a first start begins: this one goes \
                         on where the job was"
                    ));
                }
            }
        }
        _ => {}
    }
    if word(old.format.as_ref()) != word(new.format.as_ref()) {
        said.push(format!(
            "`{name}` reads {} now: so it takes the rest of what it was reading as {}, too",
            word(new.format.as_ref()),
            word(old.format.as_ref())
        ));
    }
}

/// Columns that are read, and not as they were. One that nobody read before has no rows.
fn of_columns(after: &Operator, old: &SourceSpec, new: &SourceSpec, said: &mut Vec<String>) {
    for now in &new.columns {
        let name = &now.column.name;
        let is_read = after.output.iter().any(|column| column.name == *name);
        let before = old.columns.iter().find(|it| it.column.name == *name);
        if before.is_none_or(|before| before == now) || !is_read {
            continue;
        }
        said.push(format!(
            "the column `{name}` of `{}` is read otherwise than before: in rows that were read already it is as it was",
            after.node
        ));
    }
}

fn of_files(after: &Connector) -> &'static str {
    let watch = after.config.get("watch").and_then(Value::as_str);
    if watch.is_none_or(|watch| watch == "Never") {
        "it reads the files that it knows to their end, and none of the new path, because which files there are \
         was settled when it first began; a path is read by a source of another name (and uid)"
    } else {
        "it reads the files that it knows to their end, and looks for others at the new path only"
    }
}

/// What a preset makes of a row's number changed, of which the pace is a part: it says when a row happened. How many
/// rows there are may change.
fn of_generator(name: &str, old: &Value, new: &Value, said: &mut Vec<String>) {
    let presets = new.as_object().into_iter().flatten();
    for (preset, after) in presets {
        let before = old.get(preset).unwrap_or(&Value::Null);
        let fields = after.as_object().into_iter().flatten();
        for (field, value) in fields {
            let earlier = before.get(field).unwrap_or(&Value::Null);
            if before.is_object() && earlier != value && field != "rows" {
                let (value, earlier) = (or_nothing(value), or_nothing(earlier));
                said.push(format!(
                    "`{field}` of `{name}` is {value} and was {earlier}: the rows that were made before stay as \
                     they are, and those that follow are made by the new one, so that neither makes all of them; \
                     --fresh begins anew"
                ));
            }
        }
    }
}

fn of_sink(name: &str, old: &SinkSpec, new: &SinkSpec, said: &mut Vec<String>) {
    let (before, after) = (&old.connector, &new.connector);
    if before.kind != after.kind {
        let (kind, earlier) = (&after.kind, &before.kind);
        said.push(format!(
            "`{name}` is a sink of the kind {kind} now: what it wrote as one of the kind {earlier} stays there"
        ));
        return;
    }
    for field in ["path", "bootstrapServers", "topic"] {
        if let Some((place, earlier)) = changed(before, after, field) {
            said.push(format!(
                "`{name}` writes to {place} now: what it wrote to {earlier} stays there"
            ));
        }
    }
    if let Some((by, earlier)) = changed(before, after, "partitionBy") {
        let (by, earlier) = (names(by), names(earlier));
        said.push(format!(
            "`{name}` is partitioned by {by} now, and was by {earlier}: what it wrote before stays where it is, in \
             files that have other columns"
        ));
    }
    let (format, earlier) = (word(new.format.as_ref()), word(old.format.as_ref()));
    if format != earlier {
        said.push(format!(
            "`{name}` writes {format} now: what it wrote before stays {earlier}, beside it"
        ));
    }
}

/// A value, for people.
fn or_nothing(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        value => value.to_string(),
    }
}

/// A field's value now and before, if it is another one.
fn changed<'v>(
    before: &'v Connector,
    after: &'v Connector,
    field: &str,
) -> Option<(&'v Value, &'v Value)> {
    let of = |connector: &'v Connector| connector.config.get(field).unwrap_or(&Value::Null);
    let (now, earlier) = (of(after), of(before));
    (now != earlier).then_some((now, earlier))
}

/// Names of columns, for people.
fn names(list: &Value) -> String {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let names = list.iter().filter_map(Value::as_str);
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    match names.is_empty() {
        true => "nothing".to_owned(),
        false => names.join(", "),
    }
}

fn word(format: Option<&Format>) -> &'static str {
    match format {
        None => "nothing",
        Some(Format::Json) => "JSON",
        Some(Format::Csv { .. }) => "CSV",
        Some(Format::Parquet) => "Parquet",
        Some(Format::Raw) => "raw bytes",
    }
}

#[cfg(test)]
mod tests;
