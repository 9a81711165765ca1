//! What a file sink published, read back.
//!
//! Owns: finding the files of one job below a sink's folder and turning their rows into values. Reads
//! NDJSON and CSV with parsers of its own and Parquet with the parquet crate, so that no code of the
//! connectors judges its own work. Start at: [`read`].

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use streamforge_core::job_graph::{ChangelogMode, Column, Format, SinkSpec};

use super::cell::{Cell, cells};

pub mod bucket;
mod csv;
pub mod json;
pub mod topic;
mod value;

/// Folder of staged, unpublished files. It is of no column.
const STAGING: &str = "_streamforge";

/// What a NULL partition value is called.
const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// Name of the column with the changelog operation.
const OP: &str = "_op";

/// A file sink's folder and how to read it.
#[derive(Debug)]
pub struct Published<'a> {
    /// The folder.
    pub root: PathBuf,
    /// Start of the names of this job's files: `part-<uid8>-`.
    pub prefix: String,
    /// Columns of the rows.
    pub columns: &'a [Column],
    /// Those that are folders instead, as the document says now. An earlier one may have said otherwise: each file
    /// is read by the folders that it lies in.
    pub partition_by: Vec<String>,
    /// How bytes are rows.
    pub format: &'a Format,
    /// Whether rows have `_op`.
    pub changelog: ChangelogMode,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// All files.
    pub files_n: usize,
    /// Those in folders of another `partitionBy`.
    pub laid_otherwise_n: usize,
}

/// The columns that are folders, as the document says now.
pub fn partition_by(spec: &SinkSpec) -> Vec<String> {
    let list = spec.connector.config.get("partitionBy");
    let list = list.and_then(|list| list.as_array());
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    list.into_iter().flatten().filter_map(text).collect()
}

/// A file, and the column and the text of each folder that it lies in.
type Found = (PathBuf, Vec<(usize, String)>);

impl<'a> Published<'a> {
    /// Of a sink of the kind `file`.
    pub fn new(spec: &'a SinkSpec, prefix: String) -> Result<Self> {
        let config = &spec.connector.config;
        // What a topic holds is fetched to a folder that is named later.
        let path = config
            .get("path")
            .and_then(|path| path.as_str())
            .unwrap_or_default();
        Ok(Self {
            root: path.strip_prefix("file://").unwrap_or(path).into(),
            prefix,
            columns: &spec.input,
            partition_by: partition_by(spec),
            format: spec.format.as_ref().context("a sink without format")?,
            changelog: spec.changelog,
        })
    }

    /// Hands every row with its sign to `row`.
    pub fn read(&self, row: &mut dyn FnMut(&mut [Cell], i64)) -> Result<Files> {
        let mut files = Vec::new();
        if self.root.exists() {
            self.find(&self.root, &mut Vec::new(), &mut files)?;
        }
        files.sort();
        let mut found = Files::default();
        for (path, folders) in &files {
            self.read_file(path, folders, row)
                .with_context(|| format!("read {}", path.display()))?;
            let name = |(idx, _): &(usize, String)| self.columns.get(*idx).map(|it| &it.name);
            let is_laid_so = folders
                .iter()
                .map(name)
                .eq(self.partition_by.iter().map(Some));
            found.files_n += 1;
            found.laid_otherwise_n += usize::from(!is_laid_so);
        }
        Ok(found)
    }

