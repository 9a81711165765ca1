//! Kafka blocks of sources and sinks.
//!
//! Owns: what can be wrong with them before any broker is asked: names, patterns, librdkafka settings
//! that would break a guarantee, security that does not fit together.

use std::collections::BTreeMap;

use chrono::DateTime;
use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::{Column, Format};
use streamforge_crds::v1alpha1::{
    self as written, Changelog, KafkaSecurity, KafkaSink, KafkaSource, SecurityProtocol, Sink,
    Source, StartFrom,
};

use super::Output;
use super::nodes::Context;
use super::sinks::check_columns;
use crate::kafka_settings;
use crate::problem::did_you_mean;

/// Longest name of a topic that brokers take.
const TOPIC_BYTES_MAX: usize = 249;

/// Settings of librdkafka that are ours, and why or what to write instead.
pub(super) const REFUSED_PROPERTIES: &[(&str, &str)] = &[
    ("bootstrap.servers", "write `bootstrapServers`"),
    ("metadata.broker.list", "write `bootstrapServers`"),
    ("security.protocol", "write `security.protocol`"),
    ("sasl.mechanism", "write `security.mechanism`"),
    ("sasl.mechanisms", "write `security.mechanism`"),
    ("sasl.username", "write `security.credentialsSecret`"),
    ("sasl.password", "write `security.credentialsSecret`"),
    ("ssl.ca.location", "write `security.caSecret`"),
    ("ssl.ca.pem", "write `security.caSecret`"),
    (
        "group.id",
        "it is made of the job's identity; a group of others would be disturbed",
    ),
    (
        "group.instance.id",
        "splits are assigned by checkpoints, not by a group",
    ),
    (
        "group.protocol",
        "splits are assigned by checkpoints, not by a group",
    ),
    (
        "partition.assignment.strategy",
        "splits are assigned by checkpoints, not by a group",
    ),
    ("enable.auto.commit", "positions are in checkpoints"),
    ("enable.auto.offset.store", "positions are in checkpoints"),
    ("auto.commit.interval.ms", "positions are in checkpoints"),
    (
        "auto.offset.reset",
        "write `startFrom` and `onOffsetOutOfRange`",
    ),
    ("enable.partition.eof", "idleness and bounded reads need it"),
    (
        "statistics.interval.ms",
        "idleness and bounded reads need it",
    ),
    ("debug", "the identity of topics is read from it"),
    ("log.queue", "the identity of topics is read from the log"),
    (
        "transactional.id",
        "it is made of the job's identity: it is the fence between attempts",
    ),
    (
        "enable.idempotence",
        "without it a retry may write a row twice",
    ),
    (
        "enable.gapless.guarantee",
        "a failed row would stop the sink for ever",
    ),
    ("acks", "a row counts when all replicas in sync have it"),
    (
        "request.required.acks",
        "a row counts when all replicas in sync have it",
    ),
    (
        "max.in.flight",
        "an idempotent producer allows at most 5, which is the default here",
    ),
    (
        "max.in.flight.requests.per.connection",
        "an idempotent producer allows at most 5, which is the default here",
    ),
    ("partitioner", "write `partitioner`"),
    (
        "allow.auto.create.topics",
        "a misspelt topic would be made instead of told",
    ),
    ("plugin.library.paths", "no code is loaded by name"),
    ("ssl.engine.location", "no code is loaded by name"),
    ("ssl.engine.id", "no code is loaded by name"),
    (
        "delivery.report.only.error",
        "a row counts when its delivery is reported",
    ),
    (
        "test.mock.num.brokers",
        "its brokers are in memory: nothing would be read or kept",
    ),
    (
        "queuing.strategy",
        "an idempotent producer writes in order of arrival",
    ),
];

/// How long a broker may wait with the answer to a fetch.
const FETCH_WAIT: &str = "fetch.wait.max.ms";

/// What the reader of a source makes of more.
const FETCH_WAIT_MAX_MS: i64 = 1_000;

