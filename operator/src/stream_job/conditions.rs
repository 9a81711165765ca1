//! The conditions of a job, and their reasons.
//!
//! Owns: the words. Programs wait for them (`kubectl wait --for=condition=CaughtUp`), so a reason that is
//! here stays; docs/operator-conditions.md lists them and a test compares. Start at: [`ALL`].

use k8s_openapi::jiff::Timestamp;
use streamforge_crds::v1alpha1::Condition;

/// Which condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Rows flow.
    Ready,
    /// The operator is changing something.
    Progressing,
    /// What is declared can run.
    Valid,
    /// The newest checkpoint is as young as it should be.
    CheckpointFresh,
    /// Event time goes on.
    WatermarkAdvancing,
    /// What there is to read is read.
    CaughtUp,
}

impl Kind {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 6] = [
        Self::Ready,
        Self::Progressing,
        Self::Valid,
        Self::CheckpointFresh,
        Self::WatermarkAdvancing,
        Self::CaughtUp,
    ];

    /// The `type` of the condition.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Progressing => "Progressing",
            Self::Valid => "Valid",
            Self::CheckpointFresh => "CheckpointFresh",
            Self::WatermarkAdvancing => "WatermarkAdvancing",
            Self::CaughtUp => "CaughtUp",
        }
    }
}

/// Why a condition is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Of which condition.
    pub kind: Kind,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

macro_rules! reasons {
    ($($constant:ident = $kind:ident $status:ident $name:literal: $meaning:literal;)*) => {
        $(
            #[doc = $meaning]
            pub const $constant: Reason = Reason {
                kind: Kind::$kind,
                status: stringify!($status),
                name: $name,
                meaning: $meaning,
            };
        )*

        /// All reasons.
        pub const ALL: &[Reason] = &[$($constant),*];
    };
}

reasons! {
    READY_RUNNING = Ready True "Running": "Rows flow and all task managers are ready.";
    READY_SURVIVORS = Ready True "SurvivorsRun": "Rows flow though task managers are missing: the others have taken their key groups over.";
    READY_PENDING = Ready False "Pending": "Nothing was started yet.";
    READY_STARTING = Ready False "Starting": "Pods are started and tasks loaded.";
    READY_RECOVERING = Ready False "Recovering": "An attempt failed; the next one begins with the newest checkpoint.";
    READY_SUSPENDING = Ready False "Suspending": "The job stops with a checkpoint because `suspend` is true.";
    READY_SUSPENDED = Ready False "Suspended": "The job has stopped because `suspend` is true.";
    READY_UPGRADING = Ready False "Upgrading": "The job goes over to another document.";
    READY_FINISHED = Ready False "Finished": "All input is read and all output published.";
    READY_FAILED = Ready False "Failed": "The job was given up; the message says why.";

    PROGRESSING_STARTING = Progressing True "Starting": "Pods are started and tasks loaded.";
    PROGRESSING_RECOVERING = Progressing True "Recovering": "Another attempt is on its way.";
    PROGRESSING_SUSPENDING = Progressing True "Suspending": "The last checkpoint is taken and published.";
    PROGRESSING_UPGRADING = Progressing True "Upgrading": "The job goes over to another document.";
    PROGRESSING_SCALING = Progressing True "Scaling": "Key groups are handed over to more or fewer subtasks.";
    PROGRESSING_REPLACING_PODS = Progressing True "ReplacingPods": "Pods are replaced, or missing ones come back.";
    PROGRESSING_SETTLED = Progressing False "Settled": "Nothing is left to do: what is declared is so.";
    PROGRESSING_PAUSED = Progressing False "Paused": "The annotation `streamforge.io/pause` keeps the operator from changing anything.";
    PROGRESSING_SECRET_MISSING = Progressing False "SecretMissing": "The Secret that `checkpoint.storage` names is not there, or lacks a key.";
    PROGRESSING_STORE_UNREACHABLE = Progressing False "StoreUnreachable": "The checkpoint store does not answer or refuses.";
    PROGRESSING_SAVEPOINT_MISSING = Progressing False "SavepointMissing": "The savepoint that the job is to begin with is not there or not completed.";
    PROGRESSING_PODS_STUCK = Progressing False "PodsStuck": "Pods cannot start: image, scheduling, quota or admission.";
    PROGRESSING_OUT_OF_MEMORY = Progressing False "OutOfMemory": "A task manager was killed for using more memory than its limit.";
    PROGRESSING_NOT_ALLOWED = Progressing False "NotAllowed": "The API server refuses what the operator has to write.";
    PROGRESSING_SAVEPOINT_FAILS = Progressing False "SavepointFails": "The savepoint with which the job is to stop fails; the job runs on as it was, and stops without one if the next fails, too.";
    PROGRESSING_RECORD_UNREADABLE = Progressing False "RecordUnreadable": "What ran cannot be run by this operator, and the newest document is wrong, too: an edit mends it.";
    PROGRESSING_FAILED = Progressing False "Failed": "The job was given up.";

    VALID = Valid True "Valid": "What is declared can run.";
    VALID_INVALID_SPEC = Valid False "InvalidSpec": "The newest document is wrong; the last valid one keeps running.";
    VALID_STATE_WOULD_BE_DROPPED = Valid False "StateWouldBeDropped": "The newest document has no place for state that there is; the last valid one keeps running.";
    VALID_ROLLED_BACK = Valid False "RolledBack": "The newest document did not become healthy in time; the one before runs again.";

    CHECKPOINT_FRESH = CheckpointFresh True "Fresh": "The newest checkpoint is as young as the interval asks for.";
    CHECKPOINT_LAST = CheckpointFresh True "Last": "The job does not run, and its last checkpoint has all of it.";
    CHECKPOINT_FAILING = CheckpointFresh False "TooManyFailures": "More checkpoints failed in a row than `tolerateFailures` allows.";
    CHECKPOINT_OLD = CheckpointFresh False "TooOld": "The newest checkpoint is older than two intervals and a timeout.";
    CHECKPOINT_NONE = CheckpointFresh Unknown "NoneYet": "No checkpoint was completed yet.";
    CHECKPOINT_NOT_RUNNING = CheckpointFresh Unknown "NotRunning": "The job is not coordinated: no checkpoint is taken.";

    WATERMARK_ADVANCING = WatermarkAdvancing True "Advancing": "The lowest watermark of the sources moves.";
    WATERMARK_END = WatermarkAdvancing True "AtEnd": "All input is read: event time is at its end.";
    WATERMARK_HELD_BACK = WatermarkAdvancing False "HeldBack": "The lowest watermark has not moved for a minute; the message says what holds it.";
    WATERMARK_NO_EVENT_TIME = WatermarkAdvancing Unknown "NoEventTime": "No source of the job has event time.";
    WATERMARK_NONE = WatermarkAdvancing Unknown "NothingReadYet": "No watermark is known yet.";
    WATERMARK_NOT_RUNNING = WatermarkAdvancing Unknown "NotRunning": "The job does not run.";

    CAUGHT_UP = CaughtUp True "CaughtUp": "What there is to read is read, but for the last seconds.";
    CAUGHT_UP_ALL_READ = CaughtUp True "AllInputRead": "The job is bounded, and all its input is read.";
    CAUGHT_UP_BEHIND = CaughtUp False "Behind": "There is more to read.";
    CAUGHT_UP_UNREACHABLE = CaughtUp Unknown "SourceUnreachable": "A source, or a part of it, does not answer or refuses: how much there is to read is not known.";
    CAUGHT_UP_NOT_RUNNING = CaughtUp Unknown "NotRunning": "The job does not run.";
    CAUGHT_UP_NOT_MEASURED = CaughtUp Unknown "NotMeasured": "The sources do not tell how much there is to read.";
}

