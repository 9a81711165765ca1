//! YAML with positions, within limits.
//!
//! Owns: the tree of a document and where each value stands. An alias is expanded where it stands,
//! but never to more than [`NODES_MAX`] nodes in all (no "billion laughs"), and nothing nests deeper
//! than [`DEPTH_MAX`].

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};

use crate::problem::At;

/// Largest document. What `kubectl apply` and etcd take is not much more.
pub const DOCUMENT_BYTES_MAX: usize = 512 << 10;
/// Largest document with everything written out that its writer left to us.
pub const RESOLVED_BYTES_MAX: usize = 4 << 20;
/// Deepest nesting; a pod template needs about 15.
pub const DEPTH_MAX: usize = 64;
/// Most nodes after aliases are expanded: as many as 512 KiB of plain text can hold.
pub const NODES_MAX: usize = 300_000;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub at: At,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// Any number, as written.
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: String,
    pub key_at: At,
    pub value: Node,
}

/// A mistake in the YAML itself.
#[derive(Clone, Debug)]
pub(crate) struct Mistake {
    pub at: At,
    pub message: String,
    pub hint: Option<String>,
}

impl Mistake {
    fn new(at: At, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
            hint: None,
        }
    }
}

/// The only document of a text.
pub(crate) fn parse(text: &str, bytes_max: usize) -> Result<Node, Mistake> {
    let start = At { line: 1, column: 1 };
    if text.len() > bytes_max {
        return Err(Mistake::new(
            start,
            format!(
                "the document has {} bytes; at most {bytes_max} are read",
                text.len()
            ),
        ));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    let mut parser = Parser::new(StrInput::new(text));
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| {
            let at = At {
                line: error.marker().line(),
                column: error.marker().col() + 1,
            };
            let hint = error
                .info()
                .contains("tabs")
                .then(|| "indent with spaces".to_owned());
            Mistake {
                hint,
                ..Mistake::new(at, format!("this is not YAML: {}", error.info()))
            }
        })?;
        builder.on_event(event, at(span))?;
    }
    builder.documents.into_iter().next().ok_or_else(|| Mistake {
        at: start,
        message: "the document is empty".to_owned(),
        hint: Some("begin with `apiVersion: streamforge.io/v1alpha1`".to_owned()),
    })
}

fn at(span: Span) -> At {
    At {
        line: span.start.line(),
        column: span.start.col() + 1,
    }
}

enum Open {
    List {
        at: At,
        anchor: usize,
        items: Vec<Node>,
    },
    Map {
        at: At,
        anchor: usize,
        entries: Vec<Entry>,
        key: Option<(String, At)>,
    },
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    documents: Vec<Node>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes_n: usize,
}

impl Builder {
    fn on_event(&mut self, event: Event<'_>, at: At) -> Result<(), Mistake> {
        match event {
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref(), at)?;
                self.close(Node { at, value }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_open(tag.as_deref(), at)?;
                self.open.push(Open::List {
                    at,
                    anchor,
                    items: Vec::new(),
                });
                Ok(())
            }
            Event::MappingStart(anchor, tag) => {
                self.check_open(tag.as_deref(), at)?;
                self.open.push(Open::Map {
                    at,
                    anchor,
                    entries: Vec::new(),
                    key: None,
                });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { at, anchor, items }) => self.close(
                    Node {
                        at,
                        value: Value::List(items),
                    },
                    anchor,
                ),
                Some(Open::Map {
                    at,
                    anchor,
                    entries,
                    ..
                }) => self.close(
                    Node {
                        at,
                        value: Value::Map(entries),
                    },
                    anchor,
                ),
                None => Ok(()),
            },
            Event::Alias(anchor) => self.alias(anchor, at),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn check_open(&self, tag: Option<&Tag>, at: At) -> Result<(), Mistake> {
        if tag.is_some() {
            return Err(Mistake::new(at, "tags on lists and maps are not supported"));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(Mistake::new(
                at,
                format!("values nest deeper than {DEPTH_MAX}"),
            ));
        }
        Ok(())
    }

