//! Reading a JSON object whose keys mostly come in the order of the object before.
//!
//! Owns: which key goes to which column, the predicted order of keys, and the search for keys that
//! occur twice. Start at: [`ObjectPlan::read`].
//!
//! The prediction: a *template* holds, for each key seen, the bytes from the key's quote to its value,
//! spaces included. One comparison then replaces parsing, unescaping and looking up the key. Keys of a
//! template differ, so an object that follows it, leaving out some, has no key twice. An object that
//! does not is scanned once for its keys, which checks them, and the template learns them.

use std::collections::{BTreeMap, BTreeSet};

use super::scan::{Stop, Text, byte, skip_value, spaces, string};
use super::unescape::unescape;
use super::value::read_value;
use crate::formats::builder::ColumnBuilder;
use crate::formats::decoded::Column;
use crate::formats::fault::{Fault, RowFault};

/// A template learns from objects of at most this many keys more than it has; it then begins anew.
const TEMPLATE_EXTRA_MAX: usize = 64;

/// Where the value of a key goes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// Nowhere.
    Skip,
    /// To one column.
    Column(usize),
    /// To several columns, or to columns further inside.
    Inner(usize),
}

/// A value that is looked into.
#[derive(Debug, Default)]
struct Inner {
    /// Columns that take the value whole.
    columns: Vec<usize>,
    /// Keys or indices within it.
    parts: Option<Box<ObjectPlan>>,
}

/// One predicted key.
#[derive(Debug)]
struct Entry {
    /// The first 16 bytes, and which of them count.
    head: u128,
    mask: u128,
    /// All bytes from the quote to the value.
    raw: Vec<u8>,
    /// The key's value.
    key: Vec<u8>,
    target: Target,
}

impl Entry {
    #[inline(always)]
    fn matches(&self, buf: &[u8], pos: usize) -> bool {
        let block: Option<&[u8; 16]> = buf
            .get(pos..pos.wrapping_add(16))
            .and_then(|block| block.try_into().ok());
        let Some(block) = block else { return false };
        if (u128::from_le_bytes(*block) ^ self.head) & self.mask != 0 {
            return false;
        }
        self.raw.len() <= 16 || buf.get(pos..pos.wrapping_add(self.raw.len())) == Some(&self.raw)
    }
}

/// How the objects of one place are read.
#[derive(Debug, Default)]
pub struct ObjectPlan {
    targets: BTreeMap<Vec<u8>, Target>,
    inner: Vec<Inner>,
    template: Vec<Entry>,
    /// Fields met that no column names.
    pub unknown_fields: u64,
}

impl ObjectPlan {
    /// The plan of an object with these columns.
    pub fn of_columns(columns: &[Column]) -> Self {
        let mut plan = ObjectPlan::default();
        for (idx, column) in columns.iter().enumerate() {
            let name = [column.name.clone()];
            let path = if column.path.is_empty() {
                &name[..]
            } else {
                &column.path
            };
            plan.add(path, idx);
        }
        plan
    }

    fn add(&mut self, path: &[String], column: usize) {
        let Some((token, rest)) = path.split_first() else {
            return;
        };
        let inner_n = self.inner.len();
        let target = self
            .targets
            .entry(token.clone().into_bytes())
            .or_insert(Target::Skip);
        if *target == Target::Skip && rest.is_empty() {
            *target = Target::Column(column);
            return;
        }
        let inner = match *target {
            Target::Inner(inner) => inner,
            Target::Column(earlier) => {
                self.inner.push(Inner {
                    columns: vec![earlier],
                    parts: None,
                });
                inner_n
            }
            Target::Skip => {
                self.inner.push(Inner::default());
                inner_n
            }
        };
        *target = Target::Inner(inner);
        let Some(inner) = self.inner.get_mut(inner) else {
            return;
        };
        if rest.is_empty() {
            inner.columns.push(column);
        } else {
            inner.parts.get_or_insert_default().add(rest, column);
        }
    }

