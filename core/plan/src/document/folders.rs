//! Output folders against input patterns and against each other.
//!
//! Owns: the rule that no job reads what it writes, and that no two of its sinks write into one
//! folder. Compares paths as they are written: links, and a relative path beside an absolute one, are
//! not seen through, because the plan looks at no disk. Start at: [`check`].

use glob::{MatchOptions, Pattern};
use streamforge_crds::v1alpha1::{FileSink, S3Access, StreamJobSpec};

use super::nodes::Context;
use super::s3;
use crate::problem::Problems;
use crate::structure::Places;

/// How the file source reads globs.
const GLOB: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// A file sink with its place in the document.
struct Written<'a> {
    name: &'a str,
    path: String,
    file: &'a FileSink,
    /// Normalised folder; that of a bucket is `s3:/bucket/folder`.
    folder: String,
    /// Of a bucket: the server, if the document names it.
    server: Option<&'a str>,
    ending: &'static str,
}

/// Refuses what would be read back, and rows of two sinks in one folder.
pub(super) fn check(spec: &StreamJobSpec, places: &Places, problems: &mut Problems) {
    let mut context = Context { places, problems };
    let sinks = written(spec, places);
    for (idx, sink) in sinks.iter().enumerate() {
        let earlier = sinks
            .iter()
            .take(idx)
            .find(|other| (other.server, &other.folder) == (sink.server, &sink.folder));
        if let Some(earlier) = earlier {
            let message = format!(
                "`{}` is the folder of the sink `{}`, too; nobody could tell their rows apart",
                sink.file.path, earlier.name
            );
            let hint = format!(
                "give each sink a folder of its own, as in `{}/{}/`",
                sink.file.path.trim_end_matches('/'),
                sink.name
            );
            context.add(&sink.path, message, Some(hint));
        }
        for source in &spec.sources {
            let Some(file) = source.file.as_ref().filter(|file| is_known(&file.path)) else {
                continue;
            };
            let server = server_of(file.s3.as_ref());
            if server == sink.server && reads_output(&normal(&file.path), sink) {
                let message = format!(
                    "the job would read its own output: the source `{}` reads `{}`",
                    source.name, file.path
                );
                let hint = "write to a folder that no source reads".to_owned();
                context.add(&sink.path, message, Some(hint));
            }
        }
    }
}

fn written<'a>(spec: &'a StreamJobSpec, places: &Places) -> Vec<Written<'a>> {
    let sinks = spec.sinks.iter().enumerate();
    sinks
        .filter_map(|(idx, sink)| {
            let file = sink.file.as_ref().filter(|file| is_known(&file.path))?;
            let node = format!("spec.sinks[{}]", places.document_idx("spec.sinks", idx));
            let format = sink.format.as_ref();
            Some(Written {
                name: &sink.name,
                path: format!("{node}.file.path"),
                file,
                folder: normal(&file.path),
                server: server_of(file.s3.as_ref()),
                ending: match format {
                    Some(format) if format.csv.is_some() => "csv",
                    Some(format) if format.parquet.is_some() => "parquet",
                    _ => "ndjson",
                },
            })
        })
        .collect()
}

/// A path of this machine or of a bucket.
fn is_known(path: &str) -> bool {
    !path.contains("://") || s3::is_s3(path)
}

/// Buckets of one name on two servers are two.
fn server_of(access: Option<&S3Access>) -> Option<&str> {
    access.and_then(|access| access.endpoint.as_deref())
}