/// What to write instead of a client's key that is a secret.
pub(super) const KEY_OF_CLIENT: &str = "write `ssl.certificate.location` and `ssl.key.location`, the paths of files of \
     which the key has no password; in a cluster they come from a Secret by a volume of `taskManager.podTemplate`";

/// Settings whose value is a secret.
pub(super) fn is_secret(name: &str) -> bool {
    ["password", "passphrase", "secret", "key.pem"]
        .iter()
        .any(|word| name.contains(word))
}

fn check_properties(properties: &BTreeMap<String, String>, path: &str, context: &mut Context<'_>) {
    for name in properties.keys() {
        let path = format!("{path}.properties.{name}");
        if let Some((_, why)) = REFUSED_PROPERTIES
            .iter()
            .find(|(refused, _)| refused == name)
        {
            let message = format!("`{name}` cannot be set");
            context.add(&path, message, Some((*why).to_owned()));
        } else if is_secret(name) {
            let message = format!("`{name}` would put a secret into the document");
            let hint = if name.starts_with("ssl.") {
                KEY_OF_CLIENT
            } else {
                "name a secret: `security: {protocol: SaslSsl, mechanism: ScramSha512, \
                 credentialsSecret: {name: kafka}}`"
            };
            context.add(&path, message, Some(hint.to_owned()));
        }
    }
}

/// What librdkafka is likely to refuse when the job starts. Notes, no mistakes: it knows more than its table says,
/// and a job that runs must not lose its coordinator to a newer table.
pub(super) fn note_settings(spec: &written::StreamJobSpec, notes: &mut Context<'_>) {
    let sources = (spec.sources.iter().enumerate())
        .filter_map(|(idx, it)| Some(("spec.sources", idx, &it.kafka.as_ref()?.properties)));
    let sinks = (spec.sinks.iter().enumerate())
        .filter_map(|(idx, it)| Some(("spec.sinks", idx, &it.kafka.as_ref()?.properties)));
    for (list, idx, properties) in sources.chain(sinks) {
        let idx = notes.places.document_idx(list, idx);
        for (name, value) in properties {
            let path = format!("{list}[{idx}].kafka.properties.{name}");
            if !is_secret(name) {
                note_value(name, value, &path, notes);
                if list == "spec.sources" && name == FETCH_WAIT {
                    note_fetch_wait(value, &path, notes);
                }
            }
        }
    }
}

/// A broker that waits longer with the answer to a fetch could not be told from one that is away.
fn note_fetch_wait(value: &str, path: &str, notes: &mut Context<'_>) {
    let wait = value.parse::<i64>();
    if wait.is_ok_and(|wait| (FETCH_WAIT_MAX_MS + 1..=300_000).contains(&wait)) {
        let message = format!(
            "`{FETCH_WAIT}` counts as {FETCH_WAIT_MAX_MS}: a broker that is silent for longer counts as away, and \
             its partitions would never be idle"
        );
        let hint = format!(
            "write {FETCH_WAIT_MAX_MS} or less; for fewer and larger fetches raise `fetch.min.bytes`, too"
        );
        notes.add(path, message, Some(hint));
    }
}

fn note_value(name: &str, value: &str, path: &str, notes: &mut Context<'_>) {
    let Some(values) = kafka_settings::values_of(name) else {
        let message = format!(
            "`{}` is no known setting of librdkafka",
            crate::yaml::cut(name)
        );
        let known = kafka_settings::SETTINGS.iter().map(|(known, _)| *known);
        let hint = did_you_mean(name, known).unwrap_or_else(|| {
            "take it away, or write another setting that librdkafka documents".to_owned()
        });
        return notes.add(path, message, Some(hint));
    };
    if !values.has(value) {
        let message = format!("`{}` is no value of `{name}`", crate::yaml::cut(value));
        notes.add(path, message, Some(format!("write {values}")));
    }
}

