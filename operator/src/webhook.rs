//! The validating webhook: what would become of a resource, before it is written.
//!
//! Owns: answering the API server's questions over TLS. Every operator answers, the one that leads and
//! the others. What is refused is what the next pass would refuse, in the same words ([`verdict`]); all
//! else is let through, with a warning where the edit of a running job does something to its pods or its
//! state. Nothing is ever written: a dry run is answered like any other request.
//!
//! Nobody proves to be the API server, so an answer holds nothing that its question did not: what is on
//! record of a job is told only to those who name its uid. Start at: [`start`].

mod certificate;
mod metrics;
mod review;
mod server;
pub mod verdict;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::{Api, Client, ResourceExt as _};
use prometheus::Registry;
use streamforge_crds::v1alpha1::StreamJob;

use crate::args::Args;
use crate::settings::Settings;
use crate::stream_job::error::chain;
use crate::stream_job::keep::{self, Kept};

use certificate::Keeper;
use metrics::Metrics;
use review::{Request, SAVEPOINT, STREAM_JOB};
use verdict::Verdict;

/// How long may be looked for what is on record of a job: the API server waits for the answer.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// What answering needs.
struct Webhook {
    client: Client,
    settings: Settings,
    metrics: Metrics,
}

/// Listens, if the operator is told to, and keeps the certificate young and the API server told of it.
///
/// # Errors
/// When the address is taken, or the authority cannot be read.
pub async fn start(
    args: &Args,
    client: &Client,
    settings: &Settings,
    registry: &Registry,
) -> Result<()> {
    let Some(address) = args.webhook_listen else {
        return Ok(());
    };
    let keeper = Keeper::new(args, client.clone()).await?;
    let webhook = Webhook {
        client: client.clone(),
        settings: settings.clone(),
        metrics: Metrics::new(registry).context("register the webhook's metrics")?,
    };
    let bound = server::start(address, keeper.tls()?, Arc::new(webhook)).await?;
    tracing::info!(address = %bound, "answering admission reviews");
    tokio::spawn(keeper.keep());
    Ok(())
}

impl server::Answer for Webhook {
    async fn answer(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        let began = Instant::now();
        let request = Request::read(body)?;
        let kind = request.kind();
        let judged = self.judge(Arc::clone(&request)).await;
        let verdict = match &judged {
            Ok(verdict) => verdict.name(),
            Err(_) => "failed",
        };
        self.metrics.on_answer(kind, verdict, began.elapsed());
        Ok(request.answer(&judged?))
    }
}

impl Webhook {
    async fn judge(&self, request: Arc<Request>) -> Result<Verdict, String> {
        if !verdict::is_worth_judging(&request) {
            return Ok(Verdict::default());
        }
        match request.kind() {
            STREAM_JOB => self.judge_job(request).await,
            SAVEPOINT => Ok(self.judge_savepoint(&request).await),
            _ => Ok(Verdict::default()),
        }
    }

    async fn judge_job(&self, request: Arc<Request>) -> Result<Verdict, String> {
        let (kept, unknown) = match self.kept(&request).await {
            Ok(kept) => (kept, None),
            Err(reason) => (None, Some(reason)),
        };
        let settings = self.settings.clone();
        let judged = tokio::task::spawn_blocking(move || {
            verdict::of_job(&request, kept.as_ref(), &settings)
        });
        let mut verdict = judged.await.map_err(|error| format!("judge it: {error}"))?;
        verdict.warnings.extend(unknown);
        Ok(verdict)
    }

    /// What is on record of the very job that the question is about.
    async fn kept(&self, request: &Request) -> Result<Option<Kept>, String> {
        let Some(uid) = request.uid_of_job() else {
            return Ok(None);
        };
        let failed = |why: &str| format!("what this does to the job could not be told: {why}");
        let kept = keep::read_of(&self.client, request.namespace(), request.name(), uid);
        match tokio::time::timeout(LOOK_WITHIN, kept).await {
            Ok(Ok(kept)) => Ok(kept.record.is_some().then_some(kept)),
            Ok(Err(error)) => Err(failed(&chain(&error).to_string())),
            Err(_) => Err(failed("the API server does not answer")),
        }
    }

    async fn judge_savepoint(&self, request: &Request) -> Verdict {
        let Some(savepoint) = request.savepoint() else {
            return Verdict::default();
        };
        let mut verdict = verdict::of_savepoint(&savepoint);
        if !verdict.problems.is_empty() || !request.is_creation() {
            return verdict;
        }
        let namespace = savepoint.namespace().unwrap_or_default();
        let jobs: Api<StreamJob> = Api::namespaced(self.client.clone(), &namespace);
        let name = savepoint.spec.job;
        let looked = tokio::time::timeout(LOOK_WITHIN, jobs.get_metadata_opt(&name)).await;
        if let Ok(Ok(None)) = looked {
            let missing = crate::savepoint::no_job(&name);
            verdict
                .warnings
                .push(format!("{missing}: it waits for one"));
        }
        verdict
    }
}
