//! A job that is at rest: what brings it back.
//!
//! Owns: the steps of a job that is suspended or has failed.

use super::{
    Record, Run, State, Step, Used, Wanted, accepted, answered, at_rest, begun, is_wanted, rewound,
};

/// It was stopped, and may be resumed.
pub(super) fn suspended(wanted: Option<&Wanted>, record: &Record, run: &Run) -> Step {
    if !matches!(run, Run::None) {
        return Step::Abandon;
    }
    match wanted {
        Some(wanted) if !wanted.suspend && !is_wanted(wanted, record) => Step::Write(Record {
            state: State::Active,
            ..rewound(wanted, record)
        }),
        // What was edited meanwhile is taken as it is: nothing runs that could be rolled back to.
        Some(wanted) if !wanted.suspend => Step::Write(begun(wanted, &rewound(wanted, record))),
        _ => Step::Wait,
    }
}

/// It was given up, and may be tried again.
pub(super) fn failed(wanted: Option<&Wanted>, record: &Record, run: &Run) -> Step {
    if !matches!(run, Run::None) {
        return Step::Abandon;
    }
    let Some(wanted) = wanted else {
        return Step::Wait;
    };
    let done = &record.done;
    if done.accept_lost_marker == Used::Unknown {
        // Another operator gave the job up: the value that stands there is no wish of now, as far as anybody knows.
        return Step::Write(accepted(wanted, record.clone()));
    }
    let rewinds = wanted.rewind_to.is_some() && wanted.rewind_to != done.rewind_to;
    let accepting = wanted.accept_lost_marker.as_deref();
    let accepts = accepting.is_some() && !done.accept_lost_marker.is(accepting);
    let asked = wanted.restart != done.restart || rewinds || accepts;
    if wanted.suspend && wanted.generation != record.generation {
        return Step::Write(at_rest(record));
    }
    let is_edited = wanted.generation != record.generation && is_wanted(wanted, record);
    if asked || is_edited {
        let rewound = rewound(wanted, record);
        let again = if is_wanted(wanted, record) {
            begun(wanted, &rewound)
        } else {
            // What was rolled back is not what is started again.
            Record {
                state: State::Active,
                ..rewound
            }
        };
        return Step::Write(answered(wanted, again));
    }
    Step::Wait
}
