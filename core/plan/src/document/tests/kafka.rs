//! Tests: Kafka blocks.
#![expect(clippy::too_many_lines, reason = "tables of cases")]

use streamforge_core::job_graph::{ChangelogMode, Delivery, Format, OperatorKind};

use super::super::kafka;
use super::{GOOD, Problem, load};
use crate::kafka_settings::{SETTINGS, values_of};

/// The good document with Kafka at both ends; tests break one thing of it.
fn kafka() -> String {
    let source = "kafka: {bootstrapServers: \"a:9092,b:9092\", topics: [clicks]}";
    let sink = "kafka: {bootstrapServers: \"a:9092\", topic: out, key: [user_id]}";
    GOOD.replacen("file: {path: \"/data/*.ndjson\"}", source, 1)
        .replacen("file: {path: /data/out}", sink, 1)
}

/// Path, message and hint of each problem.
fn told(from: &str, to: &str) -> Vec<(String, String, String)> {
    let text = kafka();
    assert!(text.contains(from), "the document has no `{from}`");
    let told = |p: Problem| (p.path, p.message, p.hint.unwrap_or_default());
    let loaded = load(&text.replacen(from, to, 1), "job.yaml");
    let said = loaded.map_or_else(|problems| problems, |loaded| loaded.notes);
    said.into_iter().map(told).collect()
}

#[test]
fn a_document_with_kafka_at_both_ends_is_good_and_exactly_once() {
    let loaded = load(&kafka(), "job.yaml").unwrap_or_else(|problems| panic!("{problems:#?}"));
    let graph = crate::plan(&loaded);

    let kinds: Vec<&OperatorKind> = graph
        .operators()
        .map(|(_, operator)| &operator.kind)
        .collect();
    let source = kinds.iter().find_map(|kind| match kind {
        OperatorKind::Source(spec) => Some(spec),
        _ => None,
    });
    let source = source.unwrap();
    assert_eq!(source.connector.kind, "kafka");
    assert!(!source.bounded, "without endAt a topic has no end");
    let sink = kinds.iter().find_map(|kind| match kind {
        OperatorKind::Sink(spec) if spec.connector.kind == "kafka" => Some(spec),
        _ => None,
    });
    let sink = sink.unwrap();
    assert_eq!(
        (sink.delivery, sink.changelog),
        (Delivery::ExactlyOnce, ChangelogMode::AppendOnly)
    );
}

#[test]
fn upsert_is_a_mode_of_its_own_and_needs_a_key() {
    let upsert = kafka().replacen(
        "key: [user_id]}, format: {json: {}}",
        "key: [user_id]}, format: {json: {}}, changelog: Upsert",
        1,
    );
    let loaded = load(&upsert, "job.yaml").unwrap_or_else(|problems| panic!("{problems:#?}"));
    let graph = crate::plan(&loaded);
    let upserts = graph.operators().filter(|(_, operator)| {
        matches!(&operator.kind, OperatorKind::Sink(spec) if spec.changelog == ChangelogMode::Upsert)
    });
    assert_eq!(upserts.count(), 1);

    assert_eq!(
        told(
            ", key: [user_id]}, format: {json: {}}",
            "}, format: {json: {}}, changelog: Upsert"
        ),
        [(
            "spec.sinks[0].kafka".to_owned(),
            "`changelog: Upsert` needs a key".to_owned(),
            "write `key: [column]` in the kafka block".to_owned()
        )]
    );
}

#[test]
fn hidden_columns_of_kafka_can_be_read_by_name() {
    let text = kafka().replacen(
        "filter: \"amount > 0\"",
        "filter: \"_offset >= 0 AND _partition < 3 AND _topic = 'clicks' AND _key IS NOT NULL\"",
        1,
    );

    let loaded = load(&text, "job.yaml").unwrap_or_else(|problems| panic!("{problems:#?}"));

    let graph = crate::plan(&loaded);
    let names: Vec<String> = graph
        .operators()
        .filter(|(_, operator)| matches!(operator.kind, OperatorKind::Source(_)))
        .flat_map(|(_, operator)| operator.output.iter().map(|column| column.name.clone()))
        .collect();
    for name in ["_key", "_topic", "_partition", "_offset"] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
}

