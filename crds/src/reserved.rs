//! Names that are kept free for later.
//!
//! Owns: the words that `validate` answers with "not supported yet" instead of "unknown field": keys and
//! values that have no type yet. Where to start when a part comes to life: take its line out here.

/// A key that has no type yet. `path` uses `[]` for any item of a list.
#[derive(Clone, Copy, Debug)]
pub struct ReservedKeys {
    /// The object it would stand in.
    pub path: &'static str,
    /// The keys.
    pub keys: &'static [&'static str],
}

/// Keys without a type.
pub const KEYS: &[ReservedKeys] = &[
    ReservedKeys {
        path: "spec.sources[]",
        keys: &["http", "postgresCdc", "nats", "kinesis", "iceberg"],
    },
    ReservedKeys {
        path: "spec.sources[].format",
        keys: &["avro", "protobuf", "debezium"],
    },
    ReservedKeys {
        path: "spec.sources[].generator",
        keys: &["nexmark"],
    },
    ReservedKeys {
        path: "spec.transforms[]",
        keys: &["join", "deduplicate", "topN", "sql", "map", "pattern"],
    },
    ReservedKeys {
        path: "spec.transforms[].aggregate.window",
        keys: &["cumulative", "count", "none"],
    },
    ReservedKeys {
        path: "spec.sinks[]",
        keys: &["iceberg", "http", "postgres", "clickhouse"],
    },
    ReservedKeys {
        path: "spec.sinks[].format",
        keys: &["avro", "protobuf", "debezium"],
    },
    ReservedKeys {
        path: "spec.state",
        keys: &["ttl"],
    },
];

/// A key of SQL or of another system that is written otherwise here.
#[derive(Clone, Copy, Debug)]
pub struct Instead {
    /// The object where it is looked for.
    pub path: &'static str,
    /// The key.
    pub key: &'static str,
    /// What to write.
    pub write: &'static str,
}

/// Such keys.
pub const INSTEAD: &[Instead] = &[
    Instead {
        path: "spec.transforms[].aggregate",
        key: "having",
        write: "filter the results in a transform behind it: `{name: …, from: …, filter: \"…\"}`",
    },
    Instead {
        path: "spec.transforms[].aggregate",
        key: "where",
        write: "filter the rows in a transform before it, or write `count(*) FILTER (WHERE …)`",
    },
    Instead {
        path: "spec.transforms[].aggregate",
        key: "filter",
        write: "filter the rows in a transform before it, or write `count(*) FILTER (WHERE …)`",
    },
    Instead {
        path: "spec.transforms[]",
        key: "where",
        write: "it is called `filter`",
    },
];

/// A value that has no type yet.
#[derive(Clone, Copy, Debug)]
pub struct ReservedValue {
    /// The field.
    pub path: &'static str,
    /// The value.
    pub value: &'static str,
}

/// Values without a type.
pub const VALUES: &[ReservedValue] = &[
    ReservedValue {
        path: "spec.transforms[].aggregate.emit",
        value: "Early",
    },
    ReservedValue {
        path: "spec.sinks[].changelog",
        value: "Debezium",
    },
    ReservedValue {
        path: "spec.state.backend",
        value: "RocksDb",
    },
];

/// Fields that are checked, but mean nothing outside a cluster.
pub const CLUSTER_FIELDS: &[&str] = &[
    "spec.suspend",
    "spec.upgrade",
    "spec.taskManager",
    "spec.ttlAfterFinished",
    "spec.checkpoint.onDelete",
];
