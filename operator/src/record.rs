//! What the operator must not forget about a job.
//!
//! Owns: the record, kept in the job's ConfigMap beside the document that runs. The resource says what
//! is wanted, the head in the store what the coordinator did; the record says which document was
//! accepted last and how far a change of the job's life has come. An operator that is started anew at
//! any point reads the three and goes on. What must not be lost with the ConfigMap ([`Lived`]) is in the
//! status, too, and written there first; it is read from there only if there is no record.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The job's resource: one that was deleted and created again is another job.
    pub uid: String,
    /// The document that runs: kind, name and spec, without defaults left out.
    pub document: Value,
    /// The generation of the resource that it was taken from.
    pub generation: i64,
    /// Hash of its plan: of what an upgrade is needed for.
    #[serde(default)]
    pub plan: String,
    /// Where the job is in its life.
    pub state: State,
    /// The document before the last upgrade, until the new one has proved itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
    /// A document that was rolled back: it is not tried again unless it is edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// The checkpoint to go back to, until that has been done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewind: Option<String>,
    /// The head of the store as it was when that was begun: by it is known whether it has been done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_rewind: Option<HeadSeen>,
    /// Rows of it have flowed: its store is not empty.
    #[serde(default)]
    pub ran: bool,
    /// How often the job began anew without its state (`upgrade.mode: Stateless`).
    #[serde(default)]
    pub incarnation: u32,
    /// Values of the annotations that ask for something once, as they were when it was done.
    #[serde(default)]
    pub done: Done,
}

/// Where a job is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all_fields = "camelCase")]
pub enum State {
    /// It is to run.
    Active,
    /// It was stopped.
    Suspended,
    /// All input is read and all output is published.
    Finished {
        /// When.
        at: Timestamp,
    },
    /// It cannot go on.
    Failed {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
    },
}

/// What ran before an upgrade.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Previous {
    /// The document.
    pub document: Value,
    /// Its generation.
    pub generation: i64,
    /// Hash of its plan.
    #[serde(default)]
    pub plan: String,
    /// When the upgrade began to run.
    pub since: Timestamp,
}

/// A document that did not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// Its generation.
    pub generation: i64,
    /// Hash of its plan: a document of the same plan is not tried again, whatever else is edited in it.
    #[serde(default)]
    pub plan: String,
    /// Why it was rolled back.
    pub reason: String,
}

/// What is looked at of a store's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeadSeen {
    /// The term of the coordinator that wrote it.
    pub generation: u64,
    /// The newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<u64>,
}

impl HeadSeen {
    /// Whether a rewind that was begun with this head has been done: the next coordinator that took the
    /// head over made another checkpoint the newest, in the same write.
    #[must_use]
    pub fn is_rewound(self, now: Self) -> bool {
        now.generation > self.generation && now.newest != self.newest
    }
}

/// See [`Record::done`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Done {
    /// `streamforge.io/restart`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
    /// `streamforge.io/rewind-to`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewind_to: Option<String>,
    /// `streamforge.io/accept-lost-marker`
    #[serde(skip_serializing_if = "Used::is_unknown")]
    pub accept_lost_marker: Used,
}

/// The value of an annotation that was used last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<String>", into = "Option<String>")]
pub enum Used {
    /// The record is of an operator that did not note it.
    #[default]
    Unknown,
    /// This one; `None`: there was no such annotation.
    Known(Option<String>),
}

impl Used {
    #[must_use]
    fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }

    /// Whether this value is nothing new.
    #[must_use]
    pub fn is(&self, value: Option<&str>) -> bool {
        match self {
            Self::Unknown => value.is_none(),
            Self::Known(used) => used.as_deref() == value,
        }
    }
}

impl From<Option<String>> for Used {
    fn from(value: Option<String>) -> Self {
        Self::Known(value)
    }
}

impl From<Used> for Option<String> {
    fn from(used: Used) -> Self {
        match used {
            Used::Unknown => None,
            Used::Known(value) => value,
        }
    }
}

/// What is known of a job whose record was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lived {
    /// See [`Record::incarnation`].
    pub incarnation: u32,
    /// See [`Record::ran`].
    pub ran: bool,
    /// See [`Record::refused`].
    pub refused: Option<Refused>,
}

impl Lived {
    /// What must not be lost of a record.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        Self {
            incarnation: record.incarnation,
            ran: record.ran,
            refused: record.refused.clone(),
        }
    }
}

impl Record {
    /// A job that was never run.
    #[must_use]
    pub fn new(uid: &str, document: Value, generation: i64) -> Self {
        Self {
            uid: uid.to_owned(),
            document,
            generation,
            plan: String::new(),
            state: State::Active,
            previous: None,
            refused: None,
            rewind: None,
            before_rewind: None,
            ran: false,
            incarnation: 0,
            done: Done::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn value_that_was_never_noted_is_told_from_one_that_was_not_there() {
        let read = |done| serde_json::from_value::<Done>(done).unwrap();
        let known = |value: Option<&str>| Used::Known(value.map(str::to_owned));
        for (written, used) in [
            (json!({}), Used::Unknown),
            (json!({"acceptLostMarker": null}), known(None)),
            (json!({"acceptLostMarker": "out"}), known(Some("out"))),
        ] {
            let done = read(written.clone());

            assert_eq!(done.accept_lost_marker, used);
            assert_eq!(serde_json::to_value(&done).unwrap(), written);
        }
    }
}