/// A path without `.`, doubled `/` and, where that is certain, `..`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts
                .last()
                .is_some_and(|last| *last != ".." && !is_wild(last)) =>
            {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

fn is_wild(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

/// Whether a source that reads `input` would read a file that the sink writes.
fn reads_output(input: &str, sink: &Written<'_>) -> bool {
    if !is_wild(input) {
        return is_below(&sink.folder, input);
    }
    let Ok(pattern) = Pattern::new(input) else {
        return false;
    };
    let partitions: String = sink
        .file
        .partition_by
        .iter()
        .map(|column| format!("{column}=2026-01-01/"))
        .collect();
    let separator = if sink.folder.is_empty() || sink.folder.ends_with('/') {
        ""
    } else {
        "/"
    };
    let file = format!(
        "{}{separator}{partitions}part-01234567-1-1-0-0.{}",
        sink.folder, sink.ending
    );
    pattern.matches_with(&file, GLOB) && !has_hidden_part(&file, literal_parts(input))
}

/// Whether `folder` is `input` or lies in it, so that reading `input` as a folder finds it.
fn is_below(folder: &str, input: &str) -> bool {
    let rest = match folder.strip_prefix(input) {
        Some("") => return true,
        // `/` and the empty path, which is the folder the job runs in, end where the next part begins.
        Some(rest) if input.is_empty() || input == "/" => rest,
        Some(rest) => match rest.strip_prefix('/') {
            Some(rest) => rest,
            None => return false,
        },
        None => return false,
    };
    let is_outside = rest.starts_with('/') || rest == ".." || rest.starts_with("../");
    !is_outside && !has_hidden_part(rest, 0)
}

/// Parts of a pattern before its first wildcard: there the user named a hidden folder.
fn literal_parts(pattern: &str) -> usize {
    pattern.split('/').take_while(|part| !is_wild(part)).count()
}

/// The source passes over what begins with `.` or `_`.
fn has_hidden_part(path: &str, skip: usize) -> bool {
    path.split('/')
        .skip(skip)
        .any(|part| part.starts_with(['.', '_']) && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(input: &str, output: &str, partition_by: &[&str]) -> bool {
        let file = FileSink {
            path: output.to_owned(),
            partition_by: partition_by.iter().map(|&c| c.to_owned()).collect(),
            rollover: None,
            s3: None,
        };
        let sink = Written {
            name: "out",
            path: String::new(),
            folder: normal(output),
            server: None,
            file: &file,
            ending: "ndjson",
        };
        reads_output(&normal(input), &sink)
    }

    #[test]
    fn a_folder_in_the_input_is_read_back() {
        for (input, output) in [
            ("/data", "/data"),
            ("/data/", "/data/out"),
            ("in", "./in/x/../out/"),
            (".", "out"),
            ("/", "/out"),
            ("/data/*.ndjson", "/data/"),
            ("/data/*", "/data"),
            ("/data/**/*.ndjson", "/data/a/b/c"),
            ("/data/*/part-*", "/data/out"),
            ("s3://bucket/data", "s3://bucket/data/out/"),
            ("s3://bucket/", "s3://bucket/out"),
            ("s3://bucket/data/*.ndjson", "s3://bucket/data/"),
        ] {
            assert!(reads(input, output, &[]), "{input} {output}");
        }
        assert!(reads("/data/*/*.ndjson", "/data", &["day"]));
    }

    #[test]
    fn a_folder_beside_the_input_or_hidden_from_it_is_not() {
        for (input, output) in [
            ("/data/in", "/data/input"),
            ("/data/in", "/data/out"),
            ("/data/in/a.ndjson", "/data/in"),
            ("/data/*.ndjson", "/data/out"),
            ("/data/*.csv", "/data"),
            ("/data/day-*", "/data"),
            ("in", "/data/in"),
            (".", "/data"),
            (".", "../out"),
            ("/data", "/data/_out"),
            ("/data/*/*", "/data/.out"),
            ("s3://bucket/data", "s3://other/data"),
            ("s3://bucket/data", "s3://bucket/out"),
            ("s3://bucket/data/in*", "s3://bucket/data/out"),
        ] {
            assert!(!reads(input, output, &[]), "{input} {output}");
        }
        assert!(!reads("/data/*.ndjson", "/data", &["day"]));
    }
}
