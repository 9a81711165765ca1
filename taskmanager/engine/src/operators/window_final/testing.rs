//! A windowed aggregate with both halves in one place, for tests: rows in, lines of text out.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Int8Array, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::TimestampMicrosecondType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion_common::ScalarValue;
use datafusion_expr::Operator as SqlOperator;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{BinaryExpr, Column as ColumnExpr, Literal};
use streamforge_core::data_type::DataType;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::{
    AggregateCall, AggregateFunction, AggregateSpec, Column, Emit, Expr, NamedExpr, Port,
    WindowSpec,
};
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::{BlockRef, Counters, PartRef};

use super::super::Named;
use super::super::window_partial::WindowPartial;
use super::super::windowed::Windowed;
use super::WindowFinal;
use crate::batch::{Origin, RowOp, StreamBatch};
use crate::error::Error;
use crate::evaluate::Evaluator;
use crate::operator::{Operator, Outputs, RestoredState};
use crate::state::{RestoredPart, StatePart};
use crate::types::schema;

/// Key groups of every test.
pub(crate) const GROUPS: u32 = 16;

/// A row of the tests' input: event time, key, value.
pub(crate) type Row = (i64, i64, i64);

fn expr(column: &str) -> Expr {
    Expr {
        sql: column.to_owned(),
        data_type: DataType::BigInt,
        nullable: true,
    }
}

pub(crate) fn call(function: AggregateFunction, arg: Option<&str>) -> AggregateCall {
    AggregateCall {
        name: format!("{function:?}"),
        function,
        arg: arg.map(expr),
        filter: None,
        data_type: match function {
            AggregateFunction::Sum => DataType::Decimal(38, 0),
            AggregateFunction::ArrayAgg => DataType::List(Box::new(DataType::BigInt)),
            _ => DataType::BigInt,
        },
        nullable: true,
    }
}

/// `count(*), sum(v)` by `k`, no lateness, `OnTime`.
pub(crate) fn spec(window: WindowSpec) -> AggregateSpec {
    let column = |name: &str| Column {
        name: name.to_owned(),
        data_type: DataType::BigInt,
        nullable: true,
    };
    AggregateSpec {
        input: vec![column("k"), column("v")],
        keys: vec![NamedExpr {
            name: "k".to_owned(),
            expr: expr("k"),
        }],
        window,
        calls: vec![
            call(AggregateFunction::Count, None),
            call(AggregateFunction::Sum, Some("v")),
        ],
        allowed_lateness_us: 0,
        emit: Emit::OnTime,
        late_log: true,
    }
}

pub(crate) fn tumbling(size_us: i64) -> WindowSpec {
    WindowSpec::Tumbling {
        size_us,
        offset_us: 0,
        time_zone: "UTC".to_owned(),
    }
}

pub(crate) fn hopping(size_us: i64, slide_us: i64) -> WindowSpec {
    WindowSpec::Hopping {
        size_us,
        slide_us,
        offset_us: 0,
        time_zone: "UTC".to_owned(),
    }
}

pub(crate) fn session(gap_us: i64) -> WindowSpec {
    WindowSpec::Session { gap_us }
}

fn named() -> Named {
    Named {
        uid: "agg".to_owned(),
        node: "agg".to_owned(),
    }
}

fn compile(expr: &Expr) -> Result<Evaluator, Error> {
    let value: Arc<dyn PhysicalExpr> = Arc::new(ColumnExpr::new("v", 1));
    let number = |n: i64| Arc::new(Literal::new(ScalarValue::Int64(Some(n))));
    let compiled: Arc<dyn PhysicalExpr> = match expr.sql.as_str() {
        "k" => Arc::new(ColumnExpr::new("k", 0)),
        "v" => value,
        "v > 2" => Arc::new(BinaryExpr::new(value, SqlOperator::Gt, number(2))),
        "100 / v" => Arc::new(BinaryExpr::new(number(100), SqlOperator::Divide, value)),
        other => panic!("no test compiles `{other}`"),
    };
    Ok(Evaluator {
        sql: expr.sql.clone(),
        expr: compiled,
    })
}

/// A first half.
pub(crate) fn partial(spec: &AggregateSpec) -> WindowPartial {
    let windowed = Windowed::new(spec.clone(), &named()).unwrap();
    let evaluators = super::super::windowed::evaluators(&windowed, compile).unwrap();
    WindowPartial::new(named(), windowed, evaluators)
}

