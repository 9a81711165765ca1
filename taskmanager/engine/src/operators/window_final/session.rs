//! stub
use super::*;
pub(super) const EXTENTS: &str = "extents";
pub(super) struct SessionFinal { watermark: Watermark }
impl SessionFinal {
    pub(super) fn new(_: Arc<Windowed>, _: i64, _: u32, watermark: Watermark) -> Self { Self { watermark } }
}
impl WindowState for SessionFinal {
    fn watermark(&self) -> Watermark { self.watermark }
    fn on_batch(&mut self, _: &StreamBatch, _: &mut Results<'_>) -> Outcome { Ok(()) }
    fn advance(&mut self, _: Watermark, _: &mut Results<'_>) -> Outcome { Ok(()) }
    fn catch_up(&mut self, _: &mut Results<'_>) -> Outcome { Ok(()) }
    fn seal(&mut self, _: CheckpointId) -> Option<Vec<Arc<StatePart>>> { None }
    fn load(&mut self, _: StatePart) -> Outcome { Ok(()) }
    fn load_rows(&mut self, _: &str, _: RecordBatch) -> Outcome { Ok(()) }
    fn finish_load(&mut self) -> Outcome { Ok(()) }
    fn absorb(&mut self, _: Absorbed) -> Outcome { Ok(()) }
    fn into_absorbed(self: Box<Self>) -> Absorbed { Absorbed::Session(self) }
    fn take_late_log(&mut self) -> Vec<RecordBatch> { vec![] }
}
