//! What an edited document means for a job that goes on.
//!
//! Owns: the sentences about edits that a start takes, and that mean less than a person may think: what was
//! read stays read, and what was written stays where it is, as it is. Edits that cannot be taken are refused by the
//! coordinator. Pure. Start at: [`changes`].

use serde_json::Value;
use streamforge_core::job_graph::{
    Connector, Format, JobGraph, Operator, OperatorKind, SinkSpec, SourceSpec,
};

/// One sentence per edit that deserves one.
#[must_use]
pub fn changes(ran: &JobGraph, now: &JobGraph) -> Vec<String> {
    let mut said = Vec::new();
    for (_, before) in ran.operators() {
        let mut after = now.operators().map(|(_, it)| it);
        if let Some(after) = after.find(|it| it.uid == before.uid) {
            of_node(before, after, &mut said);
        }
    }
    said
}

fn of_node(before: &Operator, after: &Operator, said: &mut Vec<String>) {
    use OperatorKind::{Filter, Project, Sink, Source, Unnest};
    let name = &after.node;
    let changed = match (&before.kind, &after.kind) {
        (Source(old), Source(new)) => return of_source(name, old, new, said),
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

fn of_files(after: &Connector) -> &'static str {
    let watch = after.config.get("watch").and_then(Value::as_str);
    if watch.is_none_or(|watch| watch == "Never") {
        "it reads the files that it knows to their end, and none of the new path, because which files there are \
         was settled when it first began; a path is read by a source of another name (and uid)"
    } else {
        "it reads the files that it knows to their end, and looks for others at the new path only"
    }
}

/// What a preset makes of a row's number changed; how many rows there are, and how fast, may.
fn of_generator(name: &str, old: &Value, new: &Value, said: &mut Vec<String>) {
    let presets = new.as_object().into_iter().flatten();
    for (preset, after) in presets {
        let before = old.get(preset).unwrap_or(&Value::Null);
        let fields = after.as_object().into_iter().flatten();
        for (field, value) in fields {
            let earlier = before.get(field).unwrap_or(&Value::Null);
            let is_harmless = matches!(field.as_str(), "rows" | "rowsPerSecond");
            if before.is_object() && earlier != value && !is_harmless {
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
    let (format, earlier) = (word(new.format.as_ref()), word(old.format.as_ref()));
    if format != earlier {
        said.push(format!(
            "`{name}` writes {format} now: what it wrote before stays {earlier}, beside it"
        ));
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
mod tests {
    use super::*;

    const JOB: &str = "apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: job}
spec:
  sources:
    - {name: made, generator: {clicks: {rows: 10, seed: 1}}}
    - {name: files, file: {path: in/}, format: {json: {}}, schema: [{name: n, type: BIGINT}]}
    - name: topic
      kafka: {bootstrapServers: 'a:1', topics: [t]}
      format: {json: {}}
      schema: [{name: n, type: BIGINT}]
  transforms:
    - {name: good, from: files, filter: n > 1}
    - {name: more, from: good, select: [n + 1 AS m]}
  sinks:
    - {name: out, from: more, file: {path: out/}, format: {json: {}}}
    - {name: copy, from: topic, file: {path: copy/}, format: {json: {}}}
    - {name: all, from: made, blackhole: {}}
";

    fn said(edits: &[(&str, &str)]) -> Vec<String> {
        let graph = |text: &str| {
            let loaded = streamforge_plan::load(text, "job.yaml").unwrap();
            streamforge_plan::plan(&loaded)
        };
        let mut edited = JOB.to_owned();
        for (from, to) in edits {
            assert!(edited.contains(from), "{from}");
            edited = edited.replace(from, to);
        }
        changes(&graph(JOB), &graph(&edited))
    }

    #[test]
    fn each_edit_that_means_less_than_it_may_seem_is_told() {
        for (edit, words) in [
            (
                ("seed: 1", "seed: 2"),
                vec!["`seed` of `made` is 2 and was 1", "--fresh"],
            ),
            (
                ("path: in/", "path: other/"),
                vec!["`files` names \"other/\" now", "none of the new path"],
            ),
            (
                ("path: in/", "path: other/, watch: 1s"),
                vec!["looks for others at the new path only"],
            ),
            (
                ("topics: [t]", "topics: [t], startFrom: Latest"),
                vec!["`startFrom` of `topic`"],
            ),
            (
                ("n > 1", "n > 2"),
                vec!["`good` is another one", "as it was"],
            ),
            (("n + 1", "n + 2"), vec!["`more` is another one"]),
            (
                ("path: out/", "path: out2/"),
                vec!["`out` writes to \"out2/\" now", "\"out/\" stays"],
            ),
            (
                ("out/}, format: {json: {}}", "out/}, format: {csv: {}}"),
                vec!["`out` writes CSV now", "stays JSON"],
            ),
        ] {
            let said = said(&[edit]);
            assert_eq!(said.len(), 1, "{edit:?}: {said:?}");
            for word in words {
                assert!(said[0].contains(word), "{edit:?}: {said:?}");
            }
        }
    }

    #[test]
    fn edits_that_mean_what_they_say_are_not_told() {
        assert_eq!(said(&[]), Vec::<String>::new());
        assert_eq!(
            said(&[("rows: 10", "rows: 20, rowsPerSecond: 5")]),
            Vec::<String>::new()
        );
        let sink = "  - {name: two, from: good, blackhole: {}}\n    - {name: all";
        assert_eq!(said(&[("  - {name: all", sink)]), Vec::<String>::new());
    }
}