/// A second half.
pub(crate) fn last(spec: &AggregateSpec) -> WindowFinal {
    WindowFinal::new(
        named(),
        Windowed::new(spec.clone(), &named()).unwrap(),
        GROUPS,
    )
}

/// Input rows as a batch; a row's number is its position.
pub(crate) fn batch(spec: &AggregateSpec, rows: &[Row]) -> StreamBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    let times: TimestampMicrosecondArray = rows.iter().map(|row| Some(row.0)).collect();
    StreamBatch {
        rows: RecordBatch::try_new(schema(&spec.input), columns).unwrap(),
        event_time: Some(times),
        origin: Some(Origin {
            source: "f".into(),
            row: UInt64Array::from_iter_values(rows.iter().map(|row| row.2 as u64)),
            offset: UInt64Array::from_iter_values(rows.iter().map(|_| 0)),
        }),
        ops: None,
    }
}

/// Lines of a batch: operation, columns separated by blanks, times in microseconds.
pub(crate) fn lines(batch: &StreamBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    (0..batch.len())
        .map(|row| {
            let op = batch.ops.as_ref().map_or("+I", |ops: &Int8Array| {
                RowOp::from_byte(ops.value(row)).unwrap().text()
            });
            let cells = batch.rows.columns().iter().map(|column| {
                match column.as_primitive_opt::<TimestampMicrosecondType>() {
                    Some(times) => times.value(row).to_string(),
                    None => ArrayFormatter::try_new(column.as_ref(), &options)
                        .unwrap()
                        .value(row)
                        .to_string(),
                }
            });
            format!("{op} {}", cells.collect::<Vec<_>>().join(" "))
        })
        .collect()
}

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) main: Vec<String>,
    pub(crate) late: Vec<String>,
    pub(crate) bad: Vec<String>,
}

/// Both halves.
pub(crate) struct Pipe {
    pub(crate) spec: AggregateSpec,
    pub(crate) first: WindowPartial,
    pub(crate) last: WindowFinal,
    pub(crate) seen: Seen,
    promised: Watermark,
}

impl Pipe {
    pub(crate) fn new(spec: AggregateSpec) -> Self {
        let (first, last) = (partial(&spec), last(&spec));
        Self {
            spec,
            first,
            last,
            seen: Seen::default(),
            promised: Watermark::NONE,
        }
    }

    pub(crate) fn rows(&mut self, rows: &[Row]) -> &mut Self {
        let batch = batch(&self.spec, rows);
        let mut out = Outputs::new(true, true);
        self.first.on_batch(0, batch, &mut out).unwrap();
        self.pass(out);
        self
    }

    /// Hands what the first half sent to the second.
    fn pass(&mut self, mut out: Outputs) {
        for (port, batch) in out.take() {
            if port == Port::Main {
                let mut out = Outputs::new(true, true);
                self.last.on_batch(0, batch, &mut out).unwrap();
                self.collect(out);
            } else {
                self.side(port, &batch);
            }
        }
    }

    fn side(&mut self, port: Port, batch: &StreamBatch) {
        match port {
            Port::Main => unreachable!("handled by the callers"),
            Port::Late => self.seen.late.extend(lines(batch)),
            Port::Bad => {
                let raw = batch.rows.column(0).as_binary::<i32>();
                let reason = batch.rows.column(1).as_string::<i32>();
                let text = |row| String::from_utf8_lossy(raw.value(row)).into_owned();
                self.seen.bad.extend(
                    (0..batch.len()).map(|row| format!("{} {}", text(row), reason.value(row))),
                );
            }
        }
    }

    pub(crate) fn collect(&mut self, mut out: Outputs) {
        for (port, batch) in out.take() {
            if port != Port::Main {
                self.side(port, &batch);
                continue;
            }
            // T5: no row behind the watermark sent before it.
            if self.promised != Watermark::NONE {
                let times = batch.event_time.as_ref().unwrap();
                assert!(
                    times.values().iter().all(|time| *time >= self.promised.0),
                    "T5"
                );
            }
            self.seen.main.extend(lines(&batch));
        }
    }

    pub(crate) fn watermark(&mut self, watermark: i64) -> &mut Self {
        let mut out = Outputs::new(true, true);
        let promised = self
            .first
            .on_watermark(Watermark(watermark), &mut out)
            .unwrap();
        self.pass(out);
        self.last_watermark(promised)
    }