#[test]
fn a_csv_record_has_no_header() {
    let text = kafka().replacen("    format: {json: {}}", "    format: {csv: {}}", 1);
    let text = text
        .replacen("    - {name: tags, type: \"TEXT[]\"}\n", "", 1)
        .replacen(
            "  - {name: words, from: clicks, unnest: \"tags AS tag\"}\n",
            "",
            1,
        )
        .replacen("  - {name: words_out, from: words, print: {}}\n", "", 1)
        .replacen(", path: /meta/time", "", 1);
    let loaded = load(&text, "job.yaml").unwrap_or_else(|problems| panic!("{problems:#?}"));
    let graph = crate::plan(&loaded);
    let csv = graph
        .operators()
        .find_map(|(_, operator)| match &operator.kind {
            OperatorKind::Source(spec) => spec.format.clone(),
            _ => None,
        });
    assert!(matches!(csv, Some(Format::Csv { header: false, .. })));
}

#[test]
fn mistakes_of_kafka_blocks_are_told() {
    let source = "spec.sources[0].kafka";
    let sink = "spec.sinks[0].kafka";
    let topics = "topics: [clicks]";
    let cases: Vec<(&str, &str, String, &str)> = vec![
        (
            "\"a:9092,b:9092\"",
            "\"a:9092,b:x\"",
            format!("{source}.bootstrapServers"),
            "`b:x` is no address of a broker",
        ),
        (
            topics,
            "topics: [clicks, clicks]",
            format!("{source}.topics[1]"),
            "`clicks` is in the list twice",
        ),
        (
            topics,
            "topics: [\"a b\"]",
            format!("{source}.topics[0]"),
            "`a b` is no name of a topic",
        ),
        (
            topics,
            "topicPattern: \"clicks-(\"",
            format!("{source}.topicPattern"),
            "`clicks-(` is no regular expression",
        ),
        (
            topics,
            "topics: [clicks], startFrom: Timestamp",
            source.to_owned(),
            "`startTimestamp` is missing",
        ),
        (
            topics,
            "topics: [clicks], startFrom: Timestamp, startTimestamp: yesterday",
            format!("{source}.startTimestamp"),
            "`yesterday` is no time",
        ),
        (
            topics,
            "topics: [clicks], startTimestamp: \"2026-01-31T00:00:00Z\"",
            format!("{source}.startTimestamp"),
            "`startTimestamp` means nothing here",
        ),
        (
            topics,
            "topics: [clicks], properties: {\"auto.offset.reset\": latest}",
            format!("{source}.properties.auto.offset.reset"),
            "`auto.offset.reset` cannot be set",
        ),
        (
            topics,
            "topics: [clicks], properties: {\"ssl.key.password\": hush}",
            format!("{source}.properties.ssl.key.password"),
            "`ssl.key.password` would put a secret into the document",
        ),
        (
            topics,
            "topics: [clicks], properties: {\"no.such.setting\": x}",
            format!("{source}.properties.no.such.setting"),
            "`no.such.setting` is no known setting of librdkafka",
        ),
        (
            "key: [user_id]",
            "key: [user_id], properties: {\"test.mock.num.brokers\": \"3\"}",
            format!("{sink}.properties.test.mock.num.brokers"),
            "`test.mock.num.brokers` cannot be set",
        ),
        (
            "key: [user_id]",
            "key: [user_id], properties: {\"transaction.timeout.ms\": abc}",
            format!("{sink}.properties.transaction.timeout.ms"),
            "`abc` is no value of `transaction.timeout.ms`",
        ),
        (
            "key: [user_id]",
            "key: [user_id], properties: {\"compression.type\": zip}",
            format!("{sink}.properties.compression.type"),
            "`zip` is no value of `compression.type`",
        ),
        (
            topics,
            "topics: [clicks], security: {protocol: SaslSsl, credentialsSecret: {name: k}}",
            format!("{source}.security"),
            "`mechanism` is missing",
        ),
        (
            topics,
            "topics: [clicks], security: {protocol: Ssl, credentialsSecret: {name: k}}",
            format!("{source}.security.credentialsSecret"),
            "`credentialsSecret` means nothing without a SASL protocol",
        ),
        (
            "topic: out",
            "topic: \"..\"",
            format!("{sink}.topic"),
            "`..` is no name of a topic",
        ),
        (
            "key: [user_id]",
            "key: [user]",
            format!("{sink}.key[0]"),
            "no column is named `user`",
        ),
        (
            "key: [user_id]",
            "key: [user_id], properties: {acks: \"1\"}",
            format!("{sink}.properties.acks"),
            "`acks` cannot be set",
        ),
        (
            "key: [user_id]}, format: {json: {}}",
            "key: [user_id]}, format: {parquet: {}}",
            "spec.sinks[0].format.parquet".to_owned(),
            "a record of Kafka is no Parquet file",
        ),
        (
            "key: [user_id]}, format: {json: {}}",
            "key: [user_id]}, format: {csv: {header: true}}",
            "spec.sinks[0].format.csv.header".to_owned(),
            "a record of Kafka has no header line",
        ),
    ];
    for (from, to, path, message) in cases {
        let told = told(from, to);
        let found: Vec<(&str, &str)> = told
            .iter()
            .map(|(path, message, _)| (path.as_str(), message.as_str()))
            .collect();
        assert_eq!(found, [(path.as_str(), message)], "{to}");
    }
}

