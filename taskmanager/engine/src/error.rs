//! What can go wrong inside a task.
//!
//! Owns: the engine's error. Bad rows are not errors: they go to `.bad` (F3).

use arrow::error::ArrowError;
use datafusion_common::DataFusionError;
use streamforge_core::causes;
use streamforge_core::units::ByteSize;

/// Why a task cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kernel failed on rows that were checked before: a defect, or memory ran out.
    #[error("process batch in `{operator}`")]
    Kernel {
        /// Operator's uid.
        operator: String,
        /// What Arrow said.
        #[source]
        source: ArrowError,
    },
    /// DataFusion failed outside of row evaluation.
    #[error("aggregate in `{operator}`")]
    Aggregate {
        /// Operator's uid.
        operator: String,
        /// What DataFusion said.
        #[source]
        source: Box<DataFusionError>,
    },
    /// Stored state is not what this operator wrote.
    #[error("restore `{operator}`: {reason}")]
    Restore {
        /// Operator's uid.
        operator: String,
        /// What does not fit.
        reason: String,
    },
    /// A record was bad and the document says `onBadRecord: Fail`.
    #[error("bad record in `{node}` at {position}: {reason}")]
    BadRecord {
        /// Node.
        node: String,
        /// Source and position.
        position: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The outside system failed.
    #[error("{action}")]
    Connector {
        /// Verb and object: `read /data/in/a.ndjson`.
        action: String,
        /// Whether another attempt may do better.
        retry: bool,
        /// What the system said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A newer attempt does this one's work in the outside world: this one is the zombie (X2).
    #[error("{action}")]
    TakenOver {
        /// Verb and object: `publish to topic a`.
        action: String,
        /// How that is known.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another thing has the name of what committed rows went to: nothing more may be written there.
    #[error("{action}")]
    OutputReplaced {
        /// Verb and object: `publish to topic a`.
        action: String,
        /// How that is known.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Keyed state outgrew what the document allows.
    #[error(
        "keyed state holds {:.1} MiB, more than state.memoryLimit ({}): raise it, or keep less by \
         shorter windows, less allowedLateness or fewer keys",
        *held as f64 / 1_048_576.0,
        ByteSize::from_bytes(*limit)
    )]
    StateLimit {
        /// Bytes held by all tasks here.
        held: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// An input broke a rule it must keep; going on would lose or double rows.
    #[error("input of `{operator}` broke {rule}")]
    Protocol {
        /// Operator's uid or channel.
        operator: String,
        /// Rule's id and what happened.
        rule: String,
    },
}

/// What the attempt's owner should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Restore the last checkpoint and go on.
    Restart,
    /// Another attempt would fail the same way.
    Stop,
}

impl Error {
    /// What to do about it.
    pub fn recovery(&self) -> Recovery {
        match self {
            Error::Kernel { .. } | Error::Aggregate { .. } | Error::Protocol { .. } => {
                Recovery::Restart
            }
            Error::Restore { .. }
            | Error::BadRecord { .. }
            | Error::TakenOver { .. }
            | Error::OutputReplaced { .. }
            | Error::StateLimit { .. } => Recovery::Stop,
            Error::Connector { retry, .. } => {
                if *retry {
                    Recovery::Restart
                } else {
                    Recovery::Stop
                }
            }
        }
    }

    /// The message with its causes, for the place where it is handled.
    pub fn with_causes(&self) -> String {
        causes::with_causes(self)
    }
}
