//! The bytes of a file as the decoder sees them.
//!
//! Owns: decompression by the file's ending, and going on at an offset. Start at: [`open`].
//!
//! An offset is counted in uncompressed bytes. A compressed file is read from its start and the bytes
//! before the offset are passed over: neither gzip nor zstd can be entered in the middle. A plain one
//! is entered at the block of its fingerprint.

use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Take};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::fingerprint::{Fingerprint, Prefix, block_start};
use super::identity::{Error, Touch};
use super::sequence::Position;
use super::shelf::{Opened, SourceFile};

/// Bytes read at once from a compressed file.
const COMPRESSED_READ_BYTES: usize = 128 << 10;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    Plain,
    /// `.gz`, one member or several.
    Gzip,
    /// `.zst`, one frame or several.
    Zstd,
}

impl Codec {
    /// By the file's name.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("gz") => Codec::Gzip,
            Some("zst" | "zstd") => Codec::Zstd,
            _ => Codec::Plain,
        }
    }
}

/// A file up to its listed length. Counts what passes, for people who watch the progress.
struct Listed {
    inner: Take<Opened>,
    bytes: Arc<AtomicU64>,
    path: PathBuf,
    /// Length and time of change when it was opened; `None`: somebody was told that they differ.
    opened: Option<(u64, Option<SystemTime>)>,
}

impl Listed {
    fn state(&self) -> Option<(u64, Option<SystemTime>)> {
        self.inner.get_ref().state()
    }

    /// What is appended is not read; what is written over may have been, or not.
    fn look_at_end(&mut self) {
        let Some((length, changed)) = self.opened.take() else {
            return;
        };
        if let Some((length_now, changed_now)) = self.state()
            && length_now == length
            && changed_now != changed
        {
            tracing::warn!(
                file = %self.path.display(),
                "was written to while it was read: rows may be those of before or those of after"
            );
        }
    }
}

