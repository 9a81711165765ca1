//! What one attempt came to when it did not come to an answer we wanted.
//!
//! Owns: the difference between no answer (it may have been done), not now (it was not), and a
//! definite no; and what each definite no means to a person. Keeps code and message of the server's
//! answer only: never headers, which hold signatures.

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStreamError;

use crate::Error;

/// Longest text of a server that is repeated in an error.
const MESSAGE_CHARS_MAX: usize = 300;

/// What servers call credentials that they do not know.
const NOT_WHO_WE_SAY: [&str; 8] = [
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "AuthFailure",
    "XAdminUserNotFound",
    "UnrecognizedClientException",
    "TokenRefreshRequired",
];

/// How an attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// No answer, or one that says nothing about the outcome: it may have been done.
    Lost(String),
    /// It was not done; the server asks to try again.
    NotNow(String),
    /// A definite answer.
    Answer(Answer),
}

/// The server's definite no.
#[derive(Debug)]
pub(super) struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The server's name for it; empty where an answer has no body.
    pub code: String,
    /// The server's words.
    pub message: String,
}

impl Answer {
    /// A condition did not hold. `If-Match` of an object that is not there is answered with 404.
    pub(super) fn is_condition_failed(&self, if_match: bool) -> bool {
        self.status == 412 || (if_match && self.is_absent())
    }

    /// No such object (not: no such bucket).
    pub(super) fn is_absent(&self) -> bool {
        self.status == 404 && matches!(self.code.as_str(), "NoSuchKey" | "NotFound" | "")
    }

    /// Whether other keys might be answered otherwise.
    pub(super) fn may_be_of_old_keys(&self) -> bool {
        matches!(self.status, 400 | 401 | 403) || NOT_WHO_WE_SAY.contains(&self.code.as_str())
    }

    pub(super) fn is_upload_gone(&self) -> bool {
        self.code == "NoSuchUpload"
    }

    /// One key would be the folder of another: said by servers that keep objects in folders.
    fn is_key_conflict(&self) -> bool {
        matches!(
            self.code.as_str(),
            "ObjectParentIsFile" | "ExistingObjectIsDirectory"
        )
    }
}

/// What a server refused, sorted by what a person does about it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no such bucket.
    #[error("there is no bucket of this name; make it, or correct the uri")]
    NoBucket,
    /// We are known, and may not do this.
    #[error("permission denied ({code}); the credentials must allow reading and writing there")]
    Denied {
        /// The server's name for it.
        code: String,
    },
    /// We are not who we say.
    #[error(
        "the credentials are refused ({code}); check the key, its secret, and that it has not expired"
    )]
    Credentials {
        /// The server's name for it.
        code: String,
    },
    /// No credentials were found.
    #[error("no credentials: {reason}")]
    NoCredentials {
        /// Where they were looked for.
        reason: String,
    },
    /// The bucket lies in another region.
    #[error("the bucket lies in another region ({message}); set s3.region")]
    Region {
        /// The server's words.
        message: String,
    },
    /// The clocks differ too much for a signature.
    #[error("the clock of this machine is wrong, says the server ({message})")]
    Clock {
        /// The server's words.
        message: String,
    },
    /// The server does not keep conditions, so two coordinators could both be right.
    #[error(
        "this server cannot hold checkpoints: {finding}. It must let exactly one of several writers \
         win (If-None-Match and If-Match); use another server or a newer version of it"
    )]
    BreaksConditions {
        /// What was seen.
        finding: String,
    },
    /// Something else.
    #[error("the server refused: {code} (HTTP {status}) {message}")]
    Other {
        /// HTTP status.
        status: u16,
        /// The server's name for it.
        code: String,
        /// The server's words.
        message: String,
    },
    /// The document or the secret is wrong.
    #[error("{reason}")]
    Setup {
        /// What is wrong.
        reason: String,
    },
}

impl Refusal {
    /// Whether a person may set it right while the job runs: otherwise trying again is no use.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoBucket
            | Self::Denied { .. }
            | Self::Credentials { .. }
            | Self::NoCredentials { .. }
            | Self::Clock { .. }
            | Self::Other { .. } => true,
            Self::Region { .. } | Self::BreaksConditions { .. } | Self::Setup { .. } => false,
        }
    }

    fn of(answer: Answer) -> Self {
        let Answer {
            status,
            code,
            message,
        } = answer;
        match code.as_str() {
            "NoSuchBucket" => Self::NoBucket,
            known if NOT_WHO_WE_SAY.contains(&known) => Self::Credentials { code },
            "RequestTimeTooSkewed" => Self::Clock { message },
            "PermanentRedirect"
            | "TemporaryRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException" => Self::Region { message },
            "NotImplemented" => Self::BreaksConditions {
                finding: format!("it does not know conditional writes ({message})"),
            },
            _ if status == 301 || status == 307 => Self::Region { message },
            _ if status == 401 || status == 403 => Self::Denied {
                code: if code.is_empty() {
                    format!("HTTP {status}")
                } else {
                    code
                },
            },
            _ => Self::Other {
                status,
                code,
                message,
            },
        }
    }
}

