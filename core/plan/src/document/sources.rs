//! Sources: kinds, formats, columns, event time.

use chrono::format::{Item, StrftimeItems};
use serde_json::Value as Json;
use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::{
    self, Column, Connector, EventTimeSpec, Expr, Format, SourceColumn, SourceSpec, TimeParse,
};
use streamforge_crds::v1alpha1::{
    self as written, CsvFormat, FileSource, GeneratorSource, OnBadRecord, Source, Watch,
};

use super::kafka;
use super::nodes::Context;
use super::s3;
use crate::expression::{Parsed, Scope, no_such_column, parse, quoted, resolve_as};
use crate::problem::did_you_mean;

/// The source and the columns of its main output, as far as they can be known.
pub(super) fn resolve(
    source: &Source,
    path: &str,
    context: &mut Context<'_>,
) -> Option<(SourceSpec, Vec<Column>)> {
    let connector = connector(source, path, context)?;
    let is_generator = source.generator.is_some();
    let format = match &source.format {
        Some(_) if is_generator => {
            let message = "a generator's rows are not encoded";
            context.add(
                &format!("{path}.format"),
                message,
                Some("leave `format` out".to_owned()),
            );
            None
        }
        Some(format) => {
            let path = format!("{path}.format");
            let format = resolve_format(format, &path, context);
            match (format, &source.kafka) {
                (Some(format), Some(_)) => kafka::source_format(source, format, &path, context),
                (format, _) => format,
            }
        }
        None => {
            if !is_generator && !context.places.has(&format!("{path}.format")) {
                let hint = "write `format: {json: {}}`, csv, parquet or raw";
                context.add(path, "`format` is missing", Some(hint.to_owned()));
            }
            None
        }
    };
    let columns = match &source.generator {
        Some(generator) => generator_columns(generator, source, path, context)?,
        None => declared_columns(source, format.as_ref(), path, context)?,
    };
    let output: Vec<Column> = columns.iter().map(|column| column.column.clone()).collect();
    let event_time = event_time(source, &output, path, context);
    let spec = SourceSpec {
        connector,
        format,
        columns,
        event_time,
        on_bad_record: match source.on_bad_record {
            OnBadRecord::Divert => job_graph::OnBadRecord::Divert,
            OnBadRecord::Fail => job_graph::OnBadRecord::Fail,
        },
        rate_limit: source.rate_limit.map(|limit| limit.rows_per_second),
        bounded: is_bounded(source),
        origin: false,
    };
    Some((spec, output))
}

/// Columns that the connector can add, used only where named.
pub(super) fn hidden_columns(source: &Source) -> Vec<Column> {
    if source.kafka.is_some() {
        return kafka::hidden_columns();
    }
    if source.file.is_none() {
        return Vec::new();
    }
    let column = |name: &str, data_type| Column {
        name: name.to_owned(),
        data_type,
        nullable: false,
    };
    vec![
        column("_file", DataType::Text),
        column("_row", DataType::BigInt),
    ]
}

fn is_bounded(source: &Source) -> bool {
    let kafka = source
        .kafka
        .as_ref()
        .is_some_and(|kafka| kafka.end_at.is_some());
    let file = source
        .file
        .as_ref()
        .is_some_and(|file| file.watch == Watch::Never);
    let generator = source.generator.as_ref().is_some_and(|generator| {
        let clicks = generator
            .clicks
            .as_ref()
            .is_some_and(|clicks| clicks.rows.is_some());
        clicks
            || generator
                .lines
                .as_ref()
                .is_some_and(|lines| lines.rows.is_some())
    });
    kafka || file || generator
}

fn config<T: serde::Serialize>(block: &T) -> Json {
    serde_json::to_value(block).unwrap_or(Json::Null)
}

fn connector(source: &Source, path: &str, context: &mut Context<'_>) -> Option<Connector> {
    if let Some(kafka) = &source.kafka {
        kafka::check_source(kafka, &format!("{path}.kafka"), context);
        return Some(Connector {
            kind: "kafka".to_owned(),
            config: config(kafka),
        });
    }
    if let Some(file) = &source.file {
        check_file(file, &format!("{path}.file"), context);
        return Some(Connector {
            kind: "file".to_owned(),
            config: config(file),
        });
    }
    let generator = source.generator.as_ref()?;
    Some(Connector {
        kind: "generator".to_owned(),
        config: config(generator),
    })
}

