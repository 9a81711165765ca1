//! What a person asks of a running job, over the coordinator's listener.
//!
//! Owns: the service and its answers. What may be done, the coordinator decides; a request waits for
//! its word only, not for the deed.

use std::collections::{BTreeMap, HashMap};

use streamforge_coordinator::{Phase, SavepointState, Status};
use streamforge_core::ids::OperatorUid;
use streamforge_proto::v1;
use streamforge_proto::v1::control_server::Control;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status as Answer};

use crate::task_managers::{News, Told};

/// One question, and where its answer goes.
#[derive(Debug)]
pub enum Ask {
    /// How the job does.
    Status(oneshot::Sender<Box<Status>>),
    /// So many subtasks.
    Scale(u32, oneshot::Sender<Result<(), String>>),
    /// A savepoint of this name; whether the job is to stop there.
    Savepoint(String, bool, oneshot::Sender<Result<(), String>>),
    /// How far the savepoint of this name is; `None`: it was not asked for.
    SavepointState(String, oneshot::Sender<Option<SavepointState>>),
    /// Stop with a checkpoint.
    Stop(oneshot::Sender<Result<(), String>>),
    /// This task manager is to give its subtasks away.
    Drain(String, oneshot::Sender<Result<(), String>>),
}

/// The way to ask a job's coordinator. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Orders {
    news: mpsc::Sender<Told>,
}

/// The job is over, and nobody is there to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the job is over")]
pub struct Over;

impl Orders {
    pub(crate) fn new(news: mpsc::Sender<Told>) -> Self {
        Self { news }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When the job is over.
    pub async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Over> {
        let (answer, answered) = oneshot::channel();
        let asked = self
            .news
            .send((0, Box::new(News::Asked(ask(answer)))))
            .await;
        asked.map_err(|_| Over)?;
        answered.await.map_err(|_| Over)
    }
}

/// See the module.
pub(crate) struct Service {
    pub(crate) orders: Orders,
}

impl Service {
    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T, Answer> {
        let answered = self.orders.ask(ask).await;
        answered.map_err(|over| Answer::unavailable(over.to_string()))
    }

    async fn order(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<(), String>>) -> Ask,
    ) -> Result<Response<v1::Accepted>, Answer> {
        match self.ask(ask).await? {
            Ok(()) => Ok(Response::new(v1::Accepted {})),
            Err(reason) => Err(Answer::failed_precondition(reason)),
        }
    }
}

#[tonic::async_trait]
impl Control for Service {
    async fn status(
        &self,
        _request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::JobStatus>, Answer> {
        let status = self.ask(Ask::Status).await?;
        Ok(Response::new(shown(&status)))
    }

    async fn scale(
        &self,
        request: Request<v1::ScaleRequest>,
    ) -> Result<Response<v1::Accepted>, Answer> {
        let parallelism = request.into_inner().parallelism;
        self.order(|answer| Ask::Scale(parallelism, answer)).await
    }

    async fn stop(
        &self,
        _request: Request<v1::StopRequest>,
    ) -> Result<Response<v1::Accepted>, Answer> {
        self.order(Ask::Stop).await
    }

    async fn savepoint(
        &self,
        request: Request<v1::SavepointRequest>,
    ) -> Result<Response<v1::Accepted>, Answer> {
        let v1::SavepointRequest { name, stop } = request.into_inner();
        self.order(|answer| Ask::Savepoint(name, stop, answer))
            .await
    }

    async fn savepoint_status(
        &self,
        request: Request<v1::SavepointStatusRequest>,
    ) -> Result<Response<v1::SavepointState>, Answer> {
        let name = request.into_inner().name;
        let state = self.ask(|answer| Ask::SavepointState(name, answer)).await?;
        Ok(Response::new(savepoint(state)))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::Accepted>, Answer> {
        let name = request.into_inner().task_manager;
        self.order(|answer| Ask::Drain(name, answer)).await
    }
}

fn shown(status: &Status) -> v1::JobStatus {
    let last = status.checkpoint.last_completed.as_ref();
    v1::JobStatus {
        phase: phase(status.phase).to_owned(),
        generation: status.generation.get(),
        epoch: status.epoch.get(),
        parallelism: status.parallelism,
        wanted: status.wanted,
        task_managers: status.task_managers_n as u64,
        waits_for: status.waits_for.clone().unwrap_or_default(),
        last_failure: (status.last_failure.as_ref()).map_or_else(String::new, ToString::to_string),
        restarts: u64::from(status.restarts_n),
        checkpoint: last.map_or(0, |it| it.id.get()),
        unpublished: status.unpublished_n as u64,
        hand_over: status.hand_over.clone().unwrap_or_default(),
        drained: status.drained.clone(),
        unreachable: by_node(&status.unreachable),
        held_back_by: by_node(&status.held_back_by),
    }
}

fn by_node(words: &BTreeMap<OperatorUid, String>) -> HashMap<String, String> {
    let words = words.iter();
    words
        .map(|(uid, it)| (uid.to_string(), it.clone()))
        .collect()
}

fn savepoint(state: Option<SavepointState>) -> v1::SavepointState {
    let mut shown = v1::SavepointState::default();
    let phase = match state {
        None => "",
        Some(SavepointState::Pending) => "Pending",
        Some(SavepointState::InProgress) => "InProgress",
        Some(SavepointState::Completed {
            id,
            bytes_n,
            time_ms,
            before,
        }) => {
            (shown.checkpoint, shown.bytes) = (id.get(), bytes_n);
            (shown.time_ms, shown.before) = (time_ms, before);
            "Completed"
        }
        Some(SavepointState::Failed { reason }) => {
            shown.reason = reason;
            "Failed"
        }
    };
    shown.phase = phase.to_owned();
    shown
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "Starting",
        Phase::Deploying => "Deploying",
        Phase::Running => "Running",
        Phase::Recovering => "Recovering",
        Phase::Stopping => "Stopping",
        Phase::Finishing => "Finishing",
        Phase::Ended => "Ended",
    }
}