/// The error of a call whose attempt was answered with a definite no.
pub(super) fn refused(action: &'static str, key: &str, location: &str, answer: Answer) -> Error {
    if answer.is_key_conflict() {
        let above = key.rsplit_once('/').map_or(key, |(folder, _)| folder);
        let other = match answer.code.as_str() {
            "ObjectParentIsFile" => above.to_owned(),
            _ => format!("{key}/"),
        };
        return Error::KeyConflict {
            key: key.to_owned(),
            other,
        };
    }
    Error::S3 {
        action,
        key: key.to_owned(),
        location: location.to_owned(),
        source: Refusal::of(answer),
    }
}

/// Errors of the SDK, as failures of an attempt.
pub(super) trait IntoFailure {
    /// Sorts it.
    fn into_failure(self) -> Failure;
}

impl<E> IntoFailure for SdkError<E>
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    fn into_failure(self) -> Failure {
        match &self {
            // Not sent: signing or the address failed, and would again.
            Self::ConstructionFailure(_) => Failure::Answer(Answer {
                status: 0,
                code: "RequestNotMade".to_owned(),
                message: causes(&self),
            }),
            Self::TimeoutError(_) | Self::DispatchFailure(_) => Failure::Lost(causes(&self)),
            Self::ResponseError(response) => {
                Failure::Lost(format!("HTTP {}", response.raw().status().as_u16()))
            }
            Self::ServiceError(answer) => {
                let status = answer.raw().status().as_u16();
                let meta = answer.err().meta();
                sort(
                    status,
                    meta.code().unwrap_or_default(),
                    meta.message().unwrap_or_default(),
                )
            }
            other => Failure::Lost(causes(other)),
        }
    }
}

impl IntoFailure for ByteStreamError {
    fn into_failure(self) -> Failure {
        Failure::Lost(format!("the body broke off: {}", causes(&self)))
    }
}

fn sort(status: u16, code: &str, message: &str) -> Failure {
    let text = || format!("HTTP {status} {code}").trim_end().to_owned();
    match status {
        // A 200 with an error inside, and everything that broke inside the server or on the way.
        200 | 408 | 500..=599 if status != 501 && status != 507 => Failure::Lost(text()),
        400 if matches!(code, "RequestTimeout" | "IncompleteBody") => Failure::Lost(text()),
        429 => Failure::NotNow(text()),
        409 if matches!(
            code,
            "ConditionalRequestConflict" | "OperationAborted" | "Conflict" | ""
        ) =>
        {
            Failure::NotNow(text())
        }
        _ => Failure::Answer(Answer {
            status,
            code: code.to_owned(),
            message: message.chars().take(MESSAGE_CHARS_MAX).collect(),
        }),
    }
}

/// An error's causes in one line, without repetition. Its own words are the SDK's ("dispatch failure")
/// and say nothing where there is a cause.
fn causes(error: &dyn std::error::Error) -> String {
    let first = error.source().unwrap_or(error);
    let mut text = first.to_string();
    let mut source = first.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text.chars().take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_definite_answer_says_that_nothing_was_done() {
        for (status, code) in [
            (500, "InternalError"),
            (503, "SlowDown"),
            (503, ""),
            (200, "InternalError"),
            (400, "RequestTimeout"),
        ] {
            assert!(
                matches!(sort(status, code, ""), Failure::Lost(_)),
                "{status} {code}"
            );
        }
        for (status, code) in [
            (409, "ConditionalRequestConflict"),
            (409, "OperationAborted"),
            (429, ""),
        ] {
            assert!(
                matches!(sort(status, code, ""), Failure::NotNow(_)),
                "{status} {code}"
            );
        }
        for (status, code) in [
            (403, "AccessDenied"),
            (412, "PreconditionFailed"),
            (404, "NoSuchBucket"),
            (501, "NotImplemented"),
            (409, "BucketAlreadyExists"),
        ] {
            assert!(
                matches!(sort(status, code, ""), Failure::Answer(_)),
                "{status} {code}"
            );
        }
    }

    #[test]
    fn a_missing_bucket_is_not_a_missing_object() {
        let answer = |code: &str| Answer {
            status: 404,
            code: code.to_owned(),
            message: String::new(),
        };

        assert!(answer("NoSuchKey").is_absent());
        assert!(answer("NoSuchKey").is_condition_failed(true));
        assert!(!answer("NoSuchKey").is_condition_failed(false));
        assert!(!answer("NoSuchBucket").is_absent());
        assert!(!answer("NoSuchBucket").is_condition_failed(true));
        assert!(matches!(
            Refusal::of(answer("NoSuchBucket")),
            Refusal::NoBucket
        ));
    }
}
