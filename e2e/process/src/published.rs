//! What a job made visible.
//!
//! Owns: reading an output folder as another program would (hidden names skipped), and checking
//! invariant P1 from one look to the next. Writes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The visible files of an output folder.
#[derive(Debug, Default)]
pub struct Published {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Published {
    /// Reads `folder` and everything below it. A folder that is not there has no files.
    pub fn read(folder: &Path) -> Self {
        let mut published = Self::default();
        published.add(folder);
        published
    }

    fn add(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return;
        };
        for entry in entries {
            let path = entry.expect("the folder can be listed").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name.starts_with(['_', '.']) {
                continue;
            }
            if path.is_dir() {
                self.add(&path);
            } else {
                let bytes = std::fs::read(&path).expect("a visible file can be read");
                self.files.insert(path, bytes);
            }
        }
    }

    /// How many files.
    pub fn files_n(&self) -> usize {
        self.files.len()
    }

    /// All rows of NDJSON files, sorted: their order means nothing.
    pub fn rows(&self) -> Vec<String> {
        let mut rows: Vec<String> = self
            .files
            .values()
            .flat_map(|bytes| {
                String::from_utf8_lossy(bytes)
                    .lines()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        rows.sort_unstable();
        rows
    }

    /// Asserts that every file is whole: its last line ends, and each line is JSON.
    pub fn check_whole(&self) {
        for (path, bytes) in &self.files {
            assert!(bytes.ends_with(b"\n"), "{} is cut off", path.display());
            for line in bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                let row: Result<serde_json::Value, _> = serde_json::from_slice(line);
                assert!(
                    row.is_ok(),
                    "{}: {}",
                    path.display(),
                    String::from_utf8_lossy(line)
                );
            }
        }
    }

    /// Asserts invariant P1: every file of `before` is here, unchanged.
    pub fn check_keeps(&self, before: &Self) {
        for (path, bytes) in &before.files {
            let now = self.files.get(path);
            assert!(now.is_some(), "P1: {} vanished", path.display());
            assert!(now == Some(bytes), "P1: {} changed", path.display());
        }
    }
}