    /// Reads the object whose brace is at `pos` into `columns` and answers the position behind it.
    /// Columns whose key is missing are left as they are: see [`fill_missing`].
    #[inline]
    pub fn read(
        &mut self,
        columns: &mut [ColumnBuilder],
        buf: &[u8],
        start: usize,
    ) -> Result<usize, RowFault> {
        let mut pos = start.wrapping_add(1);
        let mut next = 0;
        let mut fields_n = 0usize;
        loop {
            if byte(buf, pos) <= b' ' {
                pos = spaces(buf, pos);
            }
            let matched = loop {
                match self.template.get(next) {
                    Some(entry) if entry.matches(buf, pos) => break true,
                    Some(_) => next = next.wrapping_add(1),
                    None => break false,
                }
            };
            if !matched {
                if fields_n == 0 && byte(buf, pos) == b'}' {
                    return Ok(pos.wrapping_add(1));
                }
                next = self
                    .learn(buf, start, fields_n)
                    .map_err(|(f, at)| RowFault::at(f, at))?;
            }
            let Some(entry) = self.template.get(next) else {
                return Err(RowFault::at(Fault::Syntax, pos));
            };
            // After learning, the entry was made from these very bytes.
            pos = pos.wrapping_add(entry.raw.len());
            // This object may have spaces here where the learned one had none.
            if byte(buf, pos) <= b' ' {
                pos = spaces(buf, pos);
            }
            next = next.wrapping_add(1);
            fields_n = fields_n.wrapping_add(1);
            pos = match entry.target {
                Target::Column(idx) => read_column(columns, idx, buf, pos)?,
                Target::Skip => {
                    self.unknown_fields = self.unknown_fields.wrapping_add(1);
                    skip_value(buf, pos).map_err(|(f, at)| RowFault::at(f, at))?
                }
                Target::Inner(idx) => self.read_inner(idx, columns, buf, pos)?,
            };
            match byte(buf, pos) {
                b',' => pos = pos.wrapping_add(1),
                b'}' => return Ok(pos.wrapping_add(1)),
                _ => {
                    pos = spaces(buf, pos);
                    match byte(buf, pos) {
                        b',' => pos = pos.wrapping_add(1),
                        b'}' => return Ok(pos.wrapping_add(1)),
                        _ => return Err(RowFault::at(Fault::Syntax, pos)),
                    }
                }
            }
        }
    }

    /// A value that several columns take, whole or in parts.
    fn read_inner(
        &mut self,
        idx: usize,
        columns: &mut [ColumnBuilder],
        buf: &[u8],
        pos: usize,
    ) -> Result<usize, RowFault> {
        let end = skip_value(buf, pos).map_err(|(fault, at)| RowFault::at(fault, at))?;
        let Some(inner) = self.inner.get_mut(idx) else {
            return Ok(end);
        };
        for column in &inner.columns {
            read_column(columns, *column, buf, pos)?;
        }
        if let Some(parts) = &mut inner.parts {
            match byte(buf, pos) {
                b'{' => {
                    parts.read(columns, buf, pos)?;
                }
                b'[' => parts.read_items(columns, buf, pos)?,
                // A pointer into a scalar points at nothing: the column is missing.
                _ => {}
            }
        }
        Ok(end)
    }

    /// An array that a JSON pointer goes into: its tokens are indices. It was passed over already.
    fn read_items(
        &mut self,
        columns: &mut [ColumnBuilder],
        buf: &[u8],
        start: usize,
    ) -> Result<(), RowFault> {
        let mut pos = spaces(buf, start + 1);
        let mut idx = 0u64;
        while byte(buf, pos) != b']' {
            let target = self.targets.get(idx.to_string().as_bytes()).cloned();
            let end = match target.unwrap_or(Target::Skip) {
                Target::Skip => skip_value(buf, pos).map_err(|(f, at)| RowFault::at(f, at))?,
                Target::Column(column) => read_column(columns, column, buf, pos)?,
                Target::Inner(inner) => self.read_inner(inner, columns, buf, pos)?,
            };
            pos = spaces(buf, end);
            if byte(buf, pos) == b',' {
                pos = spaces(buf, pos + 1);
            }
            idx += 1;
        }
        Ok(())
    }

    /// Scans the whole object for its keys and learns them. Answers the index of key number
    /// `fields_n` of this object within the new template.
    #[cold]
    fn learn(&mut self, buf: &[u8], start: usize, fields_n: usize) -> Result<usize, Stop> {
        let seen = self.scan_keys(buf, start)?;
        let wanted = seen.get(fields_n).map(|entry| entry.key.clone());
        self.template = merge(std::mem::take(&mut self.template), seen);
        let idx = self
            .template
            .iter()
            .position(|entry| Some(&entry.key) == wanted.as_ref());
        idx.ok_or((Fault::Syntax, start))
    }

