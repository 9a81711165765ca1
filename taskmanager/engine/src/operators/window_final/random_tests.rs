//! Random jobs against brute force: any windows, disorder, lateness, batches, crashes and rescales.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::{AggregateSpec, Emit, Port, WindowSpec};
use streamforge_core::key_group::{KeyGroup, key_group_of_hash};

use super::super::window_partial::WindowPartial;
use super::WindowFinal;
use super::testing::{self, GROUPS, Row, batch, hopping, lines, session, spec, tumbling};
use crate::batch::StreamBatch;
use crate::key_hash::hash_columns;
use crate::operator::{Operator, Outputs};
use crate::state::StatePart;

/// One receiver and the key groups it owns.
struct Receiver {
    last: WindowFinal,
    groups: BTreeSet<KeyGroup>,
    promised: Watermark,
}

/// One sender, several receivers that hear of watermarks at different times.
struct Job {
    spec: AggregateSpec,
    first: WindowPartial,
    receivers: Vec<Receiver>,
    sender_watermark: Watermark,
    main: Vec<String>,
    log: Vec<String>,
    next_checkpoint: u64,
}

fn owned(idx: usize, n: usize) -> BTreeSet<KeyGroup> {
    (0..GROUPS as u16)
        .filter(|group| usize::from(*group) % n == idx)
        .map(KeyGroup)
        .collect()
}

impl Job {
    fn new(spec: AggregateSpec) -> Self {
        let receiver = |idx| Receiver {
            last: testing::last(&spec),
            groups: owned(idx, 2),
            promised: Watermark::NONE,
        };
        Self {
            first: testing::partial(&spec),
            receivers: (0..2).map(receiver).collect(),
            spec,
            sender_watermark: Watermark::NONE,
            main: Vec::new(),
            log: Vec::new(),
            next_checkpoint: 1,
        }
    }

    fn route(&mut self, mut out: Outputs) {
        for (port, batch) in out.take() {
            if port != Port::Main {
                continue;
            }
            let keys = [Arc::clone(batch.rows.column(0))];
            let hashes = hash_columns(&keys, batch.len()).unwrap();
            for receiver in &mut self.receivers {
                let mine = hashes
                    .iter()
                    .map(|hash| receiver.groups.contains(&key_group_of_hash(*hash, GROUPS)))
                    .map(Some);
                let mine: StreamBatch = batch.filter(&mine.collect()).unwrap();
                if !mine.is_empty() {
                    let mut out = Outputs::new(true, true);
                    receiver.last.on_batch(0, mine, &mut out).unwrap();
                    collect(&mut self.main, receiver.promised, out);
                }
            }
        }
        self.log.extend(log(&mut self.first));
        for receiver in &mut self.receivers {
            self.log.extend(log(&mut receiver.last));
        }
    }

    fn rows(&mut self, rows: &[Row]) {
        let mut out = Outputs::new(true, true);
        self.first
            .on_batch(0, batch(&self.spec, rows), &mut out)
            .unwrap();
        self.route(out);
    }

    /// The sender advances; receiver `idx` is told only if bit `idx` of `told` is set.
    fn advance(&mut self, watermark: i64, told: usize) {
        let mut out = Outputs::new(true, true);
        self.sender_watermark = self
            .first
            .on_watermark(Watermark(watermark), &mut out)
            .unwrap();
        self.route(out);
        for idx in (0..self.receivers.len()).filter(|idx| told & (1 << idx) != 0) {
            self.tell(idx, self.sender_watermark);
        }
    }

    fn tell(&mut self, idx: usize, watermark: Watermark) {
        let receiver = &mut self.receivers[idx];
        let mut out = Outputs::new(true, true);
        let promised = receiver.last.on_watermark(watermark, &mut out).unwrap();
        collect(&mut self.main, receiver.promised, out);
        receiver.promised = promised;
    }

