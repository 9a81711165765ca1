//! Lists, structs, pointers into them, and their limits.

use super::*;

#[test]
fn lists_and_structs_nest_and_are_taken_back() {
    let inner = Fields::from(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("tags", list_of(DataType::Utf8), true),
    ]);
    let columns = [Column::new("v", list_of(DataType::Struct(inner)))];

    let text = "{\"v\":[{\"n\":1,\"tags\":[\"a\",\"b\"]},null,{\"tags\":[]}]}\n\
                {\"v\":[{\"n\":1,\"tags\":[\"a\"]},{\"n\":\"x\"}]}\n\
                {\"v\":[{\"n\":1,\"n\":2}]}\n{\"v\":[1]}\n{\"v\":{}}\n{\"v\":null}\n{\"v\":[]}\n\
                {\"v\":[{\"n\":5,\"tags\":[null],\"more\":[[[]]]}]}\n";
    let decoded = decode(&columns, text);

    let mut out = Vec::new();
    crate::formats::write::write_json_rows(&mut out, &decoded.rows);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"v\":[{\"n\":1,\"tags\":[\"a\",\"b\"]},null,{\"n\":null,\"tags\":[]}]}\n\
         {\"v\":null}\n{\"v\":[]}\n{\"v\":[{\"n\":5,\"tags\":[null]}]}\n"
    );
    let bad: Vec<u64> = decoded.bad.iter().map(|bad| bad.row).collect();
    assert_eq!(bad, [1, 2, 3, 4]);
}

#[test]
fn json_pointers_reach_into_objects_and_arrays() {
    let at = |name: &str, path: &[&str]| {
        let mut column = Column::new(name, DataType::Int64);
        column.path = path.iter().map(|token| (*token).to_owned()).collect();
        column
    };
    let columns = [
        at("time", &["meta", "time"]),
        at("deep", &["meta", "x", "y"]),
        at("second", &["list", "1"]),
        at("odd", &["a/b~", "m"]),
        at("again", &["meta", "time"]),
        at("plain", &["n"]),
    ];

    let text = "{\"meta\":{\"time\":1,\"x\":{\"y\":2}},\"list\":[5,6,7],\"a/b~\":{\"m\":3},\"n\":9}\n\
                {\"meta\":7,\"list\":[5],\"n\":8}\n{\"meta\":{\"time\":\"x\"}}\n{\"meta\":null,\"list\":{}}\n\
                {\"meta\":{\"time\":1,\"time\":2}}\n{\"list\":[1,[2]]}\n";
    let decoded = decode(&columns, text);

    assert_eq!(longs(&decoded.rows, "time"), [Some(1), None, None]);
    assert_eq!(longs(&decoded.rows, "deep"), [Some(2), None, None]);
    assert_eq!(longs(&decoded.rows, "second"), [Some(6), None, None]);
    assert_eq!(longs(&decoded.rows, "odd"), [Some(3), None, None]);
    assert_eq!(longs(&decoded.rows, "again"), [Some(1), None, None]);
    assert_eq!(longs(&decoded.rows, "plain"), [Some(9), Some(8), None]);
    let bad: Vec<u64> = decoded.bad.iter().map(|bad| bad.row).collect();
    assert_eq!(bad, [2, 4, 5]);
}

#[test]
fn nesting_bombs_and_what_is_no_object_are_bad_rows() {
    let columns = [Column::new("a", DataType::Int64)];
    let deep = "[".repeat(100_000);
    let objects = "{\"a\":".repeat(100_000);

    let text = format!(
        "{{\"x\":{deep}\n{{\"x\":{objects}\n[1]\n1\n\"x\"\nnull\n{{\"a\":1}}x\n{{\"a\":1}}{{\"a\":2}}\n{{\n\u{feff}{{}}\n{{\"a\":3}}"
    );
    let decoded = decode(&columns, &text);

    assert_eq!(longs(&decoded.rows, "a"), [Some(3)]);
    assert_eq!(decoded.bad.len(), 10);
    assert!(decoded.bad[0].reason.contains("nested too deep"));
    assert!(decoded.bad[2].reason.contains("not a JSON object"));
    assert!(decoded.bad.iter().all(|bad| bad.raw.len() <= 64 << 10));
}

#[test]
fn ten_thousand_columns_are_read() {
    let columns: Vec<Column> = (0..10_000)
        .map(|n| Column::new(format!("c{n}"), DataType::Int64))
        .collect();
    let fields: Vec<String> = (0..10_000).map(|n| format!("\"c{n}\":{n}")).collect();
    let line = format!("{{{}}}\n", fields.join(","));

    let decoded = decode(&columns, &line.repeat(3));

    assert_eq!(decoded.rows.num_rows(), 3);
    assert_eq!(
        decoded
            .rows
            .column(9_999)
            .as_primitive::<Int64Type>()
            .value(2),
        9_999
    );
}
