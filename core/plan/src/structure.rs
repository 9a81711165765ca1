//! Does a document have the shape of its schema?
//!
//! Owns: the walk of the YAML tree along the schema of the custom resource definition, so that the
//! command line and the API server check the same. Every mistake is reported, then cut out: an
//! optional field falls back to its default, a list item is dropped. What is left always has the
//! shape of the types, so that the checks of meaning can go on and report their mistakes too.
//! Start at: [`check`].

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json};
use streamforge_core::units::{
    ByteSize, DURATION_PATTERN, HumanDuration, HumanOffset, OFFSET_PATTERN, SIZE_PATTERN,
};
use streamforge_crds::reserved;
use streamforge_crds::v1alpha1::{CHOICES, NAME_PATTERN, WATCH_PATTERN, Watch};

use crate::problem::{At, Problems, did_you_mean, listed, nearest};
use crate::yaml::{Entry, Node, Value, cut};

/// Where each field of the document stands, and what was cut out of it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    at: BTreeMap<String, At>,
    /// Per list: the index in the document of each item that was kept.
    kept: BTreeMap<String, Vec<usize>>,
    /// Fields whose value was cut out.
    cut: BTreeSet<String>,
    /// Names of nodes that were cut out; a reference to one is no second mistake.
    pub dropped_names: Vec<String>,
}

impl Places {
    /// The place of a field, or of the nearest thing around it that was written.
    pub fn at(&self, path: &str) -> At {
        let mut path = path;
        loop {
            if let Some(at) = self.at.get(path) {
                return *at;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return At { line: 1, column: 1 },
            }
        }
    }

    /// Index in the document of the `idx`th item that was kept.
    pub fn document_idx(&self, list: &str, idx: usize) -> usize {
        self.kept
            .get(list)
            .and_then(|kept| kept.get(idx))
            .copied()
            .unwrap_or(idx)
    }

    /// Whether this field was written, but wrongly, and so fell back to its default.
    pub fn is_cut(&self, path: &str) -> bool {
        self.cut.contains(path)
    }

    /// Whether a list below this path lost an item: names could be missing that others use.
    pub fn lost_items(&self, path: &str) -> bool {
        let below = self
            .cut
            .range(path.to_owned()..)
            .take_while(|cut| cut.starts_with(path));
        below.into_iter().any(|cut| {
            let rest = cut.get(path.len()..).unwrap_or_default();
            ["select", "groupBy", "schema", "union"]
                .iter()
                .any(|list| rest.contains(list))
        })
    }

    /// Whether the document has this field.
    pub fn has(&self, path: &str) -> bool {
        self.at.contains_key(path)
    }
}

/// Walks `node` along `schema`; what is left of it, or nothing if it cannot be mended.
pub(crate) fn check(
    node: &Node,
    schema: &Json,
    path: &str,
    problems: &mut Problems,
) -> (Option<Json>, Places) {
    let mut walk = Walk {
        problems,
        places: Places::default(),
    };
    let value = walk.value(node, schema, path);
    (value, walk.places)
}

struct Walk<'a> {
    problems: &'a mut Problems,
    places: Places,
}

/// `spec.sources[3].file` as the tables of `crds` write it: `spec.sources[].file`.
fn general(path: &str) -> String {
    let mut general = String::with_capacity(path.len());
    let mut in_brackets = false;
    for c in path.chars() {
        match c {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            _ if in_brackets => continue,
            _ => {}
        }
        general.push(c);
    }
    general
}

fn text_of<'a>(schema: &'a Json, key: &str) -> Option<&'a str> {
    schema.get(key).and_then(Json::as_str)
}

/// An example of a number with its unit, where one is wanted.
fn unit_hint(schema: &Json) -> Option<&'static str> {
    match text_of(schema, "pattern")? {
        DURATION_PATTERN | OFFSET_PATTERN | WATCH_PATTERN => Some("`10s` or `1h30m`"),
        SIZE_PATTERN => Some("`64Mi`"),
        _ => None,
    }
}

fn size_of(schema: &Json, key: &str) -> Option<usize> {
    schema
        .get(key)
        .and_then(Json::as_u64)
        .and_then(|n| usize::try_from(n).ok())
}

