//! How a coordinator's end counts in the life of its job.

use streamforge_host::{Error, Outcome};

use crate::step::Ended;

/// What an outcome means.
#[must_use]
pub fn how(outcome: &Outcome) -> Ended {
    match outcome {
        Outcome::Finished { .. } => Ended::Finished,
        Outcome::Stopped { checkpoint, .. } => Ended::Stopped {
            has_state: checkpoint.is_some(),
        },
        // The store or another coordinator: nothing is wrong with the job.
        Outcome::Failed(
            error @ (Error::Store { .. } | Error::Fenced { .. } | Error::Outrun { .. }),
        ) => Ended::Broken(words(error)),
        Outcome::Failed(error) => Ended::Failed(words(error)),
    }
}

fn words(error: &Error) -> String {
    super::error::chain(error).to_string()
}
