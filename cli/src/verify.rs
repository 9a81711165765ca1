//! `streamforge verify`: an oracle for finished, bounded jobs.
//!
//! Owns: computing a job's outputs once more as a batch query over all input and comparing them with
//! what was published, and checking the job's ledger and late log. Shares no window, watermark,
//! aggregate or checkpoint code with the engine: sources are read by the connectors' readers and
//! expressions compiled by `core/plan`, everything between is the oracle's own. Start at: [`verify`].

use std::fmt;

use anyhow::{Context as _, Result};
use streamforge_core::ids::JobId;
use streamforge_core::job_graph::{JobGraph, OperatorKind};
use streamforge_core::manifest::Manifest;

use crate::table::Table;
use streamforge_taskmanager::connectors::files::sink::name_prefix;
use streamforge_taskmanager::connectors::registry::Surroundings;
use streamforge_taskmanager::connectors::registry::again::RecordLimit;

mod aggregate;
mod aggregation;
mod array;
mod bad;
mod cell;
mod doubt;
mod graph;
mod group;
mod input;
mod late;
mod ledger;
mod multiset;
mod oracle;
mod published;
mod show;
mod sketch;
mod window;

pub use input::CannotJudge;
pub use ledger::Ledger;
pub use multiset::Difference;

use doubt::Doubts;
use late::LateLog;
use multiset::Side;
use oracle::{Expected, Oracle};
use published::{Files, Published};

/// A job that is over.
pub struct Finished<'a> {
    /// Its plan.
    pub graph: &'a JobGraph,
    /// Its identity.
    pub job: &'a JobId,
    /// All manifests kept, oldest first; the last is the final one.
    pub manifests: &'a [Manifest],
    /// Late log objects of the final one: key and bytes.
    pub late_log: &'a [(String, Vec<u8>)],
    /// What the connectors need to read its input once more.
    pub surroundings: Surroundings,
}

/// What came out.
#[derive(Debug)]
pub struct Verdict {
    /// Per file sink.
    pub sinks: Vec<SinkVerdict>,
    /// What is wrong with ledger or late log.
    pub findings: Vec<String>,
    /// What of them cannot be judged, and why.
    pub unjudged: Vec<String>,
    /// What was not compared, and why.
    pub notes: Vec<String>,
    /// The final ledger.
    pub ledger: Ledger,
    table: Table,
}

/// One sink.
#[derive(Debug)]
pub struct SinkVerdict {
    /// The sink.
    pub uid: String,
    /// Files read.
    pub files_n: usize,
    /// How they differ from what was computed.
    pub difference: Difference,
    /// Why that need not mean anything.
    pub unjudged: Option<String>,
    /// A few differing rows, for people.
    pub samples: Vec<String>,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Everything is as it should be.
    Equal,
    /// What differs cannot be computed a second time, and everything else is as it should be.
    Unjudged,
    /// Something is wrong.
    Different,
}

impl Verdict {
    /// Whether everything is as it should be.
    pub fn answer(&self) -> Answer {
        let mut differing = self.sinks.iter().filter(|it| !it.difference.is_none());
        if !self.findings.is_empty() || differing.clone().any(|sink| sink.unjudged.is_none()) {
            return Answer::Different;
        }
        match differing.next().is_some() || !self.unjudged.is_empty() {
            true => Answer::Unjudged,
            false => Answer::Equal,
        }
    }
}

/// Computes the job's outputs and compares.
pub async fn verify(finished: &Finished<'_>) -> Result<Verdict> {
    let newest = finished
        .manifests
        .last()
        .context("the store keeps no checkpoint")?;
    let mut late = LateLog::default();
    for (key, bytes) in finished.late_log {
        late.add_object(bytes)
            .with_context(|| format!("read {key}"))?;
    }
    let splits_n: usize = newest.sources.values().map(Vec::len).sum();
    let compile = |expr: &_, columns: &[_]| Ok(streamforge_plan::compile(expr, columns)?);
    let nodes = graph::nodes(finished.graph)?;
    let doubts = Doubts::of(&nodes, &newest.ledger, &late, newest.ran_endless);
    let mut oracle = Oracle::new(finished.graph, &compile, late, splits_n == 1)?;
    limit_sinks(&mut oracle, &finished.surroundings).await?;
    let mut findings = Vec::new();
    for manifest in finished.manifests {
        let wrong = ledger::check_balance(oracle.nodes(), &manifest.ledger);
        findings.extend(
            wrong
                .into_iter()
                .map(|text| format!("checkpoint {}: {text}", manifest.id)),
        );
    }
    let table = ledger::table(oracle.nodes(), &newest.ledger);
    let mut notes = input::read_all(&mut oracle, newest, &finished.surroundings).await?;
    let outcome = oracle.finish()?;
    let mut unjudged = Vec::new();
    for (idx, finding) in ledger::check_counts(&nodes, &newest.ledger, &outcome.counters) {
        match doubts.at(idx) {
            None => findings.push(finding),
            Some(doubt) => unjudged.push(format!("{finding}: cannot be judged, {}", doubt.why)),
        }
    }
    findings.extend(outcome.findings);
    let mut sinks = Vec::new();
    for expected in outcome.sinks {
        match compare(expected, finished).await? {
            Ok((mut sink, files)) => {
                notes.extend(laid_otherwise(&sink.uid, files));
                let doubt = doubts.of_uid(&nodes, &sink.uid);
                sink.unjudged = doubt
                    .filter(|doubt| !sink.difference.is_none() && doubt.explains(&sink.difference))
                    .map(|doubt| doubt.why.clone());
                sinks.push(sink);
            }
            Err(note) => notes.push(note),
        }
    }
    Ok(Verdict {
        sinks,
        findings,
        unjudged,
        notes,
        ledger: newest.ledger.clone(),
        table,
    })
}

