//! The records of a sink's topic, brought here to be read as one file.
//!
//! Owns: a temporary folder with that file. All committed records of the topic are compared, whoever
//! wrote them. Start at: [`fetch`].

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use streamforge_core::job_graph::SinkSpec;
use streamforge_taskmanager::connectors::registry::{is_readable_topic, read_topic};

use super::bucket::Fetched;

/// Brings what is in this sink's topic, if it has one. The file's name begins with `prefix`.
///
/// # Errors
/// When the brokers or the disk refuse, and when a record has no value.
pub async fn fetch(
    spec: &SinkSpec,
    prefix: &str,
    secrets: Option<&Path>,
) -> Result<Option<Fetched>> {
    if !is_readable_topic(spec) {
        return Ok(None);
    }
    let name = format!("streamforge-verify-{}-{prefix}", std::process::id());
    let fetched = Fetched {
        root: std::env::temp_dir().join(name),
    };
    fs::create_dir_all(&fetched.root)?;
    let file = fs::File::create(fetched.root.join(format!("{prefix}topic")))?;
    let (spec, secrets) = (spec.clone(), secrets.map(Path::to_owned));
    let copied = tokio::task::spawn_blocking(move || -> Result<()> {
        let mut file = BufWriter::new(file);
        let (mut wrote, mut tombstones_n) = (Ok(()), 0u64);
        read_topic(&spec, secrets, &mut |value| match value {
            Some(value) if wrote.is_ok() => {
                wrote = file.write_all(value).and_then(|()| file.write_all(b"\n"));
            }
            Some(_) => {}
            None => tombstones_n += 1,
        })?;
        wrote?;
        file.flush()?;
        if tombstones_n > 0 {
            bail!("{tombstones_n} records have no value: another program writes to this topic");
        }
        Ok(())
    });
    copied.await.context("a thread ended early")??;
    Ok(Some(fetched))
}
