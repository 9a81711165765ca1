use streamforge_core::job_graph::{ChangelogMode, Delivery, Emit, OperatorKind};

use super::*;
use crate::load;

fn job(sources: &str, transforms: &str, sinks: &str) -> JobGraph {
    let text = format!(
        "apiVersion: streamforge.io/v1alpha1\nkind: StreamJob\nmetadata: {{name: j}}\nspec:\n  sources:\n{sources}  transforms:\n{transforms}  sinks:\n{sinks}"
    );
    let loaded = load(&text, "job.yaml").unwrap_or_else(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        panic!("{}", lines.join("\n"))
    });
    plan(&loaded)
}

const CLICKS: &str = "  - {name: clicks, generator: {clicks: {rows: 1000}}, eventTime: {column: ts, maxOutOfOrderness: 5s}}\n";
const MORE_CLICKS: &str = "  - {name: more, generator: {clicks: {}}, eventTime: {column: ts}}\n";
const FILES: &str = "  - {name: files, file: {path: /in}, format: {json: {}}, schema: [{name: a, type: INT}, {name: b, type: TEXT}, {name: c, type: TEXT}, {name: t, type: TIMESTAMP}], eventTime: {column: t}}\n";

fn count_per_user(window: &str, rest: &str) -> String {
    format!(
        "  - {{name: per_user, from: clicks, aggregate: {{groupBy: [user_id], window: {window}, select: [\"count(*) AS n\"]{rest}}}}}\n"
    )
}

/// Uids of each stage, and the exchanges as `from stage:operator -> to stage:operator`.
fn shape(graph: &JobGraph) -> (Vec<Vec<&str>>, Vec<String>) {
    let stages = graph
        .stages
        .iter()
        .map(|stage| {
            stage
                .operators
                .iter()
                .map(|operator| operator.uid.0.as_str())
                .collect()
        })
        .collect();
    let edges = graph
        .edges
        .iter()
        .map(|edge| {
            let exchange = match &edge.exchange {
                Exchange::Forward => "forward".to_owned(),
                Exchange::KeyGroup { columns } => format!("keys {columns:?}"),
            };
            format!(
                "{}:{} {:?} -> {}:{} {exchange}",
                edge.from_stage.0, edge.from_operator, edge.port, edge.to_stage.0, edge.to_operator
            )
        })
        .collect();
    (stages, edges)
}

fn operator<'a>(graph: &'a JobGraph, uid: &str) -> &'a Operator {
    let mut found = graph
        .operators()
        .filter(|(_, operator)| operator.uid.0 == uid);
    found
        .next()
        .unwrap_or_else(|| panic!("no operator {uid}"))
        .1
}

fn names(columns: &[Column]) -> Vec<&str> {
    columns.iter().map(|column| column.name.as_str()).collect()
}

fn source_spec<'a>(graph: &'a JobGraph, uid: &str) -> &'a SourceSpec {
    match &operator(graph, uid).kind {
        OperatorKind::Source(spec) => spec,
        other => panic!("{other:?}"),
    }
}

fn aggregate_spec<'a>(graph: &'a JobGraph, uid: &str) -> &'a AggregateSpec {
    match &operator(graph, uid).kind {
        OperatorKind::WindowFinal(spec) => spec,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_aggregate_is_cut_behind_its_first_half() {
    let graph = job(
        CLICKS,
        &count_per_user("{tumbling: {size: 10s}}", ""),
        "  - {name: out, from: per_user, print: {}}\n",
    );

    let (stages, edges) = shape(&graph);

    assert_eq!(
        stages,
        [vec!["clicks", "per_user.partial"], vec!["per_user", "out"]]
    );
    assert_eq!(edges, ["0:1 Main -> 1:0 keys [0]"]);
    assert_eq!(
        names(&operator(&graph, "per_user").output),
        ["user_id", "window_start", "window_end", "n"]
    );
    assert!(graph.bounded);
}

#[test]
fn the_same_document_gives_the_same_bytes() {
    let make = || {
        let graph = job(
            &format!("{CLICKS}{MORE_CLICKS}"),
            "  - {name: all, union: [clicks, more]}\n",
            "  - {name: out, from: all, blackhole: {}}\n  - {name: bad, from: clicks.bad, blackhole: {}}\n",
        );
        serde_json::to_string(&graph).unwrap()
    };

    assert_eq!(make(), make());
    let read: JobGraph = serde_json::from_str(&make()).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), make());
}

#[test]
fn a_union_of_two_sources_is_a_stage_of_its_own() {
    let graph = job(
        &format!("{CLICKS}{MORE_CLICKS}"),
        "  - {name: all, union: [clicks, more]}\n",
        "  - {name: out, from: all, blackhole: {}}\n",
    );

    let (stages, edges) = shape(&graph);

    assert_eq!(stages, [vec!["clicks"], vec!["more"], vec!["all", "out"]]);
    assert_eq!(
        edges,
        ["0:0 Main -> 2:0 forward", "1:0 Main -> 2:0 forward"]
    );
    assert!(!graph.bounded, "one source never ends");
}

