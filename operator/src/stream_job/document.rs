//! A document with its meaning.
//!
//! Owns: how a resource becomes a document that `streamforge-plan` reads, and how a document is kept
//! beside the job that it runs. What is wrong with it is decided there, in the words of `streamforge
//! validate`. Start at: [`Document::of`], [`Document::read`].

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use streamforge_core::job_graph::JobGraph;
use streamforge_crds::v1alpha1::{StreamJob, StreamJobSpec};

use super::keep;
use super::validate::Problem;
use crate::hash;

/// Largest document, everything written out.
pub const TEXT_BYTES_MAX: usize = 960 << 10;

/// The same compressed: it is kept in a ConfigMap, which holds 1 MiB, together with the document before an
/// upgrade and the pods. 512 KiB of plain text without any pattern have less.
pub const KEPT_BYTES_MAX: usize = 440 << 10;

/// A document in which no mistake was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// What it says, defaults filled in.
    pub spec: StreamJobSpec,
    /// What runs.
    pub graph: Arc<JobGraph>,
    /// The same as text, for the coordinator.
    pub text: Arc<str>,
    /// Hash of what an attempt is made of.
    attempt: String,
}

impl Document {
    /// Reads the document of a resource.
    ///
    /// # Errors
    /// All that is wrong with it, in the words of `streamforge validate`.
    pub fn of(job: &StreamJob) -> Result<Self, Vec<Problem>> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        Self::read(&text_of(name, &job.spec))
    }

    /// Reads a document that was kept.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn read(text: &str) -> Result<Self, Vec<Problem>> {
        let loaded = streamforge_plan::load_resolved(text, "")
            .map_err(|problems| problems.into_iter().map(Problem::from).collect::<Vec<_>>())?;
        let graph = streamforge_plan::plan(&loaded);
        let text = text_of(&loaded.name, &loaded.spec);
        if let Some(message) = too_large(&text) {
            let cure = "make several jobs of it";
            return Err(vec![Problem::new("spec", message, cure)]);
        }
        Ok(Self {
            attempt: attempt(&loaded.spec, &graph),
            spec: loaded.spec,
            graph: graph.into(),
            text: text.into(),
        })
    }

    /// The document for people, or as short as can be where that would be too long to keep.
    #[must_use]
    pub fn shown(&self) -> String {
        let value: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let yaml = streamforge_crds::to_yaml(&value);
        if yaml.len() > TEXT_BYTES_MAX {
            return self.text.to_string();
        }
        yaml
    }

    /// What an attempt is made of: a document of another one of these needs another attempt.
    #[must_use]
    pub fn attempt_hash(&self) -> String {
        self.attempt.clone()
    }
}

fn attempt(spec: &StreamJobSpec, graph: &JobGraph) -> String {
    let storage = spec.checkpoint.storage.as_ref();
    let place = storage.map(|it| streamforge_plan::s3_place(&it.uri, it.s3.as_ref()).ok());
    hash::of(&json!({
        "stages": graph.stages, "edges": graph.edges, "bounded": graph.bounded,
        "maxParallelism": graph.max_parallelism, "storage": place,
    }))
}

/// Why a document cannot be kept.
fn too_large(text: &str) -> Option<String> {
    if text.len() > TEXT_BYTES_MAX {
        let n = text.len();
        return Some(format!(
            "with its defaults written out the document has {n} bytes, and {TEXT_BYTES_MAX} can be kept"
        ));
    }
    if text.len() <= KEPT_BYTES_MAX {
        return None;
    }
    let n = keep::compressed(text.as_bytes()).len();
    (n > KEPT_BYTES_MAX)
        .then(|| format!("compressed the document has {n} bytes, and {KEPT_BYTES_MAX} can be kept"))
}

