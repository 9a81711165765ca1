//! Frames of every type come back equal; what is no frame is an error.

use arrow::array::{
    BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array,
    Float64Array, Int32Array, Int64Array, ListBuilder, StringArray, StringBuilder, StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::Int32Type;
use proptest::prelude::*;

use super::*;

/// One value per row, from which every type makes its own.
type Seeds = Vec<Option<u32>>;

const TYPES_N: usize = 14;

fn text(seed: u32) -> String {
    "äbc".repeat(seed as usize % 5)
}

fn lists(seeds: &Seeds) -> ArrayRef {
    let mut lists = ListBuilder::new(StringBuilder::new());
    for seed in seeds {
        let items_n = seed.unwrap_or(0) % 4;
        for item in 0..items_n {
            lists
                .values()
                .append_option((item != 1).then(|| text(item)));
        }
        lists.append(seed.is_some());
    }
    Arc::new(lists.finish())
}

fn structs(seeds: &Seeds) -> ArrayRef {
    let a: ArrayRef = Arc::new(Int32Array::from_iter(
        seeds
            .iter()
            .map(|s| s.filter(|s| s % 3 > 0).map(|s| s as i32)),
    ));
    let fields = vec![
        Field::new("a", DataType::Int32, true),
        Field::new("b", lists(seeds).data_type().clone(), true),
    ];
    let nulls = NullBuffer::from_iter(seeds.iter().map(Option::is_some));
    Arc::new(StructArray::new(
        fields.into(),
        vec![a, lists(seeds)],
        Some(nulls),
    ))
}

/// All types of the document, and a dictionary.
fn column(kind: usize, seeds: &Seeds) -> ArrayRef {
    fn all<T>(seeds: &Seeds, value: impl Fn(u32) -> T) -> impl Iterator<Item = Option<T>> {
        seeds.iter().map(move |seed| seed.map(&value))
    }
    match kind {
        0 => Arc::new(BooleanArray::from_iter(all(seeds, |s| s % 2 == 0))),
        1 => Arc::new(Int32Array::from_iter(all(seeds, |s| s as i32))),
        2 => Arc::new(Int64Array::from_iter(all(seeds, |s| i64::from(s) << 20))),
        3 => Arc::new(Float32Array::from_iter(all(seeds, |s| s as f32 / 3.0))),
        4 => Arc::new(Float64Array::from_iter(all(seeds, |s| f64::from(s) / 7.0))),
        5 => Arc::new(
            Decimal128Array::from_iter(all(seeds, |s| i128::from(s) << 70))
                .with_precision_and_scale(38, 2)
                .unwrap(),
        ),
        6 => Arc::new(StringArray::from_iter(all(seeds, text))),
        7 => Arc::new(BinaryArray::from_iter(all(seeds, |s| {
            s.to_le_bytes().to_vec()
        }))),
        8 => Arc::new(Date32Array::from_iter(all(seeds, |s| s as i32))),
        9 => Arc::new(TimestampMicrosecondArray::from_iter(all(seeds, i64::from))),
        10 => Arc::new(
            TimestampMicrosecondArray::from_iter(all(seeds, i64::from)).with_timezone("+00:00"),
        ),
        11 => lists(seeds),
        12 => structs(seeds),
        _ => {
            let texts: Vec<Option<String>> = all(seeds, text).collect();
            let array: DictionaryArray<Int32Type> =
                texts.iter().map(|text| text.as_deref()).collect();
            Arc::new(array)
        }
    }
}

/// What a batch is made of.
#[derive(Clone, Debug)]
pub struct Recipe {
    types: Vec<usize>,
    seeds: Seeds,
    /// Rows cut off in front.
    offset: usize,
    event_time: bool,
    ops: bool,
    source: Option<&'static str>,
}

pub fn recipe() -> impl Strategy<Value = Recipe> {
    (
        prop::collection::vec(0..TYPES_N, 0..5),
        prop::collection::vec(prop::option::weighted(0.8, 0_u32..1000), 0..40),
        0_usize..9,
        any::<(bool, bool)>(),
        prop::option::of(prop_oneof![Just("topic"), Just("in/a.ndjson")]),
    )
        .prop_map(|(types, seeds, offset, (event_time, ops), source)| Recipe {
            types,
            seeds,
            offset,
            event_time,
            ops,
            source,
        })
}

pub fn batch(recipe: &Recipe) -> StreamBatch {
    let Recipe { types, seeds, .. } = recipe;
    let rows_n = seeds.len();
    let columns: Vec<ArrayRef> = types.iter().map(|kind| column(*kind, seeds)).collect();
    let fields: Vec<Field> = columns
        .iter()
        .enumerate()
        .map(|(idx, column)| Field::new(format!("c{idx}"), column.data_type().clone(), true))
        .collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows_n));
    let schema = Arc::new(Schema::new(fields));
    let rows = RecordBatch::try_new_with_options(schema, columns, &options).unwrap();
    let count = || 0..rows_n as u64;
    let batch = StreamBatch {
        rows,
        event_time: recipe.event_time.then(|| {
            TimestampMicrosecondArray::from_iter_values(
                seeds.iter().map(|s| i64::from(s.unwrap_or(7))),
            )
        }),
        origin: recipe.source.map(|source| Origin {
            source: Arc::from(source),
            row: count().collect(),
            offset: count().map(|row| row * 100).collect(),
        }),
        ops: recipe
            .ops
            .then(|| Int8Array::from_iter_values(count().map(|row| (row % 4) as i8))),
    };
    let offset = recipe.offset.min(rows_n);
    batch.slice(offset, rows_n - offset)
}

