//! What is written down of kills.
//!
//! Owns: the counts, and the page in `bench/results`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::cluster::{Moment, Victim};
use super::job::{Output, WINDOWS, Windows};

/// Kills, ends and complaints.
#[derive(Debug)]
pub struct Ledger {
    output: Output,
    seed: u64,
    victims: BTreeMap<Victim, u32>,
    moments: BTreeMap<Moment, u32>,
    open_n: u32,
    killed: BTreeMap<Windows, u32>,
    ended: BTreeMap<Windows, u32>,
    complaints: Vec<String>,
}

impl Ledger {
    pub(super) fn new(output: Output, seed: u64) -> Self {
        Self {
            output,
            seed,
            victims: BTreeMap::new(),
            moments: BTreeMap::new(),
            open_n: 0,
            killed: BTreeMap::new(),
            ended: BTreeMap::new(),
            complaints: Vec::new(),
        }
    }

    /// How often somebody was killed; several at once count once.
    pub fn kills_n(&self) -> u32 {
        self.victims.values().sum()
    }

    /// What was wrong.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    pub(super) fn killed(&mut self, of: Windows, victim: Victim, moment: Moment, is_open: bool) {
        *self.victims.entry(victim).or_default() += 1;
        *self.moments.entry(moment).or_default() += 1;
        *self.killed.entry(of).or_default() += 1;
        self.open_n += u32::from(is_open);
    }

    pub(super) fn complain(&mut self, of: Windows, what: String) {
        self.complaints.push(format!("{of:?}: {what}"));
    }

    pub(super) fn ended(&mut self, windows: Windows, complaints: Vec<String>) {
        *self.ended.entry(windows).or_default() += 1;
        for complaint in complaints {
            self.complain(windows, complaint);
        }
    }

    /// Writes the page of today into `bench/results`.
    pub fn write(&self) {
        let (name, output) = match self.output {
            Output::Topic => (
                "kills-kafka",
                "Kafka, exactly once, checkpoints in a folder",
            ),
            Output::Bucket => ("kills-s3", "Parquet files in S3, checkpoints in S3"),
        };
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
        let today = said_by("date", &["+%F"]);
        let page = self.page(output, &today);
        let file = results.join(format!("{today}-{name}.md"));
        std::fs::write(&file, page).expect("the page can be written");
        println!("wrote {}", file.display());
    }

    fn page(&self, output: &str, today: &str) -> String {
        let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench");
        let about = format!(
            "import sys; sys.path.insert(0, {:?}); import report; print('- Machine:', \
             report.machine()); print('- Commit:', report.commit())",
            bench.display().to_string()
        );
        let mut page = format!(
            "# Kill ledger, Kafka to {output}, {today}\n\n\
             {} SIGKILLs at random moments over {} jobs, which read from Kafka, on three task-manager processes\n\
             (each job, as a coin fell, with `run --task-managers 3` or with `run --listen` and task managers by \
             hand),\nwith a checkpoint every 150 ms, resumed at a parallelism of 1 to 4. A reader beside each \
             job; what it saw and\nthe end result were compared, and the end result with DuckDB's.\n\n",
            self.kills_n(),
            self.ended.values().sum::<u32>(),
        );
        table(
            &mut page,
            "killed",
            "times",
            Victim::ALL.map(|it| {
                (
                    name_of(it).to_owned(),
                    self.victims.get(&it).copied().unwrap_or(0),
                )
            }),
        );
        let moments = [Moment::Working, Moment::Restoring, Moment::HandingOver];
        let mut rows: Vec<_> = moments
            .map(|it| {
                (
                    moment_name(it).to_owned(),
                    self.moments.get(&it).copied().unwrap_or(0),
                )
            })
            .to_vec();
        if self.output == Output::Topic {
            rows.push(("of all: left a transaction open".to_owned(), self.open_n));
        }
        table(&mut page, "while the job was", "times", rows);
        table(
            &mut page,
            "windows",
            "kills / ends compared",
            WINDOWS.map(|it| {
                let n = |of: &BTreeMap<Windows, u32>| of.get(&it).copied().unwrap_or(0);
                (
                    format!("{it:?}").to_lowercase(),
                    format!("{} / {}", n(&self.killed), n(&self.ended)),
                )
            }),
        );
        let _ = writeln!(page, "Violations: {}\n", self.complaints.len());
        for complaint in &self.complaints {
            let _ = writeln!(page, "- {complaint}");
        }
        let _ = writeln!(page, "{}", said_by("python3", &["-c", &about]));
        let _ = writeln!(
            page,
            "- Repeat: `make kills-kafka`, this run with `SEED={}`",
            self.seed
        );
        page
    }
}

fn table<N: std::fmt::Display>(
    page: &mut String,
    left: &str,
    right: &str,
    rows: impl IntoIterator<Item = (String, N)>,
) {
    let _ = writeln!(page, "| {left} | {right} |\n|---|--:|");
    for (name, n) in rows {
        let _ = writeln!(page, "| {name} | {n} |");
    }
    page.push('\n');
}

fn name_of(victim: Victim) -> &'static str {
    match victim {
        Victim::TaskManager => "one task manager",
        Victim::Several => "two or three task managers at once",
        Victim::Coordinator => "the coordinator, while tasks run on",
        Victim::Everything => "all processes at once",
    }
}

fn moment_name(moment: Moment) -> &'static str {
    match moment {
        Moment::Working => "at work (rows, checkpoints, publishing)",
        Moment::Restoring => "starting, restoring or being adopted",
        Moment::HandingOver => "handing key groups over",
    }
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.expect("the program is there");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
