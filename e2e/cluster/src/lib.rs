//! Tests of the operator in a real Kubernetes with a real S3 server, as `make e2e` brings them up.
//!
//! Owns: namespaces of tests, jobs that can be recomputed, waiting for what kubectl shows. Sees
//! the cluster as a user does, by kubectl; imports nothing of the operator.
//! Start at: [`Namespace`], [`ClicksJob`].

mod job;
mod kubectl;
mod namespace;

pub use job::{ClicksJob, bucket_folder, finish, s3_settings, workspace};
pub use kubectl::{apply, eventually, get, kubectl, try_kubectl};
pub use namespace::{Namespace, operator_namespace, variable};
