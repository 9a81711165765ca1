//! `streamforge status`, `scale`, `stop` and `drain`: what a running job is asked.
//!
//! Owns: finding the coordinator, which the head of the job's store names, and saying what it
//! answered. An order is done later; `status` shows when.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail};
use streamforge_core::manifest::CheckpointKind;
use streamforge_host::history::History;
use streamforge_proto::tls::Tls;
use streamforge_proto::v1;
use streamforge_proto::v1::control_client::ControlClient;
use tonic::transport::{Channel, Endpoint};

use super::{block_on, open_history, print};
use crate::args::{ControlArgs, DrainArgs, ScaleArgs, StatusArgs, TableOrData};
use crate::document;
use crate::exit::Outcome;
use crate::store::StorePlace;
use crate::table::Table;

/// How long the coordinator has to take the call.
const CONNECT_MAX: std::time::Duration = std::time::Duration::from_secs(3);

/// Runs `streamforge scale`.
pub fn scale(args: &ScaleArgs) -> Result<Outcome> {
    let parallelism = args.parallelism;
    let done = order(&args.control, async move |client| {
        client.scale(v1::ScaleRequest { parallelism }).await
    })?;
    eprintln!(
        "{parallelism} subtasks are wanted: they come with a checkpoint, see `streamforge status`"
    );
    Ok(done)
}

/// Runs `streamforge stop`.
pub fn stop(args: &ControlArgs) -> Result<Outcome> {
    order(args, async |client| client.stop(v1::StopRequest {}).await)
}

/// Runs `streamforge drain`.
pub fn drain(args: &DrainArgs) -> Result<Outcome> {
    let task_manager = args.task_manager.clone();
    let done = order(&args.control, async move |client| {
        client.drain(v1::DrainRequest { task_manager }).await
    })?;
    let name = &args.task_manager;
    eprintln!(
        "{name} gives its work away with a checkpoint and takes none until it registers anew, see `streamforge \
         status`"
    );
    Ok(done)
}

/// Runs `streamforge status`.
pub fn status(args: &StatusArgs) -> Result<Outcome> {
    let status = block_on(async {
        let mut client = connect(&args.control).await?;
        let answer = client.status(v1::StatusRequest {}).await;
        answer.map_err(refused)
    })?;
    let status = status.into_inner();
    match args.output {
        TableOrData::Table => print(&table(&status)),
        TableOrData::Json => print(&format!(
            "{}\n",
            serde_json::to_string_pretty(&json(&status))?
        )),
    }
}

fn order(
    args: &ControlArgs,
    ask: impl AsyncFnOnce(
        &mut ControlClient<Channel>,
    ) -> Result<tonic::Response<v1::Accepted>, tonic::Status>,
) -> Result<Outcome> {
    block_on(async {
        let mut client = connect(args).await?;
        ask(&mut client).await.map_err(refused)?;
        Ok(Outcome::Done)
    })
}

#[expect(clippy::needless_pass_by_value, reason = "as a function for map_err")]
pub(super) fn refused(status: tonic::Status) -> anyhow::Error {
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::Unknown => anyhow::anyhow!(
            "the connection to the coordinator broke before it answered ({}): ask again",
            status.message()
        ),
        _ => anyhow::anyhow!("the coordinator refuses: {}", status.message()),
    }
}

/// Where the job's checkpoints are.
pub(super) fn place_of(args: &ControlArgs) -> Result<StorePlace> {
    let document = document::open(&args.document, &[])?;
    let spec = &document.loaded.spec;
    StorePlace::of_job(&args.place, spec, &document.loaded.name)
}

async fn history_of(args: &ControlArgs) -> Result<History> {
    open_history(&place_of(args)?).await
}

/// Where the coordinator is: as said, else as the head says.
async fn address(args: &ControlArgs) -> Result<String> {
    if let Some(address) = &args.coordinator {
        return Ok(address.clone());
    }
    let address = history_of(args).await?.head.coordinator;
    if address.parse::<std::net::SocketAddr>().is_err() {
        let ended = ended(args).await;
        bail!(
            "the job runs, or ran, in one process ({address}), which takes no orders{ended}: run it with \
             --task-managers or --listen"
        );
    }
    Ok(address)
}

pub(super) async fn connect(args: &ControlArgs) -> Result<ControlClient<Channel>> {
    let address = address(args).await?;
    let tls = certificates(args)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint =
        Endpoint::from_shared(format!("{scheme}://{address}"))?.connect_timeout(CONNECT_MAX);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.client())?;
    }
    match endpoint.connect().await {
        Ok(channel) => Ok(ControlClient::new(channel)),
        Err(cause) => {
            let ended = ended(args).await;
            let action = format!("reach the coordinator at {address}{ended}");
            Err(cause).context(action)
        }
    }
}

/// Why nobody answers, as far as the newest checkpoint knows; empty: it does not.
async fn ended(args: &ControlArgs) -> &'static str {
    let Ok(history) = history_of(args).await else {
        return "";
    };
    let Some(newest) = history.retained().last() else {
        return "";
    };
    match history.manifest(newest.id).await.map(|it| it.kind) {
        Ok(CheckpointKind::Final) => " (the job is finished: all its input is read)",
        Ok(CheckpointKind::Stop) => " (the job was stopped; `streamforge run` resumes it)",
        _ => " (if its process is gone, `streamforge run` resumes the job)",
    }
}

fn certificates(args: &ControlArgs) -> Result<Option<Tls>> {
    let (Some(ca), Some(cert), Some(key)) = (&args.tls_ca, &args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let read = |path: &std::path::Path| {
        std::fs::read(path).with_context(|| format!("read {}", path.display()))
    };
    Ok(Some(Tls {
        ca: read(ca)?,
        certificate: read(cert)?,
        key: read(key)?,
        peer_name: args.tls_peer_name.clone(),
    }))
}

fn lines(status: &v1::JobStatus) -> Vec<(&'static str, String)> {
    vec![
        ("phase", status.phase.clone()),
        ("parallelism", status.parallelism.to_string()),
        ("wanted", status.wanted.to_string()),
        ("handOver", status.hand_over.clone()),
        ("taskManagers", status.task_managers.to_string()),
        ("generation", status.generation.to_string()),
        ("epoch", status.epoch.to_string()),
        ("checkpoint", status.checkpoint.to_string()),
        ("unpublished", status.unpublished.to_string()),
        ("restarts", status.restarts.to_string()),
        ("drained", status.drained.join(", ")),
        ("unreachable", listed(&status.unreachable)),
        ("heldBackBy", listed(&status.held_back_by)),
        ("waitsFor", status.waits_for.clone()),
        ("lastFailure", status.last_failure.clone()),
    ]
}

fn listed(by_node: &HashMap<String, String>) -> String {
    let nodes: BTreeMap<_, _> = by_node.iter().collect();
    let nodes = nodes.iter().map(|(node, words)| format!("{node}: {words}"));
    nodes.collect::<Vec<_>>().join("; ")
}

fn table(status: &v1::JobStatus) -> String {
    let mut table = Table::new(["FIELD", "VALUE"]);
    for (field, value) in lines(status).into_iter().filter(|(_, it)| !it.is_empty()) {
        table.row([field.to_owned(), value]);
    }
    table.to_string()
}

fn json(status: &v1::JobStatus) -> serde_json::Value {
    let value = |text: String| match text.parse::<u64>() {
        Ok(number) => number.into(),
        Err(_) if text.is_empty() => serde_json::Value::Null,
        Err(_) => text.into(),
    };
    let fields = lines(status).into_iter();
    fields
        .map(|(field, text)| (field.to_owned(), value(text)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
