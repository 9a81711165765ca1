//! Stored control objects: frozen bytes, and nothing but errors from damaged ones (C8).
#![expect(clippy::too_many_lines, reason = "one whole manifest is one value")]

use proptest::prelude::*;

use super::*;
use crate::ids::{StageIdx, SubtaskIdx};
use crate::job_graph::PLAN_FORMAT_VERSION;
use crate::key_group::KeyGroup;

fn uid(name: &str) -> OperatorUid {
    OperatorUid(name.to_owned())
}

fn id(n: u64) -> CheckpointId {
    CheckpointId::from_stored(n)
}

fn head() -> Head {
    let manifest = ManifestRef {
        key: "manifests/g2-e3-c41".to_owned(),
        id: id(41),
    };
    Head {
        job: JobId("clicks-0badcafe".to_owned()),
        generation: Generation::from_stored(2),
        epoch: Epoch::from_stored(3),
        coordinator: "pid 7".to_owned(),
        plan: "plans/g2-e3-c35-00000000000000ff".to_owned(),
        plan_hash: u64::MAX,
        assignment: Assignment::even(4, 2),
        parallelism: 2,
        newest: Some(manifest.clone()),
        retained: vec![manifest],
        ids_reserved_to: id(58),
        nonce: 1,
        finished: false,
        proposed: None,
        numbers_to: 0,
        scaled: None,
        task_managers: Default::default(),
    }
}

fn manifest() -> Manifest {
    let task = TaskId {
        stage: StageIdx(1),
        subtask: SubtaskIdx(0),
    };
    let split = |name: &str, progress| SplitState {
        split: SplitId(name.to_owned()),
        progress,
        watermark: Watermark(-1),
        description: "words of the connector".to_owned(),
        weight: 10,
    };
    let block = BlockRef {
        group: KeyGroup(3),
        offset: 8,
        length: 16,
        checksum: u64::MAX,
        rows: 2,
    };
    let part = PartRef {
        key: "parts/g2-e3-c41-t1.0-0".to_owned(),
        bytes: 24,
        kind: "slices".to_owned(),
        blocks: vec![block],
    };
    let staged = StagedObject {
        staged: "_streamforge/x".to_owned(),
        published: "x".to_owned(),
        bytes: 5,
        rows: 1,
        detail: String::new(),
    };
    Manifest {
        job: JobId("clicks-0badcafe".to_owned()),
        generation: Generation::from_stored(2),
        epoch: Epoch::from_stored(3),
        id: id(41),
        kind: CheckpointKind::Ordinary,
        plan: "plans/g2-e3-c35-00000000000000ff".to_owned(),
        parallelism: 2,
        max_parallelism: 4,
        assignment: Assignment::even(4, 2),
        time_ms: 1_800_000_000_000,
        duration_ms: 12,
        tasks: vec![task],
        sources: BTreeMap::from([(
            uid("in"),
            vec![
                split("a", SplitProgress::At("12:340".to_owned())),
                split("b", SplitProgress::End),
            ],
        )]),
        operators: BTreeMap::from([(
            uid("agg"),
            OperatorState {
                watermarks: vec![(task, Watermark::END)],
                parts: vec![part],
            },
        )]),
        staged: vec![SlotState {
            slot: SlotId {
                sink: uid("out"),
                slot: 0,
            },
            intervals: vec![StagedInterval {
                id: id(40),
                objects: vec![staged],
            }],
        }],
        ledger: BTreeMap::from([(
            uid("in"),
            Counters {
                rows_in: 3,
                bad: 3,
                ..Counters::default()
            },
        )]),
        late_log: vec![ObjectRef {
            key: "late/g2-e3-c41-t1.0-1".to_owned(),
            bytes: 1,
            checksum: 2,
        }],
        ran_endless: false,
        handed_to: None,
        departed: Departed::default(),
    }
}

fn plan() -> Plan {
    let graph = JobGraph {
        format_version: PLAN_FORMAT_VERSION,
        name: "clicks".to_owned(),
        max_parallelism: 4,
        bounded: true,
        stages: Vec::new(),
        edges: Vec::new(),
    };
    Plan {
        graph,
        document: "kind: StreamJob\n".to_owned(),
    }
}