    fn flush(&mut self) {
        let mut out = Outputs::new(true, true);
        self.first.flush(&mut out).unwrap();
        self.route(out);
        for receiver in &mut self.receivers {
            let mut out = Outputs::new(true, true);
            let promised = receiver.last.flush(&mut out).unwrap().unwrap();
            collect(&mut self.main, receiver.promised, out);
            receiver.promised = promised;
        }
    }

    /// Checkpoint, crash, restore at another parallelism, with other groups per receiver.
    fn rescale(&mut self, n: usize) {
        self.flush();
        let mut watermarks = BTreeMap::new();
        let mut parts: Vec<Arc<StatePart>> = Vec::new();
        for receiver in &mut self.receivers {
            let id = CheckpointId::from_stored(self.next_checkpoint);
            self.next_checkpoint += 1;
            let snapshot = receiver.last.snapshot(id).unwrap().unwrap();
            watermarks.extend(
                receiver
                    .groups
                    .iter()
                    .map(|group| (*group, snapshot.watermark)),
            );
            parts.extend(snapshot.parts);
        }
        self.receivers = (0..n)
            .map(|idx| {
                let groups = owned(idx, n);
                let known = groups
                    .iter()
                    .map(|group| (*group, watermarks[group]))
                    .collect();
                let last = testing::restored(&self.spec, known, &parts);
                Receiver {
                    last,
                    groups,
                    promised: Watermark::NONE,
                }
            })
            .collect();
        let highest = watermarks.values().copied().max().unwrap();
        for idx in 0..n {
            let mine = self.receivers[idx]
                .groups
                .iter()
                .map(|group| watermarks[group]);
            self.tell(idx, mine.max().unwrap());
        }
        // The sender begins anew and learns the highest by its handshake.
        self.first = testing::partial(&self.spec);
        self.advance(highest.0, 0);
    }

    fn end(&mut self) {
        self.advance(i64::MAX, usize::MAX);
        self.flush();
    }
}

fn log(operator: &mut dyn Operator) -> Vec<String> {
    let rows = operator.take_late_log().into_iter();
    rows.flat_map(|rows| lines(&StreamBatch::plain(rows)))
        .collect()
}

fn collect(main: &mut Vec<String>, promised: Watermark, mut out: Outputs) {
    for (port, batch) in out.take() {
        if port == Port::Main {
            let times = batch.event_time.as_ref().unwrap().values();
            let behind = times.iter().any(|time| *time < promised.0);
            assert!(
                promised == Watermark::NONE || !behind,
                "T5: {:?}",
                lines(&batch)
            );
            main.extend(lines(&batch));
        }
    }
}

/// Folds a changelog; fails if it takes back what it did not say.
fn fold(lines: &[String]) -> Vec<String> {
    let mut rows: BTreeMap<String, i64> = BTreeMap::new();
    for line in lines {
        let (op, row) = line.split_at(2);
        let count = rows.entry(row.to_owned()).or_default();
        *count += if op.starts_with('+') { 1 } else { -1 };
        assert!((0..=1).contains(count), "G2: {line} in {lines:#?}");
    }
    rows.retain(|_, count| *count > 0);
    rows.into_keys()
        .map(|row| row.trim_start().to_owned())
        .collect()
}

/// (record, window start) pairs of the late log.
fn missed(log: &[String]) -> BTreeSet<(i64, i64)> {
    let pair = |line: &String| {
        let cells: Vec<&str> = line.split(' ').collect();
        (
            cells[2].split(':').next().unwrap().parse().unwrap(),
            cells[3].parse().unwrap(),
        )
    };
    log.iter().map(pair).collect()
}