/// Equality that looks at every part.
#[track_caller]
pub fn check_equal(left: &StreamBatch, right: &StreamBatch) {
    assert_eq!(left.rows, right.rows);
    assert_eq!(left.event_time, right.event_time);
    assert_eq!(left.ops, right.ops);
    match (&left.origin, &right.origin) {
        (None, None) => {}
        (Some(left), Some(right)) => {
            assert_eq!(left.source, right.source);
            assert_eq!((&left.row, &left.offset), (&right.row, &right.offset));
        }
        other => panic!("only one has an origin: {other:?}"),
    }
}

/// Through one channel.
fn send(encoder: &mut Encoder, decoder: &mut Decoder, batch: &StreamBatch) -> StreamBatch {
    let encoded = encoder.encode(batch).unwrap();
    if let Some(layout) = &encoded.layout {
        decoder.on_layout(layout).unwrap();
    }
    decoder.decode(&encoded.rows).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batches_of_all_types_come_back_equal(recipes in prop::collection::vec(recipe(), 1..6)) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for recipe in &recipes {
            let batch = batch(recipe);
            check_equal(&send(&mut encoder, &mut decoder, &batch), &batch);
        }
    }

    #[test]
    fn slices_joined_are_the_batch(recipe in recipe(), cuts in prop::collection::vec(0_usize..40, 0..4)) {
        let whole = batch(&recipe);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let slices: Vec<StreamBatch> = cuts
            .windows(2)
            .map(|cut| whole.slice(cut[0], cut[1] - cut[0]))
            .collect();

        prop_assert!(slices.iter().all(|slice| can_join(&slices[0], slice)));
        let joined = join(&slices).unwrap().unwrap();
        check_equal(&joined, &whole);
    }

    /// A frame that was cut, anywhere: no panic, and never other rows.
    #[test]
    fn cut_frame_is_refused(recipe in recipe(), kept in 0.0_f64..1.0, cut_header in any::<bool>()) {
        let batch = batch(&recipe);
        let Encoded { layout, mut rows } = Encoder::default().encode(&batch).unwrap();
        let mut decoder = Decoder::default();
        decoder.on_layout(&layout.unwrap()).unwrap();
        let part = if cut_header { &mut rows.header } else { &mut rows.body };
        let kept = (part.len() as f64 * kept) as usize;
        *part = part.slice(..kept);

        // What only pads may be missing.
        if let Ok(decoded) = decoder.decode(&rows) {
            check_equal(&decoded, &batch);
        }
    }
}

#[test]
fn layout_is_sent_once_per_channel() {
    let recipe = Recipe {
        types: vec![1, 6],
        seeds: vec![Some(1), None],
        offset: 0,
        event_time: true,
        ops: false,
        source: None,
    };
    let mut encoder = Encoder::default();

    assert!(encoder.encode(&batch(&recipe)).unwrap().layout.is_some());
    assert!(encoder.encode(&batch(&recipe)).unwrap().layout.is_none());
    let with_ops = Recipe {
        ops: true,
        ..recipe
    };
    let encoded = encoder.encode(&batch(&with_ops)).unwrap();
    assert!(encoded.layout.is_some());
    assert_eq!(encoded.rows.layout, 1);
}

#[test]
fn rows_of_a_layout_that_was_not_sent_are_refused() {
    let rows = v1::Rows {
        layout: 3,
        ..v1::Rows::default()
    };

    let error = Decoder::default().decode(&rows).unwrap_err();

    assert_eq!(
        error.to_string(),
        "decode rows of a channel: layout 3 was not sent"
    );
}

#[test]
fn types_that_change_from_batch_to_batch_are_refused() {
    let mut encoder = Encoder::default();
    let named = |name: String| {
        let column: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        StreamBatch::plain(RecordBatch::try_from_iter([(name, column)]).unwrap())
    };
    for idx in 0..LAYOUTS_MAX {
        encoder.encode(&named(format!("c{idx}"))).unwrap();
    }

    let error = encoder.encode(&named("one more".to_owned())).unwrap_err();

    assert!(matches!(error, Error::Layouts));
}
