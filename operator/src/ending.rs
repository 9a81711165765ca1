//! Jobs and savepoints that are being deleted.
//!
//! Owns: since when this operator has been at it, by which limits of a deletion are counted: neither the API
//! server's clock matters, nor the time when no operator was there. And clearing their stores beside the passes,
//! so that one that does not answer keeps nobody else waiting. Start at: [`Endings::clear`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::opening::{Limits, in_turn};
use crate::stream_job::error::{Error, chain};

/// What is deleted goes without its store being cleared when that takes longer.
const LIMITS: Limits = Limits {
    within: Duration::from_secs(60),
    at_once: 16,
    room_for: Duration::from_secs(1),
};

struct Ending {
    since: Instant,
    clearing: Option<JoinHandle<()>>,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            clearing: None,
        }
    }
}

/// What stays behind when a store cannot be cleared, for the log.
#[derive(Clone, Debug)]
pub struct Left {
    /// Which objects, in words.
    pub what: &'static str,
    /// The resource's.
    pub namespace: String,
    /// The resource's.
    pub name: String,
}

/// How far clearing a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// It was not begun.
    None,
    /// It is under way.
    UnderWay,
    /// It is over, well or not.
    Over,
}

/// See the module.
pub struct Endings {
    by_uid: Mutex<HashMap<String, Ending>>,
    room: Arc<Semaphore>,
    limits: Limits,
}

impl Default for Endings {
    fn default() -> Self {
        Self::with(LIMITS)
    }
}

impl Endings {
    fn with(limits: Limits) -> Self {
        Self {
            by_uid: Mutex::default(),
            room: Arc::new(Semaphore::new(limits.at_once)),
            limits,
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Ending>> {
        // Every critical section leaves the table whole.
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when this operator has been at a deletion: since it asked for the first time.
    pub fn since(&self, uid: &str) -> Duration {
        let mut table = self.table();
        table.entry(uid.to_owned()).or_default().since.elapsed()
    }

    /// How far clearing the store is.
    pub fn clearing(&self, uid: &str) -> Clearing {
        let table = self.table();
        let clearing = table.get(uid).and_then(|ending| ending.clearing.as_ref());
        match clearing {
            None => Clearing::None,
            Some(task) if task.is_finished() => Clearing::Over,
            Some(_) => Clearing::UnderWay,
        }
    }

    /// Begins it; `done` is called when it is over. A store that is gone for good must not keep the resource for
    /// ever: what is left is told in the log.
    pub fn clear(
        &self,
        uid: &str,
        left: Left,
        clear: impl Future<Output = Result<(), Error>> + Send + 'static,
        done: impl FnOnce() + Send + 'static,
    ) {
        let (room, limits) = (Arc::clone(&self.room), self.limits);
        let Left {
            what,
            namespace,
            name,
        } = left;
        let task = tokio::spawn(async move {
            match in_turn(&room, limits, clear).await {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::warn!(namespace, name, "{what}: {}", chain(&error));
                }
                None => {
                    let reason = "the store did not answer";
                    tracing::warn!(namespace, name, "{what}: {reason}");
                }
            }
            done();
        });
        let mut table = self.table();
        table.entry(uid.to_owned()).or_default().clearing = Some(task);
    }

    /// It is gone; a store that is being cleared goes on to be.
    pub fn forget(&self, uid: &str) {
        self.table().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_store_of_a_deleted_job_keeps_no_other_one_waiting_and_is_given_up() {
        let endings = Endings::with(Limits {
            within: Duration::from_millis(300),
            at_once: 1,
            room_for: Duration::from_millis(1),
        });
        let told = Arc::new(Semaphore::new(0));
        let clear = |uid: &str, work: futures::future::BoxFuture<'static, Result<(), Error>>| {
            let told = Arc::clone(&told);
            let left = Left {
                what: "checkpoints are left",
                namespace: String::new(),
                name: uid.to_owned(),
            };
            endings.clear(uid, left, work, move || {
                told.add_permits(1);
            });
        };
        assert_eq!(endings.clearing("silent"), Clearing::None);
        clear("silent", Box::pin(std::future::pending()));
        clear("answers", Box::pin(async { Ok(()) }));

        told.acquire().await.unwrap().forget();
        assert_eq!(endings.clearing("silent"), Clearing::UnderWay);
        told.acquire().await.unwrap().forget();
        while endings.clearing("silent") == Clearing::UnderWay {
            tokio::task::yield_now().await;
        }

        for uid in ["silent", "answers"] {
            assert_eq!(endings.clearing(uid), Clearing::Over);
            endings.forget(uid);
            assert_eq!(endings.clearing(uid), Clearing::None);
        }
    }
}
