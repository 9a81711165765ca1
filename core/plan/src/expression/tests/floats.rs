//! One zero and one NaN, in every function.

use arrow::array::{Float32Array, ListArray, StructArray};
use arrow::datatypes::{DataType as ArrowType, Field, Fields, Float64Type};
use datafusion_expr::ColumnarValue;
use proptest::prelude::*;

use super::*;

fn float_columns() -> Vec<Column> {
    let types = [
        ("x", "DOUBLE"),
        ("y", "DOUBLE"),
        ("r", "REAL"),
        ("l", "DOUBLE[]"),
        ("n", "STRUCT(a DOUBLE)"),
        ("i", "BIGINT"),
        ("s", "TEXT"),
    ];
    let column = |(name, data_type): (&str, &str)| Column {
        name: name.to_owned(),
        data_type: data_type.parse().unwrap(),
        nullable: true,
    };
    types.into_iter().map(column).collect()
}

/// One row: `x`, `y`, `r` and `n.a` are the first values, the list has all.
fn float_row(values: &[f64]) -> RecordBatch {
    let doubles = |at: usize| Arc::new(Float64Array::from(vec![values[at]]));
    let fields: Fields = vec![Field::new("a", ArrowType::Float64, true)].into();
    let list = [Some(values.iter().copied().map(Some).collect::<Vec<_>>())];
    let arrays: Vec<ArrayRef> = vec![
        doubles(0),
        doubles(1),
        Arc::new(Float32Array::from(vec![values[0] as f32])),
        Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(list)),
        Arc::new(StructArray::new(fields, vec![doubles(0)], None)),
        Arc::new(Int64Array::from(vec![1])),
        Arc::new(StringArray::from(vec!["-0"])),
    ];
    RecordBatch::try_new(schema(&float_columns()), arrays).unwrap()
}

fn compiled(sql: &str) -> Option<Arc<dyn PhysicalExpr>> {
    let expr = resolve_item(&parse(sql).ok()?, &Scope::new(&float_columns()).ok()?).ok()?;
    compile_here(&expr, &float_columns()).ok()
}

/// Arguments that hold floats.
const ARGUMENTS: &[&str] = &[
    "x",
    "r",
    "l",
    "n",
    "x, y",
    "x, i",
    "i, x",
    "l, x",
    "x, l",
    "l, l",
    "l, i",
    "x, y, x",
    "l, x, y",
    "l, x, y, i",
    "l, i, i",
    "s, x",
    "x, s",
    "'a', x",
    "n, 'a'",
    "x, 'Utf8'",
    "make_array(n), n",
    "make_array(l), l",
];

/// What is no call.
const OPERATORS: &[&str] = &[
    "x = y",
    "x <> y",
    "x < y",
    "x <= y",
    "x > y",
    "x >= y",
    "x + y",
    "x - y",
    "x * -1.0",
    "x / y",
    "x % y",
    "-x",
    "-r",
    "x IN (0, 1)",
    "x IN (y, 1)",
    "x NOT IN (y, i)",
    "x BETWEEN 0 AND y",
    "x IS DISTINCT FROM y",
    "x IS NOT DISTINCT FROM 0.0",
    "CASE x WHEN y THEN x WHEN 0 THEN 1 ELSE y END",
    "CASE WHEN x > 0 THEN x ELSE y END",
    "CAST(s AS DOUBLE)",
    "CAST(s AS REAL)",
    "TRY_CAST(s AS DOUBLE)",
    "CAST('-0' AS DOUBLE)",
    "CAST(x AS REAL)",
    "CAST(x AS TEXT)",
    "CAST(r AS DOUBLE)",
    "CAST('-0' AS DOUBLE) = x",
    "l = make_array(x, y)",
    "n['a']",
    "l[1]",
    "l[1:2]",
    "[x, y] = l",
    "l",
    "n",
    "x || ''",
    "struct(x, l)",
    "nullif(x * -1.0, 0.0)",
    "nullif(n, n)",
    "l @> [y]",
    "CAST('-1e-60' AS REAL)",
    "CAST(y AS REAL) * CAST('-0' AS REAL)",
    "0.0 * -1 * x",
];

