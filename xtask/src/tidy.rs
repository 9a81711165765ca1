//! Rules about the text of the repository that no compiler lint holds.
//!
//! Owns: the list of rules and what each says. Never changes a file.
//! Start at: [`check`]; one rule per function, in `tidy/` by subject.

mod functions;
mod markdown;
mod rust;

use std::path::Path;

use anyhow::Result;

use crate::repo::{self, File, Finding};

/// Largest text file outside `testdata`: more is data, and data is fetched or generated.
const TEXT_BYTES_MAX: usize = 400 * 1024;

/// Runs every rule over every file.
pub fn check(root: &Path) -> Result<()> {
    let files = repo::files(root)?;
    let mut findings = Vec::new();
    for file in &files {
        any_file(file, &mut findings);
        if file.path.ends_with(".rs") {
            rust::check(file, &mut findings);
        }
        if file.path.ends_with(".md") {
            markdown::links_lead_somewhere(root, file, &mut findings);
        }
        if file.path == "CHANGELOG.md" {
            markdown::changelog_form(file, &mut findings);
        }
    }
    functions::check(root, &files, &mut findings)?;
    repo::report("tidy", findings)
}

/// Rules for files of every kind.
fn any_file(file: &File, findings: &mut Vec<Finding>) {
    let path = file.path.as_str();
    if path.contains("testdata/") || path == "Cargo.lock" || path == "LICENSE" {
        return;
    }
    if file.text.len() > TEXT_BYTES_MAX {
        findings.push(Finding::on(
            path,
            "larger than 400 KiB: generate or fetch it instead",
        ));
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(Finding::on(path, "no newline at the end"));
    }
    // A patch keeps one space on its empty context lines, and golden text keeps what it shows.
    if path.ends_with(".patch") || path.ends_with(".svg") {
        return;
    }
    for (n, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            findings.push(Finding::at(path, n + 1, "space at the end of the line"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        any_file(
            &File {
                path: path.to_owned(),
                text: text.to_owned(),
            },
            &mut findings,
        );
        findings
    }

    #[test]
    fn trailing_space_is_found_with_its_line() {
        let found = findings_of("a.toml", "a = 1\nb = 2 \n");

        assert_eq!(
            found,
            [Finding::at("a.toml", 2, "space at the end of the line")]
        );
    }

    #[test]
    fn file_without_last_newline_is_found() {
        let found = findings_of("a.toml", "a = 1");

        assert_eq!(found, [Finding::on("a.toml", "no newline at the end")]);
    }

    #[test]
    fn testdata_is_left_alone() {
        let found = findings_of("testdata/x.csv", "a \nb");

        assert_eq!(found, []);
    }
}
