//! Where exactly one of several keys must be written.
//!
//! Owns: the table from which both the CEL rules of the definition and the checks of `validate` are
//! made, so that they cannot differ.

/// One place of the document where exactly one of several keys must be written.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The place; `[]` stands for any item of a list.
    pub path: &'static str,
    /// The keys.
    pub keys: &'static [&'static str],
}

/// All such places. A choice may also be empty where the whole object is optional.
pub const CHOICES: &[Choice] = &[
    Choice {
        path: "spec.sources[]",
        keys: &["kafka", "file", "generator"],
    },
    Choice {
        path: "spec.sources[].generator",
        keys: &["clicks", "lines"],
    },
    Choice {
        path: "spec.sources[].format",
        keys: &["json", "csv", "parquet", "raw"],
    },
    Choice {
        path: "spec.sources[].eventTime",
        keys: &["column", "expression"],
    },
    Choice {
        path: "spec.sources[].kafka",
        keys: &["topics", "topicPattern"],
    },
    Choice {
        path: "spec.transforms[]",
        keys: &["filter", "select", "unnest", "union", "aggregate"],
    },
    Choice {
        path: "spec.transforms[].aggregate.window",
        keys: &["tumbling", "hopping", "session"],
    },
    Choice {
        path: "spec.sinks[]",
        keys: &["kafka", "file", "print", "blackhole"],
    },
    Choice {
        path: "spec.sinks[].format",
        keys: &["json", "csv", "parquet", "raw"],
    },
    Choice {
        path: "spec.restoreFrom",
        keys: &["savepoint", "uri"],
    },
];
