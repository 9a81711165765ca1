//! `streamforge verify`: the oracle, applied to the store and the files of a finished job.

use anyhow::{Result, anyhow, bail};
use serde_json::json;
use streamforge_core::frame::LATE_LOG;
use streamforge_core::job_graph::{JobGraph, Operator, OperatorKind};
use streamforge_core::manifest::Manifest;
use streamforge_host::history::History;
use streamforge_taskmanager::connectors::registry::Surroundings;

use super::{block_on, open_history, print};
use crate::args::{TextOrJson, VerifyArgs};
use crate::document;
use crate::exit::Outcome;
use crate::store::StorePlace;
use crate::verify::{Answer, CannotJudge, Finished, Verdict, verify};

/// Runs the command.
pub fn run(args: &VerifyArgs) -> Result<Outcome> {
    let document = document::open(&args.document, &[])?;
    let loaded = &document.loaded;
    let place = StorePlace::of_job(&args.place, &loaded.spec, &loaded.name)?;
    let graph = streamforge_plan::plan(loaded);
    if !graph.bounded {
        bail!(
            "verify {}: its input has no end; only a bounded job can be computed again",
            loaded.name
        );
    }
    let verdict = block_on(async {
        let history = open_history(&place).await?;
        if !history.head.finished {
            bail!(
                "verify {}: it has not finished; run it to its end first",
                loaded.name
            );
        }
        let store = place.open_read_only().await?;
        let ran = history.plan(&history.head.plan).await?;
        if ran.graph != graph {
            eprintln!("note: the document is not the one that ran; what it says now is verified");
            check_sources(&ran.graph, &graph)?;
        }
        let manifests = manifests(&history).await?;
        let mut late_log = Vec::new();
        for object in manifests
            .last()
            .map(|newest| newest.late_log.as_slice())
            .unwrap_or_default()
        {
            let Some(found) = store.get(&object.key).await? else {
                bail!(
                    "read {}: the {} object is missing",
                    object.key,
                    LATE_LOG.name
                );
            };
            late_log.push((object.key.clone(), found.bytes.to_vec()));
        }
        let finished = Finished {
            graph: &graph,
            job: &history.head.job,
            manifests: &manifests,
            late_log: &late_log,
            surroundings: Surroundings {
                store: store.clone(),
                secrets: args.place.secrets.clone(),
                accept_lost_markers: Vec::new(),
                kafka: Default::default(),
            },
        };
        Box::pin(verify(&finished)).await
    })?;
    report(&verdict, args.output)?;
    Ok(match verdict.answer() {
        Answer::Equal => Outcome::Done,
        Answer::Unjudged => Outcome::Unjudged,
        Answer::Different => Outcome::Different,
    })
}

/// A source that is new has read nothing: its rows would be told as missing.
fn check_sources(ran: &JobGraph, now: &JobGraph) -> Result<()> {
    let is_source = |it: &&Operator| matches!(it.kind, OperatorKind::Source(_));
    let all = |graph| JobGraph::operators(graph).map(|(_, operator)| operator);
    for source in all(now).filter(is_source) {
        if !all(ran).any(|before| before.uid == source.uid) {
            let name = &source.node;
            return Err(anyhow!("the job had no source `{name}`").context(CannotJudge));
        }
    }
    Ok(())
}

/// All manifests that are kept, oldest first.
async fn manifests(history: &History) -> Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for named in history.retained() {
        manifests.push(history.manifest(named.id).await?);
    }
    Ok(manifests)
}

fn report(verdict: &Verdict, output: TextOrJson) -> Result<Outcome> {
    if output == TextOrJson::Json {
        let sinks = verdict.sinks.iter().map(|sink| {
            json!({
                "sink": sink.uid,
                "files": sink.files_n,
                "expected": sink.difference.expected,
                "found": sink.difference.found,
                "missing": sink.difference.missing,
                "extra": sink.difference.extra,
                "wrong": sink.difference.wrong,
                "unjudged": sink.unjudged,
                "samples": sink.samples,
            })
        });
        let report = json!({
            "equal": verdict.answer() == Answer::Equal,
            "different": verdict.answer() == Answer::Different,
            "sinks": sinks.collect::<Vec<_>>(),
            "findings": verdict.findings,
            "unjudged": verdict.unjudged,
            "notes": verdict.notes,
            "ledger": verdict.ledger,
        });
        return print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    print(&verdict.to_string())
}
