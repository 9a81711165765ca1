//! An operator of a test's own, and a namespace for its jobs.
//!
//! Owns: bringing both up and down, declaring jobs and waiting until they are so. Nothing of a job that a test
//! made outlives it, whatever became of the operator.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::Api;
use crate::bucket;
use crate::declared::Declared;
use crate::job::{bucket_folder, verify};
use crate::namespace::Namespace;
use crate::operator::{Operator, Release};
use crate::seen::{Seen, job_path};

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// The longest that anything may take until it is as declared. Generous: machines are busy.
const SETTLE_WITHIN: Duration = Duration::from_secs(120);

/// See the module.
pub struct Trial {
    /// The operator. Dropped first: it must not see its rights go.
    pub operator: Operator,
    /// Its rights.
    pub release: Release,
    /// The jobs'.
    pub namespace: Namespace,
}

impl Trial {
    /// An operator with rights in one namespace.
    pub fn new(test: &str) -> Self {
        let namespace = Namespace::create(test);
        let watched = [namespace.name().to_owned()];
        Self::with(namespace, &watched)
    }

    /// An operator with rights in the whole cluster: no other may have jobs meanwhile.
    pub fn of_cluster(test: &str) -> Self {
        Self::with(Namespace::create(test), &[])
    }

    fn with(namespace: Namespace, watched: &[String]) -> Self {
        let own = format!("{}-op", namespace.name());
        let release = Release::install(&own, watched);
        let operator = release.operator("operator-0");
        Self {
            operator,
            release,
            namespace,
        }
    }

    /// The same, started.
    pub fn started(test: &str) -> Self {
        let trial = Self::new(test);
        trial.operator.start();
        trial
    }

    /// As a person.
    pub fn api(&self) -> &Api {
        &self.release.api
    }

    /// A small job without an end, which is not applied yet.
    pub fn small_job(&self, name: &str) -> Declared {
        Declared::new(name, &format!("{}/{name}", bucket_folder(&self.namespace)))
    }

    /// Applies a job.
    pub fn declare(&self, job: &Declared) {
        let path = job_path(self.namespace.name(), &job.name);
        let taken = self.api().declare(&path, &job.document());
        taken.unwrap_or_else(|said| panic!("{job} is refused: {said}"));
    }

    /// Asks for a job to be deleted.
    pub fn delete(&self, name: &str) {
        self.api().delete(&job_path(self.namespace.name(), name));
    }

    /// What there is of a job.
    pub fn look(&self, name: &str) -> Seen {
        Seen::look(self.api(), self.namespace.name(), name)
    }

    /// Waits until a job is as it was declared.
    pub fn settle(&self, declared: &Declared, obeyed: &Declared) -> Seen {
        self.wait(&format!("{declared}"), || {
            let seen = self.look(&declared.name);
            match seen.differs(declared, obeyed) {
                None => Ok(seen),
                Some(why) => Err(why),
            }
        })
    }

    /// Waits until nothing of a job is left, in the cluster and in the bucket.
    pub fn settle_gone(&self, declared: &Declared) {
        let name = &declared.name;
        self.wait(&format!("{name} is gone"), || {
            let seen = self.look(name);
            if seen.is_gone() {
                return Ok(());
            }
            let children = seen.children.iter().map(|it| it["kind"].to_string());
            let children: Vec<String> = children.collect();
            Err(format!(
                "job {}, {children:?}, {} pods",
                seen.job.is_some(),
                seen.pods.len()
            ))
        });
        // They go before the job does.
        let left = bucket::checkpoints_below(&declared.store());
        assert_eq!(left, [""; 0], "checkpoints of {name} are left");
    }

    /// Looks until it is so; shows what was missing when the time is over.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
        let began = Instant::now();
        loop {
            match look() {
                Ok(found) => return found,
                Err(why) => assert!(
                    began.elapsed() < SETTLE_WITHIN,
                    "{what}: not within {SETTLE_WITHIN:?}: {why}"
                ),
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Compares the result of a job that has finished with what a batch over all rows gives.
    pub fn verify(&self, job: &Declared) {
        verify(&self.namespace, &job.name, &job.document());
    }

    /// Texts that are this trial's alone.
    pub fn own_texts(&self) -> Vec<String> {
        let address = self.release.address();
        // The longer name first: the other one is part of it.
        vec![
            address,
            self.release.namespace().to_owned(),
            self.namespace.name().to_owned(),
        ]
    }

    fn release_finalizers(&self) {
        let namespace = self.namespace.name();
        for kind in ["streamjobs", "savepoints"] {
            let path = format!("/apis/streamforge.io/v1alpha1/namespaces/{namespace}/{kind}");
            for item in self.api().list(&path) {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                let none = json!({"metadata": {"finalizers": Value::Null}});
                let target = format!("{path}/{name}");
                let kind = "application/merge-patch+json";
                self.api()
                    .call("PATCH", &target, kind, none.to_string().as_bytes());
            }
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.operator.process().kill();
        self.release_finalizers();
    }
}
