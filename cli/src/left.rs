//! What earlier runs left where a job is to write.
//!
//! Owns: what is said of it when a job begins anew. Such a job knows nothing of what earlier ones published, and
//! deletes nothing. Never keeps a job from beginning. Start at: [`say_what_is_left`].

use std::path::Path;
use std::time::Duration;

use streamforge_core::job_graph::{JobGraph, OperatorKind, SinkSpec};
use streamforge_taskmanager::connectors::registry::topic_holds_records;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::exit::printable;

/// How long brokers have to answer: once the job runs, records are there that it wrote itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Says it on stderr. Of a topic that nothing is known of it is said when somebody asked for a new begin.
pub async fn say_what_is_left(graph: &JobGraph, secrets: Option<&Path>, is_asked_for: bool) {
    let answer_until = Instant::now() + ANSWER_WITHIN;
    let mut asked = Vec::new();
    for (_, operator) in graph.operators() {
        let OperatorKind::Sink(spec) = &operator.kind else {
            continue;
        };
        let (sink, config) = (operator.node.as_str(), &spec.connector.config);
        match spec.connector.kind.as_str() {
            "file" => say(of_folder(sink, config["path"].as_str().unwrap_or_default())),
            "kafka" => {
                let topic = config["topic"].as_str().unwrap_or_default();
                asked.push((sink, topic, holds_records(spec, secrets)));
            }
            _ => {}
        }
    }
    for (sink, topic, asked) in asked {
        say(match timeout_at(answer_until, asked).await {
            Ok(Ok(Some(holds_records))) => holds_records.then(|| of_topic(sink, topic)),
            // What is wrong there, those will say who write there.
            _ => is_asked_for.then(|| of_unknown_topic(sink, topic)),
        });
    }
}

fn say(note: Option<String>) {
    if let Some(note) = note {
        eprintln!("note: {}", printable(&note));
    }
}

/// Asks; `None`: there is no answer.
fn holds_records(spec: &SinkSpec, secrets: Option<&Path>) -> JoinHandle<Option<bool>> {
    let (spec, secrets) = (spec.clone(), secrets.map(Path::to_owned));
    tokio::task::spawn_blocking(move || {
        topic_holds_records(&spec, secrets)
            .inspect_err(|error| tracing::debug!(%error, "no answer about a topic"))
            .ok()
            .flatten()
    })
}

fn of_folder(sink: &str, path: &str) -> Option<String> {
    let files_n = published_files(Path::new(path));
    let files = if files_n == 1 { "file" } else { "files" };
    (files_n > 0).then(|| {
        format!(
            "{path} holds {files_n} {files} that earlier runs published; the new rows of `{sink}` come beside \
             them. Whoever wants only the new ones stops this run, moves the folder away and starts again with \
             --fresh"
        )
    })
}

fn of_topic(sink: &str, topic: &str) -> String {
    format!(
        "topic `{topic}` holds records of earlier runs, or of others; the new rows of `{sink}` come beside them. \
         Whoever wants only the new ones stops this run, makes the topic anew and starts again with --fresh"
    )
}

fn of_unknown_topic(sink: &str, topic: &str) -> String {
    format!(
        "if topic `{topic}` holds records of earlier runs, which could not be seen by now, the new rows of \
         `{sink}` come beside them"
    )
}

/// Visible files below an output folder whose names are those of published ones.
fn published_files(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let count = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match name.to_str() {
            Some(name) if is_folder && !name.starts_with(['.', '_']) => {
                published_files(&entry.path())
            }
            Some(name) if !is_folder && name.starts_with("part-") => 1,
            _ => 0,
        }
    };
    entries.flatten().map(count).sum()
}