/// Tells the oracle what the topics of its sinks take.
async fn limit_sinks(oracle: &mut Oracle<'_>, surroundings: &Surroundings) -> Result<()> {
    let operators = oracle.nodes().iter().map(|node| node.operator);
    for (idx, operator) in operators.collect::<Vec<_>>().into_iter().enumerate() {
        if let OperatorKind::Sink(spec) = &operator.kind
            && let Some(limit) = RecordLimit::of(spec, surroundings).await?
        {
            oracle.limit_sink(idx, limit);
        }
    }
    Ok(())
}

/// Compares one sink, or says why not.
async fn compare(
    expected: Expected<'_>,
    finished: &Finished<'_>,
) -> Result<Result<(SinkVerdict, Files), String>> {
    let Expected {
        uid,
        spec,
        rows,
        bad,
    } = expected;
    let Some(mut rows) = rows else {
        let kind = &spec.connector.kind;
        return Ok(Err(format!(
            "`{uid}` is not compared: what a {kind} sink wrote cannot be read back"
        )));
    };
    let prefix = name_prefix(finished.job, uid);
    let secrets = finished.surroundings.secrets.as_deref();
    let fetched = match published::topic::fetch(spec, &prefix, secrets).await {
        Ok(None) => published::bucket::fetch(spec, &prefix, secrets).await,
        fetched => fetched,
    }
    .with_context(|| format!("fetch the output of `{uid}`"))?;
    let mut published = Published::new(spec, prefix)?;
    if let Some(fetched) = &fetched {
        published.root.clone_from(&fetched.root);
    }
    let files = published
        .read(&mut |row, sign| {
            if let Some(bad) = bad {
                bad.settle(row);
            }
            rows.add(Side::Found, row, sign);
        })
        .with_context(|| format!("read the output of `{uid}`"))?;
    let difference = rows.difference();
    let samples = difference
        .samples
        .iter()
        .map(|sample| show::sample(sample, &spec.input))
        .collect();
    let verdict = SinkVerdict {
        uid: uid.to_owned(),
        files_n: files.files_n,
        difference,
        unjudged: None,
        samples,
    };
    Ok(Ok((verdict, files)))
}

fn laid_otherwise(uid: &str, files: Files) -> Option<String> {
    let laid_otherwise_n = files.laid_otherwise_n;
    let (files, lie) = match laid_otherwise_n {
        0 => return None,
        1 => ("file", "lies"),
        _ => ("files", "lie"),
    };
    Some(format!(
        "{laid_otherwise_n} {files} of `{uid}` {lie} in folders of another `partitionBy` than the document's"
    ))
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.table)?;
        let mut table = Table::new([
            "SINK", "FILES", "EXPECTED", "FOUND", "MISSING", "EXTRA", "WRONG",
        ]);
        for SinkVerdict {
            uid,
            files_n,
            difference: d,
            ..
        } in &self.sinks
        {
            let numbers = [d.expected, d.found, d.missing, d.extra, d.wrong].map(|n| n.to_string());
            table.row(
                [uid.clone(), files_n.to_string()]
                    .into_iter()
                    .chain(numbers),
            );
        }
        write!(f, "{table}")?;
        for sink in self.sinks.iter().filter(|sink| !sink.samples.is_empty()) {
            let why = sink.unjudged.as_ref();
            let why = why.map(|why| format!(" cannot be judged: {why}"));
            writeln!(f, "\n{}:{}", sink.uid, why.unwrap_or_default())?;
            for sample in &sink.samples {
                writeln!(f, "  {sample}")?;
            }
        }
        for finding in &self.findings {
            writeln!(f, "\n{finding}")?;
        }
        for text in &self.unjudged {
            writeln!(f, "\n{text}")?;
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        let verdict = match self.answer() {
            Answer::Equal => "equal",
            Answer::Unjudged => "cannot be judged; all else is equal",
            Answer::Different => "DIFFERENT",
        };
        writeln!(f, "\n{verdict}")
    }
}
