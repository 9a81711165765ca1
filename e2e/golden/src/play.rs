//! Playing a story, and comparing what came out.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow, ensure};
use streamforge_core::job_graph::{Column, JobGraph};
use streamforge_engine::batch::RowOp;

use crate::cluster::{Checkpoint, Cluster, Written};
use crate::rows::{parse, show};
use crate::story::Story;

/// How a story is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One attempt with one subtask.
    Straight,
    /// A checkpoint after every line, then one more line, a crash, and a restore.
    CrashAfterEveryLine,
    /// The same, each attempt with another parallelism.
    RescaleAfterEveryLine,
    /// One attempt with three subtasks.
    Parallel,
    /// One attempt, whose subtasks come and go by a hand-over after every line (K3).
    HandOverAfterEveryLine,
}

/// All of them.
pub const MODES: [Mode; 5] = [
    Mode::Straight,
    Mode::CrashAfterEveryLine,
    Mode::RescaleAfterEveryLine,
    Mode::Parallel,
    Mode::HandOverAfterEveryLine,
];

/// Plays `text` in every mode; an error says in which one what differs.
pub fn play_all(text: &str) -> Result<()> {
    let story = Story::parse(text)?;
    let document = story.document()?;
    let loaded = streamforge_plan::load(&document, "story").map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow!("{}\n{document}", lines.join("\n"))
    })?;
    let graph = streamforge_plan::plan(&loaded);
    for mode in MODES {
        let written = play(&story, &graph, mode).with_context(|| format!("{mode:?}"))?;
        compare(&story, &written, mode).with_context(|| format!("{mode:?}"))?;
    }
    Ok(())
}

/// Everything that one way of playing publishes.
fn play(story: &Story, graph: &JobGraph, mode: Mode) -> Result<Written> {
    let crashes = matches!(
        mode,
        Mode::CrashAfterEveryLine | Mode::RescaleAfterEveryLine
    );
    let mut published = Written::new();
    let mut checkpoint = Checkpoint::default();
    let mut next = 0;
    let mut attempt = 0;
    let last = loop {
        let parallelism = match mode {
            Mode::Straight | Mode::CrashAfterEveryLine | Mode::HandOverAfterEveryLine => 1,
            Mode::RescaleAfterEveryLine => [1, 3, 2].get(attempt % 3).copied().unwrap_or(1),
            Mode::Parallel => 3,
        };
        attempt += 1;
        let mut cluster = Cluster::start(graph, parallelism, checkpoint)?;
        if mode == Mode::HandOverAfterEveryLine {
            for idx in 0..story.lines.len() {
                read(story, &mut cluster, idx..idx + 1)?;
                let subtasks_n = [3, 2, 1, 2].get(idx % 4).copied().unwrap_or(1);
                published.extend(cluster.hand_over(subtasks_n)?);
            }
            break cluster;
        }
        if !crashes {
            read(story, &mut cluster, 0..story.lines.len())?;
            break cluster;
        }
        if next == story.lines.len() {
            break cluster;
        }
        read(story, &mut cluster, next..next + 1)?;
        next += 1;
        let (taken, rows) = cluster.checkpoint()?;
        published.extend(rows);
        checkpoint = taken;
        // What comes after the checkpoint is lost with the attempt, and must come again.
        read(story, &mut cluster, next..(next + 1).min(story.lines.len()))?;
    };
    finish(last, published)
}

fn read(story: &Story, cluster: &mut Cluster<'_>, lines: std::ops::Range<usize>) -> Result<()> {
    for idx in lines {
        let line = story.lines.get(idx).context("a line")?;
        let before = story
            .lines
            .iter()
            .take(idx)
            .filter(|other| other.source == line.source);
        let n = before.count() as u64;
        let (spec, columns) = cluster.source(&line.source)?;
        let declared: Vec<Column> = spec
            .columns
            .iter()
            .map(|column| column.column.clone())
            .collect();
        let row = match line.record.strip_prefix('!') {
            Some(_) => None,
            None => Some(parse(&line.record, &declared, columns).context(line.record.clone())?),
        };
        let raw = line.record.trim_start_matches('!');
        cluster
            .read(&line.source, n, row, raw)
            .with_context(|| format!("read {}", line.record))?;
    }
    Ok(())
}

/// The end of all input, and the final checkpoint.
fn finish(mut cluster: Cluster<'_>, mut published: Written) -> Result<Written> {
    cluster.end()?;
    let (last, rows) = cluster.checkpoint()?;
    published.extend(rows);
    for (uid, counters) in &last.ledger {
        ensure!(
            counters.balances(),
            "T3: the ledger of {uid} does not balance: {counters:?}"
        );
    }
    Ok(published)
}

fn compare(story: &Story, written: &Written, mode: Mode) -> Result<()> {
    for (number, output) in story.outputs.iter().enumerate() {
        if output.steps && mode != Mode::Straight {
            continue;
        }
        let uid = format!("out_{number}");
        let mut rows = Vec::new();
        for (_, batch) in written.iter().filter(|(sink, _)| sink.0 == uid) {
            rows.extend(show(&batch.rows, batch.ops.as_ref())?);
        }
        let found: Vec<String> = if output.steps {
            rows.iter()
                .map(|row| format!("{} {}", row.op.text(), row.text))
                .collect()
        } else {
            let mut net: BTreeMap<String, i64> = BTreeMap::new();
            for row in rows {
                let sign = if matches!(row.op, RowOp::Insert | RowOp::UpdateAfter) {
                    1
                } else {
                    -1
                };
                *net.entry(row.text).or_default() += sign;
            }
            ensure!(
                net.values().all(|n| *n >= 0),
                "{}: rows taken back that were not sent",
                output.name
            );
            let times = |(text, n): (String, i64)| {
                std::iter::repeat_n(text, usize::try_from(n).unwrap_or(0))
            };
            net.into_iter().flat_map(times).collect()
        };
        let mut expected = output.rows.clone();
        if !output.steps {
            expected.sort();
        }
        ensure!(
            expected == found,
            "{}:\nexpected\n  {}\nfound\n  {}",
            output.name,
            expected.join("\n  "),
            found.join("\n  ")
        );
    }
    Ok(())
}
