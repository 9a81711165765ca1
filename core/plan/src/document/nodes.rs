//! All nodes of a document: names, order, and each node's turn to be resolved.
//!
//! Owns: unique names, references, cycles. A node whose input could not be resolved is skipped
//! silently: its mistake is upstream and was reported there.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::job_graph::{Port, bad_columns, late_columns};
use streamforge_crds::v1alpha1::{Sink, Source, StreamJobSpec, Transform};

use super::{Kind, Output, OutputName, Resolved, sinks, sources, transforms};
use crate::expression::Error;
use crate::problem::{Problems, did_you_mean, listed};
use crate::structure::Places;

/// A node as written.
#[derive(Clone, Copy)]
enum Written<'a> {
    Source(&'a Source),
    Transform(&'a Transform),
    Sink(&'a Sink),
}

struct Node<'a> {
    written: Written<'a>,
    path: String,
    /// Each input and the field that names it.
    inputs: Vec<(OutputName, String)>,
}

impl<'a> Node<'a> {
    fn name(&self) -> &'a str {
        match self.written {
            Written::Source(source) => &source.name,
            Written::Transform(transform) => &transform.name,
            Written::Sink(sink) => &sink.name,
        }
    }

    fn uid(&self) -> &'a str {
        match self.written {
            Written::Source(source) => source.uid.as_deref(),
            Written::Transform(transform) => transform.uid.as_deref(),
            Written::Sink(sink) => sink.uid.as_deref(),
        }
        .unwrap_or(self.name())
    }
}

/// What resolving a node needs.
pub(super) struct Context<'a> {
    pub places: &'a Places,
    pub problems: &'a mut Problems,
}

impl Context<'_> {
    pub fn add(&mut self, path: &str, message: impl Into<String>, hint: Option<String>) {
        self.problems.add(self.places.at(path), path, message, hint);
    }

    /// A mistake of an expression, with the expression shown.
    pub fn add_in(&mut self, path: &str, sql: &str, error: Error) {
        let message = format!("{} (in `{}`)", error.message, crate::yaml::cut(sql));
        self.add(path, message, error.hint);
    }
}

/// The resolved nodes in topological order; those that can be resolved.
pub(super) fn resolve_all(
    spec: &StreamJobSpec,
    places: &Places,
    problems: &mut Problems,
) -> Vec<Resolved> {
    let mut context = Context { places, problems };
    let mut nodes = written_nodes(spec, places);
    let twice = check_names(&nodes, &mut context);
    find_inputs(&mut nodes, &mut context);
    let order = topological_order(&nodes, &mut context);
    let mut outputs: BTreeMap<OutputName, Output> = BTreeMap::new();
    let mut resolved = Vec::new();
    for idx in order {
        let Some(node) = nodes.get(idx) else { continue };
        let inputs: Option<Vec<&Output>> = node
            .inputs
            .iter()
            .map(|(name, _)| outputs.get(name))
            .collect();
        let Some(inputs) = inputs else { continue };
        // Which of two nodes of one name is meant cannot be known.
        if context.places.lost_items(&node.path) || twice.contains(node.name()) {
            continue;
        }
        let Some(done) = resolve_node(node, &inputs, &mut context) else {
            continue;
        };
        let added = outputs_of(&done, &inputs);
        outputs.extend(added);
        resolved.push(done);
    }
    resolved
}

fn written_nodes<'a>(spec: &'a StreamJobSpec, places: &Places) -> Vec<Node<'a>> {
    let path = |list: &str, idx| format!("{list}[{}]", places.document_idx(list, idx));
    let node = |written, path| Node {
        written,
        path,
        inputs: Vec::new(),
    };
    let sources = spec.sources.iter().enumerate();
    let transforms = spec.transforms.iter().enumerate();
    let sinks = spec.sinks.iter().enumerate();
    sources
        .map(|(idx, source)| node(Written::Source(source), path("spec.sources", idx)))
        .chain(transforms.map(|(idx, transform)| {
            node(Written::Transform(transform), path("spec.transforms", idx))
        }))
        .chain(sinks.map(|(idx, sink)| node(Written::Sink(sink), path("spec.sinks", idx))))
        .collect()
}

/// Reports names and uids given twice; returns the names.
fn check_names<'a>(nodes: &[Node<'a>], context: &mut Context<'_>) -> BTreeSet<&'a str> {
    let mut twice = BTreeSet::new();
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut uids: BTreeMap<&str, &str> = BTreeMap::new();
    for node in nodes {
        if let Some(first) = names.insert(node.name(), &node.path) {
            let line = context.places.at(first).line;
            let message = format!(
                "two nodes are named `{}`, the first in line {line}",
                node.name()
            );
            context.add(&format!("{}.name", node.path), message, None);
            twice.insert(node.name());
        } else if let Some(first) = uids.insert(node.uid(), &node.path) {
            let line = context.places.at(first).line;
            let message = format!(
                "two nodes have the uid `{}`, the first in line {line}; their state would mix",
                node.uid()
            );
            context.add(&format!("{}.uid", node.path), message, None);
        }
    }
    twice
}