#[test]
fn a_union_within_a_stage_is_chained() {
    let graph = job(
        CLICKS,
        "  - {name: a, from: clicks, filter: \"amount > 1\"}\n  - {name: b, from: clicks, filter: \"amount < 1\"}\n  - {name: all, union: [a, b]}\n",
        "  - {name: out, from: all, blackhole: {}}\n",
    );

    let (stages, edges) = shape(&graph);

    assert_eq!(stages, [vec!["clicks", "a", "b", "all", "out"]]);
    assert_eq!(edges, Vec::<String>::new());
    let inputs = &operator(&graph, "all").inputs;
    let chained = |operator| Input::Chained {
        operator,
        port: Port::Main,
    };
    assert_eq!(inputs, &[chained(1), chained(2)]);
}

#[test]
fn only_columns_that_are_read_are_decoded() {
    let graph = job(
        FILES,
        "  - {name: f, from: files, filter: \"a > 1\"}\n  - {name: s, from: f, select: [b]}\n",
        "  - {name: out, from: s, blackhole: {}}\n",
    );

    assert_eq!(names(&operator(&graph, "files").output), ["a", "b", "t"]);
    assert_eq!(source_spec(&graph, "files").columns.len(), 4);
    assert_eq!(names(&operator(&graph, "f").output), ["a", "b", "t"]);
    assert_eq!(names(&operator(&graph, "s").output), ["b"]);
}

#[test]
fn a_sink_gets_exactly_its_columns() {
    let graph = job(
        FILES,
        "  - {name: f, from: files, filter: \"_row > 1\"}\n",
        "  - {name: out, from: f, blackhole: {}}\n",
    );

    assert_eq!(
        names(&operator(&graph, "files").output),
        ["a", "b", "c", "t", "_row"]
    );
    let (stages, _) = shape(&graph);
    assert_eq!(stages, [vec!["files", "f", "out.columns", "out"]]);
    assert_eq!(
        names(&operator(&graph, "out.columns").output),
        ["a", "b", "c", "t"]
    );
}

#[test]
fn late_rows_are_whole_records() {
    let graph = job(
        CLICKS,
        &count_per_user("{tumbling: {size: 10s}}", ""),
        "  - {name: out, from: per_user, blackhole: {}}\n  - {name: late, from: per_user.late, blackhole: {}}\n",
    );

    let (stages, edges) = shape(&graph);

    assert_eq!(
        stages,
        [
            vec!["clicks", "per_user.partial", "late"],
            vec!["per_user", "out"]
        ]
    );
    assert_eq!(edges.len(), 1);
    assert_eq!(
        names(&operator(&graph, "clicks").output),
        ["user_id", "page", "type", "amount", "ts"]
    );
}

#[test]
fn late_rows_of_sessions_come_from_the_second_half() {
    let graph = job(
        CLICKS,
        &count_per_user("{session: {gap: 10s}}", ""),
        "  - {name: late, from: per_user.late, blackhole: {}}\n",
    );

    let (stages, _) = shape(&graph);

    assert_eq!(
        stages,
        [vec!["clicks", "per_user.partial"], vec!["per_user", "late"]]
    );
}

#[test]
fn bad_rows_of_both_halves_flow_together() {
    let graph = job(
        CLICKS,
        &count_per_user("{tumbling: {size: 10s}}", ""),
        "  - {name: out, from: per_user, blackhole: {}}\n  - {name: bad, from: per_user.bad, blackhole: {}}\n",
    );

    let (stages, edges) = shape(&graph);

    assert_eq!(
        stages,
        [
            vec!["clicks", "per_user.partial"],
            vec!["per_user", "out"],
            vec!["bad.inputs", "bad"]
        ]
    );
    assert_eq!(
        edges[1..],
        ["0:1 Bad -> 2:0 forward", "1:0 Bad -> 2:0 forward"]
    );
}

#[test]
fn origins_are_carried_only_where_somebody_needs_them() {
    let sink = "  - {name: out, from: clicks, blackhole: {}}\n";
    let aggregate = count_per_user("{tumbling: {size: 10s}}", "");
    let counted = "  - {name: out, from: per_user, blackhole: {}}\n";
    let unbounded = CLICKS.replace("rows: 1000", "");
    let filter = "  - {name: f, from: clicks, filter: \"amount > 1\"}\n";

    let plain = job(CLICKS, "    []\n", sink);
    let late_log = job(CLICKS, &aggregate, counted);
    let no_late_log = job(&unbounded, &aggregate, counted);
    let bad = job(
        CLICKS,
        filter,
        "  - {name: out, from: f.bad, blackhole: {}}\n",
    );

    assert!(!source_spec(&plain, "clicks").origin);
    assert!(source_spec(&late_log, "clicks").origin);
    assert!(aggregate_spec(&late_log, "per_user").late_log);
    assert!(!source_spec(&no_late_log, "clicks").origin);
    assert!(!aggregate_spec(&no_late_log, "per_user").late_log);
    assert!(source_spec(&bad, "clicks").origin);
}

