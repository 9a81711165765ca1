use super::*;

fn mistake(text: &str) -> (usize, String) {
    let mistake = parse(text, DOCUMENT_BYTES_MAX)
        .err()
        .unwrap_or_else(|| panic!("{text} was read"));
    (mistake.at.line, mistake.message)
}

fn json(text: &str) -> serde_json::Value {
    parse(text, DOCUMENT_BYTES_MAX)
        .unwrap_or_else(|mistake| panic!("{}", mistake.message))
        .to_json()
}

#[test]
fn scalars_are_what_yaml_1_2_says() {
    let value = json(
        "{a: 1, b: -2, c: 1.5, d: 1e3, e: true, f: ~, g: yes, h: '1', i: 10s, j: 0x10, k: 1.2.3, l: .inf, m: !!str 5}",
    );

    assert_eq!(
        value,
        serde_json::json!({
            "a": 1, "b": -2, "c": 1.5, "d": 1000.0, "e": true, "f": null, "g": "yes", "h": "1",
            "i": "10s", "j": "0x10", "k": "1.2.3", "l": ".inf", "m": "5"
        })
    );
}

#[test]
fn values_know_their_place() {
    let root = parse("a:\n  b: [x,\n      y]\n", DOCUMENT_BYTES_MAX).unwrap();

    let Value::Map(entries) = &root.value else {
        panic!()
    };
    let Value::Map(inner) = &entries[0].value.value else {
        panic!()
    };
    assert_eq!(inner[0].key_at, At { line: 2, column: 3 });
    let Value::List(items) = &inner[0].value.value else {
        panic!()
    };
    assert_eq!(items[1].at, At { line: 3, column: 7 });
}

#[test]
fn aliases_are_expanded() {
    assert_eq!(
        json("a: &x {n: 1}\nb: *x\n"),
        serde_json::json!({"a": {"n": 1}, "b": {"n": 1}})
    );
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let items = vec![format!("*a{}", level - 1); 9].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }

    let (line, message) = mistake(&text);

    assert!(
        line > 1 && message.contains("larger than 300000 values"),
        "{line}: {message}"
    );
}

#[test]
fn nesting_bombs_are_refused() {
    for text in [
        "[".repeat(200_000),
        "{a: ".repeat(50_000),
        "- ".repeat(100_000),
        (0..3000)
            .map(|depth| format!("{}a:\n", " ".repeat(depth.min(150))))
            .collect(),
    ] {
        assert!(parse(&text, DOCUMENT_BYTES_MAX).is_err());
    }
    assert!(mistake(&"[".repeat(100)).1.contains("nest deeper than 64"));
}

#[test]
fn large_documents_are_refused() {
    let text = format!("a: {}", "x".repeat(DOCUMENT_BYTES_MAX));

    assert!(mistake(&text).1.contains("at most 524288 are read"));
}

#[test]
fn a_second_document_is_refused_but_an_empty_one_is_not() {
    assert_eq!(
        mistake("a: 1\n---\nb: 2\n"),
        (3, "a second document begins here".to_owned())
    );
    assert_eq!(json("---\na: 1\n---\n"), serde_json::json!({"a": 1}));
    assert_eq!(mistake("").1, "the document is empty");
    assert_eq!(mistake("# nothing\n").1, "the document is empty");
}

#[test]
fn broken_yaml_is_told_with_its_line() {
    let (line, message) = mistake("a: 1\nb: [1, 2\nc: 3\n");

    assert!(line >= 2, "{line}");
    assert!(message.starts_with("this is not YAML: "), "{message}");
    assert!(mistake("a: *nowhere\n").1.contains("this is not YAML"));
    assert_eq!(
        mistake("a: !custom 1").1,
        "the tag `!custom` is not supported"
    );
    assert!(
        mistake("? [a]\n: 1")
            .1
            .contains("a key must be a plain word")
    );
}
