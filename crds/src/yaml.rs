//! A small YAML writer: the same value always gives the same text.

use serde_json::Value;

/// `value` as a YAML document, keys in the order of the value.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    write_block(&mut out, value, 0);
    out
}

fn write_block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                pad(out, indent);
                out.push_str(&scalar_text(key));
                out.push(':');
                write_after_key(out, value, indent);
            }
        }
        Value::Array(items) => {
            for item in items {
                pad(out, indent);
                write_item(out, item, indent);
            }
        }
        scalar => {
            out.push_str(&scalar_value(scalar));
            out.push('\n');
        }
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn write_after_key(out: &mut String, value: &Value, indent: usize) {
    if !is_block(value) {
        out.push(' ');
        out.push_str(&scalar_value(value));
        out.push('\n');
        return;
    }
    out.push('\n');
    // The items of a list stand under their key, not further in: that is how kubectl prints.
    let deeper = if value.is_array() { indent } else { indent + 2 };
    write_block(out, value, deeper);
}

fn write_item(out: &mut String, item: &Value, indent: usize) {
    out.push_str("- ");
    if !is_block(item) {
        out.push_str(&scalar_value(item));
        out.push('\n');
        return;
    }
    let mut block = String::new();
    write_block(&mut block, item, indent + 2);
    // The first line of the block follows the dash.
    out.push_str(block.trim_start_matches(' '));
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn scalar_value(value: &Value) -> String {
    match value {
        Value::String(text) => scalar_text(text),
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        other => other.to_string(),
    }
}

/// A text as YAML: plain where no reader could take it for something else, else quoted as in JSON.
fn scalar_text(text: &str) -> String {
    let plain_char = |c: char| c.is_ascii_alphanumeric() || "_-./$".contains(c);
    let first_is_plain = text
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '$');
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = words.contains(&text.to_ascii_lowercase().as_str());
    if first_is_plain && text.chars().all(plain_char) && !is_word {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_lists_and_objects_are_indented_as_kubectl_does() {
        let value = json!({"a": {"b": [{"c": 1, "d": []}, "x y"], "e": {}}, "no": true});

        let text = write(&value);

        assert_eq!(
            text,
            "a:\n  b:\n  - c: 1\n    d: []\n  - \"x y\"\n  e: {}\n\"no\": true\n"
        );
    }
}
