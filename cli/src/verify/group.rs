//! The windows and groups of one aggregate.
//!
//! Owns: every (record, window) pair that is not in the late log, put into its group; sessions by
//! sorting the times of each key. No watermark is kept and nothing is fired: results are read off
//! when all input is in. Start at: [`Groups::add`], [`Groups::finish`].

use std::collections::HashMap;

use anyhow::Result;
use streamforge_core::job_graph::AggregateSpec;

use super::aggregate::Acc;
use super::cell::Cell;
use super::window::{Window, Windows};

/// A record as an aggregate sees it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Event time.
    pub ts: i64,
    /// Its group, without the window.
    pub keys: Vec<Cell>,
    /// Per aggregate whether its filter lets the record pass, and the argument.
    pub args: Vec<Option<Cell>>,
}

/// All groups of one aggregate.
#[derive(Debug)]
pub struct Groups<'g> {
    spec: &'g AggregateSpec,
    windows: Windows,
    fixed: HashMap<Box<[u8]>, Group>,
    sessions: HashMap<Box<[u8]>, Vec<Record>>,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Group {
    keys: Vec<Cell>,
    window: Window,
    accs: Vec<Acc>,
}

/// One result.
#[derive(Debug)]
pub struct Row {
    /// The group.
    pub keys: Vec<Cell>,
    /// Its window.
    pub window: Window,
    /// One value per aggregate; `None`: one of them is out of range.
    pub values: Option<Vec<Cell>>,
}

impl<'g> Groups<'g> {
    /// Without records.
    pub fn new(spec: &'g AggregateSpec) -> Result<Self> {
        Ok(Self {
            spec,
            windows: Windows::new(&spec.window)?,
            fixed: HashMap::new(),
            sessions: HashMap::new(),
            scratch: Vec::new(),
        })
    }

    /// The windows of a time; a session has none until all its records are known.
    pub fn windows_of(&self, ts: i64, out: &mut Vec<Window>) {
        self.windows.of(ts, out);
    }

    /// The gap, if windows are sessions.
    pub fn session_gap(&self) -> Option<i64> {
        match self.windows {
            Windows::Session { gap } => Some(gap),
            Windows::Grid { .. } => None,
        }
    }

    /// Counts a record in these windows; in its session, if windows are sessions.
    pub fn add(&mut self, record: &Record, windows: &[Window]) {
        self.scratch.clear();
        for key in &record.keys {
            key.encode(&mut self.scratch);
        }
        if self.session_gap().is_some() {
            match self.sessions.get_mut(self.scratch.as_slice()) {
                Some(records) => records.push(record.clone()),
                None => {
                    self.sessions
                        .insert(self.scratch.as_slice().into(), vec![record.clone()]);
                }
            }
            return;
        }
        let key_length = self.scratch.len();
        for window in windows {
            self.scratch.truncate(key_length);
            self.scratch.extend_from_slice(&window.start.to_le_bytes());
            if !self.fixed.contains_key(self.scratch.as_slice()) {
                let group = Group::new(self.spec, record.keys.clone(), *window);
                self.fixed.insert(self.scratch.as_slice().into(), group);
            }
            if let Some(group) = self.fixed.get_mut(self.scratch.as_slice()) {
                group.add(self.spec, record);
            }
        }
    }

    /// All results, by window and key.
    pub fn finish(self) -> Vec<Row> {
        let spec = self.spec;
        let mut groups: Vec<Group> = self.fixed.into_values().collect();
        if let Windows::Session { gap } = self.windows {
            groups.extend(
                self.sessions
                    .into_values()
                    .flat_map(|r| sessions(spec, gap, r)),
            );
        }
        let mut rows: Vec<Row> = groups.into_iter().map(|group| group.finish(spec)).collect();
        rows.sort_by(|a, b| {
            let keys = || Cell::Many(a.keys.clone()).order(&Cell::Many(b.keys.clone()));
            a.window.cmp(&b.window).then_with(keys)
        });
        rows
    }
}

