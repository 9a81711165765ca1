//! `streamforge checkpoints`: what a store holds.

use anyhow::{Context as _, Result};
use chrono::{DateTime, SecondsFormat};
use streamforge_core::manifest::{Manifest, SplitProgress};
use streamforge_host::history;

use super::{block_on, open_history, print};
use crate::args::{CheckpointsArgs, CheckpointsCommand, TableOrData};
use crate::exit::Outcome;
use crate::store::StorePlace;
use crate::table::Table;

/// Something that can be gone back to.
struct Kept {
    id: Option<u64>,
    /// Of a savepoint.
    name: Option<String>,
    manifest: Result<Manifest, history::Error>,
}

/// What a store keeps: checkpoints, oldest first, then savepoints by name.
async fn read(store: &StorePlace) -> Result<Vec<Kept>> {
    let history = open_history(store).await?;
    let mut kept = Vec::new();
    for named in history.retained() {
        kept.push(Kept {
            id: Some(named.id.get()),
            name: None,
            manifest: history.manifest(named.id).await,
        });
    }
    let savepoints = history.savepoints().await?.into_iter();
    kept.extend(savepoints.map(|(name, manifest)| Kept {
        id: manifest.as_ref().ok().map(|it| it.id.get()),
        name: Some(name),
        manifest,
    }));
    Ok(kept)
}

/// Runs the command.
pub fn run(args: &CheckpointsArgs) -> Result<Outcome> {
    let given = args
        .store
        .as_ref()
        .context("say which store with --store PATH, as in --store .streamforge/<name>")?;
    let store = StorePlace::given(given, None, None)?;
    let kept = block_on(read(&store))?;
    let wanted = match args.what {
        None | Some(CheckpointsCommand::List) => None,
        Some(CheckpointsCommand::Show { id }) => Some(id),
    };
    if let Some(id) = wanted {
        let found = match id {
            None => kept.into_iter().rfind(|it| it.name.is_none()),
            Some(_) => kept.into_iter().find(|it| it.id == id),
        };
        let found = found.with_context(|| match id {
            Some(id) => format!("{store} keeps no checkpoint {id}"),
            None => format!("{store} keeps no checkpoint yet"),
        })?;
        let manifest = found.manifest?;
        return match args.output {
            TableOrData::Json => print(&format!("{}\n", serde_json::to_string_pretty(&manifest)?)),
            TableOrData::Table => print(&show(&manifest)),
        };
    }
    match args.output {
        TableOrData::Json => {
            let whole = kept.into_iter().map(|kept| {
                let mut value = serde_json::to_value(kept.manifest?)?;
                if let (Some(name), Some(fields)) = (kept.name, value.as_object_mut()) {
                    fields.insert("savepoint".to_owned(), name.into());
                }
                anyhow::Ok(value)
            });
            let whole: Vec<_> = whole.collect::<Result<_>>()?;
            print(&format!("{}\n", serde_json::to_string_pretty(&whole)?))
        }
        TableOrData::Table => print(&list(kept)),
    }
}

fn list(kept: Vec<Kept>) -> String {
    let head = [
        "ID",
        "KIND",
        "TIME",
        "TOOK",
        "PARALLELISM",
        "STATE",
        "STAGED",
        "ROWS IN",
    ];
    let mut checkpoints = Table::new(head);
    let mut savepoints = Table::new(["SAVEPOINT", "ID", "TIME", "STATE", "ROWS IN"]);
    for Kept { id, name, manifest } in kept {
        let id = id.map_or_else(String::new, |id| id.to_string());
        match (name, manifest) {
            (None, Ok(manifest)) => checkpoints.row(line(&manifest)),
            (Some(name), Ok(manifest)) => savepoints.row([
                name,
                id,
                time(manifest.time_ms),
                bytes(state_bytes(&manifest)),
                rows_read(&manifest).to_string(),
            ]),
            (name, Err(error)) => {
                let error = format!("unreadable: {:#}", anyhow::Error::from(error));
                match name {
                    None => checkpoints.row([id, error]),
                    Some(name) => savepoints.row([name, error]),
                }
            }
        }
    }
    if savepoints.is_empty() {
        return checkpoints.to_string();
    }
    format!("{checkpoints}\n{savepoints}")
}