fn check_file(file: &FileSource, path: &str, context: &mut Context<'_>) {
    let at = format!("{path}.path");
    let access = (file.s3.as_ref(), &*format!("{path}.s3"));
    if s3::is_s3(&file.path) {
        s3::check_files((&file.path, &at), access, context);
    } else {
        check_local_path(&file.path, &at, context);
        s3::check_none(access.0, access.1, context);
    }
    if matches!(file.watch, Watch::Every(every) if every.is_zero()) {
        let hint = Some("write `Never`, or a time like `10s`".to_owned());
        context.add(
            &format!("{path}.watch"),
            "the time between two looks is zero",
            hint,
        );
    }
}

/// A path of this machine.
pub(super) fn check_local_path(file_path: &str, path: &str, context: &mut Context<'_>) {
    if let Some((scheme, _)) = file_path.split_once("://") {
        let hint = Some("write a path of this machine, like `/data/in/*.ndjson`".to_owned());
        context.add(path, format!("`{scheme}://` is not a path"), hint);
    } else if file_path.contains('\0') {
        context.add(path, "a path cannot contain a zero byte", None);
    }
}

/// The format of a source or a sink.
pub(super) fn resolve_format(
    format: &written::Format,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Format> {
    if format.json.is_some() {
        return Some(Format::Json);
    }
    if let Some(csv) = &format.csv {
        return csv_format(csv, &format!("{path}.csv"), context);
    }
    if format.parquet.is_some() {
        return Some(Format::Parquet);
    }
    format.raw.as_ref().map(|_| Format::Raw)
}

fn csv_format(csv: &CsvFormat, path: &str, context: &mut Context<'_>) -> Option<Format> {
    let mut chars = csv.delimiter.chars();
    let delimiter = match (chars.next(), chars.next()) {
        (Some(c), None) if c.is_ascii() && !matches!(c, '"' | '\n' | '\r' | '\0') => c,
        _ => {
            let message = format!("`{}` cannot separate fields", csv.delimiter.escape_debug());
            let hint = "write one ASCII character, as in \",\" or \"\\t\"";
            context.add(&format!("{path}.delimiter"), message, Some(hint.to_owned()));
            return None;
        }
    };
    let null = (!csv.null.is_empty()).then(|| csv.null.clone());
    Some(Format::Csv {
        header: csv.header,
        delimiter,
        null,
    })
}

fn generator_columns(
    generator: &GeneratorSource,
    source: &Source,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Vec<SourceColumn>> {
    if !source.schema.is_empty() {
        let hint = Some("leave `schema` out".to_owned());
        context.add(
            &format!("{path}.schema"),
            "a generator's columns are fixed",
            hint,
        );
    }
    let columns = if generator.clicks.is_some() {
        vec![
            ("user_id", DataType::Text),
            ("page", DataType::Text),
            ("type", DataType::Text),
            ("amount", DataType::Decimal(10, 2)),
            ("ts", DataType::Timestamp),
        ]
    } else if generator.lines.is_some() {
        vec![("line", DataType::Text), ("ts", DataType::Timestamp)]
    } else {
        return None;
    };
    let column = |(name, data_type): (&str, DataType)| SourceColumn {
        column: Column {
            name: name.to_owned(),
            data_type,
            nullable: true,
        },
        path: None,
        parse: TimeParse::default(),
    };
    Some(columns.into_iter().map(column).collect())
}

fn declared_columns(
    source: &Source,
    format: Option<&Format>,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Vec<SourceColumn>> {
    let list = format!("{path}.schema");
    if source.schema.is_empty() {
        let hint = "list the columns: `schema: [{name: id, type: BIGINT}]`";
        if context.places.has(&list) {
            context.add(&list, "`schema` has no columns", Some(hint.to_owned()));
        } else {
            context.add(path, "`schema` is missing", Some(hint.to_owned()));
        }
        return None;
    }
    let mut columns: Vec<SourceColumn> = Vec::new();
    let mut complete = true;
    for (idx, column) in source.schema.iter().enumerate() {
        let path = format!("{list}[{}]", context.places.document_idx(&list, idx));
        if columns.iter().any(|other| other.column.name == column.name) {
            let message = format!("two columns are named `{}`", column.name);
            context.add(&format!("{path}.name"), message, None);
            continue;
        }
        match resolve_column(column, format, &path, context) {
            Some(column) => columns.push(column),
            None => complete = false,
        }
    }
    if format == Some(&Format::Raw) && complete {
        let fits = matches!(columns.as_slice(), [only]
            if matches!(only.column.data_type, DataType::Text | DataType::Bytea));
        if !fits {
            let message = "with format raw a source has exactly one column, of type TEXT or BYTEA";
            context.add(&list, message, None);
        }
    }
    // With a column missing, every expression over it would be reported as wrong.
    complete.then_some(columns)
}

/// What to write when a `,` between `{}` has ended a type too early.
fn cut_by_comma(text: &str) -> Option<String> {
    let opened = text.matches('(').count() > text.matches(')').count();
    opened.then(|| {
        "between `{}` a `,` ends a value; quote a type that has one, as in `type: \"DECIMAL(10,2)\"`"
            .to_owned()
    })
}

fn resolve_column(
    column: &written::Column,
    format: Option<&Format>,
    path: &str,
    context: &mut Context<'_>,
) -> Option<SourceColumn> {
    if column.name.starts_with('_') {
        let hint = "names beginning with `_` are the system's; use `path` for such a field";
        let message = format!("a column cannot be named `{}`", column.name);
        context.add(&format!("{path}.name"), message, Some(hint.to_owned()));
        return None;
    }
    let data_type: DataType = match column.data_type.parse() {
        Ok(data_type) => data_type,
        Err(error) => {
            let error: streamforge_core::data_type::ParseError = error;
            let word = column.data_type.split('(').next().unwrap_or_default();
            let hint = cut_by_comma(&column.data_type)
                .or_else(|| type_hint(word))
                .unwrap_or(error.reason);
            let message = format!("`{}` is not a type", crate::yaml::cut(&column.data_type));
            context.add(&format!("{path}.type"), message, Some(hint));
            return None;
        }
    };
    let nested = matches!(data_type, DataType::List(_) | DataType::Struct(_));
    if nested && matches!(format, Some(Format::Csv { .. })) {
        let message = format!("a CSV field cannot be a {data_type}");
        context.add(&format!("{path}.type"), message, None);
    }
    check_pointer(column, format, path, context);
    let parse = time_parse(column, &data_type, path, context)?;
    let name = column.name.clone();
    let path = column.path.clone();
    Some(SourceColumn {
        column: Column {
            name,
            data_type,
            nullable: column.nullable,
        },
        path,
        parse,
    })
}

/// Types that people write for ours.
fn type_hint(word: &str) -> Option<String> {
    let ours = match word.to_ascii_uppercase().as_str() {
        "FLOAT" | "FLOAT8" | "FLOAT64" => "DOUBLE",
        "FLOAT4" | "FLOAT32" => "REAL",
        "INT4" | "INT32" | "SMALLINT" | "TINYINT" => "INT",
        "INT8" | "INT64" | "LONG" => "BIGINT",
        "UTF8" | "CHAR" => "TEXT",
        "BINARY" | "BLOB" | "BYTES" => "BYTEA",
        "DATETIME" | "TIME" => "TIMESTAMP",
        "JSON" | "JSONB" | "UUID" => "TEXT",
        // The word is right; what follows it is not.
        "DECIMAL" | "STRUCT" => return None,
        _ => {
            return did_you_mean(
                word,
                [
                    "BOOLEAN",
                    "INT",
                    "BIGINT",
                    "REAL",
                    "DOUBLE",
                    "DECIMAL",
                    "TEXT",
                    "BYTEA",
                    "DATE",
                    "TIMESTAMP",
                    "TIMESTAMPTZ",
                    "STRUCT",
                ],
            );
        }
    };
    Some(format!("write `{ours}`"))
}

fn check_pointer(
    column: &written::Column,
    format: Option<&Format>,
    path: &str,
    context: &mut Context<'_>,
) {
    let Some(pointer) = &column.path else { return };
    let path = format!("{path}.path");
    let escapes_fit = pointer
        .split('~')
        .skip(1)
        .all(|rest| rest.starts_with(['0', '1']));
    if !pointer.starts_with('/') || !escapes_fit {
        let hint = "a JSON pointer (RFC 6901) begins with `/`: `/meta/time`; ~ is ~0 and / is ~1";
        let message = format!("`{}` is not a JSON pointer", crate::yaml::cut(pointer));
        context.add(&path, message, Some(hint.to_owned()));
    } else if format.is_some_and(|format| *format != Format::Json) {
        context.add(&path, "`path` is for format json", None);
    }
}

fn time_parse(
    column: &written::Column,
    data_type: &DataType,
    path: &str,
    context: &mut Context<'_>,
) -> Option<TimeParse> {
    const WORDS: [(&str, TimeParse); 4] = [
        ("Rfc3339", TimeParse::Rfc3339),
        ("EpochSeconds", TimeParse::EpochSeconds),
        ("EpochMillis", TimeParse::EpochMillis),
        ("EpochMicros", TimeParse::EpochMicros),
    ];
    let Some(text) = &column.parse else {
        return Some(TimeParse::default());
    };
    let path = format!("{path}.parse");
    if !matches!(
        data_type,
        DataType::Date | DataType::Timestamp | DataType::TimestampTz
    ) {
        let message = format!("`parse` is for times, and `{}` is {data_type}", column.name);
        context.add(&path, message, None);
        return None;
    }
    if let Some((_, parse)) = WORDS.iter().find(|(word, _)| word == text) {
        return Some(parse.clone());
    }
    let is_pattern =
        text.contains('%') && !StrftimeItems::new(text).any(|item| matches!(item, Item::Error));
    if is_pattern {
        return Some(TimeParse::Pattern(text.clone()));
    }
    let hint = did_you_mean(text, WORDS.iter().map(|(word, _)| *word)).unwrap_or_else(|| {
        "write Rfc3339, EpochSeconds, EpochMillis, EpochMicros or a pattern like `%Y-%m-%d %H:%M:%S`"
            .to_owned()
    });
    let message = format!("`{}` is no way to read a time", crate::yaml::cut(text));
    context.add(&path, message, Some(hint));
    None
}

fn event_time(
    source: &Source,
    columns: &[Column],
    path: &str,
    context: &mut Context<'_>,
) -> Option<EventTimeSpec> {
    let path = format!("{path}.eventTime");
    let Some(spec) = &source.event_time else {
        return context.places.is_cut(&path).then(some_event_time);
    };
    if spec
        .idle_timeout
        .is_some_and(|timeout| timeout.micros() < 1_000)
    {
        context.add(
            &format!("{path}.idleTimeout"),
            "the time must be at least 1ms",
            None,
        );
    }
    let (field, sql) = match (&spec.column, &spec.expression) {
        (Some(column), None) => ("column", quoted(column)),
        (None, Some(expression)) => ("expression", expression.clone()),
        _ => return Some(some_event_time()),
    };
    let field = format!("{path}.{field}");
    let expr = Scope::new(columns).and_then(|scope| {
        if let Some(column) = &spec.column
            && scope.column(column).is_none()
        {
            return Err(no_such_column(column, columns));
        }
        let parsed = parse(&sql)?;
        let wanted = [DataType::Timestamp, DataType::TimestampTz];
        let expr = resolve_as(&parsed, &scope, &wanted)?;
        if expr.data_type == DataType::Timestamp {
            return Ok(expr);
        }
        // Event time is UTC without a zone.
        let cast: Parsed = parse(&format!("CAST({} AS TIMESTAMP)", expr.sql))?;
        resolve_as(&cast, &scope, &[DataType::Timestamp])
    });
    match expr {
        Ok(expr) => Some(EventTimeSpec {
            expr,
            max_out_of_orderness_us: spec.max_out_of_orderness.micros(),
            idle_timeout_ms: spec
                .idle_timeout
                .and_then(|timeout| u64::try_from(timeout.micros() / 1_000).ok()),
        }),
        Err(error) => {
            context.add_in(&field, &sql, error);
            Some(some_event_time())
        }
    }
}

/// Stands for an event time that is written wrongly, so that windows do not miss it too.
fn some_event_time() -> EventTimeSpec {
    let expr = Expr {
        sql: String::new(),
        data_type: DataType::Timestamp,
        nullable: true,
    };
    EventTimeSpec {
        expr,
        max_out_of_orderness_us: 0,
        idle_timeout_ms: None,
    }
}