#[test]
fn mistakes_in_properties_name_a_cure_that_is_none_themselves() {
    let sink = |property: &str| {
        let written =
            format!("key: [user_id], security: {{protocol: Ssl}}, properties: {{{property}}}");
        told("key: [user_id]", &written)
    };
    for (wrong, cure) in [
        ("\"lingr.ms\": \"5\"", "did you mean `linger.ms`?"),
        (
            "\"transaction.timeout.ms\": \"1\"",
            "write a whole number from 1000 to 2147483647",
        ),
        (
            "\"compression.type\": zip",
            "write one of `none`, `gzip`, `snappy`, `lz4`, `zstd`",
        ),
        ("\"ssl.key.pem\": hush", kafka::KEY_OF_CLIENT),
        ("\"ssl.key.password\": hush", kafka::KEY_OF_CLIENT),
    ] {
        let told = sink(wrong);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].2, cure, "{wrong}");
    }
    for good in [
        "\"linger.ms\": \"0.5\", \"compression.type\": ZSTD",
        "\"transaction.timeout.ms\": \"60000\"",
        "\"ssl.certificate.location\": /client/tls.crt, \"ssl.key.location\": /client/tls.key",
    ] {
        assert_eq!(sink(good), [], "{good}");
    }
}

#[test]
fn long_wait_of_a_source_with_a_fetch_is_noted_and_a_sink_has_none() {
    let source = |value: &str| {
        let written = format!("topics: [clicks], properties: {{fetch.wait.max.ms: \"{value}\"}}");
        told("topics: [clicks]", &written)
    };

    let noted = source("5000");
    assert_eq!(noted.len(), 1, "{noted:?}");
    let (path, message, hint) = &noted[0];
    assert_eq!(path, "spec.sources[0].kafka.properties.fetch.wait.max.ms");
    assert!(
        message.starts_with("`fetch.wait.max.ms` counts as 1000"),
        "{message}"
    );
    assert!(hint.starts_with("write 1000 or less"), "{hint}");
    assert_eq!(source("1000"), []);
    let sink = "key: [user_id], properties: {fetch.wait.max.ms: \"5000\"}";
    assert_eq!(told("key: [user_id]", sink), []);
}

#[test]
fn no_setting_is_both_refused_and_known() {
    for (name, _) in kafka::REFUSED_PROPERTIES {
        assert_eq!(values_of(name), None, "{name}");
    }
    for (name, _) in SETTINGS {
        assert!(!kafka::is_secret(name), "{name}");
    }
}
