//! A file in a bucket while it gets rows.
//!
//! Owns: which of its bytes are a part of the upload, which are staged beside it, and what the manifest
//! says of both. Start at: [`OpenUpload::add`], then [`OpenUpload::stage`] or [`OpenUpload::finish`].

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use parquet::errors::ParquetError;
use streamforge_engine::error::Error;
use streamforge_store::Condition;
use streamforge_store::s3::{Bucket, PART_BYTES, PARTS_AT_ONCE, PartTag, Upload};

use super::Door;
use super::detail::{OpenDetail, TailPiece, UploadDetail, piece_key};
use super::joint::Joint;
use super::spill::{Bits, LocalFile};
use crate::error::failed;

/// Hidden objects that hold the tail of one file. Above this they are staged anew as one: a restore
/// reads as many, and the manifest lists them.
const TAIL_PIECES_MAX: usize = 16;

/// A file of so many parts (8 GiB) gets no more rows: every manifest lists the parts of open files.
const PARTS_MAX: usize = 1_024;

/// A Parquet file whose footer is so large gets no more rows: it is staged at each barrier, and the
/// row groups that it is made of are kept in memory.
const FOOTER_BYTES_MAX: usize = 512 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct OpenUpload {
    upload: Upload,
    parts: Vec<PartTag>,
    /// What is in no part yet.
    unsent: Bits,
    /// Of that, the bytes of the newest segment.
    new_n: u64,
    /// Where the rest of it is staged.
    tail: Vec<TailPiece>,
    /// Hidden objects that the newest state needs.
    needed: BTreeSet<u32>,
    /// Of a Parquet file of several segments.
    joint: Option<Joint>,
    footer: Bytes,
    rows_n: u64,
}

impl OpenUpload {
    /// One without rows.
    pub(super) fn new(upload: Upload) -> Self {
        Self {
            upload,
            parts: Vec::new(),
            unsent: Bits::default(),
            new_n: 0,
            tail: Vec::new(),
            needed: BTreeSet::new(),
            joint: None,
            footer: Bytes::new(),
            rows_n: 0,
        }
    }

    /// Its segments are Parquet files.
    pub(super) fn of_parquet(self) -> Self {
        let joint = Some(Joint::default());
        Self { joint, ..self }
    }

    /// Adds what was written since the last barrier.
    pub(super) async fn add(&mut self, file: LocalFile, bytes_n: u64) -> Result<(), Error> {
        let range = match self.joint.take() {
            None => 0..bytes_n,
            Some(mut joint) => {
                let path = file.path().to_owned();
                let read = move || -> Result<_, ParquetError> {
                    let range = joint.add(&path)?;
                    let footer = joint.footer()?;
                    Ok((joint, range, footer))
                };
                let read = tokio::task::spawn_blocking(read).await;
                let read = read.unwrap_or_else(|ended| Err(ParquetError::External(ended.into())));
                let action = || format!("join segments of {}", self.upload.name().key);
                let (joint, range, footer) = read.map_err(|error| failed(action(), true, error))?;
                self.joint = Some(joint);
                self.footer = footer;
                range
            }
        };
        self.new_n = range.end - range.start;
        self.unsent.push_file(file, range);
        Ok(())
    }

    /// Counts rows of segments that were added.
    pub(super) fn count(&mut self, rows_n: u64) {
        self.rows_n += rows_n;
    }

    /// Whether it must close at the next barrier.
    pub(super) fn is_full(&self) -> bool {
        self.parts.len() >= PARTS_MAX || self.footer.len() > FOOTER_BYTES_MAX
    }

    /// Sends these, one part each.
    async fn send(&mut self, pieces: Vec<Bits>, door: &Door) -> Result<(), Error> {
        let upload = &self.upload;
        let first = self.parts.last().map_or(0, |part| part.n) + 1;
        let sends = (first..).zip(pieces).map(|(n, piece)| async move {
            let bytes = piece.read().await?;
            let sent = upload.send(n, bytes).await;
            sent.map_err(|error| door.failed("stage a file in", error))
        });
        let parts: Vec<PartTag> = stream::iter(sends)
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await?;
        self.parts.extend(parts);
        Ok(())
    }

    /// Makes all of it durable, and leaves it open. `segment` is the one that was added last.
    pub(super) async fn stage(
        &mut self,
        segment: u32,
        (bucket, door): (&Bucket, &Door),
    ) -> Result<OpenDetail, Error> {
        let full_n = self.unsent.bytes_n() / PART_BYTES as u64;
        let full = (0..full_n).map(|_| self.unsent.take(PART_BYTES as u64));
        let full: Vec<Bits> = full.collect();
        self.send(full, door).await?;
        // What is left is not even a part's worth, so this is never much.
        let anew = full_n > 0 || self.tail.len() >= TAIL_PIECES_MAX;
        if anew {
            self.tail.clear();
        }
        let staged_n = if anew {
            self.unsent.bytes_n()
        } else {
            self.new_n
        };
        let mut piece = self.unsent.last(staged_n);
        piece.push_bytes(self.footer.clone());
        let whole_n = piece.bytes_n();
        let part_of = |start, end| TailPiece {
            object: segment,
            start,
            end,
        };
        if staged_n > 0 {
            self.tail.push(part_of(0, staged_n));
        }
        let mut tail = self.tail.clone();
        if whole_n > staged_n {
            tail.push(part_of(staged_n, whole_n));
        }
        if whole_n > 0 {
            let key = piece_key(&self.upload.name().key, segment);
            let put = bucket.put(&key, piece.read().await?, &Condition::None);
            // Without a condition it is done if it is no error.
            let _done = put.await.map_err(|it| door.failed("stage rows in", it))?;
        }
        let needed: BTreeSet<u32> = tail.iter().map(|piece| piece.object).collect();
        let obsolete = self.needed.difference(&needed).copied().collect();
        self.needed = needed;
        Ok(OpenDetail {
            upload: self.detail(),
            segment,
            tail,
            obsolete,
        })
    }

    /// Makes all of it an upload that only has to be completed.
    pub(super) async fn finish(mut self, door: &Door) -> Result<UploadDetail, Error> {
        let footer = std::mem::take(&mut self.footer);
        self.unsent.push_bytes(footer);
        let mut pieces = Vec::new();
        while self.unsent.bytes_n() > 0 {
            pieces.push(self.unsent.take(PART_BYTES as u64));
        }
        if pieces.is_empty() && self.parts.is_empty() {
            // An upload without parts cannot be completed.
            pieces.push(Bits::default());
        }
        self.send(pieces, door).await?;
        Ok(self.detail())
    }

    /// The rows of the newest segment are counted when this is written down.
    fn detail(&self) -> UploadDetail {
        UploadDetail::new(self.upload.name(), &self.parts, self.rows_n)
    }
}
