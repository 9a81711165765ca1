//! How a job will run, for people and for programs.
//!
//! Owns: the description of a plan: stages, exchanges, state and its bound, key columns, changelog
//! mode of each edge, delivery of each sink. All three forms are written from one description.

mod text;

use serde::Serialize;
use streamforge_core::job_graph::{
    AggregateSpec, ChangelogMode, Delivery, Emit, Exchange, Input, JobGraph, Operator,
    OperatorKind, Port, SinkSpec, SourceSpec, WindowSpec,
};

use crate::document::Loaded;
use crate::graph::plan;

/// The plan as text.
pub fn explain_text(loaded: &Loaded) -> String {
    text::write_text(&explain(loaded))
}

/// The plan as JSON.
pub fn explain_json(loaded: &Loaded) -> String {
    let json = serde_json::to_string_pretty(&explain(loaded));
    json.unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}")) + "\n"
}

/// The plan as a picture, for Graphviz.
pub fn explain_dot(loaded: &Loaded) -> String {
    text::write_dot(&explain(loaded))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    name: String,
    bounded: bool,
    parallelism: u32,
    max_parallelism: u32,
    stages: Vec<ExplainedStage>,
    exchanges: Vec<ExplainedExchange>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainedStage {
    stage: usize,
    operators: Vec<ExplainedOperator>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainedOperator {
    operator: String,
    node: String,
    kind: &'static str,
    what: String,
    inputs: Vec<ExplainedInput>,
    columns: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<ExplainedState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<&'static str>,
}

/// Where an operator's rows come from: a chained operator or an exchange.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainedInput {
    from: String,
    changelog: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange: Option<usize>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainedState {
    holds: String,
    bound: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainedExchange {
    from_stage: u32,
    to_stage: u32,
    from: String,
    to: String,
    by: String,
    changelog: &'static str,
}

fn explain(loaded: &Loaded) -> Explained {
    let graph = plan(loaded);
    let stages = graph
        .stages
        .iter()
        .enumerate()
        .map(|(stage, content)| ExplainedStage {
            stage,
            operators: content
                .operators
                .iter()
                .map(|op| explain_operator(&graph, stage, op))
                .collect(),
        });
    Explained {
        stages: stages.collect(),
        exchanges: (0..graph.edges.len())
            .filter_map(|idx| explain_edge(&graph, idx))
            .collect(),
        name: graph.name,
        bounded: graph.bounded,
        parallelism: loaded.spec.parallelism,
        max_parallelism: graph.max_parallelism,
    }
}

fn operator_at(graph: &JobGraph, stage: usize, operator: usize) -> Option<&Operator> {
    graph.stages.get(stage)?.operators.get(operator)
}

fn output_name(operator: &Operator, port: Port) -> String {
    let suffix = match port {
        Port::Main => "",
        Port::Bad => ".bad",
        Port::Late => ".late",
    };
    format!("{}{suffix}", operator.uid.0)
}

fn changelog(operator: &Operator, port: Port) -> &'static str {
    if operator.updating && port == Port::Main {
        "updating"
    } else {
        "append-only"
    }
}

fn explain_edge(graph: &JobGraph, idx: usize) -> Option<ExplainedExchange> {
    let edge = graph.edges.get(idx)?;
    let stage_of = |stage: u32| usize::try_from(stage).ok();
    let from = operator_at(graph, stage_of(edge.from_stage.0)?, edge.from_operator)?;
    let to = operator_at(graph, stage_of(edge.to_stage.0)?, edge.to_operator)?;
    let by = match (&edge.exchange, &from.kind) {
        (Exchange::Forward, _) => "forward: subtask i to subtask i".to_owned(),
        (Exchange::KeyGroup { .. }, OperatorKind::WindowPartial(spec)) => {
            format!("key group of {}", key_text(spec))
        }
        (Exchange::KeyGroup { columns }, _) => format!("key group of columns {columns:?}"),
    };
    Some(ExplainedExchange {
        from_stage: edge.from_stage.0,
        to_stage: edge.to_stage.0,
        from: output_name(from, edge.port),
        to: to.uid.0.clone(),
        by,
        changelog: changelog(from, edge.port),
    })
}

fn explain_input(graph: &JobGraph, stage: usize, input: &Input) -> Option<ExplainedInput> {
    match input {
        Input::Chained { operator, port } => {
            let from = operator_at(graph, stage, *operator)?;
            Some(ExplainedInput {
                from: output_name(from, *port),
                changelog: changelog(from, *port),
                exchange: None,
            })
        }
        Input::Edge(idx) => {
            let edge = explain_edge(graph, *idx)?;
            Some(ExplainedInput {
                from: edge.from,
                changelog: edge.changelog,
                exchange: Some(*idx),
            })
        }
    }
}

fn explain_operator(graph: &JobGraph, stage: usize, operator: &Operator) -> ExplainedOperator {
    let keys = match &operator.kind {
        OperatorKind::WindowFinal(spec) => {
            Some(spec.keys.iter().map(|key| key.name.clone()).collect())
        }
        _ => None,
    };
    let (kind, what) = described(&operator.kind);
    let columns = operator.output.iter().map(|column| {
        let not_null = if column.nullable { "" } else { " NOT NULL" };
        format!("{} {}{not_null}", column.name, column.data_type)
    });
    ExplainedOperator {
        operator: operator.uid.0.clone(),
        node: operator.node.clone(),
        kind,
        what,
        inputs: operator
            .inputs
            .iter()
            .filter_map(|i| explain_input(graph, stage, i))
            .collect(),
        columns: columns.collect(),
        keys,
        state: state(&operator.kind),
        delivery: match &operator.kind {
            OperatorKind::Sink(spec) => Some(delivery(spec)),
            _ => None,
        },
    }
}

fn delivery(spec: &SinkSpec) -> &'static str {
    match spec.kept_delivery() {
        Delivery::ExactlyOnce => "exactly once",
        Delivery::AtLeastOnce => "at least once",
    }
}

fn described(kind: &OperatorKind) -> (&'static str, String) {
    match kind {
        OperatorKind::Source(spec) => ("source", source_text(spec)),
        OperatorKind::Filter { predicate } => ("filter", predicate.sql.clone()),
        OperatorKind::Project { items } => {
            let items: Vec<String> = items
                .iter()
                .map(|i| item_text(&i.expr.sql, &i.name))
                .collect();
            ("select", items.join(", "))
        }
        OperatorKind::Unnest { item } => ("unnest", item_text(&item.expr.sql, &item.name)),
        OperatorKind::Union => ("union", String::new()),
        OperatorKind::WindowPartial(spec) => (
            "partial aggregate",
            format!("{} by {}", window_text(&spec.window), key_text(spec)),
        ),
        OperatorKind::WindowFinal(spec) => ("aggregate", aggregate_text(spec)),
        OperatorKind::Sink(spec) => ("sink", sink_text(spec)),
    }
}

fn item_text(sql: &str, name: &str) -> String {
    if sql == name {
        name.to_owned()
    } else {
        format!("{sql} AS {name}")
    }
}

fn path_of(connector: &streamforge_core::job_graph::Connector) -> String {
    let path = connector
        .config
        .get("path")
        .and_then(serde_json::Value::as_str);
    path.map(|path| format!(" {path}")).unwrap_or_default()
}

fn format_name(format: Option<&streamforge_core::job_graph::Format>) -> &'static str {
    use streamforge_core::job_graph::Format;
    match format {
        None => "",
        Some(Format::Json) => ", json",
        Some(Format::Csv { .. }) => ", csv",
        Some(Format::Parquet) => ", parquet",
        Some(Format::Raw) => ", raw",
    }
}

