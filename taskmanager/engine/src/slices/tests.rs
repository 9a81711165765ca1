use arrow::array::{AsArray, Int64Array};
use streamforge_core::data_type::DataType as SqlType;
use streamforge_core::job_graph::AggregateFunction;
use streamforge_core::key_group::key_group_of_hash;

use super::*;
use crate::aggregate::Aggregate;
use crate::group_table::{Extents, TableInput};
use crate::key_hash::hash_columns;

const GROUPS: u32 = 8;

fn shape() -> Arc<TableShape> {
    let sum = Aggregate::new(AggregateFunction::Sum, Some(SqlType::BigInt)).unwrap();
    Arc::new(TableShape::new(vec![DataType::Int64], vec![sum], Extents::Ignored).unwrap())
}

fn key(slice: i64) -> SliceKey {
    SliceKey {
        slice,
        first: slice,
    }
}

fn add(store: &mut SliceStore, slice: i64, keys: std::ops::Range<i64>) {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
    let times = vec![0; keys.len()];
    let ones: ArrayRef = Arc::new(Int64Array::from(vec![1; keys.len()]));
    store
        .table(key(slice))
        .unwrap()
        .update(&TableInput {
            keys: &[keys],
            args: &[Some(ones)],
            keep: &[None],
            event_time: &times,
        })
        .unwrap();
}

/// Sums of a slice, by key.
fn sums(store: &mut SliceStore, slice: i64) -> BTreeMap<i64, i128> {
    let mut table = GroupTable::new(&shape()).unwrap();
    for piece in store.pieces(key(slice)).unwrap() {
        table.merge(&piece).unwrap();
    }
    let groups: Vec<usize> = (0..table.len()).collect();
    let (values, _) = table.evaluate(&groups).unwrap();
    let keys = table.take_keys().unwrap();
    let keys = keys[0].as_primitive::<Int64Type>().values().to_vec();
    let sums = values[0]
        .as_primitive::<arrow::datatypes::Decimal128Type>()
        .values()
        .to_vec();
    keys.into_iter().zip(sums).collect()
}

fn seal(store: &mut SliceStore, id: u64) -> Vec<Arc<StatePart>> {
    let parts = store.seal(CheckpointId::from_stored(id)).unwrap();
    for part in &parts {
        part.rows().unwrap();
    }
    parts
}

fn rows_n(parts: &[Arc<StatePart>]) -> Vec<usize> {
    parts
        .iter()
        .map(|part| part.rows().unwrap().rows.num_rows())
        .collect()
}

#[test]
fn part_keeps_what_was_there_at_its_barrier_and_nothing_later() {
    let mut store = SliceStore::new(shape(), GROUPS);
    add(&mut store, 0, 0..3);
    let parts = store.seal(CheckpointId::from_stored(1)).unwrap();

    add(&mut store, 0, 0..10);
    add(&mut store, 1, 0..10);

    assert_eq!(rows_n(&parts), [3]);
    assert_eq!(sums(&mut store, 0)[&0], 2);
    assert_eq!(sums(&mut store, 0)[&9], 1);
}

#[test]
fn part_is_sorted_by_key_group_k1() {
    let mut store = SliceStore::new(shape(), GROUPS);
    add(&mut store, 0, 0..100);
    add(&mut store, 1, 50..150);

    let rows = seal(&mut store, 1)[0].rows().unwrap();

    let keys = [Arc::clone(rows.rows.column(2))];
    let hashes = hash_columns(&keys, rows.rows.num_rows()).unwrap();
    let mut end = 0;
    for (group, range) in &rows.groups {
        assert_eq!(range.start, end);
        end = range.end;
        for hash in &hashes[range.clone()] {
            assert_eq!(key_group_of_hash(*hash, GROUPS), *group);
        }
    }
    assert_eq!(end, 200);
    assert!(rows.groups.is_sorted_by_key(|(group, _)| *group));
}

