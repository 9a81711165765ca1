//! Which files a path means.
//!
//! Owns: globs, folders and single files; sorted by name, so that every attempt sees one order. Files
//! and folders whose name begins with `.` or `_` are hidden: staged output is kept in such a folder.
//! Start at: [`list`].

use std::path::{Component, Path, PathBuf};

use streamforge_store::Recovery;

/// Why a path yields no files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pattern is not a glob.
    #[error("read the glob `{pattern}`")]
    Pattern {
        /// As written.
        pattern: String,
        /// What is wrong.
        #[source]
        source: glob::PatternError,
    },
    /// A folder on the way cannot be read.
    #[error("list {}", path.display())]
    Io {
        /// Folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A bucket cannot be listed.
    #[error("list {path}")]
    Bucket {
        /// As written.
        path: String,
        /// What the store said.
        #[source]
        source: Box<streamforge_store::Error>,
    },
    /// Nothing is there.
    #[error("no file matches `{pattern}`; check the path, or set `watch` to wait for files")]
    Nothing {
        /// As written.
        pattern: String,
    },
}

impl Error {
    /// Whether another attempt may do better.
    pub fn retry(&self) -> bool {
        match self {
            Error::Bucket { source, .. } => source.recovery() == Recovery::OutcomeUnknown,
            Error::Pattern { .. } | Error::Io { .. } | Error::Nothing { .. } => false,
        }
    }
}

pub(super) fn is_hidden(path: &Path, below: usize) -> bool {
    path.components().skip(below).any(|part| match part {
        Component::Normal(name) => {
            let first = name.as_encoded_bytes().first();
            matches!(first, Some(b'.' | b'_'))
        }
        _ => false,
    })
}

/// Number of leading parts of a pattern without wildcards: there the user named a hidden folder.
pub(super) fn literal_parts(pattern: &str) -> usize {
    let wild = |part: &Component<'_>| {
        part.as_os_str()
            .as_encoded_bytes()
            .iter()
            .any(|byte| matches!(byte, b'*' | b'?' | b'['))
    };
    Path::new(pattern)
        .components()
        .take_while(|part| !wild(part))
        .count()
}

/// The files of a path, a folder or a glob, by name. An empty answer is an answer.
pub fn list(pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let path = Path::new(pattern);
    let found = if path.is_dir() {
        list_folder(path)?
    } else if path.is_file() {
        return Ok(vec![path.to_owned()]);
    } else {
        let options = glob::MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        let matches = glob::glob_with(pattern, options).map_err(|source| Error::Pattern {
            pattern: pattern.to_owned(),
            source,
        })?;
        let mut files = Vec::new();
        for entry in matches {
            let path = entry.map_err(|error| Error::Io {
                path: error.path().to_owned(),
                source: error.into(),
            })?;
            if path.is_file() {
                files.push(path);
            }
        }
        files
    };
    let below = literal_parts(pattern);
    let mut files: Vec<PathBuf> = found
        .into_iter()
        .filter(|file| !is_hidden(file, below))
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Files of a folder and the folders in it. A cycle of links would be refused by the system.
fn list_folder(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let error = |source| Error::Io {
            path: folder.clone(),
            source,
        };
        for entry in std::fs::read_dir(&folder).map_err(error)? {
            let entry = entry.map_err(error)?;
            let kind = entry.file_type().map_err(error)?;
            let hidden = is_hidden(Path::new(&entry.file_name()), 0);
            if kind.is_dir() && !hidden {
                open.push(entry.path());
            } else if entry.path().is_file() && !hidden {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "b.ndjson",
            "a.ndjson",
            "c.csv",
            ".hidden.ndjson",
            "_streamforge/x.ndjson",
            "sub/d.ndjson",
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    fn names(folder: &tempfile::TempDir, pattern: &str) -> Vec<String> {
        let pattern = folder.path().join(pattern);
        let files = list(pattern.to_str().unwrap()).unwrap();
        let name = |path: &PathBuf| {
            path.strip_prefix(folder.path())
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        files.iter().map(name).collect()
    }

    #[test]
    fn globs_are_sorted_and_hide_staged_files() {
        let folder = folder();

        assert_eq!(names(&folder, "*.ndjson"), ["a.ndjson", "b.ndjson"]);
        assert_eq!(names(&folder, "*/*.ndjson"), ["sub/d.ndjson"]);
        assert_eq!(names(&folder, "nothing*"), Vec::<String>::new());
    }

    #[test]
    fn a_folder_means_all_its_files_and_a_path_itself() {
        let folder = folder();

        assert_eq!(
            names(&folder, ""),
            ["a.ndjson", "b.ndjson", "c.csv", "sub/d.ndjson"]
        );
        assert_eq!(names(&folder, "c.csv"), ["c.csv"]);
    }
}
