//! Hashes that say whether something changed.
//!
//! Owns: what does not count as a change: the order of a map's keys, and how a number is written. A hash
//! is kept in objects of the cluster and compared by later versions, so its rule never changes.
//! Start at: [`of`].

use serde::Serialize;
use serde_json::{Number, Value};
use xxhash_rust::xxh3::xxh3_64;

/// The hash of a value, as sixteen hexadecimal digits.
#[must_use]
pub fn of(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("what is hashed has texts as keys");
    format!("{:016x}", xxh3_64(canonical(&value).to_string().as_bytes()))
}

/// The same value with keys in order, numbers in their shortest form, and nothing that says nothing.
#[must_use]
pub fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            let entry = |(key, value): (&String, &Value)| (key.clone(), canonical(value));
            entries.into_iter().map(entry).collect()
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Number(number) => Value::Number(whole(number).unwrap_or_else(|| number.clone())),
        other => other.clone(),
    }
}

/// 1.0 is 1.
fn whole(number: &Number) -> Option<Number> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    let in_range = float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53")]
    in_range.then(|| Number::from(float as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kf_o9_order_of_keys_and_spelling_of_numbers_are_no_change() {
        let one: Value =
            serde_json::from_str(r#"{"a":1,"b":{"c":[1.0,2],"d":"x"},"e":null}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b":{"d":"x","c":[1,2.0]},"a":1e0}"#).unwrap();

        assert_eq!(of(&one), of(&other));
    }

    #[test]
    fn what_differs_has_another_hash() {
        let hashes = [
            json!({"a": 1}),
            json!({"a": 2}),
            json!({"a": "1"}),
            json!({"b": 1}),
            json!([1, 2]),
            json!([2, 1]),
        ]
        .map(|value| of(&value));

        let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
    }

    #[test]
    fn hash_of_a_value_stays_the_same_from_version_to_version() {
        assert_eq!(
            of(&json!({"a": [1, "x"]})),
            format!("{:016x}", xxh3_64(br#"{"a":[1,"x"]}"#))
        );
    }
}