    fn alias(&mut self, anchor: usize, at: At) -> Result<(), Mistake> {
        let (node, size) = self.anchors.get(&anchor).ok_or_else(|| {
            Mistake::new(at, "an alias must stand after the end of what it names")
        })?;
        if self.nodes_n + size > NODES_MAX {
            return Err(Mistake::new(
                at,
                format!("aliases make the document larger than {NODES_MAX} values"),
            ));
        }
        if self.open.len() + depth(node) > DEPTH_MAX {
            return Err(Mistake::new(
                at,
                format!("values nest deeper than {DEPTH_MAX}"),
            ));
        }
        let node = Node {
            at,
            value: node.value.clone(),
        };
        self.nodes_n += size;
        self.put(node)
    }

    /// A complete node: remembered under its anchor, then put into what is open.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), Mistake> {
        self.nodes_n += 1;
        if self.nodes_n > NODES_MAX {
            return Err(Mistake::new(
                node.at,
                format!("more than {NODES_MAX} values"),
            ));
        }
        if anchor != 0 {
            let size = size(&node);
            self.nodes_n += size;
            if self.nodes_n > NODES_MAX {
                return Err(Mistake::new(
                    node.at,
                    format!("more than {NODES_MAX} values"),
                ));
            }
            self.anchors.insert(anchor, (node.clone(), size));
        }
        self.put(node)
    }

    fn put(&mut self, node: Node) -> Result<(), Mistake> {
        match self.open.last_mut() {
            None => self.put_document(node),
            Some(Open::List { items, .. }) => {
                items.push(node);
                Ok(())
            }
            Some(Open::Map { entries, key, .. }) => match key.take() {
                None => {
                    let Node { at, value } = node;
                    *key = Some((key_text(value, at)?, at));
                    Ok(())
                }
                Some((key, key_at)) => {
                    entries.push(Entry {
                        key,
                        key_at,
                        value: node,
                    });
                    Ok(())
                }
            },
        }
    }

    fn put_document(&mut self, node: Node) -> Result<(), Mistake> {
        let is_empty = matches!(node.value, Value::Null);
        if !self.documents.is_empty() && !is_empty {
            return Err(Mistake {
                at: node.at,
                message: "a second document begins here".to_owned(),
                hint: Some("write one StreamJob per file".to_owned()),
            });
        }
        if !is_empty {
            self.documents.push(node);
        }
        Ok(())
    }
}

fn key_text(key: Value, at: At) -> Result<String, Mistake> {
    match key {
        Value::Text(text) => Ok(text),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(value) => Ok(value.to_string()),
        Value::Null => Ok("null".to_owned()),
        Value::List(_) | Value::Map(_) => Err(Mistake::new(at, "a key must be a plain word")),
    }
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|e| size(&e.value)).sum::<usize>(),
        _ => 1,
    }
}

fn depth(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(entries) => 1 + entries.iter().map(|e| depth(&e.value)).max().unwrap_or(0),
        _ => 0,
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, at: At) -> Result<Value, Mistake> {
    match tag {
        None => {}
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => {
            return Ok(Value::Text(text.to_owned()));
        }
        Some(tag) => {
            return Err(Mistake::new(
                at,
                format!("the tag `{tag}` is not supported"),
            ));
        }
    }
    if style != ScalarStyle::Plain {
        return Ok(Value::Text(text.to_owned()));
    }
    Ok(plain_scalar(text))
}

/// The core schema of YAML 1.2, as far as JSON has the value.
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let unsigned = text.trim_start_matches(['-', '+']);
    let looks_like_number = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned
            .chars()
            .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    if looks_like_number {
        if let Ok(number) = text.parse::<i64>() {
            return Value::Number(number.into());
        }
        if let Ok(number) = text.parse::<u64>() {
            return Value::Number(number.into());
        }
        let number = text
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64);
        if let Some(number) = number {
            return Value::Number(number);
        }
    }
    Value::Text(text.to_owned())
}

impl Node {
    /// What a person calls this value.
    pub fn kind(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Number(value) => format!("the number {value}"),
            Value::Text(value) => format!("the text `{}`", cut(value)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Number(value) => value.clone().into(),
            Value::Text(value) => value.clone().into(),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .map(|e| (e.key.clone(), e.value.to_json()))
                .collect(),
        }
    }
}

/// A text short enough for a message.
pub(crate) fn cut(text: &str) -> String {
    const CHARS_MAX: usize = 120;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
