//! What happens around a pass.
//!
//! Owns: an end for a pass that stands still, and that nothing is remembered of a job that went during its pass.

use std::time::Duration;

use kube::runtime::reflector::{ObjectRef, Store};
use streamforge_crds::v1alpha1::StreamJob;

use super::Context;
use crate::heard::Heard;
use crate::stream_job::error::Error;

/// How long a pass may take: its requests have limits of their own, so one that takes longer stands still, and holds
/// the place of another one.
const PASS_WITHIN: Duration = Duration::from_secs(120);

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
