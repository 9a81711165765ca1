//! Documents that were validated already.
//!
//! Owns: remembering the outcome, which depends on the document alone: a pass over a job asks several times,
//! and planning is most of what it would cost. Start at: [`Checked::validate`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt as _;
use streamforge_crds::v1alpha1::StreamJob;
use xxhash_rust::xxh3::xxh3_64;

use super::validate::{Desired, Problem, RESTART_ANNOTATION, validate};
use crate::settings::Settings;

/// What runs, and what is wanted.
const OUTCOMES_MAX: usize = 2;

/// What came of it.
pub type Outcome = Result<Arc<Desired>, Vec<Problem>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Checked(Mutex<HashMap<String, Vec<(u64, Outcome)>>>);

impl Checked {
    /// As [`validate`].
    ///
    /// # Errors
    /// As [`validate`].
    pub fn validate(&self, job: &StreamJob, settings: &Settings) -> Outcome {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let restart = job.annotations().get(RESTART_ANNOTATION);
        // A spec has texts as keys.
        let key = serde_json::to_vec(&(&job.spec, restart)).unwrap_or_default();
        let key = xxh3_64(&key);
        {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = known.entry(uid.clone()).or_default();
            if let Some(at) = known.iter().position(|(of, _)| *of == key) {
                // The newest is the last one.
                let found = known.remove(at);
                let outcome = found.1.clone();
                known.push(found);
                return outcome;
            }
        }
        let outcome = validate(job, settings).map(Arc::new);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry(uid).or_default();
        if known.len() >= OUTCOMES_MAX {
            drop(known.remove(0));
        }
        known.push((key, outcome.clone()));
        outcome
    }

    /// The job is gone.
    pub fn forget(&self, uid: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stream_job::testing::{job, settings, with, with_metadata};

    #[test]
    fn same_document_is_validated_once_and_another_one_anew() {
        let (checked, settings) = (Checked::default(), settings());
        let of = |job: &StreamJob| checked.validate(job, &settings);
        let first = of(&job()).unwrap();
        let scaled = of(&with(&job(), "/parallelism", json!(8))).unwrap();

        assert!(Arc::ptr_eq(&first, &of(&job()).unwrap()));
        assert_eq!(scaled.parallelism(), 8);
        let restart = json!({"streamforge.io/restart": "now"});
        let restarted = of(&with_metadata(&job(), "/annotations", restart)).unwrap();
        assert_ne!(restarted.pods, first.pods);
        // What was asked for last is kept.
        assert!(Arc::ptr_eq(&first, &of(&job()).unwrap()));
        assert!(of(&with(&job(), "/sinks", json!([]))).is_err());
    }
}
