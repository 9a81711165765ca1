//! Cutting a stream of bytes into chunks of whole rows.
//!
//! Owns: where rows end, rows that are too long, and the offsets of it all. Start at:
//! [`Chunker::next_piece`].
//!
//! Memory is bounded (B1): one chunk, and a row up to [`ROW_BYTES_MAX`]. A longer row is passed over
//! while it is read; only its first bytes are kept.

use std::io::{ErrorKind, Read};

use memchr::{memchr, memrchr};

use super::fingerprint::{Fingerprint, Prefix};
use crate::formats::csv::{record_end, whole_records};
use crate::formats::decoded::{BadRow, CHUNK_PADDING, Chunk, RAW_BYTES_MAX, ROW_BYTES_MAX};
use crate::formats::fault::Fault;

/// Bytes aimed at per chunk: it stays in the second-level cache while it is decoded.
pub const CHUNK_BYTES: usize = 1 << 20;

/// What ends a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A newline.
    Lines,
    /// A newline outside of quotes.
    Csv {
        /// Between fields.
        delimiter: u8,
    },
}

impl Framing {
    /// Length of the longest prefix that is whole rows.
    fn whole(self, buf: &[u8]) -> usize {
        match self {
            Framing::Lines => memrchr(b'\n', buf).map_or(0, |at| at + 1),
            Framing::Csv { delimiter } => whole_records(buf, delimiter),
        }
    }

    /// Length of the first row; `None` when its end is not here.
    fn first(self, buf: &[u8]) -> Option<usize> {
        match self {
            Framing::Lines => memchr(b'\n', buf).map(|at| at + 1),
            Framing::Csv { delimiter } => record_end(buf, delimiter),
        }
    }
}

/// What comes out.
#[derive(Debug)]
pub enum Piece {
    /// Whole rows.
    Rows(Chunk),
    /// A row that was too long; its number is still relative, 0.
    TooLong(BadRow),
}

/// Cuts one stream.
pub struct Chunker {
    input: Box<dyn Read + Send>,
    framing: Framing,
    /// Bytes read and not given out: the begin of a row.
    carry: Vec<u8>,
    /// Where `carry` begins in the stream.
    offset: u64,
    ended: bool,
    target: usize,
    /// Of all before `offset`.
    prefix: Option<Prefix>,
}