fn source_text(spec: &SourceSpec) -> String {
    let mut text = format!(
        "{}{}{}, {}",
        spec.connector.kind,
        path_of(&spec.connector),
        format_name(spec.format.as_ref()),
        if spec.bounded { "bounded" } else { "unbounded" }
    );
    match &spec.event_time {
        Some(event_time) => {
            let behind = duration(event_time.max_out_of_orderness_us);
            text.push_str(&format!(
                "; event time {}, at most {behind} behind",
                event_time.expr.sql
            ));
        }
        None => text.push_str("; no event time"),
    }
    if let Some(limit) = spec.rate_limit {
        text.push_str(&format!("; at most {limit} rows/s"));
    }
    text
}

fn sink_text(spec: &SinkSpec) -> String {
    let changelog = match spec.changelog {
        ChangelogMode::AppendOnly => "append-only",
        ChangelogMode::Retract => "retract, as `_op`",
        ChangelogMode::Upsert => "upsert by key",
    };
    format!(
        "{}{}{}; {changelog}; {}",
        spec.connector.kind,
        path_of(&spec.connector),
        format_name(spec.format.as_ref()),
        delivery(spec)
    )
}

/// A duration as a user would write it.
fn duration(micros: i64) -> String {
    format!("{micros}us")
        .parse::<streamforge_core::units::HumanDuration>()
        .map_or_else(|_| format!("{micros}us"), |duration| duration.to_string())
}

