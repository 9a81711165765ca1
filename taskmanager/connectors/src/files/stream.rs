//! The bytes of a file as the decoder sees them.
//!
//! Owns: decompression by the file's ending, and going on at an offset. Start at: [`open`].
//!
//! An offset is counted in uncompressed bytes. A compressed file is read from its start and the bytes
//! before the offset are passed over: neither gzip nor zstd can be entered in the middle.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::identity::{Error, FileFacts};

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

/// Counts what passes, for people who watch the progress.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// A stream that goes on at `offset`, up to the listed length of the file. Bytes taken from the disk
/// are added to `read_bytes`.
pub fn open(
    facts: &FileFacts,
    offset: u64,
    read_bytes: &Arc<AtomicU64>,
) -> Result<Box<dyn Read + Send>, Error> {
    let mut file: File = facts.open()?;
    let path = &facts.path;
    let codec = Codec::of(path);
    if codec == Codec::Plain {
        file.seek(SeekFrom::Start(offset))
            .map_err(|error| Error::io("seek in", path, error))?;
        read_bytes.fetch_add(offset, Ordering::Relaxed);
    }
    let from = if codec == Codec::Plain { offset } else { 0 };
    let bytes = Arc::clone(read_bytes);
    let listed = Counted {
        inner: file.take(facts.size.saturating_sub(from)),
        bytes,
    };
    let mut stream: Box<dyn Read + Send> = match codec {
        Codec::Plain => return Ok(Box::new(listed)),
        Codec::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(
            BufReader::with_capacity(COMPRESSED_READ_BYTES, listed),
        )),
        Codec::Zstd => Box::new(
            zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(
                COMPRESSED_READ_BYTES,
                listed,
            ))
            .map_err(|error| Error::io("decompress", path, error))?,
        ),
    };
    let passed = std::io::copy(&mut stream.by_ref().take(offset), &mut std::io::sink())
        .map_err(|error| Error::io("decompress", path, error))?;
    if passed < offset {
        return Err(Error::Shrank {
            path: path.clone(),
            listed: offset,
            now: passed,
        });
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn rest(name: &str, content: &[u8], offset: u64) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let facts = FileFacts::of(&path).unwrap();
        let mut text = String::new();
        open(&facts, offset, &Arc::default())
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
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
}
