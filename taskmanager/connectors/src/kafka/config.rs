//! The document's `kafka:` blocks, and the clients' settings made of them.
//!
//! Owns: reading the blocks, secrets from their folder, and which settings are ours. A secret is never
//! printed: [`ClientConfig`]'s own Debug hides what it knows to be one, and nothing here shows more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use serde::Deserialize;
use streamforge_core::secret_name::{SECRET_NAME_RULE, is_secret_name};
use streamforge_engine::error::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{failed, refused};

/// How long a client waits for an answer that a start needs.
pub const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Bytes that all readers of one source in this process may hold unread, over all partitions.
pub const PREFETCH_BYTES: u64 = 64 << 20;

/// Least that a partition may hold unread, so that a fetch has room for some records.
const PREFETCH_BYTES_MIN: u64 = 256 << 10;

/// Bytes of one batch of a producer at most.
const BATCH_BYTES_MAX: usize = 1_000_000;

/// How long a broker may wait with the answer to a fetch at most, whatever a document says: one that leaves a
/// fetch without an answer for 3 s is silent, and no partition of it is ever idle (T2). `validate` notes it.
const FETCH_WAIT_MAX_MS: i64 = 1_000;

/// How often a consumer tells how far it is. Idleness and the end of a bounded read are noticed with
/// this delay where no record tells them.
pub const STATISTICS_EVERY_MS: u32 = 250;

/// Where a first start begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum StartFrom {
    /// The oldest record.
    #[default]
    Earliest,
    /// What arrives after the start.
    Latest,
    /// The first record at or after `startTimestamp`.
    Timestamp,
}

/// Where to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum EndAt {
    /// At the offsets seen at the start.
    Latest,
}

/// What to do when the wanted offset is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum OnOffsetOutOfRange {
    /// Stop the job.
    #[default]
    Fail,
    /// Go on at the oldest record, counted.
    Earliest,
}

/// Names a secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SecretName {
    /// Its name.
    pub name: String,
}

/// Encryption and authentication.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// `Plaintext`, `Ssl`, `SaslPlaintext`, `SaslSsl`.
    pub protocol: String,
    /// `Plain`, `ScramSha256`, `ScramSha512`.
    pub mechanism: Option<String>,
    /// Keys `username` and `password`.
    pub credentials_secret: Option<SecretName>,
    /// Key `ca.crt`.
    pub ca_secret: Option<SecretName>,
}

/// What every client needs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// `host:port,host:port`
    pub bootstrap_servers: String,
    /// librdkafka settings.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// Encryption and authentication.
    pub security: Option<Security>,
}

/// A source's block.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceConfig {
    /// How to get there.
    #[serde(flatten)]
    pub access: Access,
    /// Topics by name.
    #[serde(default)]
    pub topics: Vec<String>,
    /// Topics by regular expression, over whole names.
    pub topic_pattern: Option<String>,
    /// Where a first start begins.
    #[serde(default)]
    pub start_from: StartFrom,
    /// RFC 3339.
    pub start_timestamp: Option<String>,
    /// Where to stop.
    pub end_at: Option<EndAt>,
    /// What to do when the wanted offset is gone.
    #[serde(default)]
    pub on_offset_out_of_range: OnOffsetOutOfRange,
}

/// A sink's block.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SinkConfig {
    /// How to get there.
    #[serde(flatten)]
    pub access: Access,
    /// The topic.
    pub topic: String,
    /// Columns of the record's key.
    #[serde(default)]
    pub key: Vec<String>,
}

/// A secret's value, from `<folder>/<secret>/<key>`, without a trailing newline.
fn secret(folder: Option<&Path>, name: &str, key: &str) -> Result<String, Error> {
    let action = || format!("read secret `{name}`");
    let Some(folder) = folder else {
        let reason = "no folder of secrets is given: write `--secrets DIR`";
        return Err(refused(action(), reason));
    };
    if !is_secret_name(name) {
        return Err(refused(action(), SECRET_NAME_RULE));
    }
    let path: PathBuf = folder.join(name).join(key);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let reason = format!("{}: {error}", path.display());
        refused(action(), reason)
    })?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

