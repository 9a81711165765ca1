//! `--metrics`: the numbers of coordinator and task manager in one place.
//!
//! Owns: the registry of this process, and when it is ready. Start at: [`serve`].

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use prometheus::Registry;
use streamforge_host::{Phase, Status};
use streamforge_proto::metrics::http;
use streamforge_taskmanager::metrics::Metrics;
use tokio::sync::watch;

/// Serves until the process ends; returns the address.
pub async fn serve(
    listen: SocketAddr,
    job: &str,
    status: watch::Receiver<Status>,
    tasks: Metrics,
) -> Result<SocketAddr> {
    let registry = Registry::new();
    let of_job = streamforge_host::metrics::Metrics::new(job.to_owned(), status.clone());
    registry.register(Box::new(of_job))?;
    registry.register(Box::new(tasks))?;
    let ready: http::Ready = Arc::new(move || readiness(&status.borrow()));
    http::serve(listen, registry, ready)
        .await
        .context("`--metrics` needs a free address of this machine")
}

/// Ready is a job whose rows flow; also one that is about to be done.
fn readiness(status: &Status) -> Result<(), String> {
    match status.phase {
        Phase::Running | Phase::Stopping | Phase::Finishing | Phase::Ended => Ok(()),
        Phase::Starting => Err("the job is starting".to_owned()),
        Phase::Deploying => Err("tasks are being loaded".to_owned()),
        Phase::Recovering => Err(match &status.last_failure {
            Some(cause) => format!("the last attempt failed: {cause}"),
            None => "the last attempt failed".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use streamforge_host::Failure;

    use super::*;

    #[test]
    fn job_that_recovers_is_not_ready_and_says_why() {
        let status = Status {
            phase: Phase::Recovering,
            last_failure: Some(Failure {
                time_ms: 0,
                task_manager: Some("b".to_owned()),
                reason: "disk full".to_owned(),
            }),
            ..Status::default()
        };

        let why = readiness(&status).unwrap_err();

        assert_eq!(why, "the last attempt failed: task manager b: disk full");
        let running = Status {
            phase: Phase::Running,
            ..Status::default()
        };
        assert_eq!(readiness(&running), Ok(()));
    }
}
