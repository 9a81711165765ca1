//! What happens around a pass.
//!
//! Owns: an end for a pass that stands still, when one that failed is made again, and that nothing is remembered of a
//! job that went during its pass.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::{ObjectRef, Store};
use streamforge_crds::v1alpha1::StreamJob;

use super::Context;
use crate::heard::Heard;
use crate::stream_job::error::Error;

/// How long a pass may take: its requests have limits of their own, so one that takes longer stands still, and holds
/// the place of another one.
const PASS_WITHIN: Duration = Duration::from_secs(120);

/// Longest wait after a pass that failed.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// After how long a pass is made again if so many in a row have failed.
pub(super) fn wait_after(failed_n: u32) -> Duration {
    let wait = Duration::from_millis(500).saturating_mul(1 << failed_n.min(8));
    wait.min(AGAIN_MAX)
}

/// Passes over savepoints that failed, in a row, by uid.
#[derive(Default)]
pub struct Failures(Mutex<HashMap<String, u32>>);

impl Failures {
    fn table(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        // Every critical section leaves the table whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more; after how long the next one is made.
    pub fn on_failed(&self, uid: &str) -> Duration {
        let mut table = self.table();
        let failed_n = table.entry(uid.to_owned()).or_default();
        *failed_n = failed_n.saturating_add(1);
        wait_after(*failed_n)
    }

    /// One that did not fail, or there will be no other one.
    pub fn forget(&self, uid: &str) {
        self.table().remove(uid);
    }
}

/// A pass, if it comes to its end in time.
pub(super) async fn within_its_time<T>(
    pass: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    within(PASS_WITHIN, pass).await
}

async fn within<T>(
    limit: Duration,
    pass: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let passed = tokio::time::timeout(limit, pass).await;
    passed.unwrap_or(Err(Error::Stuck {
        seconds: limit.as_secs(),
    }))
}

/// A job that went during its pass was forgotten then, and remembered again.
pub(super) fn forget_gone(
    job: &Heard<StreamJob>,
    context: &Context,
    known: &Store<Heard<StreamJob>>,
) {
    let newest = known.get(&ObjectRef::from_obj(job));
    if newest.is_none_or(|newest| newest.metadata.uid != job.metadata.uid) {
        context.forget(job.metadata.uid.as_deref().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;

    use super::super::{again, reconcile};
    use super::*;
    use crate::stream_job::testing::{UID, api_server, context, job, with_metadata};

    /// The jobs that the watch knows of.
    fn known(jobs: &[StreamJob]) -> Store<Heard<StreamJob>> {
        let (store, mut writer) = reflector::store();
        for job in jobs {
            writer.apply_watcher_event(&Event::Apply(job.clone().into()));
        }
        store
    }

    #[tokio::test]
    async fn job_that_went_during_its_pass_is_forgotten_whatever_the_pass_remembers() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(api_server(|_| None).0, folder.path());
        let again_of = |known: &Store<Heard<StreamJob>>| {
            let _validated = context.checked.validate(&job(), &context.settings);
            let stuck = Error::Stuck { seconds: 1 };
            let _wait = again(Arc::new(job().into()), &stuck, Arc::clone(&context));
            forget_gone(&job().into(), &context, known);
        };
        let is_remembered = || context.memories().contains_key(UID);

        again_of(&known(&[job()]));
        assert!(is_remembered());
        again_of(&known(&[]));
        assert!(!is_remembered());
        // Another one of its name is another job.
        again_of(&known(&[with_metadata(
            &job(),
            "/uid",
            serde_json::json!("uid-2"),
        )]));
        assert!(!is_remembered());
        let finalizers = serde_json::json!(["streamforge.io/checkpoints"]);
        let job = Arc::new(Heard::from(with_metadata(
            &job(),
            "/finalizers",
            finalizers,
        )));
        for (known, stays) in [
            (known(std::slice::from_ref(&job.object)), true),
            (known(&[]), false),
        ] {
            let _refused = reconcile(Arc::clone(&job), Arc::clone(&context), known).await;
            assert_eq!(is_remembered(), stays);
        }
    }

    #[tokio::test]
    async fn pass_that_stands_still_is_given_up() {
        let never = std::future::pending::<Result<(), Error>>();
        let stuck = within(Duration::from_millis(10), never);
        let stuck = tokio::time::timeout(Duration::from_secs(5), stuck);
        let stuck = stuck.await.expect("it is given up");
        assert!(matches!(stuck, Err(Error::Stuck { seconds: 0 })));
        let done = within(Duration::from_secs(60), async { Ok(7) }).await;
        assert_eq!(done.unwrap(), 7);
    }
}