    fn scan_keys(&self, buf: &[u8], start: usize) -> Result<Vec<Entry>, Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut keys = BTreeSet::new();
        let mut pos = spaces(buf, start + 1);
        loop {
            if byte(buf, pos) != b'"' {
                return Err((Fault::Syntax, pos));
            }
            let (end, text) = string(buf, pos + 1)?;
            let key = key_of(buf, pos + 1, end, text)?;
            let colon = spaces(buf, end + 1);
            if byte(buf, colon) != b':' {
                return Err((Fault::Syntax, colon));
            }
            let value = spaces(buf, colon + 1);
            if !keys.insert(key.clone()) {
                return Err((Fault::DuplicateKey, pos));
            }
            let target = self.targets.get(&key).cloned().unwrap_or(Target::Skip);
            entries.push(entry(buf.get(pos..value).unwrap_or_default(), key, target));
            pos = spaces(buf, skip_value(buf, value)?);
            match byte(buf, pos) {
                b',' => pos = spaces(buf, pos + 1),
                b'}' => return Ok(entries),
                _ => return Err((Fault::Syntax, pos)),
            }
        }
    }
}

#[inline(always)]
fn read_column(
    columns: &mut [ColumnBuilder],
    idx: usize,
    buf: &[u8],
    pos: usize,
) -> Result<usize, RowFault> {
    let Some(column) = columns.get_mut(idx) else {
        return Err(RowFault::at(Fault::Syntax, pos));
    };
    match read_value(column, buf, pos) {
        Ok(pos) => Ok(pos),
        Err(stop) => Err(in_column(stop, idx)),
    }
}

#[cold]
fn in_column((fault, at): Stop, idx: usize) -> RowFault {
    RowFault {
        fault,
        column: Some(idx),
        at,
    }
}

/// Gives NULL to the columns that have fewer than `len` values: their keys were missing.
#[inline]
pub fn fill_missing(columns: &mut [ColumnBuilder], len: usize, at: usize) -> Result<(), RowFault> {
    for (idx, column) in columns.iter_mut().enumerate() {
        if column.len < len {
            column
                .push_null()
                .map_err(|fault| in_column((fault, at), idx))?;
        }
    }
    Ok(())
}

fn key_of(buf: &[u8], start: usize, end: usize, text: Text) -> Result<Vec<u8>, Stop> {
    let mut key = Vec::with_capacity(end - start);
    match text {
        Text::Plain => key.extend_from_slice(buf.get(start..end).unwrap_or_default()),
        Text::Escaped => unescape(buf, start, end, |piece| key.extend_from_slice(piece))?,
    }
    Ok(key)
}

fn entry(raw: &[u8], key: Vec<u8>, target: Target) -> Entry {
    let mut head = [0u8; 16];
    let mut mask = [0u8; 16];
    for ((head, mask), byte) in head.iter_mut().zip(&mut mask).zip(raw) {
        *head = *byte;
        *mask = 0xFF;
    }
    let (head, mask) = (u128::from_le_bytes(head), u128::from_le_bytes(mask));
    Entry {
        head,
        mask,
        raw: raw.to_vec(),
        key,
        target,
    }
}

/// A template that both the old one's objects and the new object follow, if their orders agree and it
/// stays small; else the new object's keys alone.
fn merge(old: Vec<Entry>, new: Vec<Entry>) -> Vec<Entry> {
    let place: BTreeMap<&[u8], usize> = old
        .iter()
        .enumerate()
        .map(|(idx, entry)| (entry.key.as_slice(), idx))
        .collect();
    let mut from = 0;
    let mut shared = 0;
    for entry in &new {
        if let Some(idx) = place.get(entry.key.as_slice()) {
            // Out of order, or written in another way: the old template would miss it.
            if *idx < from || old.get(*idx).is_none_or(|old| old.raw != entry.raw) {
                return new;
            }
            from = idx + 1;
            shared += 1;
        }
    }
    if shared == 0 || old.len() - shared > TEMPLATE_EXTRA_MAX {
        return new;
    }
    let places: Vec<Option<usize>> = new
        .iter()
        .map(|entry| place.get(entry.key.as_slice()).copied())
        .collect();
    let mut merged = Vec::with_capacity(old.len() + new.len());
    let mut old = old.into_iter().enumerate().peekable();
    for (entry, idx) in new.into_iter().zip(places) {
        if let Some(idx) = idx {
            while let Some((_, earlier)) = old.next_if(|(at, _)| *at < idx) {
                merged.push(earlier);
            }
            old.next();
        }
        merged.push(entry);
    }
    merged.extend(old.map(|(_, entry)| entry));
    merged
}