impl Walk<'_> {
    fn add(&mut self, at: At, path: &str, message: String, hint: Option<String>) {
        self.problems.add(at, path, message, hint);
    }

    fn value(&mut self, node: &Node, schema: &Json, path: &str) -> Option<Json> {
        self.places.at.insert(path.to_owned(), node.at);
        let value = self.checked(node, schema, path);
        if value.is_none() {
            self.places.cut.insert(path.to_owned());
        }
        value
    }

    fn checked(&mut self, node: &Node, schema: &Json, path: &str) -> Option<Json> {
        match (text_of(schema, "type").unwrap_or_default(), &node.value) {
            (_, Value::Null) => {
                let hint = match text_of(schema, "type") {
                    Some("object") => "write `{}` for all defaults, or leave it out",
                    _ => "write a value, or leave it out",
                };
                let name = path.rsplit('.').next().unwrap_or(path);
                self.add(
                    node.at,
                    path,
                    format!("`{name}` is empty"),
                    Some(hint.to_owned()),
                );
                None
            }
            ("object", Value::Map(entries)) => self.object(node, entries, schema, path),
            ("array", Value::List(items)) => self.list(node, items, schema, path),
            ("string", Value::Text(text)) => self.text(node, text, schema, path),
            ("integer" | "number", Value::Number(_)) => self.number(node, schema, path),
            ("boolean", Value::Bool(value)) => Some((*value).into()),
            ("string", Value::Number(number)) if unit_hint(schema).is_some() => {
                let message = format!("{number} lacks a unit");
                let hint = unit_hint(schema).map(|example| format!("write it as in {example}"));
                self.add(node.at, path, message, hint);
                None
            }
            (expected, _) => {
                self.wrong_type(node, (expected, schema), path);
                None
            }
        }
    }

    fn wrong_type(&mut self, node: &Node, (expected, schema): (&str, &Json), path: &str) {
        let (wanted, hint) = match expected {
            "object" => ("a map", None),
            "array" => ("a list", Some("write `[a, b]`, or one `- item` per line")),
            "string" => match node.value {
                Value::Number(_) | Value::Bool(_) => ("text", Some("put it in quotes")),
                Value::Map(_) => ("text", Some("put it in quotes if it contains `: ` or `{`")),
                _ => ("text", None),
            },
            "integer" => ("a whole number", None),
            "number" => ("a number", None),
            "boolean" => ("true or false", None),
            _ => ("another value", None),
        };
        let message = format!("expected {wanted}, found {}", node.kind());
        let hint = hint.map(str::to_owned);
        self.add(
            node.at,
            path,
            message,
            hint.or_else(|| as_map(node, schema)),
        );
    }

    fn object(
        &mut self,
        node: &Node,
        entries: &[Entry],
        schema: &Json,
        path: &str,
    ) -> Option<Json> {
        let preserve = schema.get("x-kubernetes-preserve-unknown-fields").is_some();
        if preserve {
            return Some(node.to_json());
        }
        let none = Map::new();
        let properties = schema
            .get("properties")
            .and_then(Json::as_object)
            .unwrap_or(&none);
        let additional = schema.get("additionalProperties");
        let mut written = Map::new();
        let mut seen: BTreeMap<&str, At> = BTreeMap::new();
        for Entry { key, key_at, value } in entries {
            let child = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            if let Some(first) = seen.insert(key, *key_at) {
                let message = format!("`{key}` is written twice, first in line {}", first.line);
                self.add(*key_at, &child, message, None);
                continue;
            }
            let Some(property) = properties.get(key).or(additional) else {
                self.unknown(*key_at, key, path, properties);
                continue;
            };
            if let Some(value) = self.value(value, property, &child) {
                written.insert(key.clone(), value);
            }
        }
        self.choice(node, &seen, properties, path);
        self.report_missing(node, schema, &seen, path);
        let complete = required(schema).all(|name| written.contains_key(name));
        complete.then_some(Json::Object(written))
    }

    fn unknown(&mut self, at: At, key: &str, path: &str, properties: &Map<String, Json>) {
        let child = if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        };
        let general = general(path);
        let is_reserved = reserved::KEYS
            .iter()
            .any(|r| r.path == general && r.keys.contains(&key));
        if is_reserved {
            self.add(at, &child, format!("`{key}` is not supported yet"), None);
            return;
        }
        let names = || properties.keys().map(String::as_str);
        let instead = reserved::INSTEAD.iter();
        let instead = instead.filter(|it| it.path == general && it.key == key);
        let hint = instead
            .map(|it| it.write.to_owned())
            .next()
            .or_else(|| did_you_mean(key, names()))
            .unwrap_or_else(|| format!("the fields here are {}", listed(names())));
        self.add(at, &child, format!("unknown field `{key}`"), Some(hint));
    }

    /// Exactly one of several keys.
    fn choice(
        &mut self,
        node: &Node,
        seen: &BTreeMap<&str, At>,
        properties: &Map<String, Json>,
        path: &str,
    ) {
        let general = general(path);
        let Some(choice) = CHOICES.iter().find(|choice| choice.path == general) else {
            return;
        };
        let reserved = reserved::KEYS
            .iter()
            .filter(|r| r.path == general)
            .flat_map(|r| r.keys)
            .any(|key| seen.contains_key(key));
        let written: Vec<&str> = choice
            .keys
            .iter()
            .copied()
            .filter(|key| seen.contains_key(key))
            .collect();
        match written.as_slice() {
            [] if reserved => {}
            // Where nothing but the choice can stand, what stands there was reported as unknown.
            [] if !seen.is_empty()
                && properties
                    .keys()
                    .all(|key| choice.keys.contains(&key.as_str())) => {}
            [] => {
                let near = seen
                    .keys()
                    .find(|key| nearest(key, choice.keys.iter().copied()).is_some());
                // A misspelt key was reported already.
                if near.is_none() || seen.keys().all(|key| is_common(key)) {
                    let message =
                        format!("one of {} is missing", listed(choice.keys.iter().copied()));
                    self.add(node.at, path, message, None);
                }
            }
            [_] => {}
            [_, second, ..] => {
                let at = seen.get(second).copied().unwrap_or(node.at);
                let message = format!("{} exclude each other", listed(written.iter().copied()));
                self.add(at, path, message, Some("keep one of them".to_owned()));
            }
        }
    }

    fn report_missing(
        &mut self,
        node: &Node,
        schema: &Json,
        seen: &BTreeMap<&str, At>,
        path: &str,
    ) {
        let known = schema.get("properties").and_then(Json::as_object);
        for name in required(schema) {
            // A field that was misspelt was reported already.
            let is_misspelt = |key: &str| {
                !known.is_some_and(|known| known.contains_key(key))
                    && nearest(key, [name]).is_some()
            };
            if !seen.contains_key(name) && !seen.keys().any(|key| is_misspelt(key)) {
                self.add(node.at, path, format!("`{name}` is missing"), None);
            }
        }
    }

    fn list(&mut self, node: &Node, items: &[Node], schema: &Json, path: &str) -> Option<Json> {
        let item_schema = schema.get("items").unwrap_or(&Json::Null);
        let most = size_of(schema, "maxItems").unwrap_or(usize::MAX);
        let least = size_of(schema, "minItems").unwrap_or(0);
        if items.len() > most {
            let message = format!(
                "the list has {} items; at most {most} are allowed",
                items.len()
            );
            self.add(node.at, path, message, None);
            return None;
        }
        if items.len() < least {
            let items = if least == 1 { "item" } else { "items" };
            self.add(
                node.at,
                path,
                format!("the list needs at least {least} {items}"),
                None,
            );
            return None;
        }
        let mut values = Vec::with_capacity(items.len());
        let mut kept = Vec::with_capacity(items.len());
        for (idx, item) in items.iter().enumerate() {
            match self.value(item, item_schema, &format!("{path}[{idx}]")) {
                Some(value) => {
                    values.push(value);
                    kept.push(idx);
                }
                None => self.places.dropped_names.extend(name_of(item)),
            }
        }
        self.places.kept.insert(path.to_owned(), kept);
        Some(Json::Array(values))
    }

    fn text(&mut self, node: &Node, text: &str, schema: &Json, path: &str) -> Option<Json> {
        let (message, hint) = match text_mistake(text, schema, path) {
            None => return Some(text.into()),
            Some(mistake) => mistake,
        };
        self.add(node.at, path, message, hint);
        None
    }

    fn number(&mut self, node: &Node, schema: &Json, path: &str) -> Option<Json> {
        let Value::Number(number) = &node.value else {
            return None;
        };
        if text_of(schema, "type") == Some("integer") && number.as_i64().is_none() {
            self.wrong_type(node, ("integer", schema), path);
            return None;
        }
        let value = number.as_f64().unwrap_or(f64::NAN);
        let bound = |key: &str| schema.get(key).and_then(Json::as_f64);
        let (least, most) = (bound("minimum"), bound("maximum"));
        let inside =
            least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most);
        if inside {
            return Some(number.clone().into());
        }
        let range = match (least, most) {
            (Some(least), Some(most)) => format!("from {least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            _ => format!("at most {}", most.unwrap_or_default()),
        };
        self.add(
            node.at,
            path,
            format!("{number} is out of range: it must be {range}"),
            None,
        );
        None
    }
}