fn set_security(
    config: &mut ClientConfig,
    security: &Security,
    secrets: Option<&Path>,
) -> Result<(), Error> {
    let protocol = match security.protocol.as_str() {
        "Ssl" => "ssl",
        "SaslPlaintext" => "sasl_plaintext",
        "SaslSsl" => "sasl_ssl",
        _ => "plaintext",
    };
    config.set("security.protocol", protocol);
    match security.mechanism.as_deref() {
        Some("Plain") => drop(config.set("sasl.mechanism", "PLAIN")),
        Some("ScramSha256") => drop(config.set("sasl.mechanism", "SCRAM-SHA-256")),
        Some("ScramSha512") => drop(config.set("sasl.mechanism", "SCRAM-SHA-512")),
        Some(_) | None => {}
    }
    if let Some(SecretName { name }) = &security.credentials_secret {
        config.set("sasl.username", secret(secrets, name, "username")?);
        config.set("sasl.password", secret(secrets, name, "password")?);
    }
    if let Some(SecretName { name }) = &security.ca_secret {
        config.set("ssl.ca.pem", secret(secrets, name, "ca.crt")?);
    }
    Ok(())
}

impl Access {
    /// Stands for what the secrets say now: another number after they were replaced. Never shown.
    pub fn credentials(&self, secrets: Option<&Path>) -> u64 {
        let mut said = ClientConfig::new();
        if let Some(security) = &self.security {
            // What cannot be read is one more thing that they may say.
            let _unreadable = set_security(&mut said, security, secrets);
        }
        let keys = ["sasl.username", "sasl.password", "ssl.ca.pem"];
        let values = keys.map(|key| said.get(key).unwrap_or_default());
        xxh3_64(values.join("\0").as_bytes())
    }

