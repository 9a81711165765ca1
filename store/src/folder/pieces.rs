//! An object of a folder that comes piece by piece.
//!
//! Owns: the temporary file between the calls. Each call has it to itself on another thread; one that is
//! dropped meanwhile takes it along, and it goes.

use async_trait::async_trait;
use bytes::Bytes;

use super::FolderStore;
use super::write::Tmp;
use crate::{Condition, Error, ObjectStore as _, ObjectWriter, Put, Result};

/// See the module.
#[derive(Debug)]
pub(super) struct Pieces {
    store: FolderStore,
    key: String,
    /// `None`: it is the object, or was thrown away.
    tmp: Option<Tmp>,
}

impl Pieces {
    pub(super) async fn begin(store: FolderStore, key: String) -> Result<Self> {
        let of = key.clone();
        let tmp = store.run(move |inner| inner.begin(&of)).await?;
        Ok(Self {
            store,
            key,
            tmp: Some(tmp),
        })
    }

    fn take(&mut self) -> Result<Tmp> {
        self.tmp.take().ok_or_else(|| Error::Unavailable {
            location: self.store.location(),
            reason: format!("write object {:?}: it was ended before", self.key),
        })
    }
}

#[async_trait]
impl ObjectWriter for Pieces {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        let mut tmp = self.take()?;
        let work = self.store.run(move |_| {
            let added = tmp.add(&piece);
            Ok((tmp, added))
        });
        let (tmp, added) = work.await?;
        self.tmp = Some(tmp);
        added
    }

    async fn finish(&mut self, condition: Condition) -> Result<Put> {
        let (mut tmp, key) = (self.take()?, self.key.clone());
        let work = self.store.run(move |inner| {
            let put = inner.finish(&key, &mut tmp, &condition);
            Ok((put.is_err().then_some(tmp), put))
        });
        let (unfinished, put) = work.await?;
        self.tmp = unfinished;
        put
    }

    async fn abandon(&mut self) -> Result<()> {
        let tmp = self.tmp.take();
        self.store
            .run(move |_| {
                drop(tmp);
                Ok(())
            })
            .await
    }
}
