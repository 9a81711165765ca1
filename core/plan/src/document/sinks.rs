//! Sinks: kinds, formats, changelog mode, delivery.

use std::collections::BTreeSet;

use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::{ChangelogMode, Connector, Delivery, Format, SinkSpec};
use streamforge_crds::v1alpha1::{self as written, FileSink, Sink};

use super::Output;
use super::kafka;
use super::nodes::Context;
use super::s3;
use super::sources::{check_local_path, resolve_format};
use crate::expression::{Error, no_such_column};

pub(super) fn resolve(
    sink: &Sink,
    path: &str,
    input: &Output,
    context: &mut Context<'_>,
) -> Option<SinkSpec> {
    let connector = connector(sink, path, input, context)?;
    let format = format(sink, path, input, context);
    let changelog = changelog(sink, path, input, context);
    let delivery = delivery(sink, path, context);
    Some(SinkSpec {
        connector,
        format,
        input: input.columns.clone(),
        delivery,
        changelog,
        rate_limit: sink.rate_limit.map(|limit| limit.rows_per_second),
    })
}

fn connector(
    sink: &Sink,
    path: &str,
    input: &Output,
    context: &mut Context<'_>,
) -> Option<Connector> {
    let connector = |kind: &str, config: Result<serde_json::Value, serde_json::Error>| Connector {
        kind: kind.to_owned(),
        config: config.unwrap_or(serde_json::Value::Null),
    };
    if let Some(kafka) = &sink.kafka {
        kafka::check_sink(sink, kafka, &format!("{path}.kafka"), (input, context));
        return Some(connector("kafka", serde_json::to_value(kafka)));
    }
    if let Some(file) = &sink.file {
        check_file(file, &format!("{path}.file"), input, context);
        return Some(connector("file", serde_json::to_value(file)));
    }
    if let Some(print) = &sink.print {
        return Some(connector("print", serde_json::to_value(print)));
    }
    let blackhole = sink.blackhole.as_ref()?;
    Some(connector("blackhole", serde_json::to_value(blackhole)))
}

fn check_file(file: &FileSink, path: &str, input: &Output, context: &mut Context<'_>) {
    let at = format!("{path}.path");
    let access = (file.s3.as_ref(), &*format!("{path}.s3"));
    if s3::is_s3(&file.path) {
        s3::check((&file.path, &at), access, context);
    } else {
        check_local_path(&file.path, &at, context);
        s3::check_none(access.0, access.1, context);
        if file.path.contains(['*', '?', '[']) {
            let message = "the path of a file sink is a folder, not a glob";
            context.add(&at, message, None);
        }
    }
    if let Some(rollover) = file.rollover {
        if rollover.size.is_some_and(|size| size.bytes() == 0) {
            context.add(&format!("{path}.rollover.size"), "the size is zero", None);
        }
        if rollover
            .every
            .is_some_and(streamforge_core::units::HumanDuration::is_zero)
        {
            context.add(&format!("{path}.rollover.every"), "the time is zero", None);
        }
    }
    check_partitions(
        &file.partition_by,
        &format!("{path}.partitionBy"),
        input,
        context,
    );
}

fn check_partitions(names: &[String], list: &str, input: &Output, context: &mut Context<'_>) {
    check_columns(names, list, "a folder cannot be named by", input, context);
    let mut columns = input.columns.iter();
    if columns.len() > 0 && columns.all(|column| names.contains(&column.name)) {
        let message = "all columns name folders, so that no data is left";
        context.add(list, message, None);
    }
}

/// Columns of the input, each once and with a text; `not_by` says what the others cannot do.
pub(super) fn check_columns(
    names: &[String],
    list: &str,
    not_by: &str,
    input: &Output,
    context: &mut Context<'_>,
) {
    let mut seen = BTreeSet::new();
    for (idx, name) in names.iter().enumerate() {
        let path = format!("{list}[{}]", context.places.document_idx(list, idx));
        let column = input.columns.iter().find(|column| column.name == *name);
        match column.map(|column| &column.data_type) {
            None => {
                let Error { message, hint } = no_such_column(name, &input.columns);
                context.add(&path, message, hint);
            }
            Some(data_type @ (DataType::List(_) | DataType::Struct(_))) => {
                context.add(&path, format!("{not_by} a {data_type}"), None);
            }
            Some(_) => {}
        }
        if !seen.insert(name) {
            context.add(&path, format!("`{name}` is in the list twice"), None);
        }
    }
}

