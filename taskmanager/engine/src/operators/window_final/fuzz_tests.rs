//! Fuzz target of what is behind the bytes of a snapshot: rows of another form than this operator
//! stores are refused, and none makes it panic, now or when its windows fire (G3).
//!
//! An input is a program: its first byte chooses windows, every three bytes after it are one change
//! of the stored rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, new_null_array};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use streamforge_core::event_time::Watermark;
use streamforge_core::job_graph::AggregateSpec;
use streamforge_core::key_group::KeyGroup;

use super::testing::{
    GROUPS, Pipe, batch, call, hopping, last, restored_parts, session, spec, tumbling,
};
use crate::operator::{Operator, Outputs, RestoredState};
use crate::operators::window_partial::WindowPartial;
use crate::state::RestoredPart;

#[path = "../../../../../e2e/fuzz/harness.rs"]
mod harness;

use harness::Target;

const KINDS: [&str; 4] = ["slices", "emitted", "extents", "other"];

/// Numbers that no record makes of a slice, a window or an instant.
const ABSURD: [i64; 10] = [
    i64::MIN,
    i64::MIN + 1,
    i64::MAX,
    i64::MAX - 1,
    -1,
    1,
    1 << 40,
    -(1 << 40),
    1 << 62,
    5_000_000,
];

/// A windowed aggregate and a checkpoint of it, with something in each kind of part it has.
struct Case {
    spec: AggregateSpec,
    watermark: Watermark,
    parts: Vec<RestoredPart>,
}

impl Case {
    fn new(mut spec: AggregateSpec) -> Self {
        use streamforge_core::job_graph::AggregateFunction::{ArrayAgg, CountDistinct, Max};
        spec.allowed_lateness_us = 40;
        spec.calls
            .extend([Max, CountDistinct, ArrayAgg].map(|function| call(function, Some("v"))));
        let mut pipe = Pipe::new(spec);
        pipe.rows(&[(1, 1, 5), (7, 2, 6), (12, 1, 7), (13, 3, 8)])
            .watermark(30);
        pipe.checkpoint(1);
        pipe.rows(&[(25, 1, 9), (31, 1, 1), (33, 2, 2), (60, 4, 3)])
            .watermark(45);
        let (watermark, parts) = pipe.checkpoint(2);
        Self {
            spec: pipe.spec,
            watermark,
            parts: restored_parts(&parts, 0..GROUPS as u16),
        }
    }

    /// Restores from `parts`; then rows come, and everything fires.
    fn restore(&self, parts: Vec<RestoredPart>) -> Result<(), String> {
        let groups = (0..GROUPS as u16).map(|group| (KeyGroup(group), self.watermark));
        let mut operator = last(&self.spec);
        let state = RestoredState {
            groups: groups.collect(),
            watermark: self.watermark,
            parts,
        };
        let text = |error: crate::error::Error| error.to_string();
        operator.restore(state).map_err(text)?;
        let mut first: WindowPartial = super::testing::partial(&self.spec);
        let mut out = Outputs::new(true, true);
        let mut sent = Outputs::new(true, true);
        first
            .on_watermark(self.watermark, &mut sent)
            .map_err(text)?;
        let rows = batch(&self.spec, &[(31, 1, 4), (70, 2, 5)]);
        first.on_batch(0, rows, &mut sent).map_err(text)?;
        first.flush(&mut sent).map_err(text)?;
        operator
            .on_watermark(self.watermark, &mut out)
            .map_err(text)?;
        for (port, rows) in sent.take() {
            if port == streamforge_core::job_graph::Port::Main {
                operator.on_batch(0, rows, &mut out).map_err(text)?;
            }
        }
        operator
            .on_watermark(Watermark(100), &mut out)
            .map_err(text)?;
        operator.flush(&mut out).map_err(text)?;
        let id = streamforge_core::ids::CheckpointId::from_stored(3);
        if let Some(snapshot) = operator.snapshot(id).map_err(text)? {
            for part in &snapshot.parts {
                part.rows()?;
            }
        }
        operator
            .on_watermark(Watermark::END, &mut out)
            .map_err(text)?;
        Ok(())
    }

    fn run(&self, program: &[u8]) -> Result<(), String> {
        let mut parts: Vec<RestoredPart> = self
            .parts
            .iter()
            .map(|part| RestoredPart {
                kind: part.kind.clone(),
                stored: part.stored.clone(),
                blocks: part.blocks.clone(),
            })
            .collect();
        for change in program.chunks_exact(3) {
            let [what, place, how] = *change else {
                continue;
            };
            let n = parts.len();
            if let Some(part) = parts.get_mut(usize::from(place) % n.max(1)) {
                self.change(part, what, usize::from(place) / 16, usize::from(how));
            }
        }
        self.restore(parts)
    }