impl std::fmt::Debug for Chunker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunker")
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Chunker {
    /// Cuts `input`, whose first byte is at `offset` of its file, behind `prefix`.
    pub fn new(
        input: Box<dyn Read + Send>,
        framing: Framing,
        offset: u64,
        prefix: Option<Prefix>,
    ) -> Self {
        let target = CHUNK_BYTES;
        Chunker {
            input,
            framing,
            carry: Vec::new(),
            offset,
            ended: false,
            target,
            prefix,
        }
    }

    /// Makes chunks of about `target` bytes from now on.
    pub fn set_target(&mut self, target: usize) {
        self.target = target.max(1);
    }

    /// Where the next piece begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What lies before the next piece.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.prefix.as_ref().map(Prefix::fingerprint)
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.offset += bytes.len() as u64;
        if let Some(prefix) = &mut self.prefix {
            prefix.update(bytes);
        }
    }

    /// The next rows, in `buffer`'s memory; `None` at the end.
    pub fn next_piece(&mut self, buffer: Vec<u8>) -> std::io::Result<Option<Piece>> {
        let mut buf = buffer;
        let mut len = self.carry.len();
        let mut want = self.target.max(len + 1);
        grow(&mut buf, want);
        buf[..len].copy_from_slice(&self.carry);
        self.carry.clear();
        loop {
            len = self.fill(&mut buf, len, want)?;
            let whole = if self.ended {
                self.whole_at_end(&buf[..len])
            } else {
                self.framing.whole(&buf[..len])
            };
            if whole > 0 {
                return Ok(Some(Piece::Rows(self.give(buf, whole, len))));
            }
            if self.ended && len == 0 {
                return Ok(None);
            }
            if self.ended || len > ROW_BYTES_MAX {
                return self.pass_over(buf, len).map(Some);
            }
            want = (len * 2).max(self.target);
            grow(&mut buf, want);
        }
    }

    /// At the end a last row needs no newline. An open quote leaves what is before it.
    fn whole_at_end(&self, buf: &[u8]) -> usize {
        match self.framing {
            Framing::Lines => buf.len(),
            Framing::Csv { delimiter } => {
                let whole = whole_records(buf, delimiter);
                let rest = buf.get(whole..).unwrap_or_default();
                let mut closed = rest.to_vec();
                closed.push(b'\n');
                if record_end(&closed, delimiter) == Some(closed.len()) {
                    buf.len()
                } else {
                    whole
                }
            }
        }
    }

    /// Reads until `want` bytes are there or the stream ends.
    fn fill(&mut self, buf: &mut [u8], mut len: usize, want: usize) -> std::io::Result<usize> {
        while len < want && !self.ended {
            match self.input.read(buf.get_mut(len..want).unwrap_or_default()) {
                Ok(0) => self.ended = true,
                Ok(n) => len += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }

    fn give(&mut self, buf: Vec<u8>, whole: usize, len: usize) -> Chunk {
        self.carry.extend_from_slice(&buf[whole..len]);
        let offset = self.offset;
        self.passed(&buf[..whole]);
        Chunk::from_buffer(buf, whole, offset)
    }

    /// A row that does not end within its limit, or a quote that never closes. Its first line is the
    /// bad row; what follows that line is read as rows again.
    fn pass_over(&mut self, mut buf: Vec<u8>, mut len: usize) -> std::io::Result<Piece> {
        let mut bad = BadRow {
            row: 0,
            offset: self.offset,
            raw: buf[..len.min(RAW_BYTES_MAX)].to_vec(),
            reason: Fault::RowTooLong.to_string(),
        };
        let first_line = memchr(b'\n', &buf[..len]);
        if first_line.unwrap_or(len) <= ROW_BYTES_MAX {
            bad.raw.truncate(first_line.unwrap_or(len));
            bad.reason = Fault::UnclosedQuote.to_string();
        }
        loop {
            if let Some(end) = memchr(b'\n', &buf[..len]) {
                self.passed(&buf[..=end]);
                self.carry.extend_from_slice(&buf[end + 1..len]);
                return Ok(Piece::TooLong(bad));
            }
            self.passed(&buf[..len]);
            if self.ended {
                return Ok(Piece::TooLong(bad));
            }
            let want = self.target.min(buf.len());
            len = self.fill(&mut buf, 0, want)?;
        }
    }

    /// The first row, which is taken out: the header of a CSV file. `None`: the stream is empty.
    pub fn take_first(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let mut len = self.carry.len();
        let mut buf = std::mem::take(&mut self.carry);
        let mut want = (len + 1).max(4096);
        loop {
            grow(&mut buf, want);
            len = self.fill(&mut buf, len, want)?;
            let end = match self.framing.first(&buf[..len]) {
                Some(end) => end,
                None if self.ended || len > ROW_BYTES_MAX => len,
                None => {
                    want = len * 2;
                    continue;
                }
            };
            self.carry.extend_from_slice(&buf[end..len]);
            buf.truncate(end);
            self.passed(&buf);
            return Ok((end > 0).then_some(buf));
        }
    }
}

/// Makes a buffer at least `len` long, with room for the padding. Memory that was used before is not
/// cleared again.
fn grow(buf: &mut Vec<u8>, len: usize) {
    if buf.len() < len + CHUNK_PADDING {
        buf.resize(len + CHUNK_PADDING, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives at most `step` bytes per read.
    struct Slow {
        bytes: std::io::Cursor<Vec<u8>>,
        step: usize,
    }

    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            let n = buf.len().min(self.step);
            self.bytes.read(buf.get_mut(..n).unwrap_or_default())
        }
    }

    fn chunker(text: &[u8], step: usize, framing: Framing, target: usize) -> Chunker {
        let bytes = std::io::Cursor::new(text.to_vec());
        let mut chunker = Chunker::new(Box::new(Slow { bytes, step }), framing, 0, None);
        chunker.set_target(target);
        chunker
    }

    fn pieces(mut chunker: Chunker) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut buffer = Vec::new();
        while let Some(piece) = chunker.next_piece(std::mem::take(&mut buffer)).unwrap() {
            pieces.push(piece);
        }
        pieces
    }

    proptest! {
        #[test]
        fn chunks_are_whole_rows_and_all_bytes(
            text in "([a-z]{0,9}(\"\n?[a-z]{0,3}\")?,?\n?){0,30}",
            step in 1usize..40,
            target in 1usize..60,
            csv in any::<bool>(),
        ) {
            let framing = if csv { Framing::Csv { delimiter: b',' } } else { Framing::Lines };
            let mut all = Vec::new();
            for piece in pieces(chunker(text.as_bytes(), step, framing, target)) {
                match piece {
                    Piece::Rows(chunk) => {
                        prop_assert_eq!(chunk.offset, all.len() as u64);
                        all.extend_from_slice(chunk.data());
                        let ends = chunk.data().ends_with(b"\n") || all.len() == text.len();
                        prop_assert!(ends);
                    }
                    Piece::TooLong(bad) => {
                        prop_assert!(csv);
                        prop_assert_eq!(bad.offset, all.len() as u64);
                        all.extend_from_slice(&bad.raw);
                        if all.len() < text.len() {
                            all.push(b'\n');
                        }
                    }
                }
            }
            prop_assert_eq!(all, text.into_bytes());
        }
    }

    #[test]
    fn a_line_of_100_mb_is_passed_over_in_bounded_memory() {
        let long = std::io::repeat(b'x').take(100 << 20);
        let input = (&b"{\"a\":1}\n"[..])
            .chain(long)
            .chain(&b"\n{\"a\":2}\n"[..]);
        let mut chunker = Chunker::new(Box::new(input), Framing::Lines, 0, None);
        let (mut rows, mut bad, mut largest) = (Vec::new(), Vec::new(), 0);
        let mut buffer = Vec::new();
        while let Some(piece) = chunker.next_piece(std::mem::take(&mut buffer)).unwrap() {
            match piece {
                Piece::Rows(chunk) => {
                    rows.push((chunk.offset, chunk.data().to_vec()));
                    buffer = chunk.into_bytes();
                    largest = largest.max(buffer.capacity());
                }
                Piece::TooLong(row) => bad.push(row),
            }
        }

        assert_eq!(rows.first().unwrap(), &(0, b"{\"a\":1}\n".to_vec()));
        assert_eq!(
            rows.last().unwrap(),
            &(8 + (100 << 20) + 1, b"{\"a\":2}\n".to_vec())
        );
        assert_eq!(bad.len(), 1);
        assert_eq!((bad[0].offset, bad[0].raw.len()), (8, RAW_BYTES_MAX));
        assert!(largest <= 3 * ROW_BYTES_MAX, "{largest} bytes");
    }

    #[test]
    fn a_quote_that_never_closes_costs_one_line() {
        let text = b"a,1\n\"open,2\nb,3\n";
        let found = pieces(chunker(
            text,
            100,
            Framing::Csv { delimiter: b',' },
            1 << 20,
        ));

        let [Piece::Rows(first), Piece::TooLong(bad), Piece::Rows(last)] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(first.data(), b"a,1\n");
        assert_eq!((bad.offset, bad.raw.as_slice()), (4, &b"\"open,2"[..]));
        assert_eq!(last.data(), b"b,3\n");
    }
}
