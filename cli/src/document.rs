//! The document of a command: read, changed by `--set`, checked.
//!
//! Owns: the file, the options that replace its values, and printing what is wrong with it. What is
//! wrong is decided by `streamforge-plan`. Start at: [`open`].

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use streamforge_plan::{Loaded, Mistaken, Problem};

use crate::args::DocumentArgs;
use crate::exit::{WrongDocument, printable};

/// A document without mistakes.
#[derive(Debug)]
pub struct Document {
    /// What was checked: the file, or what `--set` made of it.
    pub text: String,
    /// Its meaning.
    pub loaded: Loaded,
}

/// Longest document: one byte above the plan's limit tells that it is exceeded.
const FILE_BYTES_MAX: usize = 512 << 10;

/// The begin of a file: what is named by mistake may have no end.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads and checks a document; what is wrong with it is in the second.
pub fn check(args: &DocumentArgs, more: &[String]) -> Result<Result<Document, Mistaken>> {
    let file = args.job.display().to_string();
    let bytes = read(&args.job).with_context(|| format!("read {file}"))?;
    if bytes.len() > FILE_BYTES_MAX {
        let message = format!("it is longer than a document may be, {FILE_BYTES_MAX} bytes");
        return Ok(Err(whole(&file, (1, 1), message)));
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let read = error.utf8_error().valid_up_to();
            let before = error.as_bytes().get(..read).unwrap_or_default();
            let before = String::from_utf8_lossy(before);
            let place = place_behind(&before);
            return Ok(Err(whole(&file, place, "it is not UTF-8".to_owned())));
        }
    };
    let loaded = match streamforge_plan::load_with_notes(&text, &file) {
        Ok(loaded) => loaded,
        Err(mistaken) => return Ok(Err(mistaken)),
    };
    let settings: Vec<&String> = args.set.iter().chain(more).collect();
    if settings.is_empty() {
        return Ok(Ok(Document { text, loaded }));
    }
    let mut root = json!({
        "apiVersion": "streamforge.io/v1alpha1",
        "kind": "StreamJob",
        "metadata": {"name": loaded.name},
        "spec": loaded.spec,
    });
    streamforge_plan::forget_headers_of_kafka(&mut root);
    for setting in settings {
        if let Err(error) = set(&mut root, setting) {
            eprintln!("{}", printable(&format!("--set {setting}: {error}")));
            let (problems_n, notes_n) = (1, 0);
            return Err(WrongDocument {
                problems_n,
                notes_n,
            }
            .into());
        }
    }
    let text = root.to_string();
    // The line is one of a text that nobody wrote.
    let nowhere = |found: Vec<Problem>| -> Vec<Problem> {
        let file = format!("{file} with --set");
        let problem = |problem| Problem {
            line: 0,
            file: file.clone(),
            ..problem
        };
        found.into_iter().map(problem).collect()
    };
    Ok(match streamforge_plan::load_with_notes(&text, &file) {
        Ok(mut loaded) => {
            loaded.notes = nowhere(loaded.notes);
            Ok(Document { text, loaded })
        }
        Err(Mistaken { problems, notes }) => Err(Mistaken {
            problems: nowhere(problems),
            notes: nowhere(notes),
        }),
    })
}

/// A mistake of the document as a whole.
fn whole(file: &str, (line, column): (usize, usize), message: String) -> Mistaken {
    let problem = Problem {
        file: file.to_owned(),
        line,
        column,
        path: String::new(),
        message,
        hint: None,
    };
    Mistaken {
        problems: vec![problem],
        notes: Vec::new(),
    }
}

/// Line and column of what follows this text.
fn place_behind(text: &str) -> (usize, usize) {
    let last = text.rsplit('\n').next().unwrap_or_default();
    (text.matches('\n').count() + 1, last.chars().count() + 1)
}

/// Reads and checks a document; mistakes are printed and end the command.
pub fn open(args: &DocumentArgs, more: &[String]) -> Result<Document> {
    check(args, more)?.map_err(|mistaken| {
        print_mistakes(&mistaken);
        mistakes(&mistaken).into()
    })
}

/// How a command ends whose document is wrong.
pub fn mistakes(Mistaken { problems, notes }: &Mistaken) -> WrongDocument {
    WrongDocument {
        problems_n: problems.len(),
        notes_n: notes.len(),
    }
}

