//! Why a pass over a job did not come to its end.
//!
//! Owns: the error of passes, and how errors are written in one line.

use std::fmt;

use crate::stores;

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused something, or did not answer.
    #[error("{what}")]
    Api {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: kube::Error,
    },
    /// The job's store.
    #[error("use the job's store")]
    Store(#[from] stores::Error),
    /// The job has run, and its store has nothing of it.
    #[error(
        "{location} is empty although the job has run: bring its checkpoints back, or delete the job and \
         create it again to begin anew"
    )]
    Emptied {
        /// The store.
        location: String,
    },
    /// An object of this name is somebody else's.
    #[error("{kind} {name} is not this job's: rename the job, or remove the object")]
    NotOurs {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A store that neither answers nor refuses.
    #[error("{what} does not answer within {seconds} s")]
    Silent {
        /// Which.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Certificates.
    #[error("issue a certificate")]
    Certificate(#[from] crate::certificates::Error),
    /// What was kept of the job cannot be read.
    #[error("read what was kept of the job in ConfigMap {name}: {reason}")]
    Record {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A savepoint that the job is to begin with is not there, or not whole.
    #[error("begin with savepoint {name}: {reason}")]
    Savepoint {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// One word, for metrics and conditions.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { .. } => "ApiServer",
            Self::Store(_) | Self::Silent { .. } | Self::Emptied { .. } => "Store",
            Self::NotOurs { .. } => "NameTaken",
            Self::Certificate(_) => "Certificate",
            Self::Record { .. } => "Record",
            Self::Savepoint { .. } => "Savepoint",
        }
    }
}

/// For `map_err` of what the API server was asked.
pub(super) fn api(what: &'static str) -> impl Fn(kube::Error) -> Error {
    move |source| Error::Api { what, source }
}

/// An error with its causes in one line.
pub fn chain<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl fmt::Display + 'a {
    fmt::from_fn(move |f| {
        write!(f, "{error}")?;
        let mut source = error.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    })
}
