//! Objects of a list or a watch, read one by one.
//!
//! Owns: that an object which cannot be read stands in no other one's way. Each is cut out of what came as a text of
//! its own: an error in the midst of a text, or values that nest deeper than is read, would otherwise be the end of all
//! that comes behind. Of one that cannot be read its metadata is. Start at: [`Page::read`], [`event`].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, OwnerReference, Time};
use kube::api::WatchEvent;
use kube::core::Status;
use kube::core::watch::Bookmark;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};

/// An object as it came.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<V> {
    /// It was read.
    Read(V),
    /// It could not be.
    Unread(Unread),
}

/// An object that is not what its kind is.
#[derive(Clone, Debug, PartialEq)]
pub struct Unread {
    /// What everybody reads of it; empty if not even that can be read.
    pub metadata: ObjectMeta,
    /// All of it.
    pub text: String,
    /// Why it cannot be read.
    pub reason: String,
}

impl<V: DeserializeOwned> Item<V> {
    /// Reads one object.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match serde_json::from_str(text) {
            Ok(object) => Self::Read(object),
            Err(error) => Self::Unread(Unread {
                metadata: metadata(text).unwrap_or_default(),
                text: text.to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

/// One page of a list.
#[derive(Debug)]
pub struct Page<V> {
    /// The list's.
    pub metadata: ListMeta,
    /// What is in it.
    pub items: Vec<Item<V>>,
}

impl<V: DeserializeOwned> Page<V> {
    /// Reads a page.
    ///
    /// # Errors
    /// When it is no list.
    pub fn read(text: &str) -> serde_json::Result<Self> {
        let list = members(text)?;
        let metadata = member(&list, "metadata").unwrap_or("{}");
        let found = match member(&list, "items") {
            None | Some("null") => Vec::new(),
            Some(found) => items(found)?,
        };
        Ok(Self {
            metadata: serde_json::from_str(metadata)?,
            items: found.into_iter().map(Item::read).collect(),
        })
    }
}

/// Kinds of events.
const KINDS: [&str; 5] = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"];

/// Reads one line of a watch.
///
/// # Errors
/// When it is no event.
pub fn event<V: DeserializeOwned>(line: &str) -> serde_json::Result<WatchEvent<Item<V>>> {
    let members = members(line)?;
    let of = |key: &'static str| {
        member(&members, key).ok_or_else(|| serde_json::Error::missing_field(key))
    };
    let (kind, object): (String, _) = (serde_json::from_str(of("type")?)?, of("object")?);
    match kind.as_str() {
        "ADDED" => Ok(WatchEvent::Added(Item::read(object))),
        "MODIFIED" => Ok(WatchEvent::Modified(Item::read(object))),
        "DELETED" => Ok(WatchEvent::Deleted(Item::read(object))),
        "BOOKMARK" => serde_json::from_str::<Bookmark>(object).map(WatchEvent::Bookmark),
        "ERROR" => Ok(WatchEvent::Error(
            serde_json::from_str::<Status>(object)?.boxed(),
        )),
        other => Err(serde_json::Error::unknown_variant(other, &KINDS)),
    }
}

/// What is needed of metadata. Without who wrote which field: that nests as deep as the object.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn metadata(text: &str) -> serde_json::Result<ObjectMeta> {
    let members = members(text)?;
    let meta: Meta = serde_json::from_str(member(&members, "metadata").unwrap_or("{}"))?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        finalizers: meta.finalizers,
        labels: meta.labels,
        annotations: meta.annotations,
        owner_references: meta.owner_references,
        ..ObjectMeta::default()
    })
}

/// The members of an object, as text.
///
/// # Errors
/// When it is none.
pub fn members(text: &str) -> serde_json::Result<Vec<(String, &str)>> {
    let mut members = Vec::new();
    let mut rest = behind(text, '{')?;
    if rest.starts_with('}') {
        return Ok(members);
    }
    loop {
        let (key, after) = first::<String>(rest)?;
        let (value, after) = cut(behind(after, ':')?)?;
        members.push((key, value));
        if after.starts_with('}') {
            return Ok(members);
        }
        rest = behind(after, ',')?;
    }
}

/// One of them.
#[must_use]
pub fn member<'a>(members: &[(String, &'a str)], key: &str) -> Option<&'a str> {
    let (_, value) = members.iter().find(|(name, _)| name == key)?;
    Some(value)
}

/// The items of a list, as text.
fn items(text: &str) -> serde_json::Result<Vec<&str>> {
    let mut items = Vec::new();
    let mut rest = behind(text, '[')?;
    if rest.starts_with(']') {
        return Ok(items);
    }
    loop {
        let (item, after) = cut(rest)?;
        items.push(item);
        if after.starts_with(']') {
            return Ok(items);
        }
        rest = behind(after, ',')?;
    }
}

