//! Rules for one Rust file.
//!
//! Owns: header, length, file name, banned marks and attributes. Reads text line by line; what
//! needs a syntax tree is in `functions`.
//! Start at: [`check`].

use crate::repo::{File, Finding};

/// Source lines of a file, tests not counted. 400 is the aim; here it stops.
const LINES_MAX: usize = 600;
/// Test lines inside a source file; above this they move to `<module>/tests.rs`.
const INLINE_TEST_LINES_MAX: usize = 150;
/// Files allowed to be longer, with the lines they may have. Only shrinks.
const LONGER: &[(&str, usize)] = &[];

/// Words that mark unfinished work. Split so that this file does not find itself.
const MARKS: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
];
/// File names nobody can guess the content of.
const VAGUE_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "common", "misc"];

/// Runs every rule over `file`.
pub fn check(file: &File, findings: &mut Vec<Finding>) {
    header(file, findings);
    name(file, findings);
    length(file, findings);
    for (n, line) in file.text.lines().enumerate() {
        marks(&file.path, n + 1, line, findings);
        attributes(&file.path, n + 1, line, findings);
    }
}

/// Whether the whole file is test code.
pub(super) fn is_test_file(path: &str) -> bool {
    path.starts_with("e2e/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
        || path.contains("/benches/")
}

fn header(file: &File, findings: &mut Vec<Finding>) {
    // The header of `x/tests.rs` is that of `x.rs`.
    if file.path.ends_with("/tests.rs") || file.path.ends_with("_tests.rs") {
        return;
    }
    let first = file
        .text
        .lines()
        .find(|l| !l.trim().is_empty())
        .unwrap_or_default();
    if !first.starts_with("//!") {
        let what = "no header: begin with `//!` lines that say what the file owns, what it never \
                    does and where to start";
        findings.push(Finding::on(&file.path, what));
    }
}

fn name(file: &File, findings: &mut Vec<Finding>) {
    let stem = file
        .path
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .trim_end_matches(".rs");
    if stem == "mod" {
        findings.push(Finding::on(
            &file.path,
            "module files are `name.rs` beside `name/`",
        ));
    }
    if VAGUE_NAMES.contains(&stem) {
        findings.push(Finding::on(
            &file.path,
            "name the file after the noun it is about",
        ));
    }
}

fn length(file: &File, findings: &mut Vec<Finding>) {
    if is_test_file(&file.path) {
        return;
    }
    let all = file.text.lines().count();
    let source = source_lines(&file.text);
    let max = LONGER
        .iter()
        .find(|(p, _)| *p == file.path)
        .map_or(LINES_MAX, |(_, max)| *max);
    if source > max {
        let what = format!("{source} source lines, at most {max}: cut the file by what it owns");
        findings.push(Finding::on(&file.path, what));
    }
    if all - source > INLINE_TEST_LINES_MAX {
        let what = format!(
            "{} lines of tests inside: move them to a tests.rs",
            all - source
        );
        findings.push(Finding::on(&file.path, what));
    }
}

/// Lines before an inline test module. `mod tests;` alone is not one.
fn source_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let opens =
        |w: &[&str]| w[0] == "#[cfg(test)]" && w[1].starts_with("mod ") && w[1].ends_with('{');
    lines.windows(2).position(opens).unwrap_or(lines.len())
}

fn marks(path: &str, line_n: usize, line: &str, findings: &mut Vec<Finding>) {
    let todo = concat!("TO", "DO");
    if let Some(at) = line.find(todo)
        && is_word(line, at, todo)
        && !has_issue(&line[at + todo.len()..])
    {
        findings.push(Finding::at(
            path,
            line_n,
            "an open point names its issue: (#123)",
        ));
    }
    for mark in MARKS {
        if let Some(at) = line.find(mark)
            && is_word(line, at, mark)
        {
            findings.push(Finding::at(
                path,
                line_n,
                format!("{mark}: mend it or file an issue"),
            ));
        }
    }
}

fn is_word(line: &str, at: usize, word: &str) -> bool {
    let alnum = |c: char| c.is_alphanumeric() || c == '_';
    !line[..at].ends_with(alnum) && !line[at + word.len()..].starts_with(alnum)
}

fn has_issue(rest: &str) -> bool {
    rest.strip_prefix("(#")
        .and_then(|r| r.split_once(')'))
        .is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn attributes(path: &str, line_n: usize, line: &str, findings: &mut Vec<Finding>) {
    let text = line.trim_start();
    let Some(attribute) = text.strip_prefix("#![").or_else(|| text.strip_prefix("#[")) else {
        return;
    };
    let what = if attribute.starts_with("ignore") {
        "a skipped test claims nothing: assert what is true today, or delete it"
    } else if attribute.starts_with("should_panic") {
        "assert the error instead of a panic"
    } else if attribute.starts_with("allow(") {
        "write #[expect(lint, reason = \"…\")], which complains when it is no longer needed"
    } else {
        return;
    };
    findings.push(Finding::at(path, line_n, what));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(
            &File {
                path: path.to_owned(),
                text: text.to_owned(),
            },
            &mut findings,
        );
        findings.into_iter().map(|f| f.place).collect()
    }

    #[test]
    fn file_without_header_is_found() {
        assert_eq!(places("a/src/x.rs", "use std::fs;\n"), ["a/src/x.rs"]);
        assert_eq!(places("a/src/x.rs", "//! Owns x.\n"), Vec::<String>::new());
    }

    #[test]
    fn open_point_needs_an_issue_number() {
        let open = concat!("//! X.\n// TO", "DO: later\n");
        let filed = concat!("//! X.\n// TO", "DO(#12): later\n");

        assert_eq!(places("a/src/x.rs", open), ["a/src/x.rs:2"]);
        assert_eq!(places("a/src/x.rs", filed), Vec::<String>::new());
    }

    #[test]
    fn skipped_test_is_found() {
        let text = "//! X.\n#[ignore]\n#[should_panic(expected = \"x\")]\n#[allow(dead_code)]\n";

        assert_eq!(
            places("a/src/x.rs", text),
            ["a/src/x.rs:2", "a/src/x.rs:3", "a/src/x.rs:4"]
        );
    }

    #[test]
    fn lines_of_an_inline_test_module_do_not_count_as_source() {
        let source = "//! X.\n".to_owned() + &"// a\n".repeat(LINES_MAX - 1);
        let tests = "#[cfg(test)]\nmod tests {\n}\n";

        assert_eq!(
            places("a/src/x.rs", &(source.clone() + tests)),
            Vec::<String>::new()
        );
        assert_eq!(
            places("a/src/x.rs", &(source + "// b\n" + tests)),
            ["a/src/x.rs"]
        );
    }

    #[test]
    fn vague_file_names_are_found() {
        assert_eq!(places("a/src/mod.rs", "//! X.\n"), ["a/src/mod.rs"]);
        assert_eq!(places("a/src/helpers.rs", "//! X.\n"), ["a/src/helpers.rs"]);
    }
}