    /// Settings of any client: the document's, and nothing of ours that could be changed by it.
    fn client(&self, name: &str, secrets: Option<&Path>) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::new();
        config.set("client.id", name);
        // A broker that comes back is noticed within this time.
        config.set("reconnect.backoff.max.ms", "1000");
        for (property, value) in &self.properties {
            config.set(property, value);
        }
        config.set("bootstrap.servers", &self.bootstrap_servers);
        config.set("allow.auto.create.topics", "false");
        // The identity of a topic is told only in the log, at this level and in this context.
        config.set("debug", "metadata");
        config.set_log_level(RDKafkaLogLevel::Debug);
        if let Some(security) = &self.security {
            set_security(&mut config, security, secrets)?;
        }
        Ok(config)
    }

    /// A client that asks for positions and never reads. What is in open transactions counts.
    pub fn lookup(&self, secrets: Option<&Path>) -> Result<ClientConfig, Error> {
        let mut config = self.client("streamforge-lookup", secrets)?;
        config.set("isolation.level", "read_uncommitted");
        Ok(config)
    }

    /// A client that reads settings of topics and brokers.
    pub fn settings_reader(&self, secrets: Option<&Path>) -> Result<ClientConfig, Error> {
        let mut config = self.client("streamforge-lookup", secrets)?;
        config.remove("debug");
        config.set_log_level(RDKafkaLogLevel::Critical);
        Ok(config)
    }

    /// A reader of so many partitions.
    pub fn reader(
        &self,
        group: &str,
        partitions_n: usize,
        secrets: Option<&Path>,
    ) -> Result<ClientConfig, Error> {
        let mut config = self.client(group, secrets)?;
        let share = PREFETCH_BYTES / partitions_n.max(1) as u64;
        let share_kb = share.max(PREFETCH_BYTES_MIN) / 1024;
        let mut default = |name: &str, value: String| {
            if !self.properties.contains_key(name) {
                config.set(name, value);
            }
        };
        default("queued.max.messages.kbytes", share_kb.to_string());
        default("fetch.message.max.bytes", (1 << 20).to_string());
        default("isolation.level", "read_committed".to_owned());
        // A reader that has caught up is told of new records within this time.
        default("fetch.wait.max.ms", "100".to_owned());
        default("fetch.queue.backoff.ms", "20".to_owned());
        let wait = config
            .get("fetch.wait.max.ms")
            .and_then(|it| it.parse().ok());
        if wait.is_some_and(|wait: i64| wait > FETCH_WAIT_MAX_MS) {
            config.set("fetch.wait.max.ms", FETCH_WAIT_MAX_MS.to_string());
        }
        config.set("group.id", group);
        config.set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false");
        config.set("auto.offset.reset", "error");
        config.set("enable.partition.eof", "true");
        config.set("statistics.interval.ms", STATISTICS_EVERY_MS.to_string());
        Ok(config)
    }

    /// A client that reads a slot's marker.
    pub fn marker_reader(
        &self,
        group: &str,
        secrets: Option<&Path>,
    ) -> Result<ClientConfig, Error> {
        let mut config = self.client(group, secrets)?;
        config.set("group.id", group);
        config.set("enable.auto.commit", "false");
        config.set("isolation.level", "read_committed");
        Ok(config)
    }

    /// A producer that never writes a record twice by a retry, for a topic that takes so many bytes at
    /// once: a batch of small records must not be larger than that either.
    pub fn idempotent_producer(
        &self,
        name: &str,
        message_bytes_max: usize,
        secrets: Option<&Path>,
    ) -> Result<ClientConfig, Error> {
        let mut config = self.client(name, secrets)?;
        if !self.properties.contains_key("linger.ms") {
            config.set("linger.ms", "1");
        }
        let batch = message_bytes_max.min(BATCH_BYTES_MAX);
        config.set("batch.size", batch.to_string());
        let message = message_bytes_max.clamp(1_000, 1_000_000_000);
        config.set("message.max.bytes", message.to_string());
        config.set("enable.idempotence", "true");
        // What a partition is was decided before: by the key's hash, or in turn.
        config.set("partitioner", "murmur2_random");
        Ok(config)
    }

    /// A slot's producer.
    pub fn transactional_producer(
        &self,
        id: &str,
        message_bytes_max: usize,
        secrets: Option<&Path>,
    ) -> Result<ClientConfig, Error> {
        let mut config = self.idempotent_producer(id, message_bytes_max, secrets)?;
        config.set("transactional.id", id);
        // Every connection that breaks, which the client's errors do not tell (X2).
        config.set("debug", "metadata,broker");
        Ok(config)
    }

    /// The longest that a transaction may stay open, and so the longest that a commit may take.
    pub fn transaction_timeout(&self) -> std::time::Duration {
        let set = self.properties.get("transaction.timeout.ms");
        let ms = set.and_then(|text| text.parse().ok()).unwrap_or(60_000);
        std::time::Duration::from_millis(ms)
    }
}

/// The error of a client that could not be made: a setting that librdkafka does not know.
pub fn cannot_open(what: &str, error: rdkafka::error::KafkaError) -> Error {
    failed(format!("open {what}"), false, error)
}

/// The file itself, for a comparison: the plan knows nothing of librdkafka, and connectors nothing of the plan.
#[cfg(test)]
#[path = "../../../../core/plan/src/kafka_settings.rs"]
mod kafka_settings;

#[cfg(test)]
mod tests {
    use super::kafka_settings::{SETTINGS, Values};
    use super::*;

    fn access(json: &str) -> Access {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn our_settings_win_over_the_documents() {
        let access = access(
            r#"{"bootstrapServers":"a:9092",
                "properties":{"group.id":"theirs","enable.auto.commit":"true","fetch.wait.max.ms":"7"}}"#,
        );

        let config = access.reader("ours", 4, None).unwrap();

        assert_eq!(config.get("group.id"), Some("ours"));
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(config.get("fetch.wait.max.ms"), Some("7"), "a short one");
        assert_eq!(config.get("isolation.level"), Some("read_committed"));
    }

    /// A broker that waits longer would count as silent.
    #[test]
    fn broker_waits_with_a_fetch_for_a_second_at_most_t2() {
        for (written, taken) in [("1000", "1000"), ("1001", "1000"), ("300000", "1000")] {
            let json = format!(
                r#"{{"bootstrapServers":"a:9092","properties":{{"fetch.wait.max.ms":"{written}"}}}}"#
            );

            let config = access(&json).reader("ours", 4, None).unwrap();

            assert_eq!(config.get("fetch.wait.max.ms"), Some(taken), "{written}");
        }
    }