/// Every function with arguments that hold floats, and the operators.
fn everything() -> Vec<(String, Arc<dyn PhysicalExpr>)> {
    let calls = functions::functions().names().flat_map(|name| {
        let call = move |arguments: &&str| format!("{name}({arguments})");
        ARGUMENTS.iter().map(call)
    });
    on_large_stack(|| {
        let all = calls.chain(OPERATORS.iter().map(|sql| (*sql).to_owned()));
        all.filter_map(|sql| compiled(&sql).map(|expr| (sql, expr)))
            .collect()
    })
}

fn shown(expr: &Arc<dyn PhysicalExpr>, row: &RecordBatch) -> Result<(ArrayRef, String), String> {
    let value = expr.evaluate(row).and_then(|value| value.into_array(1));
    let array = value.map_err(|error| error.to_string())?;
    let text = array_value_to_string(&array, 0).map_err(|error| error.to_string())?;
    Ok((array, text))
}

const ODD_NAN: u64 = 0xfff8_0000_0000_0001;

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(f64::NAN),
        Just(f64::from_bits(ODD_NAN)),
        Just(-0.3),
        Just(1.0),
        Just(-1e-320),
        Just(f64::NEG_INFINITY),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_function_can_tell_one_zero_or_nan_from_another(
        values in prop::collection::vec(any_float(), 2..6),
    ) {
        static EVERYTHING: std::sync::LazyLock<Vec<(String, Arc<dyn PhysicalExpr>)>> =
            std::sync::LazyLock::new(everything);
        let even: Vec<f64> = values
            .iter()
            .map(|v| if v.is_nan() { f64::NAN } else { v + 0.0 })
            .collect();
        let (odd, even) = (float_row(&values), float_row(&even));
        assert!(EVERYTHING.len() > 150, "{}", EVERYTHING.len());
        for (sql, expr) in EVERYTHING.iter() {
            let (of_odd, of_even) = (shown(expr, &odd), shown(expr, &even));
            let texts = [&of_odd, &of_even].map(|found| found.as_ref().map(|(_, text)| text));
            prop_assert_eq!(texts[0], texts[1], "{}", sql);
            if let Ok((array, text)) = of_odd {
                let value = ColumnarValue::Array(Arc::clone(&array));
                let same = canonical::canonical_value(value).unwrap().into_array(1).unwrap();
                prop_assert!(Arc::ptr_eq(&array, &same), "{}: {}", sql, text);
            }
        }
    }
}

#[test]
fn both_zeros_are_equal() {
    // IEEE 754: -0 = 0, and SQL has one NULL of `nullif` for both.
    let zero = "((d - 1.5) * -1.0)";
    for (sql, value) in [
        ("Z = 0", "true"),
        ("0.0 = Z", "true"),
        ("Z >= 0", "true"),
        ("Z < 0", "false"),
        ("Z <> 0", "false"),
        ("Z IN (1, 0)", "true"),
        ("Z BETWEEN 0 AND 1", "true"),
        ("CASE Z WHEN 0 THEN 'zero' ELSE 'other' END", "zero"),
        ("CAST(Z AS REAL) = 0", "true"),
        ("Z IS DISTINCT FROM 0", "false"),
        ("nullif(Z, 0.0)", ""),
        ("array_distinct([Z, 0.0, 1.0])", "[0.0, 1.0]"),
        ("array_position([1.0, Z], 0.0 * d)", "2"),
        ("array_has([Z], 0.0 * d)", "true"),
        ("[Z] = [0.0]", "true"),
        ("1.0 / Z", "inf"),
        ("CAST(Z AS TEXT)", "0.0"),
        ("Z", "0.0"),
    ] {
        let sql = sql.replace('Z', zero);
        assert_eq!(text_of(&sql), value, "{sql}");
    }
}

#[test]
fn every_nan_is_the_same_and_greater_than_all_numbers() {
    // On x86 0/0 has another sign than the NaN that text is read as.
    let nan = "((d - d) / (d - d))";
    for (sql, value) in [
        ("# = CAST('NaN' AS DOUBLE)", "true"),
        ("-# = #", "true"),
        ("# > CAST('1e300' AS DOUBLE)", "true"),
        ("-# > CAST('1e300' AS DOUBLE)", "true"),
        ("array_distinct([#, -#])", "[NaN]"),
    ] {
        let sql = sql.replace('#', nan);
        assert_eq!(text_of(&sql), value, "{sql}");
    }
}