impl Read for Listed {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        // Taken for the end, the rows behind it would be lost without a word.
        if n == 0 && !buf.is_empty() && self.inner.limit() > 0 {
            let cut = Error::Changed {
                path: self.path.clone(),
                what: "it was cut while it was read",
            };
            return Err(std::io::Error::new(ErrorKind::UnexpectedEof, cut));
        }
        if n == 0 && !buf.is_empty() {
            self.look_at_end();
        }
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Why a stream of a file cannot be read on.
pub fn read_error(path: &Path, source: std::io::Error) -> Error {
    let kind = match Codec::of(path) {
        Codec::Plain => return Error::io("read", path, source),
        Codec::Gzip => "gzip",
        Codec::Zstd => "zstd",
    };
    match Error::io("read", path, source) {
        // The libraries say in these ways that what they read cannot be decompressed.
        Error::Io { path, source, .. }
            if matches!(
                source.kind(),
                ErrorKind::InvalidData
                    | ErrorKind::InvalidInput
                    | ErrorKind::UnexpectedEof
                    | ErrorKind::Other
            ) =>
        {
            let reason = source.to_string();
            Error::Broken { path, kind, reason }
        }
        error => error,
    }
}

/// A stream that goes on where reading stopped.
pub struct Entered {
    /// The bytes behind the offset, up to the listed length of the file.
    pub stream: Box<dyn Read + Send>,
    /// What lies before it; `None` where an old store does not know.
    pub prefix: Option<Prefix>,
}

/// A stream that goes on at `offset`, up to the listed length of the file. Bytes taken from the disk
/// are added to `read_bytes`.
pub fn open(
    file: &SourceFile,
    offset: u64,
    read_bytes: &Arc<AtomicU64>,
) -> Result<Box<dyn Read + Send>, Error> {
    enter(file, offset, None, read_bytes).map(|entered| entered.stream)
}

/// The same, and what lies before the offset. If that is known it is compared, as far as it has to be
/// read for the sake of going on: the begin of the last block, or all of a compressed file.
pub fn enter(
    file: &SourceFile,
    offset: u64,
    known: Option<Fingerprint>,
    read_bytes: &Arc<AtomicU64>,
) -> Result<Entered, Error> {
    let from = match Codec::of(file.path()) {
        Codec::Plain => block_start(offset),
        Codec::Gzip | Codec::Zstd => 0,
    };
    read_bytes.fetch_add(from, Ordering::Relaxed);
    enter_from(file, from, offset, known, read_bytes)
}

/// Checks that what was read of a file is what is there, if somebody touched it since.
pub fn check_read(file: &SourceFile, position: &Position) -> Result<(), Error> {
    let (_, touch) = file.open_touched()?;
    let unread = position.offset == 0 && position.row == 0;
    if touch == Touch::Untouched || unread {
        return Ok(());
    }
    match position.read {
        Some(known) => {
            enter_from(file, 0, position.offset, Some(known), &Arc::default())?;
            tracing::info!(file = %file.name(),
                "file was touched; what was read of it is the same");
            Ok(())
        }
        None if touch == Touch::Grew => Ok(()),
        None => Err(file.facts.changed("same length, another time of change")),
    }
}

/// Reads from `from`, where a block begins, and passes over the bytes before `offset`.
fn enter_from(
    file: &SourceFile,
    from: u64,
    offset: u64,
    known: Option<Fingerprint>,
    read_bytes: &Arc<AtomicU64>,
) -> Result<Entered, Error> {
    let path = file.path();
    let mut stream = decompressed(file, from, read_bytes)?;
    let chain = if from == 0 {
        Some(0)
    } else {
        known.map(|known| known.chain)
    };
    let mut prefix = Prefix::at_block(chain.unwrap_or(0));
    let passed = std::io::copy(&mut stream.by_ref().take(offset - from), &mut prefix)
        .map_err(|error| read_error(path, error))?;
    if passed < offset - from {
        return Err(Error::Shrank {
            path: path.to_owned(),
            listed: offset,
            now: from + passed,
        });
    }
    if known.is_some_and(|known| known != prefix.fingerprint()) {
        return Err(file
            .facts
            .changed("what was read of it is not what it holds now"));
    }
    Ok(Entered {
        stream,
        prefix: chain.map(|_| prefix),
    })
}

/// The bytes of a file; of a plain one from `from`, which is 0 for others.
fn decompressed(
    file: &SourceFile,
    from: u64,
    read_bytes: &Arc<AtomicU64>,
) -> Result<Box<dyn Read + Send>, Error> {
    let mut opened = file.open()?;
    let (path, size) = (file.path(), file.facts.size);
    if from > 0 {
        opened
            .seek(SeekFrom::Start(from))
            .map_err(|error| Error::io("seek in", path, error))?;
    }
    let bytes = Arc::clone(read_bytes);
    let mut listed = Listed {
        inner: opened.take(size.saturating_sub(from)),
        bytes,
        path: path.to_owned(),
        opened: None,
    };
    listed.opened = listed.state();
    // Writers that were given no row leave nothing, not even the frame of a compressed file.
    if size == 0 {
        return Ok(Box::new(std::io::empty()));
    }
    Ok(match Codec::of(path) {
        Codec::Plain => Box::new(listed),
        Codec::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(
            BufReader::with_capacity(COMPRESSED_READ_BYTES, listed),
        )),
        Codec::Zstd => Box::new(
            zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(
                COMPRESSED_READ_BYTES,
                listed,
            ))
            .map_err(|error| read_error(path, error))?,
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::files::identity::FileFacts;

    fn listed(path: &Path) -> SourceFile {
        SourceFile::new(FileFacts::of(path).unwrap(), &Arc::default())
    }

    fn rest(name: &str, content: &[u8], offset: u64) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let facts = listed(&path);
        let mut text = String::new();
        open(&facts, offset, &Arc::default())
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    }

    #[test]
    fn compressed_file_that_is_damaged_or_cut_is_named_once_and_with_a_cure() {
        let text: String = (0..2_000).map(|n| format!("line {n}\n")).collect();
        let (gzip, zstd) = (gzip(&text), zstd::encode_all(text.as_bytes(), 1).unwrap());
        let mut damaged = gzip.clone();
        damaged[1_000..1_010].fill(0xff);
        for (name, content) in [
            ("a.gz", damaged.as_slice()),
            ("a.gz", &gzip[..gzip.len() / 2]),
            ("a.gz", b"no such thing"),
            ("a.zst", &zstd[..zstd.len() / 2]),
            ("a.zst", b"no such thing"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();

            let behind_all = text.len() as u64 + 1;
            let entered = enter(&listed(&path), behind_all, None, &Arc::default());

            let said = entered.map(drop).unwrap_err().to_string();
            assert_eq!(said.matches(name).count(), 1, "{said}");
            let kind = if name == "a.gz" { "gzip" } else { "zstd" };
            assert!(said.contains(&format!("no whole {kind} file (")), "{said}");
            assert!(said.contains("--fresh"), "{said}");
        }
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn every_codec_goes_on_at_an_uncompressed_offset() {
        let several = [gzip("one\n"), gzip("two\n")].concat();
        let zstd = [
            zstd::encode_all(&b"one\n"[..], 1).unwrap(),
            zstd::encode_all(&b"two\n"[..], 1).unwrap(),
        ]
        .concat();

        assert_eq!(rest("a.txt", b"one\ntwo\n", 4), "two\n");
        assert_eq!(rest("a.gz", &several, 4), "two\n");
        assert_eq!(rest("a.gz", &several, 0), "one\ntwo\n");
        assert_eq!(rest("a.zst", &zstd, 5), "wo\n");
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ndjson");
        std::fs::write(&path, "x".repeat(100_000)).unwrap();
        let facts = listed(&path);
        let mut stream = open(&facts, 0, &Arc::default()).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();

        let file = std::fs::OpenOptions::new().write(true).open(&path);
        file.unwrap().set_len(50).unwrap();
        let read = stream.read_to_end(&mut Vec::new());

        assert!(read.unwrap_err().to_string().contains("cut while"));
    }

    #[test]
    fn a_compressed_file_without_a_byte_is_empty() {
        for name in ["a.gz", "a.zst", "a.txt"] {
            assert_eq!(rest(name, b"", 0), "", "{name}");
        }
    }

    /// A file whose first `offset` bytes were read before it was written anew, and what is said then.
    fn gone_on(name: &str, before: &[u8], now: &[u8], known: bool) -> Result<(), Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, before).unwrap();
        let mut facts = listed(&path);
        facts.facts.changed_us -= 1;
        let offset = 2 << 20;
        let entered = enter_from(&facts, 0, offset, None, &Arc::default()).unwrap();
        let position = Position {
            offset,
            read: entered.prefix.map(|p| p.fingerprint()).filter(|_| known),
            ..Position::default()
        };
        std::fs::write(&path, now).unwrap();
        check_read(&facts, &position)
    }

    #[test]
    fn a_touched_file_goes_on_if_what_was_read_of_it_is_the_same() {
        let bytes: Vec<u8> = (0..3_u32 << 20).map(|i| (i % 251) as u8).collect();
        let mut other = bytes.clone();
        other[1 << 20] = 255;

        gone_on("a.txt", &bytes, &bytes, true).unwrap();
        let error = gone_on("a.txt", &bytes, &other, true).unwrap_err();
        assert!(error.to_string().contains("a.txt changed"), "{error}");
        // An old store does not know what was read.
        let error = gone_on("a.txt", &bytes, &bytes, false).unwrap_err();
        assert!(error.to_string().contains("time of change"), "{error}");
    }

    #[test]
    fn a_position_of_an_old_store_knows_nothing_of_what_was_read_c8() {
        let old: Position = serde_json::from_str(r#"{"file":1,"offset":5,"row":2}"#).unwrap();

        assert_eq!((old.file, old.offset, old.row, old.read), (1, 5, 2, None));
        assert_eq!(
            serde_json::to_string(&old).unwrap(),
            r#"{"file":1,"offset":5,"row":2}"#
        );
    }
}