    fn find(
        &self,
        folder: &Path,
        folders: &mut Vec<(usize, String)>,
        files: &mut Vec<Found>,
    ) -> Result<()> {
        let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", folder.display()))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !entry.path().is_dir() {
                if name.starts_with(&self.prefix) {
                    files.push((entry.path(), folders.clone()));
                }
            } else if let Some((idx, text)) = self.partition_of(&name)
                && folders.iter().all(|(other, _)| *other != idx)
            {
                folders.push((idx, text.to_owned()));
                self.find(&entry.path(), folders, files)?;
                folders.pop();
            }
        }
        Ok(())
    }

    /// The column and the text of a partition's folder; `None`: it is another folder.
    fn partition_of<'f>(&self, folder: &'f str) -> Option<(usize, &'f str)> {
        let (column, text) = folder.split_once('=')?;
        let column = percent_decoded(column).ok()?;
        let idx = self.columns.iter().position(|it| it.name == column)?;
        Some((idx, text))
    }

    /// Values of the partition columns, by the folders a file lies in.
    fn partition_cells(&self, folders: &[(usize, String)]) -> Result<Vec<(usize, Cell)>> {
        let cell = |(idx, text): &(usize, String)| -> Result<(usize, Cell)> {
            let data_type = &self.columns.get(*idx).context("found above")?.data_type;
            Ok(match text.as_str() {
                NULL_PARTITION => (*idx, Cell::Null),
                text => (*idx, value::from_text(&percent_decoded(text)?, data_type)?),
            })
        };
        folders.iter().map(cell).collect()
    }

    fn read_file(
        &self,
        path: &Path,
        folders: &[(usize, String)],
        row: &mut dyn FnMut(&mut [Cell], i64),
    ) -> Result<()> {
        let partition = self.partition_cells(folders)?;
        let stored: Vec<(usize, &Column)> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(idx, _)| !partition.iter().any(|(other, _)| other == idx))
            .collect();
        let mut whole = vec![Cell::Null; self.columns.len()];
        for (idx, cell) in partition {
            if let Some(slot) = whole.get_mut(idx) {
                *slot = cell;
            }
        }
        let mut emit = |op: Option<Cell>, cells: &mut dyn Iterator<Item = Cell>| -> Result<()> {
            for ((idx, _), cell) in stored.iter().zip(cells) {
                if let Some(slot) = whole.get_mut(*idx) {
                    *slot = cell;
                }
            }
            row(&mut whole, self.sign(op)?);
            Ok(())
        };
        let extra = usize::from(self.changelog == ChangelogMode::Retract);
        match &self.format_of(path) {
            Format::Json => read_ndjson(path, &stored, extra, &mut emit),
            Format::Csv {
                header,
                delimiter,
                null,
            } => {
                let dialect = csv::Dialect {
                    delimiter: *delimiter,
                    null: null.as_deref(),
                };
                let rows = csv::parse(&read_text(path)?, &dialect)?;
                read_csv(rows, *header, &stored, extra, &mut emit)
            }
            Format::Parquet => read_parquet(path, &stored, extra, &mut emit),
            Format::Raw => bail!("a raw sink cannot be read back"),
        }
    }

    /// How this file was written: a document may name another format than when that was.
    fn format_of(&self, path: &Path) -> Format {
        let ending = path.extension().and_then(|ending| ending.to_str());
        match (ending, self.format) {
            (Some("ndjson"), _) => Format::Json,
            (Some("parquet"), _) => Format::Parquet,
            (Some("csv"), Format::Json | Format::Parquet) => Format::Csv {
                header: true,
                delimiter: ',',
                null: None,
            },
            (_, format) => format.clone(),
        }
    }

    fn sign(&self, op: Option<Cell>) -> Result<i64> {
        match (self.changelog, op) {
            (ChangelogMode::AppendOnly, None) => Ok(1),
            (ChangelogMode::Retract, Some(Cell::Text(op))) => match op.as_ref() {
                "+I" | "+U" => Ok(1),
                "-U" | "-D" => Ok(-1),
                other => bail!("`{other}` is not a changelog operation"),
            },
            (_, op) => bail!("{op:?} is not a changelog operation"),
        }
    }
}

/// Takes `_op`, if the file has it, and the stored columns of one row.
type Emit<'a> = dyn FnMut(Option<Cell>, &mut dyn Iterator<Item = Cell>) -> Result<()> + 'a;

fn read_text(path: &Path) -> Result<String> {
    Ok(String::from_utf8(fs::read(path)?)?)
}