/// The `from` texts of a node and their fields.
fn references(node: &Node<'_>, places: &Places) -> Vec<(String, String)> {
    match node.written {
        Written::Source(_) => vec![],
        Written::Sink(sink) => vec![(sink.from.clone(), format!("{}.from", node.path))],
        Written::Transform(transform) => match (&transform.from, &transform.union) {
            (_, Some(inputs)) => {
                let list = format!("{}.union", node.path);
                let path = |idx| format!("{list}[{}]", places.document_idx(&list, idx));
                let inputs = inputs.iter().enumerate();
                inputs
                    .map(|(idx, input)| (input.clone(), path(idx)))
                    .collect()
            }
            (Some(from), None) => vec![(from.clone(), format!("{}.from", node.path))],
            (None, None) => vec![],
        },
    }
}

fn find_inputs(nodes: &mut [Node<'_>], context: &mut Context<'_>) {
    let known: BTreeMap<String, Vec<Port>> = nodes
        .iter()
        .map(|node| (node.name().to_owned(), ports(node, context.places)))
        .collect();
    for node in nodes {
        for (text, path) in references(node, context.places) {
            let found = find_output(&text, &known, context.places);
            let input = found.unwrap_or_else(|mistake| {
                if let Some((message, hint)) = mistake {
                    context.add(&path, message, hint);
                }
                unknown(&text)
            });
            node.inputs.push((input, path));
        }
        check_from(node, context);
    }
}

/// An output that will never be resolved, so that the node waits for it and is skipped.
fn unknown(text: &str) -> OutputName {
    OutputName {
        node: format!("?{text}"),
        port: Port::Main,
    }
}

fn ports(node: &Node<'_>, places: &Places) -> Vec<Port> {
    // One whose window is wrong was cut out, and still is an aggregate.
    let aggregates = || places.has(&format!("{}.aggregate", node.path));
    match node.written {
        Written::Source(_) => vec![Port::Main, Port::Bad],
        Written::Transform(_) if aggregates() => vec![Port::Main, Port::Bad, Port::Late],
        Written::Transform(_) => vec![Port::Main, Port::Bad],
        Written::Sink(_) => vec![Port::Bad],
    }
}

type Mistake = (String, Option<String>);

/// The output of that name; `Err(None)` if it is unknown for a reason reported elsewhere.
fn find_output(
    text: &str,
    known: &BTreeMap<String, Vec<Port>>,
    places: &Places,
) -> Result<OutputName, Option<Mistake>> {
    let name = OutputName::parse(text).map_err(|suffix| {
        let hint = did_you_mean(suffix, ["bad", "late"]);
        let hint = hint.or(Some("side outputs are `.bad` and `.late`".to_owned()));
        Some((format!("`{text}`: no output is called `.{suffix}`"), hint))
    })?;
    let Some(ports) = known.get(&name.node) else {
        if places.dropped_names.contains(&name.node) {
            return Err(None);
        }
        let readable = || {
            let nodes = known
                .iter()
                .filter(|(_, ports)| ports.contains(&Port::Main));
            nodes.map(|(name, _)| name.as_str())
        };
        let hint = did_you_mean(&name.node, readable())
            .unwrap_or_else(|| format!("the outputs are {}", listed(readable())));
        return Err(Some((
            format!("no node is named `{}`", name.node),
            Some(hint),
        )));
    };
    if ports.contains(&name.port) {
        return Ok(name);
    }
    Err(Some(match name.port {
        Port::Main => (
            format!("`{text}` is a sink and has no output"),
            Some(format!("`{text}.bad` are the rows it could not write")),
        ),
        Port::Late | Port::Bad => (
            format!("`{}` has no late rows", name.node),
            Some("only a windowed aggregate has a `.late` output".to_owned()),
        ),
    }))
}

fn check_from(node: &Node<'_>, context: &mut Context<'_>) {
    let Written::Transform(transform) = node.written else {
        return;
    };
    let from = format!("{}.from", node.path);
    if transform.union.is_some() && transform.from.is_some() {
        let message = "`union` names its inputs itself; `from` has no place here";
        context.add(&from, message, Some("leave `from` out".to_owned()));
    }
    let from_is_missing = transform.union.is_none()
        && transform.from.is_none()
        && !context.places.has(&from)
        && !context.places.has(&format!("{}.union", node.path));
    if from_is_missing {
        context.add(
            &node.path,
            "`from` is missing",
            Some("name the output to read".to_owned()),
        );
    }
}

/// Indices of nodes, inputs first. Nodes on a cycle are reported and left out.
fn topological_order(nodes: &[Node<'_>], context: &mut Context<'_>) -> Vec<usize> {
    let by_name: BTreeMap<&str, usize> = nodes
        .iter()
        .enumerate()
        .map(|(idx, node)| (node.name(), idx))
        .rev()
        .collect();
    let inputs_of = |idx: usize| -> Vec<usize> {
        let inputs = nodes
            .get(idx)
            .map(|node| node.inputs.as_slice())
            .unwrap_or_default();
        inputs
            .iter()
            .filter_map(|(name, _)| by_name.get(name.node.as_str()).copied())
            .collect()
    };
    let mut order = Vec::new();
    let mut done: BTreeSet<usize> = BTreeSet::new();
    loop {
        let is_ready = |idx: &usize| {
            !done.contains(idx) && inputs_of(*idx).iter().all(|input| done.contains(input))
        };
        let ready: Vec<usize> = (0..nodes.len()).filter(is_ready).collect();
        if ready.is_empty() {
            break;
        }
        done.extend(&ready);
        order.extend(ready);
    }
    let stuck: BTreeSet<usize> = (0..nodes.len()).filter(|idx| !done.contains(idx)).collect();
    if let Some(cycle) = find_cycle(&stuck, &inputs_of) {
        report_cycle(nodes, &cycle, context);
    }
    order
}

fn find_cycle(
    stuck: &BTreeSet<usize>,
    inputs_of: &dyn Fn(usize) -> Vec<usize>,
) -> Option<Vec<usize>> {
    let mut path: Vec<usize> = vec![*stuck.first()?];
    // Every stuck node has a stuck input, so the walk meets itself after at most all of them.
    for _ in 0..=stuck.len() {
        let last = *path.last()?;
        let next = inputs_of(last)
            .into_iter()
            .find(|input| stuck.contains(input))?;
        if let Some(start) = path.iter().position(|idx| *idx == next) {
            return path.get(start..).map(<[usize]>::to_vec);
        }
        path.push(next);
    }
    None
}

fn report_cycle(nodes: &[Node<'_>], cycle: &[usize], context: &mut Context<'_>) {
    let mut cycle = cycle.to_vec();
    // Rows flow against the direction in which `from` was followed.
    cycle.reverse();
    let first = cycle
        .iter()
        .enumerate()
        .min_by_key(|(_, idx)| **idx)
        .map_or(0, |(at, _)| at);
    cycle.rotate_left(first);
    let cycle: Vec<&Node<'_>> = cycle.iter().filter_map(|idx| nodes.get(*idx)).collect();
    let Some(first) = cycle.first() else { return };
    let names: Vec<&str> = cycle
        .iter()
        .map(|node| node.name())
        .chain([first.name()])
        .collect();
    let message = format!("rows would go in a circle: {}", names.join(" -> "));
    let path = first
        .inputs
        .first()
        .map_or(first.path.as_str(), |(_, path)| path);
    context.add(path, message, None);
}

fn resolve_node(
    node: &Node<'_>,
    inputs: &[&Output],
    context: &mut Context<'_>,
) -> Option<Resolved> {
    let mut hidden = Vec::new();
    let (kind, columns, updating) = match node.written {
        Written::Source(source) => {
            let (spec, columns) = sources::resolve(source, &node.path, context)?;
            hidden = sources::hidden_columns(source);
            (Kind::Source(spec), columns, false)
        }
        Written::Transform(transform) => {
            let input_paths: Vec<&str> =
                node.inputs.iter().map(|(_, path)| path.as_str()).collect();
            if transform.filter.is_some() || transform.unnest.is_some() {
                hidden = inputs
                    .first()
                    .map(|input| input.hidden.clone())
                    .unwrap_or_default();
            }
            let place = transforms::Place {
                path: &node.path,
                input_paths: &input_paths,
            };
            transforms::resolve(transform, &place, inputs, context)?
        }
        Written::Sink(sink) => {
            let input = inputs.first()?;
            (
                Kind::Sink(sinks::resolve(sink, &node.path, input, context)?),
                vec![],
                false,
            )
        }
    };
    let bounded = match &kind {
        Kind::Source(source) => source.bounded,
        _ => inputs.iter().all(|input| input.bounded),
    };
    let columns_in = inputs.iter().flat_map(|input| &input.columns);
    Some(Resolved {
        name: node.name().to_owned(),
        uid: node.uid().to_owned(),
        inputs: node.inputs.iter().map(|(name, _)| name.clone()).collect(),
        columns,
        hidden,
        input_columns: columns_in.map(|column| column.name.clone()).collect(),
        updating,
        bounded,
        kind,
    })
}

fn outputs_of(node: &Resolved, inputs: &[&Output]) -> Vec<(OutputName, Output)> {
    let name = |port| OutputName {
        node: node.name.clone(),
        port,
    };
    let event_time = match &node.kind {
        Kind::Source(source) => source.event_time.is_some(),
        _ => inputs.iter().all(|input| input.event_time),
    };
    let bounded = node.bounded;
    // Rows of side outputs stand behind the watermark or have no time at all: no windows over them.
    let side = |columns| Output {
        columns,
        hidden: Vec::new(),
        updating: false,
        event_time: false,
        bounded,
    };
    let mut added = vec![(name(Port::Bad), side(bad_columns()))];
    if !matches!(node.kind, Kind::Sink(_)) {
        let columns = node.columns.clone();
        let hidden = node.hidden.clone();
        let main = Output {
            columns,
            hidden,
            updating: node.updating,
            event_time,
            bounded,
        };
        added.push((name(Port::Main), main));
    }
    if let Kind::Aggregate(aggregate) = &node.kind {
        added.push((name(Port::Late), side(late_columns(&aggregate.spec.input))));
    }
    added
}