#[test]
fn items_over_aggregates_are_projected_behind_the_window() {
    let graph = job(
        CLICKS,
        "  - {name: per_user, from: clicks, aggregate: {groupBy: [user_id], window: {tumbling: {size: 10s}}, select: [\"count(*) AS n\", \"sum(amount) / count(*) AS mean\", \"upper(user_id) AS u\"]}}\n",
        "  - {name: out, from: per_user, blackhole: {}}\n",
    );

    let (stages, _) = shape(&graph);

    assert_eq!(stages[1], ["per_user", "per_user.select", "out"]);
    assert_eq!(
        names(&operator(&graph, "per_user.select").output),
        ["user_id", "window_start", "window_end", "n", "mean", "u"]
    );
    let calls = &aggregate_spec(&graph, "per_user").calls;
    assert_eq!(
        calls.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
        ["n", "_sum(amount)", "_count(*)"]
    );
}

#[test]
fn lateness_makes_an_output_updating_unless_it_is_sent_once() {
    let updating = job(
        CLICKS,
        &count_per_user("{tumbling: {size: 10s}}", ", allowedLateness: 5s"),
        "  - {name: out, from: per_user, print: {}}\n",
    );
    let once = job(
        CLICKS,
        &count_per_user(
            "{tumbling: {size: 10s}}",
            ", allowedLateness: 5s, emit: Once",
        ),
        "  - {name: out, from: per_user, file: {path: /o}, format: {json: {}}}\n",
    );
    let sink = |graph: &JobGraph| match &operator(graph, "out").kind {
        OperatorKind::Sink(spec) => (spec.changelog, spec.delivery),
        other => panic!("{other:?}"),
    };

    assert!(operator(&updating, "per_user").updating);
    assert_eq!(
        sink(&updating),
        (ChangelogMode::Retract, Delivery::AtLeastOnce)
    );
    assert!(!operator(&once, "per_user").updating);
    assert_eq!(aggregate_spec(&once, "per_user").emit, Emit::Once);
    assert_eq!(
        sink(&once),
        (ChangelogMode::AppendOnly, Delivery::ExactlyOnce)
    );
}

#[test]
fn negative_offset_names_the_same_grid_kf_e2() {
    let window = |offset: &str| {
        let graph = job(
            CLICKS,
            &count_per_user(&format!("{{tumbling: {{size: 1h, offset: {offset}}}}}"), ""),
            "  - {name: out, from: per_user, print: {}}\n",
        );
        aggregate_spec(&graph, "per_user").window.clone()
    };

    assert_eq!(window("-15m"), window("45m"));
    assert_eq!(
        window("-15m"),
        WindowSpec::Tumbling {
            size_us: 3_600_000_000,
            offset_us: 2_700_000_000,
            time_zone: "UTC".to_owned()
        }
    );
}

#[test]
fn nodes_that_lead_nowhere_are_not_run() {
    let graph = job(
        &format!("{CLICKS}{MORE_CLICKS}"),
        "  - {name: unread, from: clicks, filter: \"amount > 1\"}\n",
        "  - {name: out, from: clicks, blackhole: {}}\n",
    );

    assert_eq!(shape(&graph).0, [vec!["clicks", "out"]]);
    assert!(graph.bounded, "the unbounded source is not run");
}

#[test]
fn uids_outlive_a_rename() {
    let graph = job(
        CLICKS,
        &count_per_user("{tumbling: {size: 10s}}", "")
            .replace("name: per_user", "name: renamed, uid: per_user"),
        "  - {name: out, from: renamed, print: {}}\n",
    );

    assert_eq!(operator(&graph, "per_user").node, "renamed");
}

#[test]
fn event_time_with_a_zone_is_taken_as_utc() {
    let source = FILES.replace("{name: t, type: TIMESTAMP}", "{name: t, type: TIMESTAMPTZ}");
    let graph = job(
        &source,
        "    []\n",
        "  - {name: out, from: files, print: {}}\n",
    );

    let event_time = source_spec(&graph, "files").event_time.clone().unwrap();
    assert_eq!(event_time.expr.sql, "CAST(t AS TIMESTAMP)");
}

#[test]
fn every_expression_of_a_graph_compiles_where_it_runs() {
    let graph = job(
        CLICKS,
        "  - {name: per_user, from: clicks, aggregate: {groupBy: [\"upper(user_id) AS u\"], window: {hopping: {size: 10s, slide: 2s}}, select: [\"sum(amount) FILTER (WHERE type = 'click') / count(*) AS mean\"]}}\n",
        "  - {name: out, from: per_user, blackhole: {}}\n",
    );
    let spec = aggregate_spec(&graph, "per_user");
    let args = spec.calls.iter().filter_map(|call| call.arg.as_ref());
    let filters = spec.calls.iter().filter_map(|call| call.filter.as_ref());

    for expr in spec
        .keys
        .iter()
        .map(|key| &key.expr)
        .chain(args)
        .chain(filters)
    {
        crate::compile(expr, &spec.input).unwrap();
    }
    let OperatorKind::Project { items } = &operator(&graph, "per_user.select").kind else {
        panic!()
    };
    for item in items {
        crate::compile(&item.expr, &operator(&graph, "per_user").output).unwrap();
    }
}
