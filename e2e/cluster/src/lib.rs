//! Tests of the operator in a real Kubernetes with a real S3 server, as `make e2e` brings them up.
//!
//! Owns: namespaces of tests, jobs that can be recomputed, waiting for what kubectl shows; an operator as
//! a process of this machine behind a proxy that loses and refuses what a test says. Sees the cluster as a user
//! does; imports nothing of the operator.
//! Start at: [`Namespace`], [`ClicksJob`]; [`Trial`] and [`Proxy`] for an operator of a test's own.

mod api;
pub mod bucket;
mod declared;
mod http;
mod job;
mod kubectl;
mod life;
mod logs;
mod namespace;
mod operator;
mod proxy;
mod request;
mod said;
mod seen;
mod service;
mod trial;

pub use api::Api;
pub use declared::Declared;
pub use http::Answer;
pub use job::{ClicksJob, bucket_folder, condition, finish, kill_pods, s3_settings, workspace};
pub use kubectl::{apply, eventually, get, kubectl, try_kubectl};
pub use life::{Ends, LIFE, Meddler, Step, difference, live, undisturbed};
pub use namespace::{
    COORDINATOR_GONE, Namespace, TASK_MANAGERS_DIE, leading_pod, lease, operator_namespace,
    variable,
};
pub use operator::{Operator, Process, Release, rendered};
pub use proxy::{Fate, Line, Proxy, refusal};
pub use request::Request;
pub use said::{Said, said};
pub use seen::{Seen, job_path, savepoint_path};
pub use trial::Trial;
