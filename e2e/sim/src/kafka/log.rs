//! What one partition will hold in the end, laid down before anybody writes it.
//!
//! Owns: which offset each record gets, and the offsets that no reader is ever given: ends of transactions,
//! records of aborted ones, records that were compacted away. *When* an entry is written is decided
//! elsewhere. Start at: [`Log::new`].

use crate::input::Record;
use crate::rng::Rng;

/// Transactions that are open in one partition at once.
const OPEN_MAX: usize = 2;

/// What lies at one offset.
#[derive(Clone, Debug)]
enum Entry {
    /// A record, and the offset at which its transaction ends.
    Row {
        value: Vec<u8>,
        ts: Option<i64>,
        ends_at: Option<usize>,
    },
    /// The same, of a transaction that is aborted.
    Aborted { ends_at: usize },
    /// A transaction ends.
    End,
    /// Nothing is left of what was here.
    Gone,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Log {
    /// The oldest offset: what was before is deleted.
    pub first: i64,
    /// Offset of each record, in order.
    pub offsets: Vec<u64>,
    entries: Vec<Entry>,
    /// Entries in front of the last word.
    before_last_n: usize,
}

/// A transaction that is being laid down.
struct Open {
    rows: Vec<usize>,
    commits: bool,
}

/// As a Kafka topic holds it.
fn value(record: &Record) -> Vec<u8> {
    if record.broken {
        return b"not a row".to_vec();
    }
    let k = record.k.as_ref().map(|k| format!("\"{k}\""));
    let ts = record.ts.map(|ts| ts.to_string());
    let null = || "null".to_owned();
    let (k, ts) = (k.unwrap_or_else(null), ts.unwrap_or_else(null));
    format!("{{\"k\":{k},\"v\":{},\"ts\":{ts}}}", record.v).into_bytes()
}

impl Log {
    /// These records, with what lies between them. With `has_last_word` the last of them is written only
    /// when somebody says so.
    pub fn new(records: &[Record], has_last_word: bool, rng: &mut Rng) -> Self {
        let (last, records) = match records.split_last() {
            Some((last, records)) if has_last_word => (Some(last), records),
            _ => (None, records),
        };
        let first = i64::try_from(rng.below(3) * rng.below(20)).unwrap_or(0);
        let mut log = Self {
            first,
            offsets: Vec::new(),
            entries: Vec::new(),
            before_last_n: 0,
        };
        let mut open = Vec::new();
        for record in records {
            if open.len() < OPEN_MAX && rng.one_in(7) {
                open.push(Open {
                    rows: Vec::new(),
                    commits: !rng.one_in(3),
                });
            }
            log.lay(record, &mut open, rng);
            let ends = |_: &Open| rng.one_in(4);
            let (ended, left) = open.into_iter().partition(ends);
            open = left;
            log.end(ended);
            if rng.one_in(25) {
                log.entries.push(Entry::Gone);
            }
        }
        log.end(open);
        log.before_last_n = log.entries.len();
        if let Some(last) = last {
            log.lay(last, &mut Vec::new(), rng);
        }
        log
    }

    /// A record, of a transaction that commits or of none; records of those that do not lie around it.
    fn lay(&mut self, record: &Record, open: &mut [Open], rng: &mut Rng) {
        for aborting in open.iter_mut().filter(|it| !it.commits) {
            if rng.one_in(2) {
                aborting.rows.push(self.entries.len());
                self.entries.push(Entry::Aborted { ends_at: 0 });
            }
        }
        let mut committing = open.iter_mut().filter(|it| it.commits);
        if let Some(committing) = committing.next().filter(|_| rng.one_in(2)) {
            committing.rows.push(self.entries.len());
        }
        let offset = self.first + signed(self.entries.len());
        self.offsets.push(u64::try_from(offset).unwrap_or(0));
        self.entries.push(Entry::Row {
            value: value(record),
            ts: record.ts.filter(|_| !record.broken),
            ends_at: None,
        });
    }

    fn end(&mut self, ended: Vec<Open>) {
        for transaction in ended.into_iter().filter(|it| !it.rows.is_empty()) {
            let end = self.entries.len();
            self.entries.push(Entry::End);
            for row in transaction.rows {
                match self.entries.get_mut(row) {
                    Some(Entry::Row { ends_at, .. }) => *ends_at = Some(end),
                    Some(Entry::Aborted { ends_at }) => *ends_at = end,
                    _ => {}
                }
            }
        }
    }

    /// Entries in all, or without the last word.
    pub fn len(&self, with_last_word: bool) -> usize {
        if with_last_word {
            self.entries.len()
        } else {
            self.before_last_n
        }
    }

    /// The end of what is written: the high watermark.
    pub fn end_of(&self, written_n: usize) -> i64 {
        self.first + signed(written_n)
    }

    /// The last stable offset: in front of the first transaction that has no end yet.
    pub fn stable(&self, written_n: usize) -> i64 {
        let written = self.entries.iter().take(written_n);
        let is_open = |entry: &Entry| match entry {
            Entry::Row { ends_at, .. } => ends_at.is_some_and(|end| end >= written_n),
            Entry::Aborted { ends_at } => *ends_at >= written_n,
            Entry::End | Entry::Gone => false,
        };
        let open = written.map(is_open).position(|is_open| is_open);
        self.end_of(open.unwrap_or(written_n))
    }

    /// What a reader is given at this offset: a value, or nothing.
    pub fn value(&self, offset: i64) -> Option<&[u8]> {
        match self.entry(offset)? {
            Entry::Row { value, .. } => Some(value),
            _ => None,
        }
    }

    /// Event time of the record at this offset.
    pub fn ts(&self, offset: i64) -> Option<i64> {
        match self.entry(offset)? {
            Entry::Row { ts, .. } => *ts,
            _ => None,
        }
    }

    /// Whether a record lies there that no reader is given.
    pub fn is_aborted(&self, offset: i64) -> bool {
        matches!(self.entry(offset), Some(Entry::Aborted { .. }))
    }

    fn entry(&self, offset: i64) -> Option<&Entry> {
        let idx = usize::try_from(offset - self.first).ok()?;
        self.entries.get(idx)
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
