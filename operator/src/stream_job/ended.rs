//! How a coordinator's end counts in the life of its job.

use streamforge_core::ids::CheckpointId;
use streamforge_host::{Error, Outcome};

use crate::step::{Ended, Unsaved};

/// What an outcome means.
#[must_use]
pub fn how(outcome: &Outcome) -> Ended {
    match outcome {
        Outcome::Finished { .. } => Ended::Finished,
        Outcome::Stopped {
            checkpoint,
            unpublished_n,
            savepoint_failed,
            ..
        } => Ended::Stopped {
            failed: savepoint_failed.as_ref().map(|reason| Unsaved {
                reason: reason.clone(),
                checkpoint: checkpoint.map(CheckpointId::get),
                unpublished_n: *unpublished_n,
            }),
        },
        // The store or another coordinator: nothing is wrong with the job.
        Outcome::Failed(
            error @ (Error::Store { .. } | Error::Fenced { .. } | Error::Outrun { .. }),
        ) => Ended::Broken(words(error)),
        Outcome::Failed(error @ Error::NotRetained { .. }) => Ended::NotRetained(words(error)),
        Outcome::Failed(error) => Ended::Failed(words(error)),
    }
}

/// Whether it is an attempt that failed, of the plan and the tasks as they are: not the store, nor the history.
#[must_use]
pub fn is_of_an_attempt(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Failed(Error::RestartBudget { .. } | Error::Job { .. })
    )
}

fn words(error: &Error) -> String {
    super::error::chain(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_without_its_savepoint_and_a_checkpoint_that_is_not_kept_are_told_apart() {
        let stopped = |savepoint_failed: Option<&str>| Outcome::Stopped {
            checkpoint: Some(CheckpointId::from_stored(7)),
            unpublished_n: 2,
            note: None,
            savepoint_failed: savepoint_failed.map(str::to_owned),
        };
        let failed = |why: Option<&str>| Ended::Stopped {
            failed: why.map(|why| Unsaved {
                reason: why.to_owned(),
                checkpoint: Some(7),
                unpublished_n: 2,
            }),
        };
        assert_eq!(how(&stopped(None)), failed(None));
        assert_eq!(how(&stopped(Some("disk full"))), failed(Some("disk full")));

        let gone = Error::NotRetained {
            wanted: CheckpointId::from_stored(7),
            kept: Vec::new(),
        };
        assert_eq!(
            how(&Outcome::Failed(gone)),
            Ended::NotRetained(
                "rewind to checkpoint 7: the store does not keep it, nor a savepoint of it; kept are: none"
                    .to_owned()
            )
        );
    }
}
