//! Where the files of a source lie: in folders of this machine, or in a bucket.
//!
//! Owns: which of the two a path means, listing either, and opening a listed file. Start at:
//! [`Shelf::list`], [`SourceFile::open`].
//!
//! A file of a folder is known by its length, its time of change and samples of its bytes
//! ([`super::identity`]); an object by its version (ETag), which every read of it names.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use streamforge_core::s3::SCHEME;
use streamforge_engine::error::Error;

use super::config::SourceConfig;
use super::identity::{self, FileFacts, Touch};
use super::listing;
use super::object::{Object, ObjectReader, Shop};
use crate::error::failed;

/// See the module.
#[derive(Debug, Default)]
pub enum Shelf {
    /// Folders of this machine.
    #[default]
    Folders,
    /// A bucket.
    Bucket(Arc<Shop>),
}

/// A file that a listing names.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// What the listing says of it; a file of a folder must be opened for that.
    facts: Option<FileFacts>,
}

impl Found {
    /// What is known about it.
    pub fn facts(&self) -> Result<FileFacts, identity::Error> {
        match &self.facts {
            Some(facts) => Ok(facts.clone()),
            None => FileFacts::of(&self.path),
        }
    }

    /// Whether it was taken away since it was listed, as far as is known here.
    pub fn is_gone(&self) -> bool {
        self.facts.is_none() && !self.path.exists()
    }
}

impl Shelf {
    /// Where the path of a source lies; `secrets` is the folder of secrets. Nobody is asked yet.
    ///
    /// # Errors
    /// When the plan let an address through that is none.
    pub fn of(config: &SourceConfig, secrets: Option<PathBuf>) -> Result<Self, Error> {
        if !config.path.starts_with(SCHEME) {
            return Ok(Shelf::Folders);
        }
        let shop = Shop::open(&config.path, config.s3.as_ref(), secrets);
        shop.map(|shop| Shelf::Bucket(Arc::new(shop)))
            .map_err(|error| failed("open file source", false, error))
    }

    /// The files of a path, a folder or a glob, by name.
    pub fn list(&self, pattern: &str) -> Result<Vec<Found>, listing::Error> {
        match self {
            Shelf::Folders => {
                let found = |path| Found { path, facts: None };
                Ok(listing::list(pattern)?.into_iter().map(found).collect())
            }
            Shelf::Bucket(shop) => {
                let found = |facts: FileFacts| Found {
                    path: facts.path.clone(),
                    facts: Some(facts),
                };
                Ok(shop.list(pattern)?.into_iter().map(found).collect())
            }
        }
    }

    /// How many files are best opened at once: each of a bucket takes a round trip.
    pub fn openings_at_once(&self) -> usize {
        match self {
            Shelf::Folders => 1,
            Shelf::Bucket(_) => 16,
        }
    }
}

/// A listed file, and where it lies.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// What is known of it.
    pub facts: FileFacts,
    shelf: Arc<Shelf>,
}

impl SourceFile {
    /// On this shelf.
    pub fn new(facts: FileFacts, shelf: &Arc<Shelf>) -> Self {
        let shelf = Arc::clone(shelf);
        SourceFile { facts, shelf }
    }

    /// Several.
    pub fn all(facts: Vec<FileFacts>, shelf: &Arc<Shelf>) -> Vec<Self> {
        let file = |facts| SourceFile::new(facts, shelf);
        facts.into_iter().map(file).collect()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.facts.path
    }

    /// Where it is, for people.
    pub fn name(&self) -> String {
        self.facts.path.display().to_string()
    }

    /// Opens it, at its start, after checking that it may be the one that was listed. Of an object every
    /// read checks that.
    pub fn open(&self) -> Result<Opened, identity::Error> {
        self.open_touched().map(|(opened, _)| opened)
    }

    /// The same, with whether somebody touched it.
    pub fn open_touched(&self) -> Result<(Opened, Touch), identity::Error> {
        match &*self.shelf {
            Shelf::Folders => {
                let (file, touch) = self.facts.open_touched()?;
                Ok((Opened::File(file), touch))
            }
            Shelf::Bucket(shop) => {
                let object = Object::new(&self.facts, shop);
                Ok((Opened::Object(ObjectReader::new(object)), Touch::Untouched))
            }
        }
    }
}

/// An open file.
#[derive(Debug)]
pub enum Opened {
    /// Of a folder.
    File(File),
    /// Of a bucket.
    Object(ObjectReader),
}

impl Opened {
    /// Length and time of change, where they can change under a reader.
    pub fn state(&self) -> Option<(u64, Option<SystemTime>)> {
        match self {
            Opened::File(file) => {
                let facts = file.metadata().ok()?;
                Some((facts.len(), facts.modified().ok()))
            }
            Opened::Object(_) => None,
        }
    }
}

impl Read for Opened {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Opened::File(file) => file.read(buf),
            Opened::Object(object) => object.read(buf),
        }
    }
}

impl Seek for Opened {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        match self {
            Opened::File(file) => file.seek(to),
            Opened::Object(object) => object.seek(to),
        }
    }
}
