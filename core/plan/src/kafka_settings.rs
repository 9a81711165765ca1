//! Settings of librdkafka that a document may write.
//!
//! Owns: their names, and which values each takes, as far as librdkafka 2.12 documents it; so a mistake is
//! found before any client is made. What would break a guarantee, holds a secret, loads code, or this
//! build has not, is missing. A test of the connectors compares the table with librdkafka itself.

use std::fmt;

/// Which values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any text.
    Text,
    /// True or false.
    Flag,
    /// A whole number.
    Whole {
        /// The least.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// A number.
    Number {
        /// The least.
        min: i32,
        /// The largest.
        max: i32,
    },
    /// A word, in capitals or not.
    OneOf(&'static [&'static str]),
}

impl Values {
    /// Whether this is one of them.
    pub fn has(&self, value: &str) -> bool {
        let is = |word: &&str| word.eq_ignore_ascii_case(value);
        match self {
            Self::Text => true,
            Self::Flag => ["true", "t", "1", "false", "f", "0"].iter().any(is),
            Self::Whole { min, max } => {
                let number = value.parse::<i64>();
                number.is_ok_and(|number| (*min..=*max).contains(&number))
            }
            Self::Number { min, max } => {
                let (min, max) = (f64::from(*min), f64::from(*max));
                let number = value.parse::<f64>();
                number.is_ok_and(|number| (min..=max).contains(&number))
            }
            Self::OneOf(words) => words.iter().any(is),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("a text"),
            Self::Flag => f.write_str("`true` or `false`"),
            Self::Whole { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::Number { min, max } => write!(f, "a number from {min} to {max}"),
            Self::OneOf(words) => write!(f, "one of `{}`", words.join("`, `")),
        }
    }
}

/// Which values the setting of this name takes; `None`: there is no such setting.
pub fn values_of(name: &str) -> Option<Values> {
    let found = SETTINGS.iter().find(|(known, _)| *known == name);
    found.map(|(_, values)| *values)
}

const fn whole(min: i64, max: i64) -> Values {
    Values::Whole { min, max }
}

const fn number(min: i32, max: i32) -> Values {
    Values::Number { min, max }
}

/// All, by name.
pub const SETTINGS: &[(&str, Values)] = &[
    ("api.version.fallback.ms", whole(0, 604_800_000)),
    ("api.version.request", Values::Flag),
    ("api.version.request.timeout.ms", whole(1, 300_000)),
    ("auto.commit.enable", Values::Flag),
    ("batch.num.messages", whole(1, 1_000_000)),
    ("batch.size", whole(1, 2_147_483_647)),
    ("broker.address.family", Values::OneOf(&["any", "v4", "v6"])),
    ("broker.address.ttl", whole(0, 86_400_000)),
    ("broker.version.fallback", Values::Text),
    ("check.crcs", Values::Flag),
    (
        "client.dns.lookup",
        Values::OneOf(&[
            "use_all_dns_ips",
            "resolve_canonical_bootstrap_servers_only",
        ]),
    ),
    ("client.id", Values::Text),
    ("client.rack", Values::Text),
    (
        "compression.codec",
        Values::OneOf(&["none", "gzip", "snappy", "lz4", "zstd"]),
    ),
    ("compression.level", whole(-1, 12)),
    (
        "compression.type",
        Values::OneOf(&["none", "gzip", "snappy", "lz4", "zstd"]),
    ),
    ("connections.max.idle.ms", whole(0, 2_147_483_647)),
    ("consume.callback.max.messages", whole(0, 1_000_000)),
    ("coordinator.query.interval.ms", whole(1, 3_600_000)),
    ("delivery.timeout.ms", whole(0, 2_147_483_647)),
    ("enable.metrics.push", Values::Flag),
    ("enable.random.seed", Values::Flag),
    ("enable.ssl.certificate.verification", Values::Flag),
    ("fetch.error.backoff.ms", whole(0, 300_000)),
    ("fetch.max.bytes", whole(0, 2_147_483_135)),
    ("fetch.message.max.bytes", whole(1, 1_000_000_000)),
    ("fetch.min.bytes", whole(1, 100_000_000)),
    ("fetch.queue.backoff.ms", whole(0, 300_000)),
    ("fetch.wait.max.ms", whole(0, 300_000)),
    ("group.protocol.type", Values::Text),
    ("group.remote.assignor", Values::Text),
    ("heartbeat.interval.ms", whole(1, 3_600_000)),
    (
        "isolation.level",
        Values::OneOf(&["read_uncommitted", "read_committed"]),
    ),
    ("linger.ms", number(0, 900_000)),
    ("log.connection.close", Values::Flag),
    ("log.thread.name", Values::Flag),
    ("log_level", whole(0, 7)),
    ("max.partition.fetch.bytes", whole(1, 1_000_000_000)),
    ("max.poll.interval.ms", whole(1, 86_400_000)),
    ("message.copy.max.bytes", whole(0, 1_000_000_000)),
    ("message.max.bytes", whole(1000, 1_000_000_000)),
    ("message.send.max.retries", whole(1, 2_147_483_647)),
    ("message.timeout.ms", whole(0, 2_147_483_647)),
    ("metadata.max.age.ms", whole(1, 86_400_000)),
    (
        "metadata.recovery.rebootstrap.trigger.ms",
        whole(0, 2_147_483_647),
    ),
    (
        "metadata.recovery.strategy",
        Values::OneOf(&["none", "rebootstrap"]),
    ),
    (
        "offset.store.method",
        Values::OneOf(&["none", "file", "broker"]),
    ),
    ("offset.store.path", Values::Text),
    ("offset.store.sync.interval.ms", whole(-1, 86_400_000)),
    ("produce.offset.report", Values::Flag),
    (
        "queue.buffering.backpressure.threshold",
        whole(1, 1_000_000),
    ),
    ("queue.buffering.max.kbytes", whole(1, 2_147_483_647)),
    ("queue.buffering.max.messages", whole(0, 2_147_483_647)),
    ("queue.buffering.max.ms", number(0, 900_000)),
    ("queued.max.messages.kbytes", whole(1, 2_097_151)),
    ("queued.min.messages", whole(1, 10_000_000)),
    ("receive.message.max.bytes", whole(1000, 2_147_483_647)),
    ("reconnect.backoff.jitter.ms", whole(0, 3_600_000)),
    ("reconnect.backoff.max.ms", whole(0, 3_600_000)),
    ("reconnect.backoff.ms", whole(0, 3_600_000)),
    ("request.timeout.ms", whole(1, 900_000)),
    ("retries", whole(1, 2_147_483_647)),
    ("retry.backoff.max.ms", whole(1, 300_000)),
    ("retry.backoff.ms", whole(1, 300_000)),
    ("session.timeout.ms", whole(1, 3_600_000)),
    ("socket.blocking.max.ms", whole(1, 60_000)),
    (
        "socket.connection.setup.timeout.ms",
        whole(1000, 2_147_483_647),
    ),
    ("socket.keepalive.enable", Values::Flag),
    ("socket.max.fails", whole(0, 1_000_000)),
    ("socket.nagle.disable", Values::Flag),
    ("socket.receive.buffer.bytes", whole(0, 100_000_000)),
    ("socket.send.buffer.bytes", whole(0, 100_000_000)),
    ("socket.timeout.ms", whole(10, 300_000)),
    ("ssl.certificate.location", Values::Text),
    ("ssl.certificate.pem", Values::Text),
    ("ssl.cipher.suites", Values::Text),
    ("ssl.crl.location", Values::Text),
    ("ssl.curves.list", Values::Text),
    (
        "ssl.endpoint.identification.algorithm",
        Values::OneOf(&["none", "https"]),
    ),
    ("ssl.key.location", Values::Text),
    ("ssl.keystore.location", Values::Text),
    ("ssl.providers", Values::Text),
    ("ssl.sigalgs.list", Values::Text),
    ("sticky.partitioning.linger.ms", whole(0, 900_000)),
    ("topic.blacklist", Values::Text),
    ("topic.metadata.propagation.max.ms", whole(0, 3_600_000)),
    ("topic.metadata.refresh.fast.cnt", whole(0, 1000)),
    ("topic.metadata.refresh.fast.interval.ms", whole(1, 60_000)),
    ("topic.metadata.refresh.interval.ms", whole(-1, 3_600_000)),
    ("topic.metadata.refresh.sparse", Values::Flag),
    ("transaction.timeout.ms", whole(1000, 2_147_483_647)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_judged_by_their_kind() {
        let whole = whole(-1, 12);
        for (values, good, bad) in [
            (Values::Text, vec!["", "abc"], vec![]),
            (
                Values::Flag,
                vec!["true", "FALSE", "T", "f", "1", "0"],
                vec!["yes", "", "2"],
            ),
            (
                whole,
                vec!["-1", "0", "12"],
                vec!["-2", "13", "1.5", "1k", "abc", ""],
            ),
            (
                number(0, 5),
                vec!["0", "0.5", "5"],
                vec!["-0.1", "5.1", "NaN", "x"],
            ),
            (
                Values::OneOf(&["zstd", "lz4"]),
                vec!["zstd", "LZ4"],
                vec!["zst", ""],
            ),
        ] {
            for value in good {
                assert!(values.has(value), "{values}: {value}");
            }
            for value in bad {
                assert!(!values.has(value), "{values}: {value}");
            }
        }
        assert_eq!(whole.to_string(), "a whole number from -1 to 12");
    }

    #[test]
    fn names_are_sorted_and_stand_once() {
        assert!(SETTINGS.is_sorted_by(|(a, _), (b, _)| a < b));
        assert_eq!(values_of("linger.ms"), Some(number(0, 900_000)));
        assert_eq!(values_of("no.such.setting"), None);
    }
}
