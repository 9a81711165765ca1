//! Splits of a file source, as they are stored in manifests.
//!
//! Owns: the connector's own words in [`SplitState`]: which files, and how far. Start at: [`splits_of`].

use serde::{Deserialize, Serialize};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::SplitId;
use streamforge_core::manifest::{SplitProgress, SplitState};

use super::config::Order;
use super::identity::FileFacts;
use super::sequence::Position;

/// Name of the one split of `order: ByName`.
pub const SEQUENCE: &str = "files by name";

/// What a split's description holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The files, in order.
    pub files: Vec<FileFacts>,
}

/// A split whose stored words cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read the stored position of split `{split}`")]
pub struct Error {
    split: SplitId,
    #[source]
    source: serde_json::Error,
}

fn words<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain structs of numbers and paths are JSON")
}

/// The progress of a position.
pub fn progress(position: Position) -> SplitProgress {
    SplitProgress::At(words(&position))
}

/// A split of these files, at its start.
fn split_of(id: String, files: Vec<FileFacts>) -> SplitState {
    SplitState {
        split: SplitId(id),
        progress: progress(Position::default()),
        watermark: Watermark::NONE,
        weight: files.iter().map(|file| file.size).sum(),
        description: words(&Description { files }),
    }
}

/// The same split, nothing of it read.
pub fn at_start(split: SplitState) -> SplitState {
    SplitState {
        progress: progress(Position::default()),
        watermark: Watermark::NONE,
        ..split
    }
}

/// The splits of these files, which come in the order of their names.
pub fn splits_of(files: Vec<FileFacts>, order: Order) -> Vec<SplitState> {
    match order {
        Order::ByName if files.is_empty() => Vec::new(),
        Order::ByName => vec![split_of(SEQUENCE.to_owned(), files)],
        Order::Any => {
            let split = |file: FileFacts| split_of(file.path.display().to_string(), vec![file]);
            files.into_iter().map(split).collect()
        }
    }
}

/// The files of a split.
pub fn describe(split: &SplitState) -> Result<Description, Error> {
    let error = |source| Error {
        split: split.split.clone(),
        source,
    };
    serde_json::from_str(&split.description).map_err(error)
}

/// The files of a split and how far they are read; `None` when to their end.
pub fn open(split: &SplitState) -> Result<Option<(Description, Position)>, Error> {
    let error = |source| Error {
        split: split.split.clone(),
        source,
    };
    let SplitProgress::At(position) = &split.progress else {
        return Ok(None);
    };
    Ok(Some((
        describe(split)?,
        serde_json::from_str(position).map_err(error)?,
    )))
}