/// Longest message of a condition (a rule of the API's conventions).
const MESSAGE_CHARS_MAX: usize = 32_768;

impl Reason {
    /// The condition. It keeps its time while its status stays the same.
    #[must_use]
    pub fn condition(
        self,
        message: impl Into<String>,
        before: &[Condition],
        (generation, now): (Option<i64>, Timestamp),
    ) -> Condition {
        let before = before
            .iter()
            .find(|old| old.condition_type == self.kind.name());
        let unchanged = before.filter(|old| old.status == self.status);
        Condition {
            condition_type: self.kind.name().to_owned(),
            status: self.status.to_owned(),
            reason: self.name.to_owned(),
            message: message.into().chars().take(MESSAGE_CHARS_MAX).collect(),
            last_transition_time: unchanged
                .map_or_else(|| time(now), |old| old.last_transition_time.clone()),
            observed_generation: generation,
        }
    }
}

/// A time as Kubernetes writes it: whole seconds.
#[must_use]
pub fn time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second())
        .unwrap_or(at)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_conditions_lists_every_reason_as_it_is() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/operator-conditions.md"
        );
        let page = std::fs::read_to_string(page).unwrap();
        let found: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();

        let wanted: Vec<String> = ALL
            .iter()
            .map(|reason| {
                let Reason {
                    kind,
                    status,
                    name,
                    meaning,
                } = reason;
                format!("| `{}` | {status} | `{name}` | {meaning} |", kind.name())
            })
            .collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn reasons_are_single_words_and_unique_within_a_condition() {
        let mut seen = std::collections::BTreeSet::new();
        for reason in ALL {
            assert!(
                reason.name.chars().all(|c| c.is_ascii_alphanumeric()),
                "{reason:?}"
            );
            assert!(
                reason.name.starts_with(|c: char| c.is_ascii_uppercase()),
                "{reason:?}"
            );
            assert!(
                ["True", "False", "Unknown"].contains(&reason.status),
                "{reason:?}"
            );
            assert!(
                seen.insert((reason.kind, reason.name)),
                "{reason:?} is there twice"
            );
        }
        for kind in Kind::ALL {
            assert!(ALL.iter().any(|reason| reason.kind == kind), "{kind:?}");
        }
    }

    #[test]
    fn transition_time_moves_only_when_the_status_changes() {
        let (first, later) = (
            Timestamp::from_second(1_000).unwrap(),
            Timestamp::from_second(2_000).unwrap(),
        );
        let starting = READY_STARTING.condition("a", &[], (Some(1), first));
        let recovering =
            READY_RECOVERING.condition("b", std::slice::from_ref(&starting), (Some(2), later));
        let running =
            READY_RUNNING.condition("c", std::slice::from_ref(&recovering), (Some(2), later));

        assert_eq!(starting.last_transition_time, "1970-01-01T00:16:40Z");
        assert_eq!(
            recovering.last_transition_time,
            starting.last_transition_time
        );
        assert_eq!(running.last_transition_time, "1970-01-01T00:33:20Z");
    }

    #[test]
    fn another_conditions_time_is_not_taken_over() {
        let (first, later) = (
            Timestamp::from_second(1_000).unwrap(),
            Timestamp::from_second(2_000).unwrap(),
        );
        let other = VALID.condition("", &[], (None, first));
        let running = READY_RUNNING.condition("", &[other], (None, later));

        assert_eq!(running.last_transition_time, "1970-01-01T00:33:20Z");
    }
}
