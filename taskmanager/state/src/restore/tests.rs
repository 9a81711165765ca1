use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arrow::array::Int64Array;
use arrow::datatypes::{DataType, Field, Schema};
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, StageIdx, SubtaskIdx};
use streamforge_core::manifest::CheckpointKind;
use streamforge_engine::state::PartRows;
use streamforge_store::{Condition, MemoryStore, Put};

use super::*;
use crate::part::encode_part;

fn manifest(assignment: Assignment) -> Manifest {
    Manifest {
        job: JobId("j".to_owned()),
        generation: Generation::ZERO,
        epoch: Epoch::ZERO,
        id: CheckpointId::ZERO,
        kind: CheckpointKind::Ordinary,
        plan: String::new(),
        parallelism: 2,
        max_parallelism: assignment.groups_n(),
        assignment,
        time_ms: 0,
        duration_ms: 0,
        tasks: Vec::new(),
        sources: BTreeMap::new(),
        operators: BTreeMap::new(),
        staged: Vec::new(),
        ledger: BTreeMap::new(),
        late_log: Vec::new(),
        ran_endless: false,
        handed_to: None,
        departed: Default::default(),
    }
}

/// Subtask 0 kept groups 0 and 1 up to 80, subtask 1 kept 2 and 3 up to 95.
fn kept() -> (Manifest, OperatorState) {
    let kept = |subtask, w| {
        let task = TaskId {
            stage: StageIdx(7),
            subtask: SubtaskIdx(subtask),
        };
        (task, Watermark(w))
    };
    let state = OperatorState {
        watermarks: vec![kept(0, 80), kept(1, 95)],
        parts: Vec::new(),
    };
    (manifest(Assignment::even(4, 2)), state)
}

#[test]
fn watermark_of_a_group_is_its_last_owners_whatever_stage_that_was_t6() {
    let (manifest, state) = kept();

    let found = [0, 1, 2, 3].map(|group| watermark_of(&manifest, &state, KeyGroup(group)).0);

    assert_eq!(found, [80, 80, 95, 95]);
}

/// What a future that never waits comes to.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a store in memory never waits"),
    }
}

fn stored_part() -> (PartRows, bytes::Bytes, PartRef) {
    let column = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let schema = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
    let rows = PartRows {
        rows: RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap(),
        groups: vec![(KeyGroup(0), 0..1), (KeyGroup(1), 1..3)],
    };
    let key = "parts/g1-e1-c1-t0-0-1".to_owned();
    let (object, part) = encode_part(key, "slices", &rows).unwrap();
    (rows, object, part)
}

#[test]
fn copies_are_read_first_and_damaged_ones_cost_a_read_of_the_store_c8() {
    let folder = tempfile::tempdir().unwrap();
    let copies = LocalCopies::open(folder.path()).unwrap();
    let store = MemoryStore::new();
    let (rows, object, part) = stored_part();
    let put = now(store.put(&part.key, object.clone(), Condition::None));
    assert!(matches!(put, Ok(Put::Done(_))));
    let from = Parts {
        local: Some(&copies),
        ..Parts::stored(&store)
    };
    let wanted = BTreeSet::from([KeyGroup(1)]);
    let load = || {
        let part = now(load_part(from, &part, &wanted)).unwrap().unwrap();
        assert_eq!(part.blocks, [(KeyGroup(1), rows.rows.slice(1, 2))]);
        let reads = copies.reads();
        (reads.here_n, reads.store_n)
    };

    assert_eq!(load(), (0, 1), "nothing was here");
    assert_eq!(load(), (1, 1), "what was read once is kept");
    copies.forget(&part.key);
    let mut bad = object.to_vec();
    let last = usize::try_from(part.blocks[1].offset).unwrap() + 9;
    bad[last] ^= 1;
    copies.keep(&part.key, 0, &bad);
    assert_eq!(load(), (1, 2), "a damaged copy is not believed");
    copies.forget(&part.key);
    copies.keep(&part.key, 0, &object);
    now(store.delete(std::slice::from_ref(&part.key))).unwrap();
    assert_eq!(load(), (2, 2), "the store was not asked");
}

#[test]
fn large_part_is_read_in_pieces_and_each_is_counted() {
    let store = MemoryStore::new();
    let content = bytes::Bytes::from_static(b"0123456789");
    let put = now(store.put("parts/a", content.clone(), Condition::None));
    assert!(matches!(put, Ok(Put::Done(_))));
    let read = AtomicU64::new(0);
    let from = Parts {
        read: Some(&read),
        ..Parts::stored(&store)
    };
    for piece in [1, 3, 4, 8, 9] {
        let bytes = now(read_in_pieces(from, "parts/a", 1..9, piece)).unwrap();
        assert_eq!(bytes, content.slice(1..9), "in pieces of {piece}");
    }
    assert_eq!(read.load(Ordering::Relaxed), 5 * 8);

    // What another piece waits for is counted already.
    now(store.delete(&["parts/a".to_owned()])).unwrap();
    assert!(now(read_in_pieces(from, "parts/a", 1..9, 4)).is_err());
    assert_eq!(read.load(Ordering::Relaxed), 5 * 8);
}

#[test]
fn task_begins_at_the_highest_watermark_of_its_groups_t6() {
    let (manifest, state) = kept();
    let task = TaskId {
        stage: StageIdx(1),
        subtask: SubtaskIdx(0),
    };
    let (store, alone) = (MemoryStore::new(), Assignment::even(4, 1));

    let loaded = load_operator(Parts::stored(&store), &manifest, &state, task, &alone);

    let restored = now(loaded).unwrap();
    assert_eq!(restored.watermark, Watermark(95));
    let groups = restored.groups.iter().map(|(group, w)| (group.0, w.0));
    assert!(groups.eq([(0, 80), (1, 80), (2, 95), (3, 95)]));
}