fn read_ndjson(
    path: &Path,
    stored: &[(usize, &Column)],
    extra: usize,
    emit: &mut Emit<'_>,
) -> Result<()> {
    let text = read_text(path)?;
    ensure!(
        text.is_empty() || text.ends_with('\n'),
        "the last line is cut"
    );
    for (number, line) in text.lines().enumerate() {
        let row = || -> Result<(Option<Cell>, Vec<Cell>)> {
            let json::Json::Object(fields) = json::parse(line)? else {
                bail!("not an object")
            };
            ensure!(
                fields.len() == stored.len() + extra,
                "{} fields",
                fields.len()
            );
            let mut fields = fields.iter();
            let mut op = None;
            if extra == 1 {
                let (name, value) = fields.next().context("counted above")?;
                ensure!(name == OP, "the first field is {name}");
                op = Some(value::from_json(
                    value,
                    &streamforge_core::data_type::DataType::Text,
                )?);
            }
            let cell =
                |((name, value), (_, column)): (&(String, json::Json), &(usize, &Column))| {
                    ensure!(
                        *name == column.name,
                        "field {name} where {} belongs",
                        column.name
                    );
                    value::from_json(value, &column.data_type)
                };
            Ok((op, fields.zip(stored).map(cell).collect::<Result<_>>()?))
        };
        let (op, cells) = row().with_context(|| format!("line {}", number + 1))?;
        emit(op, &mut cells.into_iter())?;
    }
    Ok(())
}

fn read_csv(
    rows: Vec<Vec<Option<String>>>,
    header: bool,
    stored: &[(usize, &Column)],
    extra: usize,
    emit: &mut Emit<'_>,
) -> Result<()> {
    let mut rows = rows.into_iter();
    if header {
        let names = rows.next().context("no header line")?;
        let op = (extra == 1).then_some(OP);
        let wanted = op
            .into_iter()
            .chain(stored.iter().map(|(_, column)| column.name.as_str()));
        let same = wanted.map(Some).eq(names.iter().map(Option::as_deref));
        ensure!(same, "the header is {names:?}");
    }
    for fields in rows {
        ensure!(
            fields.len() == stored.len() + extra,
            "a row with {} fields",
            fields.len()
        );
        let mut fields = fields.into_iter();
        let op = if extra == 1 {
            fields.next().flatten().map(|op| Cell::Text(op.into()))
        } else {
            None
        };
        let cell = |(field, (_, column)): (Option<String>, &(usize, &Column))| match field {
            None => Ok(Cell::Null),
            Some(text) => value::from_text(&text, &column.data_type),
        };
        let cells: Vec<Cell> = fields.zip(stored).map(cell).collect::<Result<_>>()?;
        emit(op, &mut cells.into_iter())?;
    }
    Ok(())
}

fn read_parquet(
    path: &Path,
    stored: &[(usize, &Column)],
    extra: usize,
    emit: &mut Emit<'_>,
) -> Result<()> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path)?)?.build()?;
    for batch in reader {
        let batch = batch?;
        let schema = batch.schema();
        let names: Vec<&str> = schema
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        let op = (extra == 1).then_some(OP);
        let wanted = op
            .into_iter()
            .chain(stored.iter().map(|(_, column)| column.name.as_str()));
        ensure!(
            wanted.eq(names.iter().copied()),
            "the columns are {names:?}"
        );
        let columns: Vec<Vec<Cell>> = batch.columns().iter().map(cells).collect::<Result<_>>()?;
        let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
        for _ in 0..batch.num_rows() {
            let mut row = columns.iter_mut().filter_map(Iterator::next);
            let op = if extra == 1 { row.next() } else { None };
            emit(op, &mut row)?;
        }
    }
    Ok(())
}

fn percent_decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        let digits = escape.get(..2).context("a cut % escape")?;
        bytes.push(u8::from_str_radix(digits, 16)?);
        rest = escape.get(2..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
#[path = "published/tests.rs"]
mod tests;
