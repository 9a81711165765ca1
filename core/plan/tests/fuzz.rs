//! Fuzz target of the document: any text is a plan or a list of mistakes with their places. A plan
//! is stored, read back the same, explained, and all its expressions compile where they run.

use streamforge_core::frame;
use streamforge_core::job_graph::{
    AggregateSpec, Column, Expr, Input, JobGraph, Operator, OperatorKind, Port, Stage, bad_columns,
    late_columns,
};
use streamforge_core::manifest::{Plan, decode, encode};
use streamforge_plan::{Problem, compile, explain_dot, explain_json, explain_text, load, plan};

#[path = "../../../e2e/fuzz/harness.rs"]
mod harness;

use harness::Target;

/// YAML's marks, words of the document, pieces of expressions.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ": ",
    "- ",
    "&a ",
    "*a",
    "|",
    ">-",
    "'",
    "\"",
    "#",
    "\n",
    "\n    ",
    "~",
    "!!str ",
    "---\n",
    "\t",
    "\u{feff}",
    "\u{e9}",
    "\0",
    "null",
    "true",
    "10s",
    "1m",
    "-5s",
    "9999999999999d",
    "64MiB",
    "INT",
    "BIGINT",
    "DOUBLE",
    "\"DECIMAL(38,10)\"",
    "\"TEXT[]\"",
    "TIMESTAMPTZ",
    "BYTEA",
    "DATE",
    "group_by",
    "eventTime",
    "{tumbling: {size: 1m}}",
    "{hopping: {size: 10s, slide: 3s}}",
    "{session: {gap: 1s}}",
    "timeZone: Europe/Berlin",
    "allowedLateness: 1m",
    "emit: Once",
    "changelog: Retract",
    "partitionBy: [user_id]",
    ".late",
    ".bad",
    "from: clicks",
    "union: [clicks, valid]",
    " AND ",
    " OR NOT ",
    " = ",
    " / 0",
    " % ",
    " || 'x'",
    " IS NULL",
    " IN (1, 2)",
    " BETWEEN 1 AND 2",
    "CAST(",
    " AS INT)",
    "TRY_CAST(",
    "CASE WHEN ",
    " THEN 1 ELSE 2 END",
    "repeat('x', ",
    "lpad('', ",
    "now()",
    "random()",
    "sum(",
    "count(*)",
    "count(DISTINCT ",
    " FILTER (WHERE ",
    "array_agg(",
    "first_value(",
    "make_array(",
    "range(0, ",
    "regexp_replace(",
    "date_trunc('hour', ",
    "ts",
    " AT TIME ZONE 'UTC'",
    "INTERVAL '1 month'",
    "(SELECT 1)",
    ")",
    "(",
    "(((((((((((",
    "1e400",
    "99999999999999999999999999999999999999999999",
    "'\u{1F600}'",
    "\"user_id\"",
    "*",
];

/// The columns that an operator's expressions see.
fn input_of(graph: &JobGraph, stage: &Stage, operator: &Operator) -> Vec<Column> {
    let output = |from: &Operator, port| match (port, &from.kind) {
        (Port::Main, _) => from.output.clone(),
        (Port::Bad, _) => bad_columns(),
        (Port::Late, OperatorKind::WindowPartial(spec) | OperatorKind::WindowFinal(spec)) => {
            late_columns(&spec.input)
        }
        (Port::Late, _) => panic!("{}: .late of no aggregate", from.uid),
    };
    match operator.inputs.first() {
        None => operator.output.clone(),
        Some(Input::Chained { operator, port }) => output(&stage.operators[*operator], *port),
        Some(Input::Edge(edge)) => {
            let edge = &graph.edges[*edge];
            let from = &graph.stages[edge.from_stage.0 as usize];
            output(&from.operators[edge.from_operator], edge.port)
        }
    }
}

fn expressions_of_aggregate(spec: &AggregateSpec) -> Vec<&Expr> {
    let keys = spec.keys.iter().map(|key| &key.expr);
    let calls = spec
        .calls
        .iter()
        .flat_map(|call| call.arg.iter().chain(&call.filter));
    keys.chain(calls).collect()
}

fn check_expressions(graph: &JobGraph) {
    for stage in &graph.stages {
        for operator in &stage.operators {
            let input = input_of(graph, stage, operator);
            let (expressions, input): (Vec<&Expr>, _) = match &operator.kind {
                OperatorKind::Source(spec) => (
                    spec.event_time.iter().map(|time| &time.expr).collect(),
                    input,
                ),
                OperatorKind::Filter { predicate } => (vec![predicate], input),
                OperatorKind::Project { items } => {
                    (items.iter().map(|item| &item.expr).collect(), input)
                }
                OperatorKind::Unnest { item } => (vec![&item.expr], input),
                OperatorKind::WindowPartial(spec) => {
                    (expressions_of_aggregate(spec), spec.input.clone())
                }
                OperatorKind::Union | OperatorKind::WindowFinal(_) | OperatorKind::Sink(_) => {
                    continue;
                }
            };
            for expr in expressions {
                let compiled = compile(expr, &input).map(drop);
                assert_eq!(compiled, Ok(()), "{}: {}", operator.uid, expr.sql);
            }
        }
    }
}

fn text_of(problems: &[Problem], lines_n: usize) -> String {
    assert!(!problems.is_empty(), "refused without a reason");
    for problem in problems {
        assert!(problem.line <= lines_n + 1, "{problem}");
        assert!(!problem.message.trim().is_empty(), "{problem}");
    }
    let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
    texts.join("\n")
}

fn check(bytes: &[u8]) -> Result<(), String> {
    // Read from a file, such bytes are refused before.
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let lines_n = text.split(['\n', '\r']).count();
    let loaded = load(text, "job.yaml").map_err(|problems| text_of(&problems, lines_n))?;
    let graph = plan(&loaded);
    assert_eq!(graph, plan(&loaded), "the same document, another graph");
    check_expressions(&graph);
    for shown in [explain_text(&loaded), explain_dot(&loaded)] {
        assert!(!shown.is_empty());
    }
    let shown = serde_json::from_str::<serde_json::Value>(&explain_json(&loaded));
    assert!(shown.is_ok_and(|shown| shown.get("error").is_none()));
    let stored = Plan {
        graph,
        document: text.to_owned(),
    };
    let again = decode::<Plan>(frame::PLAN, &encode(frame::PLAN, &stored));
    assert_eq!(again.ok().as_ref(), Some(&stored));
    Ok(())
}

#[test]
fn fuzz_document_is_a_plan_that_runs_or_mistakes_with_their_places() {
    let target = Target {
        name: "document",
        words: WORDS,
        rounds_n: 1_500,
        bytes_max: 64 << 10,
    };
    target.run(check);
}