/// Prints mistakes to stderr, one after the other, then the notes.
pub fn print_mistakes(Mistaken { problems, notes }: &Mistaken) {
    for problem in problems {
        eprintln!("{}", printable(&shown(problem, "")));
    }
    print_notes(notes);
}

/// Prints notes to stderr, one after the other.
pub fn print_notes(notes: &[Problem]) {
    for note in notes {
        eprintln!("{}", printable(&shown(note, "note: ")));
    }
}

/// A mistake or a note, by its place if it has one.
fn shown(problem: &Problem, kind: &str) -> String {
    let Problem {
        file,
        line,
        column,
        path,
        message,
        hint,
    } = problem;
    let place = match line {
        0 => file.clone(),
        line => format!("{file}:{line}:{column}"),
    };
    let colon = if path.is_empty() { "" } else { ": " };
    let hint = hint.as_deref().map(|hint| format!("\n    {hint}"));
    let hint = hint.unwrap_or_default();
    format!("{place}: {kind}{path}{colon}{message}{hint}")
}

/// Applies one `path=value`. A step into a list is the name of an item, or its number.
fn set(root: &mut Value, setting: &str) -> Result<()> {
    let Some((path, text)) = setting.split_once('=') else {
        bail!("write PATH=VALUE, as in spec.parallelism=4");
    };
    let path = path.trim().replace('[', ".").replace(']', "");
    let mut at = root;
    let mut steps = path.split('.').filter(|step| !step.is_empty()).peekable();
    if steps.peek().is_none_or(|first| *first != "spec") {
        bail!("only values under spec can be set, as in spec.parallelism=4");
    }
    for step in steps {
        at = match at {
            Value::Object(fields) => fields.entry(step).or_insert(Value::Null),
            Value::Array(items) => {
                let idx = items
                    .iter()
                    .position(|item| item.get("name").is_some_and(|name| name == step))
                    .or_else(|| step.parse().ok());
                let item = idx.and_then(|idx| items.get_mut(idx));
                item.with_context(|| format!("the list has no item `{step}`"))?
            }
            Value::Null => {
                *at = Value::Object(Map::new());
                at.as_object_mut()
                    .context("made above")?
                    .entry(step)
                    .or_insert(Value::Null)
            }
            other => bail!("`{other}` has nothing named `{step}` in it"),
        };
    }
    *at = value(text);
    Ok(())
}

/// A value as YAML reads it, as far as it fits in a line: JSON, else text.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_header_of_a_kafka_node_is_not_taken_for_written() {
        let mut root = json!({"spec": {
            "sources": [{"name": "a", "file": {}, "kafka": null, "format": {"csv": {"header": true}}}],
            "sinks": [{"name": "b", "kafka": {}, "format": {"csv": {"header": true, "delimiter": ","}}}],
        }});

        streamforge_plan::forget_headers_of_kafka(&mut root);

        assert_eq!(
            root.pointer("/spec/sources/0/format/csv/header"),
            Some(&json!(true))
        );
        assert_eq!(
            root.pointer("/spec/sinks/0/format/csv"),
            Some(&json!({"delimiter": ","}))
        );
    }

    #[test]
    fn a_setting_reaches_into_maps_and_named_items() {
        let mut root = json!({"spec": {"parallelism": 1, "sinks": [{"name": "out", "file": {}}]}});

        set(&mut root, "spec.parallelism=4").unwrap();
        set(&mut root, "spec.checkpoint.interval=1s").unwrap();
        set(&mut root, "spec.sinks.out.file.path=/tmp/x=y").unwrap();
        set(&mut root, "spec.sinks[0].delivery=AtLeastOnce").unwrap();

        let sink = json!({"name": "out", "file": {"path": "/tmp/x=y"}, "delivery": "AtLeastOnce"});
        assert_eq!(root["spec"]["parallelism"], 4);
        assert_eq!(root["spec"]["checkpoint"]["interval"], "1s");
        assert_eq!(root["spec"]["sinks"][0], sink);
    }

    #[test]
    fn a_setting_that_leads_nowhere_is_refused() {
        let mut root = json!({"spec": {"parallelism": 1, "sinks": []}});
        for setting in [
            "spec.parallelism",
            "metadata.name=x",
            "spec.sinks.out.uid=x",
            "spec.parallelism.x=1",
        ] {
            assert!(set(&mut root, setting).is_err(), "{setting}");
        }
    }
}
