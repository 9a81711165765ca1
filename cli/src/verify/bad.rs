//! How rows of `.bad` are compared.
//!
//! Owns: what of them is words and not values. A reason is the engine's own and not compared. What a row
//! was (`raw`) is the text of a row that somebody computed: it is read as JSON where it is, so that its
//! floats agree as floats do everywhere, within the tolerance. Start at: [`BadColumns::settle`].

use streamforge_core::job_graph::{OperatorKind, Port, bad_columns};

use super::cell::Cell;
use super::graph::Node;
use super::published::json::{self, Json};

/// Where the columns stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadColumns {
    raw: usize,
    reason: usize,
}

impl BadColumns {
    /// Of a sink that reads nothing but `.bad` outputs.
    pub fn of_sink(sink: &Node<'_>, nodes: &[Node<'_>]) -> Option<Self> {
        let columns = bad_columns();
        let position = |name| columns.iter().position(|column| column.name == name);
        reads_only_bad(sink, nodes).then_some(Self {
            raw: position("raw")?,
            reason: position("reason")?,
        })
    }

    /// Makes a row comparable.
    pub fn settle(&self, row: &mut [Cell]) {
        if let Some(reason) = row.get_mut(self.reason) {
            *reason = Cell::Null;
        }
        let Some(raw @ Cell::Bytes(_)) = row.get_mut(self.raw) else {
            return;
        };
        if let Cell::Bytes(bytes) = raw
            && let Ok(text) = std::str::from_utf8(bytes)
            && let Ok(object @ Json::Object(_)) = json::parse(text)
        {
            *raw = cell(object);
        }
    }
}

/// The two halves of an aggregate each have a `.bad`: their rows come through a union.
fn reads_only_bad(node: &Node<'_>, nodes: &[Node<'_>]) -> bool {
    let is_bad = |(from, port): &(usize, Port)| {
        let union = nodes
            .get(*from)
            .filter(|it| matches!(it.operator.kind, OperatorKind::Union));
        *port == Port::Bad || union.is_some_and(|union| reads_only_bad(union, nodes))
    };
    node.inputs.iter().all(is_bad)
}

/// A JSON value with its floats as floats, everything else as it is written.
fn cell(value: Json) -> Cell {
    match value {
        Json::Null => Cell::Null,
        Json::Bool(value) => Cell::Int(i128::from(value)),
        Json::Number(text) => match text.parse::<f64>() {
            Ok(number) if text.contains(['.', 'e', 'E']) => Cell::Float(number),
            _ => Cell::Text(text.into()),
        },
        Json::Text(text) => match text.as_str() {
            "NaN" => Cell::Float(f64::NAN),
            "inf" | "Infinity" => Cell::Float(f64::INFINITY),
            "-inf" | "-Infinity" => Cell::Float(f64::NEG_INFINITY),
            _ => Cell::Many(vec![Cell::Text(text.into())]),
        },
        Json::Array(items) => Cell::Many(items.into_iter().map(cell).collect()),
        Json::Object(fields) => {
            let field = |(name, value): (String, Json)| [Cell::Text(name.into()), cell(value)];
            Cell::Many(fields.into_iter().flat_map(field).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::multiset::{Multiset, Side};

    fn agree(expected: &str, found: &str) -> bool {
        let columns = BadColumns { raw: 0, reason: 1 };
        let mut rows = Multiset::new(vec![]);
        for (side, raw) in [(Side::Expected, expected), (Side::Found, found)] {
            let mut row = [
                Cell::Bytes(raw.as_bytes().into()),
                Cell::Text(format!("{side:?}").into()),
            ];
            columns.settle(&mut row);
            rows.add(side, &row, 1);
        }
        rows.difference().is_none()
    }

    #[test]
    fn floats_of_a_raw_text_agree_as_floats_and_all_else_to_the_letter() {
        for (expected, found) in [
            (r#"{"x":-0.0}"#, r#"{"x":0.0}"#),
            (r#"{"x":0.30000000000000004}"#, r#"{"x":0.3}"#),
            (r#"{"x":"inf","k":"a"}"#, r#"{"x":"Infinity","k":"a"}"#),
            (r#"{"x":[1.0,{"y":1e300}]}"#, r#"{"x":[1.0,{"y":1.0e300}]}"#),
            ("not json", "not json"),
        ] {
            assert!(agree(expected, found), "{expected} {found}");
        }
        for (expected, found) in [
            (r#"{"x":0.31}"#, r#"{"x":0.3}"#),
            (r#"{"x":1}"#, r#"{"x":2}"#),
            (r#"{"x":"1"}"#, r#"{"x":1}"#),
            (r#"{"x":"inf"}"#, r#"{"x":"NaN"}"#),
            (r#"{"x":null}"#, r#"{"x":"null"}"#),
            (r#"{"x":1.0}"#, r#"{"y":1.0}"#),
            ("not json", "not_json"),
        ] {
            assert!(!agree(expected, found), "{expected} {found}");
        }
    }
}