    fn change(&self, part: &mut RestoredPart, what: u8, place: usize, how: usize) {
        if what % 16 == 14 {
            part.kind = KINDS[how % KINDS.len()].to_owned();
            return;
        }
        let n = part.blocks.len();
        let Some((group, rows)) = part.blocks.get_mut(how % n.max(1)) else {
            return;
        };
        if what % 16 == 15 {
            *group = KeyGroup(u16::try_from(place).unwrap_or(0));
            return;
        }
        if let Some(changed) = changed(rows, what, place, how) {
            // A part's blocks have one schema; what else its others are is up to other changes.
            *rows = changed;
        }
    }
}

/// `rows` otherwise; `None` where that cannot be.
fn changed(rows: &RecordBatch, what: u8, place: usize, how: usize) -> Option<RecordBatch> {
    let schema = rows.schema();
    let mut fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| field.as_ref().clone())
        .collect();
    let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
    let mut metadata = schema.metadata().clone();
    let at = place % columns.len().max(1);
    let column = columns.get(at)?.clone();
    match what % 16 {
        0 => {
            fields.remove(at);
            columns.remove(at);
        }
        1 => {
            fields.insert(at, fields[at].clone());
            columns.insert(at, column);
        }
        2 => {
            let other = how % columns.len();
            fields.swap(at, other);
            columns.swap(at, other);
        }
        3 => {
            let types = [
                DataType::Utf8,
                DataType::Int32,
                DataType::Float64,
                DataType::UInt64,
            ];
            columns[at] = cast(&column, &types[how % types.len()]).ok()?;
            fields[at] = fields[at]
                .clone()
                .with_data_type(columns[at].data_type().clone());
        }
        4 => {
            columns[at] = new_null_array(column.data_type(), column.len());
            fields[at] = fields[at].clone().with_nullable(true);
        }
        5..=7 => {
            let numbers = column.as_primitive_opt::<Int64Type>()?;
            let absurd = ABSURD[how % ABSURD.len()];
            // All of them, one of them, or all of them moved.
            let one = (how / ABSURD.len()) % column.len().max(1);
            let number = |(row, number): (usize, &i64)| match what % 16 {
                5 => absurd,
                6 if row == one => absurd,
                6 => *number,
                _ => number.wrapping_add(absurd),
            };
            let numbers: Vec<i64> = numbers.values().iter().enumerate().map(number).collect();
            columns[at] = Arc::new(Int64Array::from(numbers));
        }
        8 => metadata.clear(),
        9 => return Some(rows.slice(0, how % (rows.num_rows() + 1))),
        10 => return concat_batches(&schema, [rows, rows]).ok(),
        11 => fields[at] = fields[at].clone().with_name("another"),
        _ => return None,
    }
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    RecordBatch::try_new(schema, columns).ok()
}

#[test]
fn fuzz_restore_refuses_rows_of_another_form_g3() {
    let cases = [
        Case::new(spec(tumbling(10))),
        Case::new(spec(hopping(20, 5))),
        Case::new(spec(session(4))),
    ];
    for case in &cases {
        assert!(case.parts.len() > 1, "slices, and what was sent");
        assert_eq!(case.restore(Vec::new()), Ok(()));
    }
    let target = Target {
        name: "restore",
        words: &[],
        rounds_n: 10_000,
        bytes_max: 64,
    };
    target.run(|program| {
        let (first, changes) = program.split_first().unwrap_or((&0, &[]));
        cases[usize::from(*first) % cases.len()].run(changes)
    });
}

#[test]
fn slices_that_no_record_can_have_made_are_damaged_g3() {
    // The second number of a session's slice is a watermark, and any can be.
    for (window, has_first) in [
        (tumbling(10), true),
        (hopping(20, 5), true),
        (session(4), false),
    ] {
        let case = Case::new(spec(window));
        let with = |column: usize, number: i64| {
            let slices = case.parts.iter().filter(|part| part.kind == "slices");
            let part = slices.into_iter().next().expect("a part of slices");
            let damage = |(group, rows): &(KeyGroup, RecordBatch)| {
                let mut columns = rows.columns().to_vec();
                columns[column] = Arc::new(Int64Array::from(vec![number; rows.num_rows()]));
                let rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
                (*group, rows)
            };
            case.restore(vec![RestoredPart {
                kind: part.kind.clone(),
                stored: part.stored.clone(),
                blocks: part.blocks.iter().map(damage).collect(),
            }])
        };
        let refused = |column, number| {
            let error = with(column, number).unwrap_err();
            assert!(error.contains("the stored rows are damaged"), "{error}");
        };
        refused(0, i64::MAX);
        refused(0, -(1 << 60));
        if has_first {
            refused(1, i64::MIN);
            refused(1, i64::MAX);
        }
    }
}
