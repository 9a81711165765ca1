//! The parts of `charts/` that come from other files.
//!
//! Owns: the table of values in the chart's README, from the comments of `values.yaml`; the templates of
//! `streamforge-crds`, from `crds/generated`; and the check that alerts and dashboard name only
//! metrics that docs/metrics.md has. Writes only those files.
//! Start at: [`generate`].

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::generate::{Mode, put};

/// Between these lines of the README stands what is generated.
const BEGIN: &str = "<!-- values: generated from values.yaml by `make generate` -->";
const END: &str = "<!-- end of values -->";

/// Writes or compares everything that is generated for the charts.
pub fn generate(root: &Path, mode: Mode) -> Result<()> {
    crds(root, mode)?;
    readme(root, mode)?;
    metrics_exist(root)
}

fn read(root: &Path, path: &str) -> Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"))
}

/// Each definition becomes a template of its own, which `helm uninstall` keeps.
fn crds(root: &Path, mode: Mode) -> Result<()> {
    let folder = root.join("crds/generated");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .context("list crds/generated")?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    for name in names.iter().filter(|n| n.ends_with(".yaml")) {
        let text = as_template(&read(root, &format!("crds/generated/{name}"))?)
            .with_context(|| format!("make a template of {name}"))?;
        put(
            root,
            &format!("charts/streamforge-crds/templates/{name}"),
            &text,
            mode,
        )?;
    }
    Ok(())
}

/// The definition with the annotation by which Helm leaves it, and with what Helm would take for its own
/// language quoted.
fn as_template(crd: &str) -> Result<String> {
    let quoted = crd.replace("{{", "{{ \"{{\" }}");
    let (before, after) = quoted
        .split_once("\nmetadata:\n")
        .context("it has no metadata")?;
    Ok(format!(
        "{before}\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n{after}"
    ))
}

/// The README between its two marks.
fn readme(root: &Path, mode: Mode) -> Result<()> {
    let path = "charts/streamforge/README.md";
    let old = read(root, path)?;
    let table = table(&read(root, "charts/streamforge/values.yaml")?)?;
    let (before, rest) = old
        .split_once(BEGIN)
        .with_context(|| format!("{path} has no line {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("{path} has no line {END}"))?;
    put(
        root,
        path,
        &format!("{before}{BEGIN}\n\n{table}\n{END}{after}"),
        mode,
    )
}

/// One row per value. A value has its comment right above it and its default on its line; a key
/// without a default is the name of a group.
fn table(values: &str) -> Result<String> {
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    let mut group: Vec<&str> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in values.lines() {
        let text = line.trim_start();
        if let Some(words) = text.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let Some((key, default)) = text.split_once(':') else {
            // An empty line: what stood above it was about the file.
            comment.clear();
            continue;
        };
        group.truncate((line.len() - text.len()) / 2);
        group.push(key);
        if !default.trim().is_empty() {
            if comment.is_empty() {
                bail!("values.yaml: {} has no comment", group.join("."));
            }
            let cells = [comment.join(" "), default.trim().to_owned()];
            let [meaning, default] = cells.map(|cell| cell.replace('|', "\\|"));
            table.push_str(&format!(
                "| `{}` | `{default}` | {meaning} |\n",
                group.join(".")
            ));
        }
        comment.clear();
    }
    Ok(table)
}

/// A metric that nobody shows would make an alert that never fires.
fn metrics_exist(root: &Path) -> Result<()> {
    let documented = metrics_of(&read(root, "docs/metrics.md")?);
    for file in ["alerts.yaml", "dashboard.json"] {
        let path = format!("charts/streamforge/files/{file}");
        for name in metrics_of(&read(root, &path)?) {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(&name);
            if !documented.contains(base) && !documented.contains(&name) {
                bail!("{path}: {name} is not in docs/metrics.md");
            }
        }
    }
    Ok(())
}

fn metrics_of(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_lowercase() && c != '_')
        .filter(|word| word.starts_with("streamforge_"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_rows_named_by_their_path() {
        let values = "# About the file.\n\n# How many.\nreplicas: 2\nimage:\n  # a|b.\n  # More.\n  tag: \"\"\n";

        let rows = table(values).unwrap();

        assert_eq!(
            rows,
            "| value | default | meaning |\n|---|---|---|\n\
             | `replicas` | `2` | How many. |\n| `image.tag` | `\"\"` | a\\|b. More. |\n"
        );
    }

    #[test]
    fn value_without_comment_is_named() {
        let error = table("image:\n  tag: a\n").unwrap_err();

        assert_eq!(error.to_string(), "values.yaml: image.tag has no comment");
    }

    #[test]
    fn definition_is_kept_and_its_braces_are_text() {
        let template = as_template("kind: A\nmetadata:\n  name: b\nspec: \"{{x}}\"\n").unwrap();

        assert_eq!(
            template,
            "kind: A\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n  name: b\n\
             spec: \"{{ \"{{\" }}x}}\"\n"
        );
    }

    #[test]
    fn metrics_are_found_in_expressions() {
        let found = metrics_of("rate(streamforge_job_rows_in_total{job=\"streamforge\"}[5m])");

        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["streamforge_job_rows_in_total"]
        );
    }
}