/// The document as JSON, which is YAML too.
fn text_of(name: &str, spec: &impl Serialize) -> String {
    let mut root = json!({
        "apiVersion": "streamforge.io/v1alpha1",
        "kind": "StreamJob",
        "metadata": {"name": name},
        "spec": spec,
    });
    streamforge_plan::forget_headers_of_kafka(&mut root);
    root.to_string()
}

/// What is wrong with a document whose spec, which is JSON, cannot be read as one.
#[must_use]
pub fn problems(name: &str, spec: &str, error: &serde_json::Error) -> Vec<Problem> {
    let document = serde_json::from_str::<Value>(spec).ok();
    let loaded =
        document.map(|spec| streamforge_plan::load_resolved(&text_of(name, &spec), "").map(drop));
    if let Some(Err(found)) = loaded {
        return found.into_iter().map(Problem::from).collect();
    }
    let cure = "edit it, or run an operator of its version";
    vec![Problem::new("spec", error.to_string(), cure)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream_job::testing::{job, with};

    #[test]
    fn document_that_is_kept_is_read_back_as_the_same() {
        let document = Document::of(&job()).unwrap();

        assert_eq!(Document::read(&document.text).unwrap(), document);
        assert_eq!(Document::read(&document.shown()).unwrap(), document);
        assert!(
            document
                .shown()
                .starts_with("apiVersion: streamforge.io/v1alpha1\nkind: StreamJob\n")
        );
    }

    #[test]
    fn examples_mean_the_same_when_the_api_server_has_filled_in_the_defaults() {
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
        let mut read_n = 0;
        for example in [
            "clicks/job.yaml",
            "kafka/job.yaml",
            "kafka/fill.yaml",
            "wordcount/job.yaml",
        ] {
            let text = std::fs::read_to_string(format!("{examples}/{example}")).unwrap();
            let loaded = streamforge_plan::load(&text, example).unwrap();

            let document = Document::read(&text_of(&loaded.name, &loaded.spec)).unwrap();

            assert_eq!(
                *document.graph,
                streamforge_plan::plan(&loaded),
                "{example}"
            );
            assert_eq!(
                Document::read(&document.shown()).unwrap(),
                document,
                "{example}"
            );
            read_n += 1;
        }
        assert_eq!(read_n, 4);
    }

    #[test]
    fn default_header_of_a_csv_format_is_no_mistake_behind_kafka() {
        let job = with(
            &job(),
            "/sources/0/format",
            json!({"csv": {"header": true}}),
        );

        assert!(Document::of(&job).is_ok());
    }

    #[test]
    fn hostile_texts_survive_being_kept() {
        for text in [
            "a: b",
            "- x",
            "é\u{2028}\u{1f600}",
            "\u{7f}\u{85}",
            "'\"\\ #",
            "no",
            "\ttab",
            "{{x}}",
        ] {
            let filter = format!("user_id <> '{}'", text.replace('\'', "''"));
            let job = with(&job(), "/transforms/0/filter", json!(filter));
            let document = Document::of(&job).unwrap();

            assert_eq!(
                Document::read(&document.shown()).unwrap(),
                document,
                "{text:?}"
            );
        }
    }

    #[test]
    fn document_that_could_not_be_kept_is_refused_by_its_size_and_by_its_noise() {
        // 95 letters in no order: next to nothing can be compressed.
        let noise = |bytes_n: u64| -> String {
            let hash = |n: u64| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()) % 95;
            let letter = |n: u64| char::from(b' ' + u8::try_from(n).unwrap());
            (0..bytes_n).map(|n| letter(hash(n))).collect()
        };
        assert_eq!(too_large(&noise(512 << 10)), None);
        assert_eq!(too_large(&"x".repeat(960 << 10)), None);
        assert_eq!(
            too_large(&"x".repeat((960 << 10) + 1)).unwrap(),
            "with its defaults written out the document has 983041 bytes, and 983040 can be kept"
        );
        let noisy = too_large(&noise(600 << 10)).unwrap();
        assert!(
            noisy.starts_with("compressed the document has 5"),
            "{noisy}"
        );
    }
}
