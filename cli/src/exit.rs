//! How a command ends.
//!
//! Owns: the exit codes of streamjob.md, the errors that carry them, and what of an error's text reaches a
//! terminal. Bad or late rows do not
//! change a code.

use std::borrow::Cow;
use std::fmt;
use std::process::ExitCode;

use crate::verify::CannotJudge;

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Done,
    /// A comparison came out different.
    Different,
    /// A comparison has no answer: what differs, or all, cannot be computed a second time.
    Unjudged,
    /// The job stopped before its end, with a checkpoint.
    Stopped,
}

impl Outcome {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Different => 1,
            Outcome::Stopped => 3,
            Outcome::Unjudged => 4,
        }
    }
}

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;

/// Exit code when the document is wrong.
pub const WRONG_DOCUMENT: u8 = 2;

/// Exit code of a second signal.
pub const ABORTED: u8 = 130;

/// The document is wrong; what is wrong with it is already written to stderr.
#[derive(Debug)]
pub struct WrongDocument {
    /// How many mistakes.
    pub problems_n: usize,
    /// How many notes beside them.
    pub notes_n: usize,
}

impl fmt::Display for WrongDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems_n {
            1 => f.write_str("1 mistake in the document")?,
            n => write!(f, "{n} mistakes in the document")?,
        }
        f.write_str(&and_notes(self.notes_n))
    }
}

/// How many notes are shown, behind what is said of mistakes.
pub fn and_notes(notes_n: usize) -> String {
    match notes_n {
        0 => String::new(),
        1 => ", 1 note".to_owned(),
        n => format!(", {n} notes"),
    }
}

impl std::error::Error for WrongDocument {}

/// Says on stderr what went wrong, without a backtrace, and picks the code.
pub fn report(result: anyhow::Result<Outcome>) -> ExitCode {
    let error = match result {
        Ok(outcome) => return ExitCode::from(outcome.code()),
        Err(error) => error,
    };
    if error.downcast_ref::<WrongDocument>().is_some() {
        eprintln!("{}", printable(&error.to_string()));
        return ExitCode::from(WRONG_DOCUMENT);
    }
    // A reader that had enough (`| head`) is no failure of ours.
    let broken_pipe = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    });
    if broken_pipe {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", printable(&format!("{error:#}")));
    let code = match error.downcast_ref::<CannotJudge>() {
        Some(_) => Outcome::Unjudged.code(),
        None => FAILED,
    };
    ExitCode::from(code)
}

/// The text with its control characters written out, but for ends of lines: a document must not
/// command the terminal that its mistakes are printed to.
pub fn printable(text: &str) -> Cow<'_, str> {
    let commands = |c: char| c.is_control() && c != '\n';
    if !text.contains(commands) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match commands(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_lines_stay() {
        assert_eq!(printable("plain é\nline"), "plain é\nline");
        assert_eq!(
            printable("\u{1b}[31m\u{9b}2J\ttab\r\u{7f}"),
            "\\u{1b}[31m\\u{9b}2J\\ttab\\r\\u{7f}"
        );
    }
}
