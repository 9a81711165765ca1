//! Reading a job's input a second time.
//!
//! Owns: opening the readers of the connectors once more, over the splits that the job has read, in one subtask,
//! and making sure that its files are as it has read them. Files that it has not read are left out, and named.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, bail};
use streamforge_core::job_graph::{Operator, OperatorKind, SourceSpec};
use streamforge_core::manifest::{Manifest, SplitState};
use streamforge_taskmanager::connectors::files::identity::{self, Touch};
use streamforge_taskmanager::connectors::files::source::ReaderPlace;
use streamforge_taskmanager::connectors::files::split::{at_start, describe};
use streamforge_taskmanager::connectors::registry::{self, Surroundings};
use streamforge_taskmanager::engine::batch::StreamBatch;
use streamforge_taskmanager::engine::error::{Error as EngineError, Recovery};
use streamforge_taskmanager::engine::source::{SourceBatch, SourceEvent};

use super::oracle::Oracle;

/// Files that a note names; more are counted.
const NAMED_MAX: usize = 5;

/// Nothing can be computed a second time. A context of the reason.
#[derive(Clone, Copy, Debug)]
pub struct CannotJudge;

impl fmt::Display for CannotJudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it cannot be judged, because its input cannot be read as the job read it")
    }
}

/// Tells input that is gone for good from a system that refuses for now.
fn judged(error: Error) -> Error {
    let is_lasting = match (
        error.downcast_ref(),
        error.downcast_ref::<identity::Error>(),
    ) {
        (Some(error), _) => EngineError::recovery(error) == Recovery::Stop,
        (_, Some(error)) => !error.retry(),
        _ => false,
    };
    match is_lasting {
        true => error.context(CannotJudge),
        false => error,
    }
}

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
            let said = read_source(oracle, idx, (operator, spec, newest), surroundings)
                .await
                .with_context(|| format!("read the input of `{}`", operator.node))
                .map_err(judged)?;
            notes.extend(said);
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
    let mut notes = Vec::new();
    let splits = if let Some(now) = registry::again::files_now(operator, spec, surroundings)? {
        let splits: Vec<SplitState> = read.iter().cloned().map(at_start).collect();
        notes.extend(left_out(&operator.node, now, &splits)?);
        notes.extend(touched_files(&splits)?);
        splits
    } else if let Some(splits) = registry::rewound(spec, read)? {
        splits
    } else {
        let mut enumerator = registry::open_enumerator(operator, spec, surroundings)?;
        let listed = enumerator.list().await?;
        check_same(&listed, read)?;
        as_read(listed, read)
    };
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

/// The splits at their start, as the job found them.
fn as_read(now: Vec<SplitState>, read: &[SplitState]) -> Vec<SplitState> {
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

/// Files that the job did not read, though its path names them now: those came later, or the path is another.
fn left_out(node: &str, now: Vec<PathBuf>, read: &[SplitState]) -> Result<Option<String>> {
    let mut known = BTreeSet::new();
    for split in read {
        known.extend(describe(split)?.files.into_iter().map(|file| file.path));
    }
    let new = now.into_iter().filter(|path| !known.contains(path));
    let new: Vec<PathBuf> = new.collect();
    if new.is_empty() {
        return Ok(None);
    }
    // A path may have been written in another way.
    let same = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let known: BTreeSet<PathBuf> = known.iter().map(|path| same(path)).collect();
    let new = new.iter().filter(|path| !known.contains(&same(path)));
    let names: Vec<String> = new.map(|path| path.display().to_string()).collect();
    let (named, more) = names.split_at(names.len().min(NAMED_MAX));
    let more = match more.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let named = named.join(", ");
    Ok((!names.is_empty()).then(|| {
        format!(
            "left out of the input of `{node}`, because the job did not read them: {named}{more}"
        )
    }))
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

/// Splits that came or went since the job ran would be told as missing or extra rows.
fn check_same(now: &[SplitState], read: &[SplitState]) -> Result<()> {
    let names = |splits: &[SplitState]| -> BTreeSet<String> {
        splits.iter().map(|split| split.split.0.clone()).collect()
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
