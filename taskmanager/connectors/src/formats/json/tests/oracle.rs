//! arrow-json as the oracle on valid input.

use arrow::datatypes::Schema;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Row {
    int: Option<i64>,
    small: Option<i32>,
    double: Option<f64>,
    text: Option<String>,
    flag: Option<bool>,
    cents: Option<i64>,
    list: Option<Vec<Option<i64>>>,
    unknown: Option<String>,
    order: usize,
    spaces: bool,
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (
        prop::option::of(prop_oneof![any::<i64>(), -1000i64..1000]),
        prop::option::of(any::<i32>()),
        prop::option::of(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO),
        prop::option::of(prop_oneof![
            "[a-z]{0,40}",
            any::<String>(),
            "[\"\\\\\n\u{e9}x]{0,40}"
        ]),
        prop::option::of(any::<bool>()),
        prop::option::of(-99_999_999i64..99_999_999),
        prop::option::of(prop::collection::vec(prop::option::of(-9i64..9), 0..4)),
        prop::option::of(any::<String>()),
        0usize..6,
        any::<bool>(),
    );
    let row = row.prop_map(
        |(int, small, double, text, flag, cents, list, unknown, order, spaces)| Row {
            int,
            small,
            double,
            text,
            flag,
            cents,
            list,
            unknown,
            order,
            spaces,
        },
    );
    prop::collection::vec(row, 1..40)
}

fn line(row: &Row) -> String {
    let json = |value: &dyn erased::Json| value.json();
    let mut fields = vec![
        ("int", row.int.map(|v| v.to_string())),
        ("small", row.small.map(|v| v.to_string())),
        (
            "double",
            row.double.map(|v| serde_json::to_string(&v).unwrap()),
        ),
        ("text", row.text.as_ref().map(|v| json(v))),
        ("flag", row.flag.map(|v| v.to_string())),
        (
            "cents",
            row.cents.map(|v| {
                format!(
                    "{}{}.{:02}",
                    if v < 0 { "-" } else { "" },
                    v.abs() / 100,
                    v.abs() % 100
                )
            }),
        ),
        (
            "list",
            row.list.as_ref().map(|v| serde_json::to_string(v).unwrap()),
        ),
        ("unknown", row.unknown.as_ref().map(|v| json(v))),
    ];
    let len = fields.len();
    fields.rotate_left(row.order % len);
    if row.order == 5 {
        fields.reverse();
    }
    let (comma, colon) = if row.spaces { (", ", ": ") } else { (",", ":") };
    let fields: Vec<String> = fields
        .into_iter()
        // Some fields are missing, some null.
        .filter(|(name, value)| value.is_some() || (name.len() + row.order).is_multiple_of(2))
        .map(|(name, value)| {
            format!(
                "\"{name}\"{colon}{}",
                value.unwrap_or_else(|| "null".into())
            )
        })
        .collect();
    format!("{{{}}}\n", fields.join(comma))
}

mod erased {
    pub(super) trait Json {
        fn json(&self) -> String;
    }
    impl Json for String {
        fn json(&self) -> String {
            serde_json::to_string(self).unwrap()
        }
    }
}

fn columns() -> Vec<Column> {
    vec![
        Column::new("text", DataType::Utf8),
        Column::new("int", DataType::Int64),
        Column::new("small", DataType::Int32),
        Column::new("double", DataType::Float64),
        Column::new("flag", DataType::Boolean),
        Column::new("cents", DataType::Decimal128(12, 2)),
        Column::new("list", list_of(DataType::Int64)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn valid_lines_decode_as_arrow_json_decodes_them(rows in rows()) {
        let text: String = rows.iter().map(line).collect();
        let columns = columns();
        let fields: Vec<Field> =
            columns.iter().map(|c| Field::new(&c.name, c.data_type.clone(), true)).collect();
        let mut oracle = arrow_json::ReaderBuilder::new(Arc::new(Schema::new(fields)))
            .with_batch_size(1000)
            .build_decoder()
            .unwrap();
        oracle.decode(text.as_bytes()).unwrap();
        let expected = oracle.flush().unwrap().unwrap();

        let decoded = decode(&columns, &text);

        prop_assert_eq!(&decoded.bad, &vec![]);
        prop_assert_eq!(&decoded.rows, &expected);
        let unknown = text.lines().filter(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            value.as_object().unwrap().contains_key("unknown")
        });
        prop_assert_eq!(decoded.unknown_fields, unknown.count() as u64);
    }

    #[test]
    fn written_rows_read_back_equal(rows in rows()) {
        let text: String = rows.iter().map(line).collect();
        let columns = columns();
        let first = decode(&columns, &text);

        let mut out = Vec::new();
        crate::formats::write::write_json_rows(&mut out, &first.rows);
        let second = decode_bytes(&columns, &out);

        prop_assert_eq!(first.rows, second.rows);
        prop_assert!(second.bad.is_empty());
    }
}