/// The sessions of one key: a new one wherever the distance to the record before is `gap` or more.
fn sessions(spec: &AggregateSpec, gap: i64, mut records: Vec<Record>) -> Vec<Group> {
    records.sort_by_key(|record| record.ts);
    let mut groups: Vec<Group> = Vec::new();
    for record in records {
        match groups
            .last_mut()
            .filter(|group| record.ts < group.window.end)
        {
            Some(group) => group.window.end = record.ts + gap,
            None => {
                let window = Window {
                    start: record.ts,
                    end: record.ts + gap,
                };
                groups.push(Group::new(spec, record.keys.clone(), window));
            }
        }
        if let Some(group) = groups.last_mut() {
            group.add(spec, &record);
        }
    }
    groups
}

impl Group {
    fn new(spec: &AggregateSpec, keys: Vec<Cell>, window: Window) -> Self {
        Self {
            keys,
            window,
            accs: spec.calls.iter().map(Acc::new).collect(),
        }
    }

    fn add(&mut self, spec: &AggregateSpec, record: &Record) {
        for ((call, acc), arg) in spec.calls.iter().zip(&mut self.accs).zip(&record.args) {
            if let Some(value) = arg {
                acc.add(call, record.ts, call.arg.as_ref().map(|_| value));
            }
        }
    }

    fn finish(self, spec: &AggregateSpec) -> Row {
        let finished = spec
            .calls
            .iter()
            .zip(self.accs)
            .map(|(call, acc)| acc.finish(call));
        Row {
            keys: self.keys,
            window: self.window,
            values: finished.collect::<Result<_, _>>().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use streamforge_core::data_type::DataType;
    use streamforge_core::job_graph::{AggregateCall, AggregateFunction, Emit, WindowSpec};

    use super::*;

    fn spec(window: WindowSpec) -> AggregateSpec {
        AggregateSpec {
            input: vec![],
            keys: vec![],
            window,
            calls: vec![AggregateCall {
                name: "n".to_owned(),
                function: AggregateFunction::Count,
                arg: None,
                filter: None,
                data_type: DataType::BigInt,
                nullable: false,
            }],
            allowed_lateness_us: 0,
            emit: Emit::Once,
            late_log: true,
        }
    }

    fn results(spec: &AggregateSpec, records: &[(&str, i64)]) -> Vec<(String, i64, i64, i128)> {
        let mut groups = Groups::new(spec).unwrap();
        let mut windows = Vec::new();
        for (key, ts) in records {
            let keys = vec![Cell::Text((*key).into())];
            groups.windows_of(*ts, &mut windows);
            groups.add(
                &Record {
                    ts: *ts,
                    keys,
                    args: vec![Some(Cell::Null)],
                },
                &windows,
            );
        }
        let row = |row: Row| {
            let (Cell::Text(key), Some(values)) = (&row.keys[0], &row.values) else {
                panic!()
            };
            let Cell::Int(n) = values[0] else { panic!() };
            (key.to_string(), row.window.start, row.window.end, n)
        };
        groups.finish().into_iter().map(row).collect()
    }

    #[test]
    fn session_windows_merge_when_record_bridges_the_gap_kf_e6() {
        let spec = spec(WindowSpec::Session { gap_us: 10 });

        let rows = results(&spec, &[("a", 0), ("a", 15), ("a", 8), ("b", 0), ("b", 10)]);

        let row = |key: &str, start, end, n| (key.to_owned(), start, end, n);
        assert_eq!(
            rows,
            [row("b", 0, 10, 1), row("a", 0, 25, 3), row("b", 10, 20, 1)]
        );
    }

    #[test]
    fn every_window_of_a_hop_counts_a_record_once() {
        let time_zone = "UTC".to_owned();
        let spec = spec(WindowSpec::Hopping {
            size_us: 10,
            slide_us: 5,
            offset_us: 0,
            time_zone,
        });

        let rows = results(&spec, &[("a", 7), ("a", 4)]);

        let row = |start, end, n| ("a".to_owned(), start, end, n);
        assert_eq!(rows, [row(-5, 5, 1), row(0, 10, 2), row(5, 15, 1)]);
    }
}
