//! Seeded mutations: whatever a line holds, it is one row, good or bad, and its neighbours are whole.

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

const BITS: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"1e9",
    b"-",
    b".",
    b"\\u",
    b"\\ud83d",
    b"\xff",
    b"\xc3\xa9",
    b" ",
    b"\t",
    b"\r",
    b"true",
    b"\"n\":",
    b"99999999999999999999",
    b"0",
];

fn mutate(line: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let at = random.below(line.len() + 1);
        match random.below(5) {
            0 => line.truncate(at),
            1 if at < line.len() => {
                line.remove(at);
            }
            2 if at < line.len() => line[at] = (random.next() & 0xFF) as u8,
            3 if at < line.len() => {
                let end = (at + random.below(20)).min(line.len());
                let part = line[at..end].to_vec();
                line.splice(at..at, part);
            }
            _ => {
                let bit = BITS[random.below(BITS.len())];
                line.splice(at..at, bit.iter().copied());
            }
        }
    }
    line.retain(|byte| *byte != b'\n');
}

/// Whether serde_json takes the line, and no key of the outer object comes twice.
fn is_object(line: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line).is_ok()
}

#[test]
fn a_mutated_line_never_harms_the_lines_around_it() {
    let inner = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    let columns = [
        Column::new("n", DataType::Int64),
        Column::new("t", DataType::Utf8),
        Column::new("d", DataType::Decimal128(8, 3)),
        Column::new("f", DataType::Float64),
        Column::new("ts", timestamp()),
        Column::new("l", list_of(DataType::Struct(inner))),
        Column::new("b", DataType::Binary),
    ];
    let seed_line = br#"{"n":12,"t":"t\u00e9xt \" and so on, longer than a block","d":-1.250,"f":1.5e3,"ts":"2026-01-31T23:59:59.5Z","l":[{"n":1},{}],"b":"Zm9v","u":{"x":[1,2,{"y":null}]}}"#;
    let good = "{\"n\":1,\"t\":\"good\"}\n";
    let mut random = Random(42);
    let mut kept = 0;
    for round in 0..40_000 {
        let mut line = seed_line.to_vec();
        mutate(&mut line, &mut random);
        let blank = line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
        let text = [good.as_bytes(), &line, b"\n", good.as_bytes()].concat();

        let decoded = decode_bytes(&columns, &text);

        let n = decoded.rows.num_rows();
        let shown = String::from_utf8_lossy(&line).into_owned();
        assert_eq!(
            n + decoded.bad.len(),
            if blank { 2 } else { 3 },
            "round {round}: {shown}"
        );
        let texts = decoded.rows.column(1).as_string::<i32>();
        assert_eq!(
            (texts.value(0), texts.value(n - 1)),
            ("good", "good"),
            "round {round}: {shown}"
        );
        assert_eq!(decoded.row_numbers.last(), Some(&2));
        if n == 3 {
            kept += 1;
            assert!(is_object(&line), "round {round}: accepted {shown}");
        }
    }
    assert!(
        kept > 1000,
        "only {kept} mutated lines were good: the mutations are too wild"
    );
}
