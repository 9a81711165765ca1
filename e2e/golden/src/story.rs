//! A story: the text of a `.job` file.
//!
//! Owns: its sections and the document made of them. The form is described in `README.md`.

use anyhow::{Context as _, Result, bail, ensure};

/// One line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Which source.
    pub source: String,
    /// What is read.
    pub record: String,
}

/// An output and its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Name, as in `from`.
    pub name: String,
    /// Rows as text.
    pub rows: Vec<String>,
    /// True if the rows are the steps of a changelog.
    pub steps: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Name and columns of each source, and its `maxOutOfOrderness`.
    sources: Vec<(String, String, String)>,
    transforms: String,
    /// Input, in order.
    pub lines: Vec<Line>,
    /// What must come out.
    pub outputs: Vec<Output>,
}

enum Section {
    None,
    Sources,
    Transforms,
    In,
    Out,
}

impl Story {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self> {
        let mut story = Self::default();
        let mut section = Section::None;
        for (number, raw) in text.lines().enumerate() {
            let line = without_comment(raw);
            if line.trim().is_empty() {
                continue;
            }
            let read = if line.starts_with(' ') {
                story.add(&section, line)
            } else {
                story.begin(line.trim_end()).map(|next| section = next)
            };
            read.with_context(|| format!("line {}: {raw}", number + 1))?;
        }
        ensure!(
            !story.lines.is_empty() && !story.outputs.is_empty(),
            "no input or no output"
        );
        Ok(story)
    }

    fn begin(&mut self, heading: &str) -> Result<Section> {
        Ok(match heading {
            "sources:" => Section::Sources,
            "transforms:" => Section::Transforms,
            "in:" => Section::In,
            _ => {
                let name = heading
                    .strip_suffix(':')
                    .context("a heading ends with `:`")?;
                let (kind, name) = name.split_once(' ').context("write `out NAME:`")?;
                ensure!(matches!(kind, "out" | "steps"), "unknown section {kind}");
                let (name, steps) = (name.to_owned(), kind == "steps");
                self.outputs.push(Output {
                    name,
                    rows: Vec::new(),
                    steps,
                });
                Section::Out
            }
        })
    }

    fn add(&mut self, section: &Section, line: &str) -> Result<()> {
        match section {
            Section::None => bail!("text before the first section"),
            Section::Sources => {
                let (name, rest) = line.split_once(':').context("write `name: columns`")?;
                let (columns, disorder) = rest.split_once("| disorder").unwrap_or((rest, "0s"));
                let text = |text: &str| text.trim().to_owned();
                self.sources
                    .push((text(name), text(columns), text(disorder)));
            }
            Section::Transforms => {
                self.transforms.push_str("  ");
                self.transforms.push_str(line);
                self.transforms.push('\n');
            }
            Section::In => {
                let (source, record) = line.split_once(':').context("write `source: record`")?;
                let source = source.trim().to_owned();
                self.lines.push(Line {
                    source,
                    record: record.trim().to_owned(),
                });
            }
            Section::Out => {
                let output = self.outputs.last_mut().context("a section was begun")?;
                output.rows.push(line.trim().to_owned());
            }
        }
        Ok(())
    }

    /// The document: one sink per output, named `out_<number>`.
    pub fn document(&self) -> Result<String> {
        let mut text =
            "apiVersion: streamforge.io/v1alpha1\nkind: StreamJob\nmetadata: {name: story}\n\
                        spec:\n  maxParallelism: 16\n  sources:\n"
                .to_owned();
        for (name, columns, disorder) in &self.sources {
            text += &format!("  - name: {name}\n    file: {{path: /story/{name}.ndjson}}\n");
            text += "    format: {json: {}}\n    schema:\n";
            for column in columns.split(", ").filter(|column| !column.is_empty()) {
                let (column, data_type) = column.split_once(' ').context("write `name TYPE`")?;
                text += &format!("    - {{name: {column}, type: \"{data_type}\"}}\n");
            }
            text += "    - {name: ts, type: TIMESTAMP}\n";
            text += &format!("    eventTime: {{column: ts, maxOutOfOrderness: {disorder}}}\n");
        }
        if !self.transforms.is_empty() {
            text += &format!("  transforms:\n{}", self.transforms);
        }
        text += "  sinks:\n";
        for (number, output) in self.outputs.iter().enumerate() {
            text += &format!(
                "  - {{name: out_{number}, from: {}, blackhole: {{}}}}\n",
                output.name
            );
        }
        Ok(text)
    }
}

/// A `#` begins a comment at the start of a line or after two spaces.
fn without_comment(line: &str) -> &str {
    if line.starts_with('#') {
        return "";
    }
    line.find("  #")
        .map_or(line, |at| line.get(..at).unwrap_or(line))
}
