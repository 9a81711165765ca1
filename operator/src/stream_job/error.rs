//! Why a pass over a job did not come to its end.
//!
//! Owns: the error of passes, and how errors are written in one line.

use std::fmt;

use crate::one_line::one_line;
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
    /// The same, of a child.
    #[error("apply the {kind}")]
    Apply {
        /// Its kind.
        kind: &'static str,
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
    /// A pass that stands still.
    #[error("the pass did not come to its end within {seconds} s")]
    Stuck {
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
    /// Whether a child cannot be made because the namespace is being deleted: what is deleted there is no drift,
    /// and the job is about to be deleted, too.
    #[must_use]
    pub fn is_end_of_namespace(&self) -> bool {
        let (Self::Api { source, .. } | Self::Apply { source, .. }) = self else {
            return false;
        };
        let kube::Error::Api(status) = source else {
            return false;
        };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        causes
            .into_iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// One word, for metrics and conditions.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { .. } | Self::Apply { .. } => "ApiServer",
            Self::Stuck { .. } => "Stuck",
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
        let mut next = Some(error);
        let mut separator = "";
        while let Some(error) = next {
            // An answer of the API server writes itself twice, once for programmers.
            if let Some(kube::Error::Api(status)) = error.downcast_ref() {
                return write!(f, "{separator}{}", one_line(&status.message));
            }
            write!(f, "{separator}{}", one_line(&error.to_string()))?;
            separator = ": ";
            next = error.source();
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    #[test]
    fn namespace_that_ends_is_told_from_a_right_that_is_missing() {
        let refused = |causes: serde_json::Value| {
            let status = json!({
                "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                "message": "services \"clicks-tm\" is forbidden", "details": {"causes": causes},
            });
            let status: Status = serde_json::from_value(status).unwrap();
            Error::Apply {
                kind: "Service",
                source: kube::Error::Api(status.boxed()),
            }
        };
        let ends = json!([{"reason": "NamespaceTerminating", "message": "it is being terminated"}]);

        assert!(refused(ends).is_end_of_namespace());
        assert!(!refused(json!([])).is_end_of_namespace());
    }

    #[test]
    fn answer_of_the_api_server_is_told_once_and_in_one_line() {
        let status = kube::core::Status::failure("secrets \"a\" not found\nat all", "NotFound");
        let source = kube::Error::Api(Box::new(status.with_code(404)));
        let error = Error::Store(stores::Error::Secret {
            name: "a".to_owned(),
            source,
        });

        assert_eq!(
            chain(&error).to_string(),
            "use the job's store: read secret a: secrets \"a\" not found\\nat all"
        );
    }
}