fn check_servers(servers: &str, path: &str, context: &mut Context<'_>) {
    let is_server = |server: &str| {
        let server = server.trim();
        let (host, port) = match server.rsplit_once(':') {
            // Without a port librdkafka takes 9092.
            None => (server, "9092"),
            Some((host, port)) => (host, port),
        };
        !host.is_empty()
            && !host.contains(['/', ' ', '@', '\0'])
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    if let Some(wrong) = servers.split(',').find(|server| !is_server(server)) {
        let message = format!(
            "`{}` is no address of a broker",
            crate::yaml::cut(wrong.trim())
        );
        let hint = "write `host:port,host:port`";
        context.add(
            &format!("{path}.bootstrapServers"),
            message,
            Some(hint.to_owned()),
        );
    }
}

fn check_topic(topic: &str, path: &str, context: &mut Context<'_>) {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = !topic.is_empty()
        && topic.len() <= TOPIC_BYTES_MAX
        && topic.bytes().all(fits)
        && !matches!(topic, "." | "..");
    if !is_name {
        let message = format!("`{}` is no name of a topic", crate::yaml::cut(topic));
        let hint = "a topic's name has letters, digits, `.`, `_` and `-`, at most 249 of them";
        context.add(path, message, Some(hint.to_owned()));
    }
}

fn check_security(security: Option<&KafkaSecurity>, path: &str, context: &mut Context<'_>) {
    let Some(security) = security else { return };
    let path = format!("{path}.security");
    let (sasl, tls) = match security.protocol {
        SecurityProtocol::Plaintext => (false, false),
        SecurityProtocol::Ssl => (false, true),
        SecurityProtocol::SaslPlaintext => (true, false),
        SecurityProtocol::SaslSsl => (true, true),
    };
    if sasl && security.mechanism.is_none() && !context.places.is_cut(&path) {
        let hint = "write `mechanism: ScramSha512`, ScramSha256 or Plain";
        context.add(&path, "`mechanism` is missing", Some(hint.to_owned()));
    }
    if sasl && security.credentials_secret.is_none() && !context.places.is_cut(&path) {
        let hint =
            "write `credentialsSecret: {name: kafka}`: a secret with `username` and `password`";
        context.add(
            &path,
            "`credentialsSecret` is missing",
            Some(hint.to_owned()),
        );
    }
    let sasl_hint = || Some("write `protocol: SaslSsl`".to_owned());
    if !sasl && security.mechanism.is_some() {
        let message = "`mechanism` means nothing without a SASL protocol";
        context.add(&format!("{path}.mechanism"), message, sasl_hint());
    }
    if !sasl && security.credentials_secret.is_some() {
        let message = "`credentialsSecret` means nothing without a SASL protocol";
        context.add(&format!("{path}.credentialsSecret"), message, sasl_hint());
    }
    if !tls && security.ca_secret.is_some() {
        let message = "`caSecret` means nothing without TLS";
        let hint = Some("write `protocol: Ssl` or SaslSsl".to_owned());
        context.add(&format!("{path}.caSecret"), message, hint);
    }
}

/// A source's `kafka:` block.
pub(super) fn check_source(kafka: &KafkaSource, path: &str, context: &mut Context<'_>) {
    check_servers(&kafka.bootstrap_servers, path, context);
    for (idx, topic) in kafka.topics.iter().enumerate() {
        let list = format!("{path}.topics");
        let path = format!("{list}[{}]", context.places.document_idx(&list, idx));
        check_topic(topic, &path, context);
        if kafka.topics.iter().take(idx).any(|other| other == topic) {
            context.add(&path, format!("`{topic}` is in the list twice"), None);
        }
    }
    if let Some(pattern) = &kafka.topic_pattern {
        let path = format!("{path}.topicPattern");
        if regex::Regex::new(pattern).is_err() {
            let message = format!("`{}` is no regular expression", crate::yaml::cut(pattern));
            let hint = "a pattern matches whole names: `clicks-.*`";
            context.add(&path, message, Some(hint.to_owned()));
        }
    }
    check_start(kafka, path, context);
    check_properties(&kafka.properties, path, context);
    check_security(kafka.security.as_ref(), path, context);
}

fn check_start(kafka: &KafkaSource, path: &str, context: &mut Context<'_>) {
    let field = format!("{path}.startTimestamp");
    match (kafka.start_from, &kafka.start_timestamp) {
        (StartFrom::Timestamp, None) => {
            if !context.places.is_cut(&field) {
                let hint = Some("write `startTimestamp: 2026-01-31T00:00:00Z`".to_owned());
                context.add(path, "`startTimestamp` is missing", hint);
            }
        }
        (StartFrom::Timestamp, Some(time)) => {
            if DateTime::parse_from_rfc3339(time).is_err() {
                let message = format!("`{}` is no time", crate::yaml::cut(time));
                let hint = Some("write it as in `2026-01-31T00:00:00Z`".to_owned());
                context.add(&field, message, hint);
            }
        }
        (StartFrom::Earliest | StartFrom::Latest, Some(_)) => {
            let hint = Some("write `startFrom: Timestamp`".to_owned());
            context.add(&field, "`startTimestamp` means nothing here", hint);
        }
        (StartFrom::Earliest | StartFrom::Latest, None) => {}
    }
}

/// What a Kafka source makes of its format: every record is one row, so there is no header.
pub(super) fn source_format(
    source: &Source,
    format: Format,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Format> {
    record_format(source.format.as_ref(), format, path, context)
}

fn record_format(
    written: Option<&written::Format>,
    format: Format,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Format> {
    match format {
        Format::Parquet => {
            let hint = Some("write json, csv or raw".to_owned());
            let message = "a record of Kafka is no Parquet file";
            context.add(&format!("{path}.parquet"), message, hint);
            None
        }
        Format::Csv {
            delimiter, null, ..
        } => {
            let header = format!("{path}.csv.header");
            let wanted = written
                .and_then(|format| format.csv.as_ref())
                .is_some_and(|csv| csv.header);
            if wanted && context.places.has(&header) {
                let hint = "leave `header` out: fields come in the order of the columns";
                let message = "a record of Kafka has no header line";
                context.add(&header, message, Some(hint.to_owned()));
            }
            Some(Format::Csv {
                header: false,
                delimiter,
                null,
            })
        }
        Format::Json | Format::Raw => Some(format),
    }
}

/// What a Kafka sink makes of its format.
pub(super) fn sink_format(
    sink: &Sink,
    format: Format,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Format> {
    record_format(sink.format.as_ref(), format, path, context)
}

/// Columns that a Kafka source adds, used only where named.
pub(super) fn hidden_columns() -> Vec<Column> {
    let column = |name: &str, data_type, nullable| Column {
        name: name.to_owned(),
        data_type,
        nullable,
    };
    let header = DataType::Struct(vec![
        ("name".to_owned(), DataType::Text),
        ("value".to_owned(), DataType::Bytea),
    ]);
    vec![
        column("_key", DataType::Bytea, true),
        column("_topic", DataType::Text, false),
        column("_partition", DataType::Int, false),
        column("_offset", DataType::BigInt, false),
        column("_timestamp", DataType::Timestamp, true),
        column("_headers", DataType::List(Box::new(header)), false),
    ]
}

/// A sink's `kafka:` block.
pub(super) fn check_sink(
    sink: &Sink,
    kafka: &KafkaSink,
    path: &str,
    (input, context): (&Output, &mut Context<'_>),
) {
    check_servers(&kafka.bootstrap_servers, path, context);
    check_topic(&kafka.topic, &format!("{path}.topic"), context);
    let list = format!("{path}.key");
    check_columns(&kafka.key, &list, "a key cannot be made of", input, context);
    if sink.changelog == Some(Changelog::Upsert)
        && kafka.key.is_empty()
        && !context.places.is_cut(&list)
    {
        let hint = Some("write `key: [column]` in the kafka block".to_owned());
        context.add(path, "`changelog: Upsert` needs a key", hint);
    }
    check_properties(&kafka.properties, path, context);
    check_security(kafka.security.as_ref(), path, context);
}
