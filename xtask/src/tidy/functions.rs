//! Lengths of functions, as a ratchet, and names of tests.
//!
//! Owns: counting the lines of each function with a syntax tree, and comparing with
//! `xtask/long-functions.txt`. A function may have 70 lines of code; those in the list may be as
//! long as listed, never longer, and leave the list when they are short.
//! Start at: [`check`].

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::visit::{self, Visit};

use super::rust::is_test_file;
use crate::repo::{File, Finding};

/// Lines of code in a function: one screen.
const LINES_MAX: usize = 70;
/// `path::function lines`, one a line.
const LIST: &str = "xtask/long-functions.txt";

/// Runs both rules over every Rust file.
pub fn check(root: &Path, files: &[File], findings: &mut Vec<Finding>) -> Result<()> {
    let text = std::fs::read_to_string(root.join(LIST)).unwrap_or_default();
    let mut listed = parse_list(&text)?;
    for file in files.iter().filter(|f| f.path.ends_with(".rs")) {
        let Ok(tree) = syn::parse_file(&file.text) else {
            findings.push(Finding::on(&file.path, "does not parse"));
            continue;
        };
        let mut functions = Functions {
            lines: file.text.lines().collect(),
            found: Vec::new(),
        };
        functions.visit_file(&tree);
        for function in functions.found {
            ratchet(file, &function, &mut listed, findings);
            test_name(file, &function, findings);
        }
    }
    for name in listed.keys() {
        findings.push(Finding::on(
            LIST,
            format!("{name} is short or gone: remove its line"),
        ));
    }
    Ok(())
}

fn parse_list(text: &str) -> Result<BTreeMap<String, usize>> {
    text.lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .map(|l| {
            let (name, n) = l
                .rsplit_once(' ')
                .with_context(|| format!("{LIST}: `{l}`"))?;
            Ok((
                name.to_owned(),
                n.parse().with_context(|| format!("{LIST}: `{l}`"))?,
            ))
        })
        .collect()
}

fn ratchet(
    file: &File,
    function: &Function,
    listed: &mut BTreeMap<String, usize>,
    findings: &mut Vec<Finding>,
) {
    let Function {
        name,
        line_n,
        code_lines,
        ..
    } = function;
    // A test may be one long table.
    if *code_lines <= LINES_MAX || is_test_file(&file.path) {
        return;
    }
    let what = match listed.remove(&format!("{}::{name}", file.path)) {
        None => format!(
            "`{name}` has {code_lines} lines, at most {LINES_MAX}: leave the branches, move the leaves out"
        ),
        Some(max) if *code_lines > max => format!("`{name}` grew from {max} to {code_lines} lines"),
        Some(max) if *code_lines < max => {
            format!("`{name}` shrank from {max} to {code_lines} lines: lower it in {LIST}")
        }
        Some(_) => return,
    };
    findings.push(Finding::at(&file.path, *line_n, what));
}

fn test_name(file: &File, function: &Function, findings: &mut Vec<Finding>) {
    if function.is_test && (function.name.starts_with("test_") || function.name.contains("should"))
    {
        let what = format!(
            "`{}`: a test is named by the claim that fails",
            function.name
        );
        findings.push(Finding::at(&file.path, function.line_n, what));
    }
}

struct Function {
    name: String,
    line_n: usize,
    code_lines: usize,
    is_test: bool,
}

struct Functions<'a> {
    lines: Vec<&'a str>,
    found: Vec<Function>,
}

impl Functions<'_> {
    fn add(&mut self, sig: &syn::Signature, attrs: &[syn::Attribute], block: &syn::Block) {
        let (first, last) = (
            line_of(block.brace_token.span.open()),
            line_of(block.brace_token.span.close()),
        );
        let inner = self
            .lines
            .get(first..last.saturating_sub(1))
            .unwrap_or_default();
        self.found.push(Function {
            name: sig.ident.to_string(),
            line_n: line_of(sig.ident.span()),
            code_lines: inner.iter().filter(|l| is_code(l)).count(),
            is_test: attrs
                .iter()
                .any(|a| a.path().segments.last().is_some_and(|s| s.ident == "test")),
        });
    }
}

fn line_of(span: Span) -> usize {
    span.start().line
}

fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("//")
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        self.add(&f.sig, &f.attrs, &f.block);
        visit::visit_item_fn(self, f);
    }

    fn visit_impl_item_fn(&mut self, f: &'ast syn::ImplItemFn) {
        self.add(&f.sig, &f.attrs, &f.block);
        visit::visit_impl_item_fn(self, f);
    }

    fn visit_trait_item_fn(&mut self, f: &'ast syn::TraitItemFn) {
        if let Some(block) = &f.default {
            self.add(&f.sig, &f.attrs, block);
        }
        visit::visit_trait_item_fn(self, f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(list: &str, code_lines: usize) -> Vec<String> {
        let body = "    x();\n".repeat(code_lines);
        let file = File {
            path: "a.rs".to_owned(),
            text: format!("fn long() {{\n{body}}}\n"),
        };
        let tree = syn::parse_file(&file.text).unwrap();
        let mut functions = Functions {
            lines: file.text.lines().collect(),
            found: Vec::new(),
        };
        functions.visit_file(&tree);
        let mut listed = parse_list(list).unwrap();
        let mut findings = Vec::new();
        ratchet(&file, &functions.found[0], &mut listed, &mut findings);
        findings.into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn function_of_one_screen_passes_and_one_line_more_does_not() {
        assert_eq!(found("", LINES_MAX), Vec::<String>::new());
        assert_eq!(found("", LINES_MAX + 1).len(), 1);
    }

    #[test]
    fn listed_function_may_not_grow_and_must_follow_when_it_shrinks() {
        assert_eq!(found("a.rs::long 80", 80), Vec::<String>::new());
        assert_eq!(
            found("a.rs::long 80", 81),
            ["`long` grew from 80 to 81 lines"]
        );
        assert!(found("a.rs::long 80", 79)[0].starts_with("`long` shrank"));
    }
}
