//! Where checkpoints, heads and plans are kept: named, immutable-by-habit objects.
//!
//! Owns: the [`ObjectStore`] trait with its contract, the [`memory`], [`folder`] and [`s3`] stores.
//! Never decides what is written or when: that is the coordinator's and the task managers' part.
//! Start at: [`ObjectStore`]; a new implementation calls [`contract::check_contract`].
//!
//! Invariant C2 leans on [`Condition`]: of several writers that race for one key under
//! `CreateIfAbsent` or one `IfMatch`, exactly one is told [`Put::Done`].

pub mod contract;
pub mod folder;
pub mod key;
pub mod memory;
mod object_store;
mod object_writer;
pub mod s3;

pub use folder::FolderStore;
pub use memory::MemoryStore;
pub use object_store::{
    Condition, ETag, Error, ObjectMeta, ObjectStore, Put, Recovery, Result, StoredObject,
};
pub use object_writer::{ObjectWriter, PIECE_BYTES};
pub use s3::S3Store;
