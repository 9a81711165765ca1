//! What the operator must not forget about a job.
//!
//! Owns: the record, kept in the job's ConfigMap beside the document that runs. The resource says what
//! is wanted, the head in the store what the coordinator did; the record says which document was
//! accepted last and how far a change of the job's life has come. An operator that is started anew at
//! any point reads the three and goes on. Never kept in the status: a status can be lost or edited.

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
    /// When the upgrade began to run.
    pub since: Timestamp,
}

/// A document that did not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// Its generation.
    pub generation: i64,
    /// Why it was rolled back.
    pub reason: String,
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
}

impl Record {
    /// A job that was never run.
    #[must_use]
    pub fn new(uid: &str, document: Value, generation: i64) -> Self {
        Self {
            uid: uid.to_owned(),
            document,
            generation,
            state: State::Active,
            previous: None,
            refused: None,
            rewind: None,
            ran: false,
            incarnation: 0,
            done: Done::default(),
        }
    }
}
