//! `streamforge checkpoints`: what a store holds.

use anyhow::{Context as _, Result};
use chrono::{DateTime, SecondsFormat};
use streamforge_core::manifest::{Manifest, SplitProgress};

use super::{block_on, open_history, print};
use crate::args::{CheckpointsArgs, CheckpointsCommand, TableOrData};
use crate::exit::Outcome;
use crate::store::StorePlace;
use crate::table::Table;

/// Runs the command.
pub fn run(args: &CheckpointsArgs) -> Result<Outcome> {
    let given = args
        .store
        .as_ref()
        .context("say which store with --store PATH, as in --store .streamforge/<name>")?;
    let store = StorePlace::given(given, None, None)?;
    let manifests = block_on(async {
        let history = open_history(&store).await?;
        let mut manifests = Vec::new();
        for named in history.retained() {
            manifests.push((named.clone(), history.manifest(named.id).await));
        }
        Ok(manifests)
    })?;
    let wanted = match args.what {
        None | Some(CheckpointsCommand::List) => None,
        Some(CheckpointsCommand::Show { id }) => Some(id),
    };
    if let Some(id) = wanted {
        let found = match id {
            None => manifests.into_iter().next_back(),
            Some(id) => manifests
                .into_iter()
                .find(|(named, _)| named.id.get() == id),
        };
        let (_, manifest) = found.with_context(|| match id {
            Some(id) => format!("{store} keeps no checkpoint {id}"),
            None => format!("{store} keeps no checkpoint yet"),
        })?;
        let manifest = manifest?;
        return match args.output {
            TableOrData::Json => print(&format!("{}\n", serde_json::to_string_pretty(&manifest)?)),
            TableOrData::Table => print(&show(&manifest)),
        };
    }
    match args.output {
        TableOrData::Json => {
            let whole: Vec<Manifest> = manifests
                .into_iter()
                .map(|(_, manifest)| manifest)
                .collect::<Result<_, _>>()?;
            print(&format!("{}\n", serde_json::to_string_pretty(&whole)?))
        }
        TableOrData::Table => {
            let mut table = Table::new([
                "ID",
                "KIND",
                "TIME",
                "TOOK",
                "PARALLELISM",
                "STATE",
                "STAGED",
                "ROWS IN",
            ]);
            for (named, manifest) in manifests {
                match manifest {
                    Ok(manifest) => table.row(line(&manifest)),
                    Err(error) => {
                        let error = anyhow::Error::from(error);
                        table.row([named.id.to_string(), format!("unreadable: {error:#}")]);
                    }
                }
            }
            print(&table.to_string())
        }
    }
}

fn line(manifest: &Manifest) -> Vec<String> {
    vec![
        manifest.id.to_string(),
        format!("{:?}", manifest.kind),
        time(manifest),
        format!("{} ms", manifest.duration_ms),
        manifest.parallelism.to_string(),
        bytes(state_bytes(manifest)),
        staged_n(manifest).to_string(),
        rows_read(manifest).to_string(),
    ]
}

fn time(manifest: &Manifest) -> String {
    let time = i64::try_from(manifest.time_ms)
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
        "checkpoint   {} ({:?}), generation {}, epoch {}\njob          {}\ntime         {}, took {} ms\n\
         parallelism  {} of {}\nstate        {}\n",
        manifest.id,
        manifest.kind,
        manifest.generation,
        manifest.epoch,
        manifest.job,
        time(manifest),
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