fn expected(window: &WindowSpec, rows: &[Row], missed: &BTreeSet<(i64, i64)>) -> Vec<String> {
    let mut results: BTreeMap<(i64, i64, i64), (i64, i64)> = BTreeMap::new();
    let mut add = |key, start, end, value| {
        let result = results.entry((key, start, end)).or_default();
        *result = (result.0 + 1, result.1 + value);
    };
    match window {
        WindowSpec::Tumbling { size_us, .. } | WindowSpec::Hopping { size_us, .. } => {
            let slide_us = match window {
                WindowSpec::Hopping { slide_us, .. } => *slide_us,
                _ => *size_us,
            };
            for (time, key, value) in rows {
                let mut start = time.div_euclid(slide_us) * slide_us;
                while start + size_us > *time {
                    if !missed.contains(&(*value, start)) {
                        add(*key, start, start + size_us, *value);
                    }
                    start -= slide_us;
                }
            }
        }
        WindowSpec::Session { gap_us } => {
            let late: BTreeSet<i64> = missed.iter().map(|pair| pair.0).collect();
            let mut rows: Vec<Row> = rows
                .iter()
                .filter(|row| !late.contains(&row.2))
                .copied()
                .collect();
            rows.sort_by_key(|row| (row.1, row.0));
            let mut session: Vec<Row> = Vec::new();
            for row in rows.into_iter().map(Some).chain([None]) {
                let last = session.last().copied();
                let goes_on = last
                    .zip(row)
                    .is_some_and(|(last, row)| last.1 == row.1 && row.0 - last.0 < *gap_us);
                if !goes_on && let (Some(first), Some(last)) = (session.first().copied(), last) {
                    for one in session.drain(..) {
                        add(first.1, first.0, last.0 + gap_us, one.2);
                    }
                }
                session.extend(row);
            }
        }
    }
    let mut lines: Vec<String> = results
        .into_iter()
        .map(|((key, start, end), (n, sum))| format!("{key} {start} {end} {n} {sum}"))
        .collect();
    lines.sort();
    lines
}

#[derive(Clone, Debug)]
enum Step {
    Rows(Vec<(i64, i64)>),
    Advance(i64, usize),
    Flush,
    Rescale(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => proptest::collection::vec((-25i64..15, 0i64..4), 1..8).prop_map(Step::Rows),
        4 => (0i64..12, 0usize..8).prop_map(|(by, told)| Step::Advance(by, told)),
        1 => Just(Step::Flush),
        1 => (1usize..4).prop_map(Step::Rescale),
    ]
}

fn any_window() -> impl Strategy<Value = WindowSpec> {
    prop_oneof![
        (1i64..12).prop_map(tumbling),
        (1i64..6, 0i64..12).prop_map(|(slide, more)| hopping(slide + more, slide)),
        (1i64..9).prop_map(session),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn result_is_that_of_a_batch_query_minus_the_late_log_t3_t5_t6_g1_g2_kf_e10(
        window in any_window(),
        steps in proptest::collection::vec(step(), 1..25),
        lateness in prop_oneof![Just(0i64), 1i64..15],
        once in any::<bool>(),
    ) {
        let mut spec = spec(window.clone());
        spec.allowed_lateness_us = lateness;
        spec.emit = if once { Emit::Once } else { Emit::OnTime };
        let updates = !once && lateness > 0;
        let mut job = Job::new(spec);
        let mut all: Vec<Row> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Rows(rows) => {
                    let n = all.len() as i64;
                    let rows: Vec<Row> =
                        rows.iter().zip(n..).map(|((ahead, key), n)| (now + ahead, *key, n)).collect();
                    all.extend(&rows);
                    job.rows(&rows);
                }
                Step::Advance(by, told) => {
                    now += by;
                    job.advance(now - 5, told);
                }
                Step::Flush => job.flush(),
                Step::Rescale(n) => job.rescale(n),
            }
        }
        job.end();

        prop_assert!(updates || job.main.iter().all(|line| line.starts_with("+I")));
        let missed = missed(&job.log);
        prop_assert_eq!(fold(&job.main), expected(&window, &all, &missed));
    }
}
