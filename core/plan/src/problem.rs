//! What is wrong with a document, and where.

use std::fmt;

/// One mistake: where it is, what is wrong, what to write.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Name of the file, as given.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The field, as in `spec.transforms[2].filter`; empty for the document as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n    {hint}"),
            None => Ok(()),
        }
    }
}

/// A place in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
}

/// Collects problems.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    file: String,
    found: Vec<Problem>,
}

/// More problems than a person reads; the rest would only be noise, or an attack.
const PROBLEMS_MAX: usize = 200;

impl Problems {
    pub fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            found: Vec::new(),
        }
    }

    pub fn add(&mut self, at: At, path: &str, message: impl Into<String>, hint: Option<String>) {
        if self.found.len() < PROBLEMS_MAX {
            self.found.push(Problem {
                file: self.file.clone(),
                line: at.line,
                column: at.column,
                path: path.to_owned(),
                message: message.into(),
                hint,
            });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Sorted by place.
    pub fn into_sorted(mut self) -> Vec<Problem> {
        self.found
            .sort_by_key(|problem| (problem.line, problem.column));
        self.found.dedup();
        self.found
    }
}

/// "did you mean" for a word among known ones.
pub(crate) fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest(word, known).map(|name| format!("did you mean `{name}`?"))
}

/// The known word most like `word`, if any is like it at all.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    known
        .into_iter()
        .map(|name| {
            (
                strsim::damerau_levenshtein(&lower, &name.to_lowercase()),
                name,
            )
        })
        .filter(|(distance, name)| *distance <= name.len().max(word.len()).div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// At most this many names are listed in a message.
const LISTED_MAX: usize = 20;

/// Names, quoted and separated by commas; long lists are cut.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let shown: Vec<String> = names
        .iter()
        .take(LISTED_MAX)
        .map(|n| format!("`{n}`"))
        .collect();
    let rest = names.len().saturating_sub(LISTED_MAX);
    match rest {
        0 => shown.join(", "),
        n => format!("{} and {n} more", shown.join(", ")),
    }
}
