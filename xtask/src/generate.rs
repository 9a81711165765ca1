//! Files that are generated from code, and the check that they are up to date.
//!
//! Owns: which file comes from which function. Writes only those files.
//! Start at: [`crds`], [`docs`].

use std::path::Path;

use anyhow::{Context, Result, bail};

/// What to do with the generated text.
#[derive(Clone, Copy)]
pub enum Mode {
    /// Write the files.
    Write,
    /// Compare with the files; fail when one differs.
    Compare,
}

/// The CRDs, as `kubectl apply --server-side -f` takes them.
pub fn crds(root: &Path, mode: Mode) -> Result<()> {
    for file in streamforge_crds::definition_files() {
        let path = format!("crds/generated/{}", file.name);
        put(root, &path, &file.text, mode)?;
    }
    Ok(())
}

/// The reference pages that come from code.
pub fn docs(root: &Path, mode: Mode) -> Result<()> {
    put(
        root,
        "docs/functions.md",
        &streamforge_plan::function_reference(),
        mode,
    )
}

/// Writes the file, or fails when it differs.
pub fn put(root: &Path, path: &str, text: &str, mode: Mode) -> Result<()> {
    let full = root.join(path);
    match mode {
        Mode::Write => {
            let folder = full.parent().context("a generated file has a folder")?;
            std::fs::create_dir_all(folder)?;
            std::fs::write(&full, text).with_context(|| format!("write {path}"))?;
            eprintln!("wrote {path}");
        }
        Mode::Compare => {
            if std::fs::read_to_string(&full).unwrap_or_default() != text {
                bail!("{path} differs from its source: run `make generate` and commit it");
            }
            eprintln!("{path}: up to date");
        }
    }
    Ok(())
}