    #[test]
    fn memory_of_prefetched_records_is_shared_by_the_partitions_b1() {
        let access = access(r#"{"bootstrapServers":"a:9092"}"#);

        let kb = |n| {
            let config = access.reader("g", n, None).unwrap();
            let kb: u64 = config
                .get("queued.max.messages.kbytes")
                .unwrap()
                .parse()
                .unwrap();
            kb
        };

        assert_eq!(kb(1), 64 << 10);
        assert_eq!(kb(64), 1 << 10);
        assert_eq!(kb(100_000), 256, "room for a fetch in any case");
    }

    #[test]
    fn secrets_come_from_their_folder_and_are_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("kafka")).unwrap();
        std::fs::write(folder.path().join("kafka/username"), "tester\n").unwrap();
        std::fs::write(folder.path().join("kafka/password"), "hush-hush").unwrap();
        let access = access(
            r#"{"bootstrapServers":"a:9092","security":{"protocol":"SaslSsl",
                "mechanism":"ScramSha512","credentialsSecret":{"name":"kafka"}}}"#,
        );

        let config = access.lookup(Some(folder.path())).unwrap();

        assert_eq!(config.get("sasl.username"), Some("tester"));
        assert_eq!(config.get("sasl.password"), Some("hush-hush"));
        assert_eq!(config.get("sasl.mechanism"), Some("SCRAM-SHA-512"));
        assert!(!format!("{config:?}").contains("hush-hush"));
        assert!(!format!("{access:?}").contains("hush-hush"));
        let missing = access.lookup(None).unwrap_err().with_causes();
        assert!(missing.contains("--secrets DIR"), "{missing}");
        let before = access.credentials(Some(folder.path()));
        assert_eq!(before, access.credentials(Some(folder.path())));
        std::fs::write(folder.path().join("kafka/password"), "hush").unwrap();
        assert_ne!(before, access.credentials(Some(folder.path())));
    }

    #[test]
    fn settings_that_a_document_may_write_are_those_that_librdkafka_takes() {
        let takes = |name: &str, value: &str| {
            let mut config = ClientConfig::new();
            config.set(name, value);
            config.create_native_config().is_ok()
        };
        let mut wrong = Vec::new();
        for (name, values) in SETTINGS {
            let (good, bad) = match values {
                Values::Text => (vec!["0.10.0".to_owned()], vec![]),
                Values::Flag => (
                    ["true", "T", "1", "False", "f", "0"]
                        .map(str::to_owned)
                        .to_vec(),
                    vec!["yes".to_owned()],
                ),
                Values::Whole { min, max } => (
                    vec![min.to_string(), max.to_string()],
                    vec![
                        (min - 1).to_string(),
                        (max + 1).to_string(),
                        "abc".to_owned(),
                    ],
                ),
                Values::Number { min, max } => (
                    vec![min.to_string(), "0.5".to_owned(), max.to_string()],
                    vec![
                        (min - 1).to_string(),
                        (max + 1).to_string(),
                        "abc".to_owned(),
                    ],
                ),
                Values::OneOf(words) => (
                    words.iter().map(|word| word.to_uppercase()).collect(),
                    vec!["x".to_owned()],
                ),
            };
            // No retries at all are refused beside our own settings only.
            let retries = matches!(*name, "retries" | "message.send.max.retries");
            let bad = bad.iter().filter(|value| !retries || *value != "0");
            let refused = good
                .iter()
                .filter(|value| !takes(name, value) || !values.has(value));
            let taken = bad.filter(|value| takes(name, value) || values.has(value));
            wrong.extend(refused.map(|value| format!("{name} does not take {value}")));
            wrong.extend(taken.map(|value| format!("{name} takes {value}")));
        }
        assert_eq!(wrong, [""; 0]);
        assert!(!takes("no.such.setting", "x"));
    }
}