#[test]
fn checkpoint_is_declined_while_two_parts_wait_for_conversion() {
    let mut store = SliceStore::new(shape(), GROUPS);
    for id in 1..=2 {
        add(&mut store, 0, 0..3);
        assert!(store.seal(CheckpointId::from_stored(id)).is_some());
    }
    add(&mut store, 0, 0..3);

    assert!(store.seal(CheckpointId::from_stored(3)).is_none());

    // Nothing is lost by declining, and conversion makes room again.
    assert_eq!(sums(&mut store, 0)[&0], 3);
    assert!(store.seal(CheckpointId::from_stored(4)).is_some());
    assert_eq!(sums(&mut store, 0)[&0], 3);
}

#[test]
fn parts_merge_geometrically() {
    let mut store = SliceStore::new(shape(), GROUPS);
    add(&mut store, 0, 0..1000);
    assert_eq!(rows_n(&seal(&mut store, 1)), [1000]);
    let mut rewritten = 0;
    for id in 2..200 {
        let n = id as i64;
        add(&mut store, 0, n * 10_000..n * 10_000 + 10);
        let parts = seal(&mut store, id);
        assert!(parts.len() <= 8, "{:?}", rows_n(&parts));
        rewritten += rows_n(&parts[parts.len() - 1..])[0];
    }

    assert_eq!(sums(&mut store, 0).len(), 1000 + 198 * 10);
    // Each row is rewritten a logarithmic number of times, not at every checkpoint.
    assert!(rewritten < 40_000, "{rewritten}");
}

#[test]
fn part_without_new_rows_is_listed_again_not_made_anew() {
    let mut store = SliceStore::new(shape(), GROUPS);
    add(&mut store, 0, 0..3);
    let first = seal(&mut store, 1);
    let second = seal(&mut store, 2);

    assert!(Arc::ptr_eq(&first[0], &second[0]));
    assert_eq!(second[0].sealed_by, CheckpointId::from_stored(1));
}

#[test]
fn part_whose_slices_are_gone_is_not_listed() {
    let mut store = SliceStore::new(shape(), GROUPS);
    add(&mut store, 0, 0..3);
    add(&mut store, 1, 0..3);
    seal(&mut store, 1);

    store.consume(key(0)).unwrap();
    assert_eq!(seal(&mut store, 2).len(), 1);
    store.remove(key(1));

    assert_eq!(seal(&mut store, 3).len(), 0);
}

#[test]
fn settled_rows_are_sealed_too() {
    let mut store = SliceStore::new(shape(), GROUPS);
    add(&mut store, 0, 0..3);
    sums(&mut store, 0);
    add(&mut store, 0, 2..5);
    sums(&mut store, 0);

    assert_eq!(rows_n(&seal(&mut store, 1)), [5]);
    assert_eq!(sums(&mut store, 0)[&2], 2);
}

#[test]
fn state_of_another_layout_is_refused_g3_attack_42() {
    let mut store = SliceStore::new(shape(), GROUPS);
    add(&mut store, 0, 0..3);
    let rows = seal(&mut store, 1)[0].rows().unwrap();
    let count = Aggregate::new(AggregateFunction::Count, None).unwrap();
    let other = TableShape::new(vec![DataType::Int64], vec![count], Extents::Ignored).unwrap();
    let mut other = SliceStore::new(Arc::new(other), GROUPS);

    let part = || {
        let rows = PartRows::clone(&rows);
        StatePart::sealed(SLICES, CheckpointId::ZERO, 0, Box::new(|| Ok(rows)))
    };
    let error = other.load(part(), |_| Ok(true)).unwrap_err();

    assert!(error.to_string().contains("Sum(BIGINT)/1"), "{error}");
    let mut same = SliceStore::new(shape(), GROUPS);
    same.load(part(), |_| Ok(true)).unwrap();
    assert_eq!(sums(&mut same, 0).len(), 3);
}
