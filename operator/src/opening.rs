//! Stores that are being opened, beside the passes.
//!
//! Owns: opening a job's store while its pass goes on and ends, so that one that does not answer keeps
//! no other job waiting; and how many are begun at once. Start at: [`Openings::poll`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::stream_job::coordinate::Prepared;
use crate::stream_job::error::Error;

/// What may be taken by work beside the passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long one piece may take.
    pub(crate) within: Duration,
    /// Pieces that are begun at once.
    pub(crate) at_once: usize,
    /// What takes longer makes room for the next one, and goes on.
    pub(crate) room_for: Duration,
}

const LIMITS: Limits = Limits {
    within: Duration::from_secs(8),
    at_once: 32,
    room_for: Duration::from_millis(500),
};

type Answer = Arc<Mutex<Option<Result<Prepared, Error>>>>;

struct Opening {
    revision: u64,
    answer: Answer,
    task: AbortHandle,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// See the module.
pub struct Openings {
    by_uid: Mutex<HashMap<String, Opening>>,
    room: Arc<Semaphore>,
    limits: Limits,
}

/// How far an opening is.
pub enum Progress {
    /// It was not begun.
    None,
    /// It is under way.
    UnderWay,
    /// It has ended, and is forgotten here.
    Done(Box<Result<Prepared, Error>>),
}

impl Default for Openings {
    fn default() -> Self {
        Self::with(LIMITS)
    }
}

impl Openings {
    fn with(limits: Limits) -> Self {
        Self {
            by_uid: Mutex::default(),
            room: Arc::new(Semaphore::new(limits.at_once)),
            limits,
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Opening>> {
        // Every critical section leaves the table whole.
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the opening for this revision of a job is; one for another revision is given up.
    pub fn poll(&self, uid: &str, revision: u64) -> Progress {
        let mut table = self.table();
        let Some(opening) = table.get(uid) else {
            return Progress::None;
        };
        if opening.revision != revision {
            table.remove(uid);
            return Progress::None;
        }
        let answer = opening.answer.lock();
        let answer = answer.unwrap_or_else(PoisonError::into_inner).take();
        match answer {
            None => Progress::UnderWay,
            Some(answer) => {
                table.remove(uid);
                Progress::Done(Box::new(answer))
            }
        }
    }

    /// Begins one; `place` is for its error, and `done` is called when it has ended.
    pub fn begin(
        &self,
        uid: &str,
        revision: u64,
        place: String,
        prepare: impl Future<Output = Result<Prepared, Error>> + Send + 'static,
        done: impl FnOnce() + Send + 'static,
    ) {
        let (answer, room) = (Answer::default(), Arc::clone(&self.room));
        let (into, limits) = (Arc::clone(&answer), self.limits);
        let task = tokio::spawn(async move {
            let prepared = in_turn(&room, limits, prepare).await.unwrap_or_else(|| {
                Err(Error::Silent {
                    what: place,
                    seconds: limits.within.as_secs(),
                })
            });
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepared);
            done();
        });
        let opening = Opening {
            revision,
            answer,
            task: task.abort_handle(),
        };
        self.table().insert(uid.to_owned(), opening);
    }

    /// Gives one up.
    pub fn forget(&self, uid: &str) {
        self.table().remove(uid);
    }
}

/// `None`: it took too long, waiting for its turn not counted.
pub(crate) async fn in_turn<T>(
    room: &Semaphore,
    limits: Limits,
    work: impl Future<Output = T>,
) -> Option<T> {
    let turn = room.acquire().await;
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(limits.room_for, &mut work).await {
        return Some(done);
    }
    drop(turn);
    let left = limits.within.saturating_sub(limits.room_for);
    tokio::time::timeout(left, work).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A silent store would be waited for longer than any test may take.
    fn limits(within: Duration) -> Limits {
        Limits {
            within,
            at_once: 2,
            room_for: Duration::from_millis(1),
        }
    }

    #[tokio::test]
    async fn silent_stores_keep_no_other_one_waiting() {
        let openings = Openings::with(limits(Duration::from_secs(3_600)));
        for n in 0..100 {
            let never = std::future::pending();
            openings.begin(&format!("silent-{n}"), 1, String::new(), never, || {});
        }
        let emptied = Error::Emptied {
            location: "here".to_owned(),
        };
        let (told, tells) = tokio::sync::oneshot::channel();
        openings.begin("answers", 1, String::new(), async { Err(emptied) }, || {
            told.send(()).unwrap();
        });

        tells.await.unwrap();

        let Progress::Done(answer) = openings.poll("answers", 1) else {
            panic!("it has ended")
        };
        assert!(matches!(*answer, Err(Error::Emptied { .. })));
        assert!(matches!(openings.poll("answers", 1), Progress::None));
        assert!(matches!(openings.poll("silent-0", 1), Progress::UnderWay));
    }

    #[tokio::test]
    async fn silent_store_is_told_after_its_time() {
        let openings = Openings::with(limits(Duration::from_millis(20)));
        let (told, tells) = tokio::sync::oneshot::channel();
        let never = std::future::pending();
        openings.begin("job", 1, "s3://silent".to_owned(), never, || {
            told.send(()).unwrap();
        });

        tells.await.unwrap();

        let Progress::Done(answer) = openings.poll("job", 1) else {
            panic!("it has ended")
        };
        assert!(matches!(*answer, Err(Error::Silent { what, .. }) if what == "s3://silent"));
    }

    #[tokio::test]
    async fn opening_for_what_is_not_wanted_any_more_is_given_up() {
        let openings = Openings::default();
        openings.begin("job", 1, String::new(), std::future::pending(), || {});

        assert!(matches!(openings.poll("job", 2), Progress::None));
        assert!(matches!(openings.poll("job", 1), Progress::None));
    }
}