/// Names of the fields that an object must have.
/// How a map is written, for who wrote only its one word or value: `json` is `{json: {}}`, and `1m` may be
/// `{size: 1m}`.
fn as_map(node: &Node, schema: &Json) -> Option<String> {
    let written = match &node.value {
        Value::Text(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let properties = schema.get("properties")?.as_object()?;
    let within = |schema: &Json| {
        let fields: Vec<String> = required(schema).map(|name| format!("{name}: …")).collect();
        format!("{{{}}}", fields.join(", "))
    };
    if let Some((name, property)) = properties
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(&written))
    {
        let is_map = text_of(property, "type") == Some("object");
        let value = if is_map {
            within(property)
        } else {
            "…".to_owned()
        };
        return Some(format!("write `{{{name}: {value}}}`"));
    }
    let needed: Vec<&str> = required(schema).collect();
    match needed.as_slice() {
        [only] => Some(format!("write `{{{only}: {written}}}`")),
        _ => Some(format!(
            "its fields are {}",
            listed(properties.keys().map(String::as_str))
        )),
    }
}

fn required(schema: &Json) -> impl Iterator<Item = &str> {
    let names = schema.get("required").and_then(Json::as_array);
    names.into_iter().flatten().filter_map(Json::as_str)
}

/// Keys that every node has; they are no misspelt kind.
fn is_common(key: &str) -> bool {
    [
        "name",
        "uid",
        "from",
        "format",
        "schema",
        "eventTime",
        "changelog",
        "delivery",
    ]
    .contains(&key)
}

fn name_of(item: &Node) -> Option<String> {
    let Value::Map(entries) = &item.value else {
        return None;
    };
    let entry = entries.iter().find(|entry| entry.key == "name")?;
    match &entry.value.value {
        Value::Text(name) => Some(name.clone()),
        _ => None,
    }
}

type Mistake = (String, Option<String>);

fn text_mistake(text: &str, schema: &Json, path: &str) -> Option<Mistake> {
    if let Some(values) = schema.get("enum").and_then(Json::as_array) {
        return enum_mistake(text, values, path);
    }
    let too_long = |max: usize| text.chars().count() > max || text.len() > 4 * max;
    if size_of(schema, "maxLength").is_some_and(too_long) {
        let max = size_of(schema, "maxLength").unwrap_or_default();
        let n = text.chars().count();
        return Some((
            format!(
                "`{}` has {n} characters; at most {max} are allowed",
                cut(text)
            ),
            None,
        ));
    }
    let is_too_short = text.is_empty() && size_of(schema, "minLength").is_some_and(|n| n > 0);
    // What an empty duration or size lacks is a number with its unit.
    if is_too_short && unit_hint(schema).is_none() {
        return Some(("the text is empty".to_owned(), None));
    }
    let unit = |error: streamforge_core::units::ParseError| {
        (
            format!("`{}` is not {}", cut(text), error.what),
            Some(error.reason),
        )
    };
    match text_of(schema, "pattern")? {
        DURATION_PATTERN => text.parse::<HumanDuration>().err().map(unit),
        OFFSET_PATTERN => text.parse::<HumanOffset>().err().map(unit),
        SIZE_PATTERN => text.parse::<ByteSize>().err().map(unit),
        WATCH_PATTERN => text.parse::<Watch>().err().map(unit),
        NAME_PATTERN => name_mistake(text),
        _ => None,
    }
}

fn name_mistake(text: &str) -> Option<Mistake> {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_lowercase());
    let rest = text
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    (!first || !rest).then(|| {
        let hint = "a name begins with a to z and goes on with a to z, 0 to 9 and _";
        (
            format!("`{}` is not a name", cut(text)),
            Some(hint.to_owned()),
        )
    })
}

fn enum_mistake(text: &str, values: &[Json], path: &str) -> Option<Mistake> {
    let known: Vec<&str> = values.iter().filter_map(Json::as_str).collect();
    if known.contains(&text) {
        return None;
    }
    let general = general(path);
    if reserved::VALUES
        .iter()
        .any(|r| r.path == general && r.value == text)
    {
        let hint = Some(one_of(&known));
        return Some((format!("`{text}` is not supported yet"), hint));
    }
    let hint = did_you_mean(text, known.iter().copied()).unwrap_or_else(|| one_of(&known));
    Some((
        format!("`{}` is not a value of this field", cut(text)),
        Some(hint),
    ))
}

fn one_of(known: &[&str]) -> String {
    match known {
        [only] => format!("write `{only}`"),
        _ => format!("write one of {}", listed(known.iter().copied())),
    }
}
