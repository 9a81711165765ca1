//! What the schema of a definition admits, its types can read: an API server stores the first, and an operator needs
//! the second. Each field of the document in turn gets the extremes of its schema.

use regex::Regex;
use serde_json::{Value, json};
use streamforge_crds::v1alpha1::{SavepointSpec, StreamJobSpec};

/// Numbers that are read, with the units that may follow.
const UNITS: [&str; 15] = [
    "d", "h", "m", "s", "ms", "us", "", "Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T",
];

/// Of these the duration is written, in this order.
const UNITS_OF_TIME: usize = 6;

fn spec_of(definition: &Value) -> Value {
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let spec = definition.pointer(schema);
    spec.expect("a definition has a schema").clone()
}

fn size(schema: &Value, key: &str) -> Option<usize> {
    let n = schema.get(key)?.as_u64()?;
    usize::try_from(n).ok()
}

/// What texts an API server takes.
struct Admits {
    chars: std::ops::RangeInclusive<usize>,
    pattern: Option<Regex>,
}

impl Admits {
    fn of(schema: &Value) -> Self {
        let pattern = schema.get("pattern").and_then(Value::as_str);
        let most = size(schema, "maxLength").unwrap_or(usize::MAX);
        Self {
            chars: size(schema, "minLength").unwrap_or_default()..=most,
            pattern: pattern.map(|pattern| Regex::new(pattern).expect("a pattern")),
        }
    }

    fn takes(&self, text: &str) -> bool {
        let pattern = self.pattern.as_ref();
        self.chars.contains(&text.chars().count())
            && pattern.is_none_or(|pattern| pattern.is_match(text))
    }

    /// The largest number with a unit.
    fn largest(&self, unit: &str) -> Option<String> {
        let numbers = (0..=24).flat_map(|n| {
            let nines = "9".repeat(n);
            ('0'..='9').map(move |first| format!("{first}{nines}"))
        });
        let admitted = numbers.filter(|number| self.takes(&format!("{number}{unit}")));
        let largest = admitted.max_by_key(|number| number.parse::<u128>().unwrap_or_default())?;
        Some(format!("{largest}{unit}"))
    }
}

/// Texts at the edge of what the schema admits.
fn texts(schema: &Value) -> Vec<String> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values
            .iter()
            .map(|it| it.as_str().unwrap_or_default().to_owned())
            .collect();
    }
    let admits = Admits::of(schema);
    let mut texts = vec![
        String::new(),
        "-".to_owned(),
        "a".to_owned(),
        "Never".to_owned(),
    ];
    if schema.get("pattern").is_some() {
        let largest = UNITS.map(|unit| admits.largest(unit));
        texts.extend(largest.iter().flatten().cloned());
        // A sum is larger than each of its parts.
        for chosen in 0..1_u32 << UNITS_OF_TIME {
            let units = largest.iter().take(UNITS_OF_TIME).enumerate();
            let parts = units.filter(|(idx, _)| chosen >> idx & 1 == 1);
            let sum: String = parts.filter_map(|(_, part)| part.as_deref()).collect();
            texts.extend([format!("-{sum}"), sum]);
        }
    }
    texts.extend(size(schema, "maxLength").map(|n| "x".repeat(n)));
    texts.retain(|text| admits.takes(text));
    texts
}

/// Values at the edge of what the schema admits; none: it is no leaf.
fn extremes(schema: &Value) -> Vec<Value> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the bounds are small whole numbers"
    )]
    let bound = |key: &str| Some(schema.get(key)?.as_f64()? as i64);
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => texts(schema).into_iter().map(Value::from).collect(),
        Some("integer") => {
            // Nothing larger comes as a whole number from an API server.
            let is_small = schema.get("format") == Some(&json!("int32"));
            let (least, most) = if is_small {
                (i64::from(i32::MIN), i64::from(i32::MAX))
            } else {
                (i64::MIN, i64::MAX)
            };
            let least = bound("minimum").unwrap_or(least);
            vec![json!(least), json!(bound("maximum").unwrap_or(most))]
        }
        Some("number") => vec![json!(bound("minimum")), json!(bound("maximum")), json!(0.5)],
        Some("boolean") => vec![json!(false), json!(true)],
        _ => Vec::new(),
    }
}

/// A document with everything that the schema knows, and the places of its leaves.
fn filled(schema: &Value, path: &str, leaves: &mut Vec<(String, Value)>) -> Value {
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let fields = properties.into_iter().flatten();
            fields
                .map(|(name, of)| (name.clone(), filled(of, &format!("{path}/{name}"), leaves)))
                .collect()
        }
        Some("array") => {
            let item = schema.get("items").expect("a list has items");
            json!([filled(item, &format!("{path}/0"), leaves)])
        }
        _ => {
            let mut extremes = extremes(schema);
            leaves.push((path.to_owned(), schema.clone()));
            assert!(!extremes.is_empty(), "{path}: {schema}");
            // In the document itself stands what is least in question.
            extremes.swap_remove(extremes.len() / 2)
        }
    }
}

fn refused(schema: &Value, reads: impl Fn(Value) -> Result<(), serde_json::Error>) -> Vec<String> {
    let mut leaves = Vec::new();
    let whole = filled(schema, "", &mut leaves);
    assert!(!leaves.is_empty());
    let mut refused = Vec::new();
    for (path, leaf) in leaves {
        for extreme in extremes(&leaf) {
            let mut document = whole.clone();
            *document.pointer_mut(&path).expect("it was filled in") = extreme.clone();
            if let Err(error) = reads(document) {
                refused.push(format!("{path}: {extreme}: {error}"));
            }
        }
    }
    refused
}

#[test]
fn whatever_an_api_server_admits_can_be_read() {
    let job = serde_json::to_value(streamforge_crds::crd()).unwrap();
    let job = refused(&spec_of(&job), |document| {
        serde_json::from_value::<StreamJobSpec>(document).map(drop)
    });
    let savepoint = serde_json::to_value(streamforge_crds::savepoint_crd()).unwrap();
    let savepoint = refused(&spec_of(&savepoint), |document| {
        serde_json::from_value::<SavepointSpec>(document).map(drop)
    });

    assert_eq!(job, Vec::<String>::new());
    assert_eq!(savepoint, Vec::<String>::new());
}

/// The patterns are bounded below what can be read, and not below what is of use.
#[test]
fn durations_and_sizes_that_are_of_use_are_admitted() {
    let job = serde_json::to_value(streamforge_crds::crd()).unwrap();
    let spec = spec_of(&job);
    let admitted = |path: &str, texts: &[&str]| {
        let schema = spec.pointer(path).unwrap();
        let admits = Admits::of(schema);
        texts.iter().all(|text| admits.takes(text))
    };

    let interval = "/properties/checkpoint/properties/interval";
    let used = [
        "0s",
        "250ms",
        "1h30m",
        "05m",
        "90s",
        "36500d",
        "86400000ms",
        "1d36h90m90s",
    ];
    assert!(admitted(interval, &used));
    let limit = "/properties/state/properties/memoryLimit";
    assert!(admitted(
        limit,
        &["0", "512Mi", "8589934592", "999999Ti", "64k"]
    ));
}
