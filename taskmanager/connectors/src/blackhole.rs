//! Rows to nowhere.
//!
//! Owns: nothing. For measuring. Start at: [`BlackholeWriter`].

use async_trait::async_trait;
use streamforge_core::ids::CheckpointId;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{SinkWriter, Staging};

/// Takes every row.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlackholeWriter;

#[async_trait]
impl SinkWriter for BlackholeWriter {
    async fn write(&mut self, _batch: StreamBatch) -> Result<BadRows, Error> {
        Ok(BadRows::default())
    }

    fn stage(&mut self, _id: CheckpointId) -> Result<Staging, Error> {
        Ok(Box::pin(std::future::ready(Ok(None))))
    }

    fn close_at_next_stage(&mut self) {}
}
