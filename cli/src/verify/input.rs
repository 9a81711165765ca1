//! Reading a job's input a second time.
//!
//! Owns: opening the readers of the connectors once more, over all splits, in one subtask, and making
//! sure that the splits are those the job has read.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use streamforge_core::job_graph::{Operator, OperatorKind, SourceSpec};
use streamforge_core::manifest::{Manifest, SplitState};
use streamforge_taskmanager::connectors::files::source::ReaderPlace;
use streamforge_taskmanager::connectors::registry::{self, Surroundings};
use streamforge_taskmanager::engine::batch::StreamBatch;
use streamforge_taskmanager::engine::source::{SourceBatch, SourceEvent};

use super::oracle::Oracle;

/// Hands all rows of all sources to the oracle.
pub async fn read_all(
    oracle: &mut Oracle<'_>,
    newest: &Manifest,
    surroundings: &Surroundings,
) -> Result<()> {
    let operators: Vec<&Operator> = oracle.nodes().iter().map(|node| node.operator).collect();
    for (idx, operator) in operators.into_iter().enumerate() {
        if let OperatorKind::Source(spec) = &operator.kind {
            read_source(oracle, idx, (operator, spec, newest), surroundings)
                .await
                .with_context(|| format!("read the input of `{}`", operator.node))?;
        }
    }
    Ok(())
}

async fn read_source(
    oracle: &mut Oracle<'_>,
    idx: usize,
    (operator, spec, newest): (&Operator, &SourceSpec, &Manifest),
    surroundings: &Surroundings,
) -> Result<()> {
    let read = newest
        .sources
        .get(&operator.uid)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let splits = match registry::rewound(spec, read)? {
        Some(splits) => splits,
        None => {
            let listed = registry::open_enumerator(operator, spec, surroundings)?
                .list()
                .await?;
            check_same(&listed, read)?;
            listed
        }
    };
    let place = ReaderPlace {
        subtask: 0,
        parallelism: 1,
        known: splits.clone(),
        job: None,
    };
    let mut reader = registry::open_reader(operator, spec, place, surroundings)?;
    reader.assign(splits).await?;
    loop {
        match reader.next().await? {
            SourceEvent::Batch(batch) => {
                let SourceBatch {
                    rows,
                    origin,
                    bad,
                    bad_n,
                    ..
                } = batch;
                let rows = StreamBatch {
                    origin,
                    ..StreamBatch::plain(rows)
                };
                oracle.on_source_rows(idx, rows, bad, bad_n)?;
            }
            SourceEvent::Ended => return Ok(()),
            SourceEvent::Waiting => bail!("a bounded source has nothing and does not end"),
            // A reader of Kafka waits for what is under way.
            SourceEvent::Quiet
            | SourceEvent::SplitEnded(_)
            | SourceEvent::NothingNew(_)
            | SourceEvent::Discovered(_) => {}
        }
    }
}

/// Files that came or went since the job ran would be told as missing or extra rows.
fn check_same(now: &[SplitState], read: &[SplitState]) -> Result<()> {
    let names = |splits: &[SplitState]| -> BTreeSet<Arc<str>> {
        splits
            .iter()
            .map(|split| split.split.0.as_str().into())
            .collect()
    };
    let (now, read) = (names(now), names(read));
    if let Some(new) = now.difference(&read).next() {
        bail!("{new} is there now and was not when the job ran");
    }
    if let Some(gone) = read.difference(&now).next() {
        bail!("{gone} was read by the job and is gone");
    }
    Ok(())
}