fn window_text(window: &WindowSpec) -> String {
    let grid = |offset: i64, zone: &str| {
        let offset = if offset == 0 {
            String::new()
        } else {
            format!(" + {}", duration(offset))
        };
        let zone = if zone == "UTC" {
            String::new()
        } else {
            format!(" in {zone}")
        };
        format!("{offset}{zone}")
    };
    match window {
        WindowSpec::Tumbling {
            size_us,
            offset_us,
            time_zone,
        } => {
            format!(
                "tumbling {}{}",
                duration(*size_us),
                grid(*offset_us, time_zone)
            )
        }
        WindowSpec::Hopping {
            size_us,
            slide_us,
            offset_us,
            time_zone,
        } => format!(
            "hopping {} every {}{}",
            duration(*size_us),
            duration(*slide_us),
            grid(*offset_us, time_zone)
        ),
        WindowSpec::Session { gap_us } => format!("session, gap {}", duration(*gap_us)),
    }
}

fn key_text(spec: &AggregateSpec) -> String {
    match spec.keys.as_slice() {
        [] => "nothing (one group, one subtask)".to_owned(),
        keys => keys
            .iter()
            .map(|k| item_text(&k.expr.sql, &k.name))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn aggregate_text(spec: &AggregateSpec) -> String {
    let calls: Vec<String> = spec.calls.iter().map(|call| call.name.clone()).collect();
    let emit = match spec.emit {
        Emit::OnTime => "on time",
        Emit::Once => "once",
    };
    let lateness = match spec.allowed_lateness_us {
        0 => String::new(),
        late => format!(", {} late", duration(late)),
    };
    format!(
        "{} by {}: {}; {emit}{lateness}",
        window_text(&spec.window),
        key_text(spec),
        calls.join(", ")
    )
}

fn state(kind: &OperatorKind) -> Option<ExplainedState> {
    let OperatorKind::WindowFinal(spec) = kind else {
        return None;
    };
    let keys: Vec<&str> = spec.keys.iter().map(|key| key.name.as_str()).collect();
    let key = if keys.is_empty() {
        "one group".to_owned()
    } else {
        format!("({})", keys.join(", "))
    };
    let late = spec.allowed_lateness_us;
    let (holds, lives) = match &spec.window {
        WindowSpec::Tumbling { size_us, .. } => (
            format!("one group per {key} and window"),
            size_us.saturating_add(late),
        ),
        WindowSpec::Hopping {
            size_us, slide_us, ..
        } => (
            format!(
                "one group per {key} and slice of {}",
                duration(slice(*size_us, *slide_us))
            ),
            size_us.saturating_add(late),
        ),
        WindowSpec::Session { gap_us } => (
            format!("one group per {key} and open session; the extents of closed ones"),
            gap_us.saturating_mul(2).saturating_add(late),
        ),
    };
    let bound = match &spec.window {
        WindowSpec::Session { .. } => format!(
            "keys seen in the last {} of event time, and in sessions that are still open",
            duration(lives)
        ),
        _ => format!("keys seen in the last {} of event time", duration(lives)),
    };
    Some(ExplainedState { holds, bound })
}

fn slice(size_us: i64, slide_us: i64) -> i64 {
    let (mut a, mut b) = (size_us, slide_us);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests;
