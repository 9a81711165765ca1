//! The StreamJob document as written.
//!
//! Owns: the API types (`v1alpha1`), the custom resource definitions derived from them, and the names
//! that are kept free for later. Never decides whether a document makes sense: that is
//! `streamforge-plan`. Start at: [`v1alpha1::StreamJobSpec`], [`crd`].

pub mod reserved;
pub mod v1alpha1;

mod definition;
mod yaml;

pub use definition::{DefinitionFile, crd, crd_yaml, definition_files, savepoint_crd};
pub use yaml::write as to_yaml;