fn line(manifest: &Manifest) -> Vec<String> {
    vec![
        manifest.id.to_string(),
        manifest.kind.to_string(),
        time(manifest.time_ms),
        format!("{} ms", manifest.duration_ms),
        manifest.parallelism.to_string(),
        bytes(state_bytes(manifest)),
        staged_n(manifest).to_string(),
        rows_read(manifest).to_string(),
    ]
}

/// Milliseconds since the epoch for people.
pub fn time(time_ms: u64) -> String {
    let time = i64::try_from(time_ms)
        .ok()
        .and_then(DateTime::from_timestamp_millis);
    time.map_or_else(String::new, |time| {
        time.to_rfc3339_opts(SecondsFormat::Secs, true)
    })
}

/// Bytes of all parts.
pub fn state_bytes(manifest: &Manifest) -> u64 {
    manifest
        .operators
        .values()
        .flat_map(|state| &state.parts)
        .map(|part| part.bytes)
        .sum()
}

fn staged_n(manifest: &Manifest) -> usize {
    manifest
        .staged
        .iter()
        .map(|slot| slot.intervals.len())
        .sum()
}

fn rows_read(manifest: &Manifest) -> u64 {
    let sources = manifest
        .sources
        .keys()
        .filter_map(|uid| manifest.ledger.get(uid));
    sources.map(|counters| counters.rows_in).sum()
}

/// A size for people.
pub fn bytes(bytes: u64) -> String {
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let unit = units.iter().find(|(_, shift)| bytes >> shift > 0);
    match unit {
        None => format!("{bytes} B"),
        Some((name, shift)) => {
            let tenths = (bytes >> (shift - 4)) * 10 / 16;
            format!("{}.{} {name}B", tenths / 10, tenths % 10)
        }
    }
}

fn show(manifest: &Manifest) -> String {
    let mut text = format!(
        "checkpoint   {} ({}), generation {}, epoch {}\njob          {}\ntime         {}, took {} ms\n\
         parallelism  {} of {}\nstate        {}\n",
        manifest.id,
        manifest.kind,
        manifest.generation,
        manifest.epoch,
        manifest.job,
        time(manifest.time_ms),
        manifest.duration_ms,
        manifest.parallelism,
        manifest.max_parallelism,
        bytes(state_bytes(manifest)),
    );
    let mut splits = Table::new(["SOURCE", "SPLIT", "POSITION", "WATERMARK"]);
    for (source, states) in &manifest.sources {
        for state in states {
            let position = match &state.progress {
                SplitProgress::At(position) => position.clone(),
                SplitProgress::End => "end".to_owned(),
            };
            let watermark = crate::time::watermark(state.watermark);
            splits.row([
                source.to_string(),
                state.split.to_string(),
                position,
                watermark,
            ]);
        }
    }
    let mut staged = Table::new(["SLOT", "INTERVAL", "FILE", "ROWS"]);
    for slot in &manifest.staged {
        for interval in &slot.intervals {
            for object in &interval.objects {
                staged.row([
                    slot.slot.to_string(),
                    interval.id.to_string(),
                    object.published.clone(),
                    object.rows.to_string(),
                ]);
            }
        }
    }
    let mut ledger = Table::new(["NODE", "IN", "PASSED", "FILTERED", "LATE", "BAD", "OUT"]);
    for (uid, counters) in &manifest.ledger {
        let numbers = [
            counters.rows_in,
            counters.passed,
            counters.filtered,
            counters.late,
            counters.bad,
            counters.out,
        ];
        ledger.row(std::iter::once(uid.to_string()).chain(numbers.iter().map(u64::to_string)));
    }
    for table in [&splits, &staged, &ledger] {
        if !table.is_empty() {
            text += &format!("\n{table}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_with_one_decimal() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
    }
}