/// The value that a text begins with, and what follows. Nothing is made of it, so it may nest as it likes.
fn cut(text: &str) -> serde_json::Result<(&str, &str)> {
    let (IgnoredAny, after) = first(text)?;
    let value = text.get(..text.len() - after.len()).unwrap_or_default();
    Ok((value.trim(), after))
}

/// The same, read.
fn first<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<(T, &'a str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = values.next().ok_or_else(too_short)??;
    let after = text.get(values.byte_offset()..).unwrap_or_default();
    Ok((value, after.trim_start()))
}

fn behind(text: &str, mark: char) -> serde_json::Result<&str> {
    let text = text.trim_start();
    match text.strip_prefix(mark) {
        Some(after) => Ok(after.trim_start()),
        None if text.is_empty() => Err(too_short()),
        None => Err(serde_json::Error::custom(format!("expected `{mark}`"))),
    }
}

/// What is said of a text that ends too early.
fn too_short() -> serde_json::Error {
    serde_json::from_str::<IgnoredAny>("").expect_err("nothing is no value")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn names(items: &[Item<ConfigMap>]) -> Vec<(bool, &str)> {
        let names = items.iter().map(|item| {
            let (is_read, metadata) = match item {
                Item::Read(map) => (true, &map.metadata),
                Item::Unread(unread) => (false, &unread.metadata),
            };
            (is_read, metadata.name.as_deref().unwrap())
        });
        names.collect()
    }

    /// A text that nests as an API server lets it.
    fn deep(levels: usize) -> String {
        format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels))
    }

    #[test]
    fn object_that_cannot_be_read_stands_in_no_other_ones_way() {
        let wrong = json!({"metadata": {"name": "wrong", "uid": "u"}, "data": {"a": 1}});
        let whole = json!({"metadata": {"name": "whole"}, "data": {"a": "]},\"\\"}});
        let deep = deep(5_000);
        let nested = format!(
            r#"{{"spec": {deep}, "metadata": {{"managedFields": [{{"fieldsV1": {deep}}}], "name": "deep"}}}}"#
        );
        let text = format!(
            r#" {{ "kind": "ConfigMapList", "metadata": {{"resourceVersion": "7", "continue": ""}},
            "items": [ {whole} ,{wrong},{nested},{whole}] }} "#
        );

        let page = Page::<ConfigMap>::read(&text).unwrap();

        assert_eq!(page.metadata.resource_version.as_deref(), Some("7"));
        let known = [
            (true, "whole"),
            (false, "wrong"),
            (false, "deep"),
            (true, "whole"),
        ];
        assert_eq!(names(&page.items), known);
        let Item::Read(read) = &page.items[0] else {
            unreachable!("it is whole");
        };
        assert_eq!(read.data.as_ref().unwrap().get("a").unwrap(), "]},\"\\");
        for (empty, n) in [
            (r#"{"items": null}"#, 0),
            (r#"{"items": [ ]}"#, 0),
            ("{}", 0),
        ] {
            assert_eq!(
                Page::<ConfigMap>::read(empty).unwrap().items.len(),
                n,
                "{empty}"
            );
        }
    }

    #[test]
    fn what_is_no_list_and_no_event_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[]",
            "{}}",
            r#"{"items": [1"#,
            r#"{"items": {}}"#,
            r#"{"items" []}"#,
            r#"{items: []}"#,
            r#"{"items": [1 2]}"#,
            "null",
        ] {
            let read = Page::<ConfigMap>::read(text);
            // What comes behind a whole list nobody looks at.
            assert_eq!(read.is_ok(), text == "{}}", "{text}");
        }
        let whole = r#"{"type": "ADDED", "object": {"metadata": {}}}"#;
        for n in 0..whole.len() {
            let cut = event::<ConfigMap>(&whole[..n]).unwrap_err();
            assert!(cut.is_eof(), "{n}: {cut}");
        }
        for text in [
            r#"{"type": "ADDED"}"#,
            r#"{"type": "OTHER", "object": {}}"#,
            "{}",
            "1",
        ] {
            assert!(event::<ConfigMap>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn event_of_an_object_that_cannot_be_read_says_which_and_since_which_version() {
        let line = r#"{"object": {"data": 7, "metadata": {"name": "a", "resourceVersion": "9"}}, "type": "DELETED"}"#;

        let WatchEvent::Deleted(Item::Unread(unread)) = event::<ConfigMap>(line).unwrap() else {
            unreachable!("its data is a number");
        };

        assert_eq!(unread.metadata.resource_version.as_deref(), Some("9"));
        assert!(
            unread.reason.contains("invalid type: integer `7`"),
            "{}",
            unread.reason
        );
    }
}
