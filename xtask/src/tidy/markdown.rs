//! Rules for Markdown: local links lead somewhere, the changelog keeps its form.
//!
//! Owns: both rules. Reads the file system only to ask whether a link's target exists.
//! Start at: [`links_lead_somewhere`], [`changelog_form`].

use std::path::Path;

use crate::repo::{File, Finding};

/// Headings a release may have, in this order.
const CHANGE_KINDS: &[&str] = &[
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

/// Every relative link `[text](target)` names a file or folder of the repository.
pub fn links_lead_somewhere(root: &Path, file: &File, findings: &mut Vec<Finding>) {
    let folder = root
        .join(&file.path)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default();
    let mut fenced = false;
    for (n, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            if !folder.join(target).exists() {
                findings.push(Finding::at(
                    &file.path,
                    n + 1,
                    format!("no such file: {target}"),
                ));
            }
        }
    }
}

/// Relative targets of the links in one line, without their anchors.
fn targets(line: &str) -> Vec<&str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or_default())
        .filter(|t| !t.is_empty() && !t.contains("://") && !t.starts_with("mailto:"))
        .collect()
}

/// `# Changelog`, releases `## [x.y.z] - yyyy-mm-dd` below `## [Unreleased]`, kinds of change as
/// `### …`, each change a `- ` line that begins with a capital and ends with a full stop.
pub fn changelog_form(file: &File, findings: &mut Vec<Finding>) {
    let mut lines = file.text.lines().enumerate();
    if lines.next().map(|(_, l)| l) != Some("# Changelog") {
        findings.push(Finding::at(&file.path, 1, "begin with `# Changelog`"));
    }
    let mut releases_n = 0;
    let mut item: Option<(usize, String)> = None;
    for (n, line) in lines {
        if let Some(more) = line.strip_prefix("  ")
            && let Some((_, text)) = item.as_mut()
        {
            text.push(' ');
            text.push_str(more);
            continue;
        }
        check_item(file, item.take(), findings);
        if let Some(release) = line.strip_prefix("## ") {
            releases_n += 1;
            let first_is_unreleased = releases_n > 1 || release == "[Unreleased]";
            if !(first_is_unreleased && release.starts_with('[') && release.contains(']')) {
                let what = "releases are `## [Unreleased]` or `## [1.2.3] - 2026-01-31`";
                findings.push(Finding::at(&file.path, n + 1, what));
            }
        } else if let Some(kind) = line.strip_prefix("### ") {
            if !CHANGE_KINDS.contains(&kind) {
                let what = format!("one of {}", CHANGE_KINDS.join(", "));
                findings.push(Finding::at(&file.path, n + 1, what));
            }
        } else if let Some(change) = line.strip_prefix("- ") {
            item = Some((n + 1, change.to_owned()));
        }
    }
    check_item(file, item, findings);
}

fn check_item(file: &File, item: Option<(usize, String)>, findings: &mut Vec<Finding>) {
    let Some((line_n, text)) = item else { return };
    let begins_well = text.starts_with(|c: char| c.is_uppercase() || c == '`' || c == '*');
    if !begins_well || !text.ends_with('.') {
        let what = "a change is a sentence: capital first, full stop last";
        findings.push(Finding::at(&file.path, line_n, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changelog(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let file = File {
            path: "CHANGELOG.md".to_owned(),
            text: text.to_owned(),
        };
        changelog_form(&file, &mut findings);
        findings.into_iter().map(|f| f.place).collect()
    }

    #[test]
    fn changelog_in_form_passes() {
        let text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Sinks of\n  files.\n";

        assert_eq!(changelog(text), Vec::<String>::new());
    }

    #[test]
    fn change_that_is_no_sentence_is_found() {
        let text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- stuff\n### New\n";

        assert_eq!(changelog(text), ["CHANGELOG.md:7", "CHANGELOG.md:8"]);
    }

    #[test]
    fn only_local_links_are_looked_up() {
        let line = "See [a](docs/a.md#part), [b](https://b.example) and [c](#here).";

        assert_eq!(targets(line), ["docs/a.md"]);
    }
}
