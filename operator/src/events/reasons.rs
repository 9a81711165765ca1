//! The reasons of events.
//!
//! Owns: the words, and what they ask of people: docs/operator-events.md lists them, and a test compares. Alerts and
//! scripts look for them, so a reason that is here stays. Start at: [`ALL`].

use super::Severity;

/// Why an event is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Whether somebody should look.
    pub severity: Severity,
    /// One word.
    pub name: &'static str,
    /// When it is told.
    pub when: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

macro_rules! reasons {
    ($($constant:ident = $severity:ident $name:literal: $when:literal, $remedy:literal;)*) => {
        $(
            #[doc = $when]
            pub const $constant: Reason = Reason {
                severity: Severity::$severity,
                name: $name,
                when: $when,
                remedy: $remedy,
            };
        )*

        /// All reasons.
        pub const ALL: &[Reason] = &[$($constant),*];
    };
}

reasons! {
    STARTING = Normal "Starting": "Pods are started.", "";
    RUNNING = Normal "Running": "Rows flow.", "";
    SUSPENDING = Normal "Suspending": "`suspend` is true: the last checkpoint is taken.", "";
    SUSPENDED = Normal "Suspended": "The job has stopped because of it.", "";
    UPGRADING = Normal "Upgrading": "The job goes over to another document.", "";
    UPGRADED = Normal "Upgraded": "Rows flow by the new document.", "";
    SCALING = Normal "Scaling": "Key groups are handed over to more or fewer subtasks.", "";
    HANDED_OVER = Normal "HandedOver": "That is done; the note says how long it took.", "";
    FINISHED = Normal "Finished": "All input is read, all output published.", "";
    ADOPTED = Normal "Adopted": "A new operator goes on with the attempt that runs; no task stopped.", "";

    ATTEMPT_FAILED = Warning "AttemptFailed": "An attempt has failed; the note says why, and at which pod if it was one's alone.", "Nothing once; look at the reason if it comes again: after `restart.maxFailures` in `restart.window` the job is given up.";
    TASK_MANAGER_LOST = Warning "TaskManagerLost": "A pod's session broke, or it was silent for `failureDetection.timeout`.", "Nothing if the pod was deleted or its node lost; else look at its log, and at its memory.";
    RECOVERING = Warning "Recovering": "The next attempt goes on from the newest checkpoint.", "See `AttemptFailed`.";
    RECOVERED = Normal "Recovered": "Rows flow again.", "";
    FAILED = Warning "Failed": "The job was given up; the note says why.", "Mend that, then edit the job or set the annotation `streamforge.io/restart` to a new value: it goes on from its newest checkpoint.";
    SECRET_CHANGED = Normal "SecretChanged": "While something failed, a Secret was found to be newer than pods that mount it: their kubelets were told to bring it now.", "";
    TRIED_AGAIN = Normal "TriedAgain": "The job would be given up, but a Secret of it was changed less than two minutes before: it is tried again, with a new count of failures.", "Nothing if the Secret is right now.";

    VALID = Normal "Valid": "What is declared can run again.", "";
    INVALID_SPEC = Warning "InvalidSpec": "The newest document is wrong; the last valid one runs on.", "Do what the note says.";
    STATE_WOULD_BE_DROPPED = Warning "StateWouldBeDropped": "The newest document has no place for state that there is; the last valid one runs on.", "Take that back, or allow it with `upgrade.droppedState: Allow`.";
    STATE_DROPPED = Normal "StateDropped": "State without a place in the document was left out, as `upgrade.droppedState` allows.", "";
    ROLLED_BACK = Warning "RolledBack": "The newest document failed, or did not become healthy in time; the one before runs again.", "Mend its sources, transforms or sinks.";
    REWIND_REFUSED = Warning "RewindRefused": "The checkpoint of `streamforge.io/rewind-to` is not kept; the job went on from its newest.", "Name one that is kept, or a savepoint's.";

    PAUSED = Warning "Paused": "The annotation `streamforge.io/pause` keeps the operator from changing anything.", "Take it away when you are done.";
    SECRET_MISSING = Warning "SecretMissing": "A Secret that the document names is not there, or lacks a key.", "Create it; the job goes on by itself.";
    STORE_UNREACHABLE = Warning "StoreUnreachable": "The checkpoint store does not answer or refuses.", "Look at the address, the keys and the network; the job goes on by itself.";
    SAVEPOINT_MISSING = Warning "SavepointMissing": "The savepoint that the job is to begin with is not there or not completed.", "Name another one, or wait for it.";
    PODS_STUCK = Warning "PodsStuck": "Pods cannot start: image, scheduling, quota or admission.", "Do what the note says of the pod; where there is none, `kubectl describe statefulset` tells why.";
    OUT_OF_MEMORY = Warning "OutOfMemory": "A task manager was killed for using more memory than its limit.", "Give `taskManager.resources` more memory, or `state.memoryLimit` less.";
    NOT_ALLOWED = Warning "NotAllowed": "The API server refuses what the operator has to write.", "Do what the note says; where it is about rights, compare them with the table of docs/operator.md. An object of the job's name may be somebody else's.";
    SAVEPOINT_FAILS = Warning "SavepointFails": "The savepoint with which the job is to stop fails; it runs on, and stops without one if the next fails, too.", "Mend what the note names to stop with one.";
    RECORD_UNREADABLE = Warning "RecordUnreadable": "What ran cannot be run by this operator, and the newest document is wrong, too.", "Edit the job.";
    STOPPED_WITHOUT_SAVEPOINT = Warning "StoppedWithoutSavepoint": "The job was stopped with its newest checkpoint, because no savepoint could be made.", "Nothing is lost; a sink with delivery AtLeastOnce may get rows twice.";

    CHECKPOINT_STALE = Warning "CheckpointStale": "Checkpoints fail or take too long; rows go on.", "Look at the store, and at `checkpoint.timeout` for large state.";
    CHECKPOINT_FRESH = Normal "CheckpointFresh": "The newest checkpoint is as young as it should be again.", "";
    WATERMARK_HELD_BACK = Warning "WatermarkHeldBack": "Event time has stood still for a minute; the note says which source holds it.", "Set `idleTimeout` if that source may be silent.";
    WATERMARK_ADVANCING = Normal "WatermarkAdvancing": "Event time goes on again.", "";
    SOURCE_UNREACHABLE = Warning "SourceUnreachable": "A source, or a part of it, does not answer or refuses.", "Look at what the note names; tasks wait, and go on by themselves.";
    SOURCE_REACHABLE = Normal "SourceReachable": "It answers again.", "";
    RECORDS_SKIPPED = Warning "RecordsSkipped": "Offsets were deleted before they were read, and passed over as `onOffsetOutOfRange: Earliest` says.", "Give the topic a longer retention, or the job more subtasks.";
    PUBLISH_FAILED = Warning "PublishFailed": "Committed output could not be published yet; it is tried again.", "Look at the sink that the note names.";

    DRIFT_REPAIRED = Warning "DriftRepaired": "Somebody changed or deleted an object of the job, and it was set right.", "Change the StreamJob instead.";
    STUCK_POD_DELETED = Normal "StuckPodDeleted": "A pod of an older revision could not start and was in the way of a better one.", "";
    LOST_POD_DELETED = Warning "LostPodDeleted": "A pod should have ended and its node is silent: it was deleted by force.", "Look at the node.";

    SAVEPOINT_STARTED = Normal "SavepointStarted": "Of a Savepoint: it is taken.", "";
    SAVEPOINT_COMPLETED = Normal "SavepointCompleted": "Of a Savepoint: it is whole; the note says where.", "";
    SAVEPOINT_FAILED = Warning "SavepointFailed": "Of a Savepoint: it failed; the note says why.", "Mend that and make another Savepoint.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn page_of_events_lists_every_reason_as_it_is() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operator-events.md");
        let page = std::fs::read_to_string(page).unwrap();
        let found: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();

        let wanted = ALL.iter().map(|reason| {
            let Reason {
                severity,
                name,
                when,
                remedy,
            } = reason;
            format!("| `{name}` | {} | {when} | {remedy} |", severity.name())
        });
        assert_eq!(found, wanted.collect::<Vec<_>>());
    }

    #[test]
    fn reasons_are_single_words_and_unique_and_a_warning_says_what_to_do() {
        let mut seen = BTreeSet::new();
        for reason in ALL {
            let is_word = reason.name.chars().all(|c| c.is_ascii_alphanumeric());
            assert!(
                is_word && reason.name.starts_with(|c: char| c.is_ascii_uppercase()),
                "{reason:?}"
            );
            assert!(seen.insert(reason.name), "{reason:?} is there twice");
            let asks = !reason.remedy.is_empty();
            assert!(asks || reason.severity == Severity::Normal, "{reason:?}");
        }
    }

    /// What is documented is told somewhere.
    #[test]
    fn no_reason_is_without_an_event() {
        let code = include_str!("../events.rs");
        let list = include_str!("reasons.rs");
        let constants = list.lines().filter_map(|line| {
            let (constant, rest) = line.strip_prefix("    ")?.split_once(" = ")?;
            let is_one = rest.starts_with("Normal \"") || rest.starts_with("Warning \"");
            is_one.then_some(constant)
        });
        let mut found_n = 0;
        for constant in constants {
            found_n += 1;
            assert!(code.contains(&format!("reasons::{constant}")), "{constant}");
        }
        assert_eq!(found_n, ALL.len());
    }
}
