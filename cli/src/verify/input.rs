//! Reading a job's input a second time.
//!
//! Owns: opening the readers of the connectors once more, over all splits, in one subtask, and making
//! sure that the splits are those the job has read, and its files as it has read them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use streamforge_core::job_graph::{Operator, OperatorKind, SourceSpec};
use streamforge_core::manifest::{Manifest, SplitState};
use streamforge_taskmanager::connectors::files::identity::Touch;
use streamforge_taskmanager::connectors::files::source::ReaderPlace;
use streamforge_taskmanager::connectors::files::split::{at_start, describe};
use streamforge_taskmanager::connectors::registry::{self, Surroundings};
use streamforge_taskmanager::engine::batch::StreamBatch;
use streamforge_taskmanager::engine::source::{SourceBatch, SourceEvent};

use super::oracle::Oracle;

/// Hands all rows of all sources to the oracle; answers what a person should know about the input.
pub async fn read_all(
    oracle: &mut Oracle<'_>,
    newest: &Manifest,
    surroundings: &Surroundings,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let operators: Vec<&Operator> = oracle.nodes().iter().map(|node| node.operator).collect();
    for (idx, operator) in operators.into_iter().enumerate() {
        if let OperatorKind::Source(spec) = &operator.kind {
            let touched = read_source(oracle, idx, (operator, spec, newest), surroundings)
                .await
                .with_context(|| format!("read the input of `{}`", operator.node))?;
            notes.extend(touched);
        }
    }
    Ok(notes)
}

async fn read_source(
    oracle: &mut Oracle<'_>,
    idx: usize,
    (operator, spec, newest): (&Operator, &SourceSpec, &Manifest),
    surroundings: &Surroundings,
) -> Result<Vec<String>> {
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
            check_same(&listed, read, spec)?;
            as_read(listed, read, spec)
        }
    };
    let mut notes = Vec::new();
    if spec.connector.kind == "file" {
        notes = touched_files(&splits)?;
    }
    let place = ReaderPlace {
        subtask: 0,
        parallelism: 1,
        known: splits.clone(),
        job: None,
    };
    let mut reader = registry::again::reader(operator, spec, place, surroundings)?;
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
            SourceEvent::Ended => return Ok(notes),
            SourceEvent::Waiting => bail!("a bounded source has nothing and does not end"),
            // A reader of Kafka waits for what is under way.
            SourceEvent::Quiet
            | SourceEvent::SplitEnded(_)
            | SourceEvent::NothingNew(_)
            | SourceEvent::Discovered(_) => {}
        }
    }
}

/// The splits at their start, as the job found them: a file that grew is read to its length of then,
/// one that shrank or changed is an error of the reader. Files that came to a watched folder one by
/// one are splits of their own, whatever listing them again makes of them.
fn as_read(now: Vec<SplitState>, read: &[SplitState], spec: &SourceSpec) -> Vec<SplitState> {
    if spec.connector.kind == "file" {
        return read.iter().cloned().map(at_start).collect();
    }
    let as_read = |split: SplitState| match read.iter().find(|then| then.split == split.split) {
        Some(then) => SplitState {
            description: then.description.clone(),
            weight: then.weight,
            ..split
        },
        None => split,
    };
    now.into_iter().map(as_read).collect()
}

/// Files whose time of change is another, though length, first and last bytes are the same.
fn touched_files(splits: &[SplitState]) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for split in splits {
        // Of an object the reader sees that it is the version that was read.
        let files = describe(split)?.files.into_iter();
        for file in files.filter(|file| file.etag.is_none()) {
            let (_, touch) = file.open_touched()?;
            if touch == Touch::Touched {
                notes.push(format!(
                    "{} was touched since the job read it; its length, first and last bytes are the \
                     same, but what lies between may have changed",
                    file.path.display()
                ));
            }
        }
    }
    Ok(notes)
}

/// Files that came or went since the job ran would be told as missing or extra rows.
fn check_same(now: &[SplitState], read: &[SplitState], spec: &SourceSpec) -> Result<()> {
    let names = |splits: &[SplitState]| -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for split in splits {
            if spec.connector.kind == "file" {
                let files = describe(split)?.files.into_iter();
                names.extend(files.map(|file| file.path.display().to_string()));
            } else {
                names.insert(split.split.0.clone());
            }
        }
        Ok(names)
    };
    let (now, read) = (names(now)?, names(read)?);
    if let Some(new) = now.difference(&read).next() {
        bail!("{new} is there now and was not when the job ran");
    }
    if let Some(gone) = read.difference(&now).next() {
        bail!("{gone} was read by the job and is gone");
    }
    Ok(())
}