/// What version 1 wrote is read, and what is written as version 1 is what it wrote. A change of the
/// format gets a new version and files of its own; these are never written anew.
fn check_frozen<T>(name: &str, kind: frame::Kind, value: &T)
where
    T: Serialize + Versioned + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
{
    let path = format!(
        "{}/../testdata/formats/v1/control/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    let stored = std::fs::read(&path).expect(&path);
    assert_eq!(decode::<T>(kind, &stored).expect(name), *value);
    assert_eq!(
        encode(kind, value),
        stored,
        "{name} is written otherwise than version 1 wrote it"
    );
}

#[test]
fn control_objects_of_version_1_are_frozen_c8() {
    check_frozen("head", frame::HEAD, &head());
    check_frozen("manifest", frame::MANIFEST, &manifest());
    check_frozen("plan", frame::PLAN, &plan());
}

#[test]
fn older_programs_refuse_what_they_would_not_understand_of_a_hand_over_c8() {
    let mut head = head();
    let version = |bytes: &[u8]| u16::from_le_bytes([bytes[4], bytes[5]]);
    assert_eq!(version(&encode(frame::HEAD, &head)), 1);

    head.proposed = Some(Assignment::even(4, 3));
    head.numbers_to = 3;
    head.scaled = Some(Scaled {
        started_with: 2,
        to: 3,
    });
    let bytes = encode(frame::HEAD, &head);
    assert_eq!(version(&bytes), 2);
    assert_eq!(decode::<Head>(frame::HEAD, &bytes).unwrap(), head);

    let mut manifest = manifest();
    assert_eq!(version(&encode(frame::MANIFEST, &manifest)), 1);
    manifest.kind = CheckpointKind::HandOver;
    manifest.handed_to = Some(Assignment::even(4, 3));
    manifest.departed.counters = manifest.ledger.clone();
    let bytes = encode(frame::MANIFEST, &manifest);
    assert_eq!(version(&bytes), 2);
    assert_eq!(
        decode::<Manifest>(frame::MANIFEST, &bytes).unwrap(),
        manifest
    );
}

#[test]
fn older_programs_refuse_the_manifest_of_a_savepoint_c8() {
    let mut manifest = manifest();
    manifest.kind = CheckpointKind::Savepoint;
    let bytes = encode(frame::MANIFEST, &manifest);

    assert_eq!(u16::from_le_bytes([bytes[4], bytes[5]]), 3);
    assert_eq!(
        decode::<Manifest>(frame::MANIFEST, &bytes).unwrap(),
        manifest
    );
}

#[test]
fn objects_of_another_kind_are_refused_by_name_c8() {
    let refused = decode::<Head>(frame::HEAD, &encode(frame::MANIFEST, &manifest()));

    assert!(refused.is_err_and(|error| error.to_string().contains("decode head: wrong magic")));
}

#[test]
fn plan_hash_covers_stages_and_edges_only() {
    let mut other = plan();
    other.graph.name = "renamed".to_owned();
    other.document.clear();
    assert_eq!(other.hash(), plan().hash());

    other.graph.stages.push(crate::job_graph::Stage {
        operators: Vec::new(),
    });
    assert_ne!(other.hash(), plan().hash());
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic_c8(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode::<Head>(frame::HEAD, &bytes).is_err());
        prop_assert!(decode::<Manifest>(frame::MANIFEST, &bytes).is_err());
    }

    /// The checksum protects from accidents; a decoder must not rely on it for its own safety.
    #[test]
    fn no_contents_under_a_right_checksum_make_a_decoder_panic_c8(
        at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>()
    ) {
        for json in [serde_json::to_vec(&head()), serde_json::to_vec(&manifest())] {
            let mut json = json.expect("it has string keys");
            let (at, cut) = (at.index(json.len()), cut.index(json.len()));
            json[at] = with;
            for contents in [&json[..], &json[..cut]] {
                let _head = decode::<Head>(frame::HEAD, &frame::encode(frame::HEAD, contents));
                let framed = frame::encode(frame::MANIFEST, contents);
                let _manifest = decode::<Manifest>(frame::MANIFEST, &framed);
            }
        }
    }
}
