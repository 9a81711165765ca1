//! A description as text and as a picture.

use std::fmt::Write as _;

use super::{Explained, ExplainedOperator};

/// Writing to a String cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{
        let _ = writeln!($out, $($arg)*);
    }};
}

pub(super) fn write_text(explained: &Explained) -> String {
    let mut out = String::new();
    let ends = if explained.bounded {
        "bounded"
    } else {
        "unbounded"
    };
    put!(
        out,
        "{}: {ends}, parallelism {}, {} key groups",
        explained.name,
        explained.parallelism,
        explained.max_parallelism
    );
    for stage in &explained.stages {
        put!(out, "\nStage {}", stage.stage);
        for operator in &stage.operators {
            write_operator(&mut out, operator);
        }
        let leaving = explained
            .exchanges
            .iter()
            .filter(|exchange| usize::try_from(exchange.from_stage) == Ok(stage.stage));
        for exchange in leaving {
            put!(
                out,
                "  => stage {}: {} to {}, by {}, {}",
                exchange.to_stage,
                exchange.from,
                exchange.to,
                exchange.by,
                exchange.changelog
            );
        }
    }
    out
}

fn write_operator(out: &mut String, operator: &ExplainedOperator) {
    put!(
        out,
        "  {}: {} {}",
        operator.operator,
        operator.kind,
        operator.what
    );
    let chained = operator
        .inputs
        .iter()
        .filter(|input| input.exchange.is_none());
    let from: Vec<String> = chained
        .map(|input| format!("{} ({})", input.from, input.changelog))
        .collect();
    if !from.is_empty() {
        put!(out, "      from     {}", from.join(", "));
    }
    if !operator.columns.is_empty() {
        put!(out, "      columns  {}", operator.columns.join(", "));
    }
    if let Some(state) = &operator.state {
        put!(out, "      state    {}", state.holds);
        put!(out, "      bound    {}", state.bound);
    }
}

fn quoted(text: &str) -> String {
    format!(
        "\"{}\"",
        text.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    )
}

pub(super) fn write_dot(explained: &Explained) -> String {
    let mut out = String::new();
    put!(out, "digraph {} {{", quoted(&explained.name));
    put!(
        out,
        "  rankdir=LR; node [shape=box, style=rounded, fontname=\"sans-serif\"];"
    );
    put!(out, "  edge [fontname=\"sans-serif\", fontsize=10];");
    for stage in &explained.stages {
        put!(out, "  subgraph cluster_{} {{", stage.stage);
        put!(
            out,
            "    label=\"stage {} × {}\";",
            stage.stage,
            explained.parallelism
        );
        for operator in &stage.operators {
            let mut label = format!("{}\n{} {}", operator.operator, operator.kind, operator.what);
            if let Some(state) = &operator.state {
                let _ = write!(label, "\nstate: {}", state.holds);
            }
            put!(
                out,
                "    {} [label={}];",
                quoted(&operator.operator),
                quoted(&label)
            );
        }
        put!(out, "  }}");
    }
    for operator in explained.stages.iter().flat_map(|stage| &stage.operators) {
        for input in &operator.inputs {
            write_dot_edge(&mut out, explained, operator, input);
        }
    }
    put!(out, "}}");
    out
}

fn write_dot_edge(
    out: &mut String,
    explained: &Explained,
    operator: &ExplainedOperator,
    input: &super::ExplainedInput,
) {
    let side = [".bad", ".late"]
        .iter()
        .find(|suffix| input.from.ends_with(**suffix));
    let from = side.map_or(input.from.as_str(), |suffix| {
        input.from.trim_end_matches(suffix)
    });
    let exchange = input.exchange.and_then(|idx| explained.exchanges.get(idx));
    let mut label: Vec<&str> = Vec::new();
    label.extend(side.map(|suffix| suffix.trim_start_matches('.')));
    label.extend(exchange.map(|exchange| exchange.by.as_str()));
    if input.changelog != "append-only" {
        label.push(input.changelog);
    }
    let style = if exchange.is_some() {
        "style=bold"
    } else {
        "style=solid"
    };
    put!(
        out,
        "  {} -> {} [label={}, {style}];",
        quoted(from),
        quoted(&operator.operator),
        quoted(&label.join("\n"))
    );
}