fn format(sink: &Sink, path: &str, input: &Output, context: &mut Context<'_>) -> Option<Format> {
    let is_encoded = sink.file.is_some() || sink.kafka.is_some();
    let field = format!("{path}.format");
    let format = match (&sink.format, is_encoded) {
        (Some(format), true) => {
            let format = resolve_format(format, &field, context)?;
            if sink.kafka.is_some() {
                kafka::sink_format(sink, format, &field, context)?
            } else {
                format
            }
        }
        (None, true) => {
            if !context.places.has(&field) {
                let hint = "write `format: {json: {}}`, csv or parquet";
                context.add(path, "`format` is missing", Some(hint.to_owned()));
            }
            return None;
        }
        (Some(_), false) => {
            let message = "print and blackhole sinks have no format";
            context.add(&field, message, Some("leave `format` out".to_owned()));
            return None;
        }
        (None, false) => return None,
    };
    match &format {
        Format::Raw => {
            let hint = Some("write json, csv or parquet".to_owned());
            context.add(
                &format!("{field}.raw"),
                "`raw` is a format of sources",
                hint,
            );
        }
        Format::Csv { .. } => {
            let nested = input
                .columns
                .iter()
                .find(|c| matches!(c.data_type, DataType::List(_) | DataType::Struct(_)));
            if let Some(column) = nested {
                let message = format!(
                    "`{}` is {}, which CSV cannot hold",
                    column.name, column.data_type
                );
                let hint = "write json or parquet, or make it text with a `select`";
                context.add(&format!("{field}.csv"), message, Some(hint.to_owned()));
            }
        }
        Format::Json | Format::Parquet => {}
    }
    Some(format)
}

fn changelog(sink: &Sink, path: &str, input: &Output, context: &mut Context<'_>) -> ChangelogMode {
    let field = format!("{path}.changelog");
    let shows_updates = sink.print.is_some() || sink.blackhole.is_some();
    match sink.changelog {
        Some(written::Changelog::Retract) => ChangelogMode::Retract,
        Some(written::Changelog::Upsert) => {
            if sink.kafka.is_none() {
                let hint = Some("write `changelog: Retract`".to_owned());
                context.add(&field, "`Upsert` is for kafka sinks", hint);
            }
            ChangelogMode::Upsert
        }
        None if shows_updates && input.updating => ChangelogMode::Retract,
        None | Some(written::Changelog::AppendOnly) => {
            if input.updating && !context.places.is_cut(&field) {
                let place = if sink.changelog.is_some() {
                    field
                } else {
                    format!("{path}.from")
                };
                let message = format!(
                    "`{}` is corrected by retraction, but this sink only appends",
                    sink.from
                );
                let hint =
                    "write `emit: Once` in the aggregate, or `changelog: Retract` in the sink";
                context.add(&place, message, Some(hint.to_owned()));
            }
            ChangelogMode::AppendOnly
        }
    }
}

fn delivery(sink: &Sink, path: &str, context: &mut Context<'_>) -> Delivery {
    let can_be_exact = sink.file.is_some() || sink.kafka.is_some();
    match sink.delivery {
        None if can_be_exact => Delivery::ExactlyOnce,
        Some(written::Delivery::ExactlyOnce) => {
            if !can_be_exact {
                let hint = Some("leave `delivery` out".to_owned());
                let message = "print and blackhole sinks are at least once";
                context.add(&format!("{path}.delivery"), message, hint);
            }
            Delivery::ExactlyOnce
        }
        None | Some(written::Delivery::AtLeastOnce) => Delivery::AtLeastOnce,
    }
}