    pub(crate) fn last_watermark(&mut self, watermark: Watermark) -> &mut Self {
        let mut out = Outputs::new(true, true);
        let promised = self.last.on_watermark(watermark, &mut out).unwrap();
        self.collect(out);
        self.promised = promised;
        self
    }

    pub(crate) fn flush(&mut self) -> &mut Self {
        let mut out = Outputs::new(true, true);
        let promised = self.first.flush(&mut out).unwrap().unwrap();
        self.pass(out);
        self.last_watermark(promised);
        let mut out = Outputs::new(true, true);
        let promised = self.last.flush(&mut out).unwrap().unwrap();
        self.collect(out);
        self.promised = promised;
        self
    }

    pub(crate) fn end(&mut self) -> &mut Self {
        self.watermark(i64::MAX).flush()
    }

    /// Main output since the last call, sorted.
    pub(crate) fn take(&mut self) -> Vec<String> {
        let mut main = std::mem::take(&mut self.seen.main);
        main.sort();
        main
    }

    pub(crate) fn take_log(&mut self) -> Vec<String> {
        let log = self
            .first
            .take_late_log()
            .into_iter()
            .chain(self.last.take_late_log());
        log.flat_map(|rows| lines(&StreamBatch::plain(rows)))
            .collect()
    }

    /// Takes a checkpoint of the second half.
    pub(crate) fn checkpoint(&mut self, id: u64) -> (Watermark, Vec<Arc<StatePart>>) {
        self.flush();
        let snapshot = self
            .last
            .snapshot(CheckpointId::from_stored(id))
            .unwrap()
            .unwrap();
        for part in &snapshot.parts {
            part.rows().unwrap();
        }
        (snapshot.watermark, snapshot.parts)
    }

    /// Crash and restore of everything at the same parallelism.
    pub(crate) fn restart(&mut self, id: u64) -> &mut Self {
        let (watermark, parts) = self.checkpoint(id);
        let groups = (0..GROUPS)
            .map(|group| (KeyGroup(group as u16), watermark))
            .collect();
        self.last = restored(&self.spec, groups, &parts);
        self.first = partial(&self.spec);
        let counters = self.last.counters();
        assert_eq!(counters, Counters::default());
        self.watermark(watermark.0)
    }
}

/// A second half restored from these parts, restricted to these groups.
pub(crate) fn restored(
    spec: &AggregateSpec,
    groups: Vec<(KeyGroup, Watermark)>,
    parts: &[Arc<StatePart>],
) -> WindowFinal {
    let watermark = groups.iter().map(|group| group.1).max().unwrap();
    let owned: BTreeSet<KeyGroup> = groups.iter().map(|group| group.0).collect();
    let parts = parts_of(parts, &owned);
    let mut last = last(spec);
    last.restore(RestoredState {
        groups,
        watermark,
        parts,
    })
    .unwrap();
    last
}

/// The blocks of these groups, as a restore reads them.
pub(crate) fn restored_parts(
    parts: &[Arc<StatePart>],
    groups: std::ops::Range<u16>,
) -> Vec<RestoredPart> {
    parts_of(parts, &groups.map(KeyGroup).collect())
}

fn parts_of(parts: &[Arc<StatePart>], owned: &BTreeSet<KeyGroup>) -> Vec<RestoredPart> {
    let part = |part: &Arc<StatePart>| {
        let rows = part.rows().unwrap();
        let mine = rows
            .groups
            .iter()
            .filter(|(group, _)| owned.contains(group));
        let blocks: Vec<(KeyGroup, RecordBatch)> = mine
            .map(|(group, range)| (*group, rows.rows.slice(range.start, range.len())))
            .collect();
        let block = |group: &KeyGroup| BlockRef {
            group: *group,
            offset: 0,
            length: 0,
            checksum: 0,
            rows: 0,
        };
        let stored = PartRef {
            key: format!("{}-{}-{}", part.kind, part.sealed_by, part.sequence),
            bytes: 0,
            kind: part.kind.to_owned(),
            blocks: blocks.iter().map(|(group, _)| block(group)).collect(),
        };
        RestoredPart {
            kind: part.kind.to_owned(),
            stored,
            blocks,
        }
    };
    parts
        .iter()
        .map(part)
        .filter(|part| !part.blocks.is_empty())
        .collect()
}
