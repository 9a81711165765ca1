//! Batches as Arrow IPC frames and back.
//!
//! Owns: what travels beside the columns (event time, operations, origin) as further columns, and the
//! layouts of a channel, each sent once. A received frame is copied once, into memory of its own that
//! is aligned for every type: its arrays pin nothing else, so that bytes of frames are bytes of
//! memory (B1).

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Int8Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray,
    UInt64Array,
};
use arrow::buffer::Buffer;
use arrow::compute::{concat, concat_batches};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::ipc;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::{read_dictionary, read_record_batch};
use arrow::ipc::writer::{
    CompressionContext, DictionaryTracker, EncodedData, IpcDataGenerator, IpcWriteOptions,
};
use bytes::Bytes;
use streamforge_engine::batch::{Origin, StreamBatch};
use streamforge_proto::v1;

/// Layouts of one channel. An edge's columns are fixed and what travels beside them can be there or
/// not, so there are eight; more would be types that change from batch to batch.
const LAYOUTS_MAX: usize = 64;

/// Alignment of buffers within a body: that of the widest type, DECIMAL's i128.
const ALIGNMENT: usize = 16;

/// Why a batch cannot be sent, or a frame is not one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Arrow refused.
    #[error("convert rows of a channel")]
    Arrow(#[from] ArrowError),
    /// A frame's parts do not fit together.
    #[error("decode rows of a channel: {0}")]
    Malformed(String),
    /// More layouts than a channel can have.
    #[error("a channel has more than {LAYOUTS_MAX} layouts of rows")]
    Layouts,
}

fn malformed(what: impl Into<String>) -> Error {
    Error::Malformed(what.into())
}

/// Which columns travel beside the rows' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Beside {
    event_time: bool,
    ops: bool,
    origin: bool,
}

impl Beside {
    fn of(batch: &StreamBatch) -> Self {
        Self {
            event_time: batch.event_time.is_some(),
            ops: batch.ops.is_some(),
            origin: batch.origin.is_some(),
        }
    }

    fn fields(self) -> Vec<FieldRef> {
        let field = |name, data_type| Arc::new(Field::new(name, data_type, false));
        let mut fields = Vec::new();
        if self.event_time {
            let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
            fields.push(field("event_time", micros));
        }
        if self.ops {
            fields.push(field("op", DataType::Int8));
        }
        if self.origin {
            fields.push(field("row", DataType::UInt64));
            fields.push(field("offset", DataType::UInt64));
        }
        fields
    }
}

#[derive(Clone, Debug)]
struct Layout {
    rows: SchemaRef,
    wire: SchemaRef,
    beside: Beside,
    has_dictionary: bool,
}

impl Layout {
    fn new(rows: SchemaRef, beside: Beside) -> Self {
        let fields = rows.fields().iter().cloned().chain(beside.fields());
        let wire = Schema::new_with_metadata(fields.collect::<Vec<_>>(), rows.metadata().clone());
        Self {
            rows,
            has_dictionary: has_dictionary(&wire),
            wire: Arc::new(wire),
            beside,
        }
    }

    fn is(&self, batch: &StreamBatch) -> bool {
        let schema = batch.rows.schema_ref();
        self.beside == Beside::of(batch)
            && (Arc::ptr_eq(&self.rows, schema) || self.rows == *schema)
    }
}

fn options() -> Result<IpcWriteOptions, ArrowError> {
    IpcWriteOptions::try_new(ALIGNMENT, false, ipc::MetadataVersion::V5)
}

/// A batch as messages: its layout if it is new to the channel, and its rows.
#[derive(Debug)]
pub struct Encoded {
    /// Comes first.
    pub layout: Option<v1::Layout>,
    /// The rows.
    pub rows: v1::Rows,
}

/// The sending end's half.
#[derive(Debug, Default)]
pub struct Encoder {
    layouts: Vec<Layout>,
}

impl Encoder {
    /// Encodes all rows of a batch.
    ///
    /// # Errors
    /// [`Error::Arrow`], [`Error::Layouts`].
    pub fn encode(&mut self, batch: &StreamBatch) -> Result<Encoded, Error> {
        let known = self.layouts.iter().position(|layout| layout.is(batch));
        let (idx, fresh) = match known {
            Some(idx) => (idx, None),
            None => (self.layouts.len(), Some(self.add_layout(batch)?)),
        };
        let layout = self.layouts.get(idx).ok_or(Error::Layouts)?;
        let wire = Arc::clone(&layout.wire);
        let rows_n = RecordBatchOptions::new().with_row_count(Some(batch.len()));
        let rows = RecordBatch::try_new_with_options(wire, wire_columns(batch), &rows_n)?;
        // Each frame brings its own dictionaries: none is kept from frame to frame.
        let mut tracker = DictionaryTracker::new(false);
        let options = options()?;
        let generator = IpcDataGenerator::default();
        if layout.has_dictionary {
            // Gives the fields their dictionary ids, the same as in the layout.
            generator.schema_to_bytes_with_dictionary_tracker(
                rows.schema_ref(),
                &mut tracker,
                &options,
            );
        }
        let (dictionaries, encoded) = generator.encode(
            &rows,
            &mut tracker,
            &options,
            &mut CompressionContext::default(),
        )?;
        let dictionary = |EncodedData {
                              ipc_message,
                              arrow_data,
                          }| v1::Dictionary {
            header: Bytes::from(ipc_message),
            body: Bytes::from(arrow_data),
        };
        let source = batch
            .origin
            .as_ref()
            .map(|origin| origin.source.to_string());
        let rows = v1::Rows {
            layout: u32::try_from(idx).map_err(|_| Error::Layouts)?,
            source: source.unwrap_or_default(),
            header: Bytes::from(encoded.ipc_message),
            body: Bytes::from(encoded.arrow_data),
            dictionaries: dictionaries.into_iter().map(dictionary).collect(),
        };
        Ok(Encoded {
            layout: fresh,
            rows,
        })
    }

    fn add_layout(&mut self, batch: &StreamBatch) -> Result<v1::Layout, Error> {
        if self.layouts.len() >= LAYOUTS_MAX {
            return Err(Error::Layouts);
        }
        let layout = Layout::new(batch.rows.schema(), Beside::of(batch));
        let mut tracker = DictionaryTracker::new(false);
        let schema = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            &layout.wire,
            &mut tracker,
            &options()?,
        );
        let beside = layout.beside;
        self.layouts.push(layout);
        Ok(v1::Layout {
            schema: Bytes::from(schema.ipc_message),
            event_time: beside.event_time,
            ops: beside.ops,
            origin: beside.origin,
        })
    }
}

fn has_dictionary(schema: &Schema) -> bool {
    let all = schema.flattened_fields();
    all.iter()
        .any(|field| matches!(field.data_type(), DataType::Dictionary(..)))
}

fn wire_columns(batch: &StreamBatch) -> Vec<ArrayRef> {
    let mut columns = batch.rows.columns().to_vec();
    if let Some(times) = &batch.event_time {
        columns.push(Arc::new(times.clone()));
    }
    if let Some(ops) = &batch.ops {
        columns.push(Arc::new(ops.clone()));
    }
    if let Some(origin) = &batch.origin {
        columns.push(Arc::new(origin.row.clone()));
        columns.push(Arc::new(origin.offset.clone()));
    }
    columns
}

/// The receiving end's half.
#[derive(Debug, Default)]
pub struct Decoder {
    layouts: Vec<(Layout, HashMap<i64, ArrayRef>)>,
    /// The last one, so that batches of one file share its name.
    source: Option<Arc<str>>,
}

impl Decoder {
    /// A layout came.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Layouts`].
    pub fn on_layout(&mut self, layout: &v1::Layout) -> Result<(), Error> {
        if self.layouts.len() >= LAYOUTS_MAX {
            return Err(Error::Layouts);
        }
        let message = message(&layout.schema)?;
        let schema = message
            .header_as_schema()
            .ok_or_else(|| malformed("a layout without schema"))?;
        let wire = fb_to_schema(schema);
        let beside = Beside {
            event_time: layout.event_time,
            ops: layout.ops,
            origin: layout.origin,
        };
        let own_n = wire
            .fields()
            .len()
            .checked_sub(beside.fields().len())
            .ok_or_else(|| malformed("a layout with too few columns"))?;
        let own = wire.fields().iter().take(own_n).cloned();
        let rows = Schema::new_with_metadata(own.collect::<Vec<_>>(), wire.metadata().clone());
        let layout = Layout {
            rows: Arc::new(rows),
            has_dictionary: has_dictionary(&wire),
            wire: Arc::new(wire),
            beside,
        };
        self.layouts.push((layout, HashMap::new()));
        Ok(())
    }

    /// Rows came.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Arrow`].
    pub fn decode(&mut self, rows: &v1::Rows) -> Result<StreamBatch, Error> {
        let (layout, dictionaries) = usize::try_from(rows.layout)
            .ok()
            .and_then(|idx| self.layouts.get_mut(idx))
            .ok_or_else(|| malformed(format!("layout {} was not sent", rows.layout)))?;
        dictionaries.clear();
        for dictionary in &rows.dictionaries {
            let message = message(&dictionary.header)?;
            let batch = message
                .header_as_dictionary_batch()
                .ok_or_else(|| malformed("a dictionary without values"))?;
            let inner = batch
                .data()
                .ok_or_else(|| malformed("a dictionary without values"))?;
            check_buffers(&inner, dictionary.body.len())?;
            read_dictionary(
                &Buffer::from(dictionary.body.as_ref()),
                batch,
                &layout.wire,
                dictionaries,
                &message.version(),
            )?;
        }
        let message = message(&rows.header)?;
        let batch = message
            .header_as_record_batch()
            .ok_or_else(|| malformed("rows without a batch"))?;
        check_buffers(&batch, rows.body.len())?;
        let decoded = read_record_batch(
            &Buffer::from(rows.body.as_ref()),
            batch,
            Arc::clone(&layout.wire),
            dictionaries,
            None,
            &message.version(),
        )?;
        split(&layout.rows, layout.beside, decoded, || {
            let known = self.source.as_ref().filter(|s| ***s == *rows.source);
            let source = known.map_or_else(|| Arc::from(rows.source.as_str()), Arc::clone);
            self.source = Some(Arc::clone(&source));
            source
        })
    }
}

fn message(bytes: &Bytes) -> Result<ipc::Message<'_>, Error> {
    ipc::root_as_message(bytes).map_err(|error| malformed(error.to_string()))
}

/// Arrow's reader takes the offsets it is given; they must lie within the body.
fn check_buffers(batch: &ipc::RecordBatch<'_>, body_len: usize) -> Result<(), Error> {
    let body_len = i64::try_from(body_len).unwrap_or(i64::MAX);
    let fits = |buffer: &ipc::Buffer| {
        let end = buffer.offset().checked_add(buffer.length());
        buffer.offset() >= 0 && buffer.length() >= 0 && end.is_some_and(|end| end <= body_len)
    };
    if batch.buffers().is_some_and(|all| all.iter().all(fits)) && batch.length() >= 0 {
        Ok(())
    } else {
        Err(malformed("a buffer outside of its body"))
    }
}

fn take<T: Array + Clone + 'static>(
    columns: &mut impl Iterator<Item = ArrayRef>,
) -> Result<T, Error> {
    let column = columns.next();
    let typed = column.as_ref().and_then(|c| c.as_any().downcast_ref::<T>());
    typed
        .filter(|array| array.null_count() == 0)
        .cloned()
        .ok_or_else(|| malformed("a column beside the rows has another type"))
}

/// Parts the rows' own columns from those beside them.
fn split(
    schema: &SchemaRef,
    beside: Beside,
    decoded: RecordBatch,
    source: impl FnOnce() -> Arc<str>,
) -> Result<StreamBatch, Error> {
    let rows_n = decoded.num_rows();
    let (_, mut own, _) = decoded.into_parts();
    let mut further = own.split_off(schema.fields().len()).into_iter();
    let event_time = match beside.event_time {
        true => Some(take::<TimestampMicrosecondArray>(&mut further)?),
        false => None,
    };
    let ops = match beside.ops {
        true => Some(take::<Int8Array>(&mut further)?),
        false => None,
    };
    let origin = match beside.origin {
        true => Some(Origin {
            source: source(),
            row: take::<UInt64Array>(&mut further)?,
            offset: take::<UInt64Array>(&mut further)?,
        }),
        false => None,
    };
    let options = RecordBatchOptions::new().with_row_count(Some(rows_n));
    let rows = RecordBatch::try_new_with_options(Arc::clone(schema), own, &options)?;
    Ok(StreamBatch {
        rows,
        event_time,
        origin,
        ops,
    })
}

fn array_bytes(array: &dyn Array) -> usize {
    let sliced = array.to_data().get_slice_memory_size();
    sliced.unwrap_or_else(|_| array.get_array_memory_size())
}

/// What a batch's rows need, about: the bytes of its frames.
pub fn batch_bytes(batch: &StreamBatch) -> usize {
    let own: usize = batch.rows.columns().iter().map(|c| array_bytes(c)).sum();
    let per_row = usize::from(batch.event_time.is_some()) * 8
        + usize::from(batch.ops.is_some())
        + usize::from(batch.origin.is_some()) * 16;
    own + per_row * batch.len()
}

/// Whether two batches can be one frame.
pub fn can_join(first: &StreamBatch, second: &StreamBatch) -> bool {
    let same_source = match (&first.origin, &second.origin) {
        (None, None) => true,
        (Some(first), Some(second)) => first.source == second.source,
        _ => false,
    };
    let (one, other) = (first.rows.schema_ref(), second.rows.schema_ref());
    same_source
        && Beside::of(first) == Beside::of(second)
        && (Arc::ptr_eq(one, other) || one == other)
}

fn joined<T: Array + Clone + 'static>(parts: &[&dyn Array]) -> Result<T, Error> {
    let mut one = std::iter::once(concat(parts)?);
    take(&mut one)
}

/// Batches that [`can_join`] as one, in their order.
///
/// # Errors
/// [`Error::Arrow`]: together they are too large for their types' offsets.
pub fn join(batches: &[StreamBatch]) -> Result<Option<StreamBatch>, Error> {
    let (Some(first), rest) = (batches.first(), batches.len().saturating_sub(1)) else {
        return Ok(None);
    };
    if rest == 0 {
        return Ok(Some(first.clone()));
    }
    fn all<'a, T: Array + 'a>(
        batches: &'a [StreamBatch],
        of: impl Fn(&'a StreamBatch) -> Option<&'a T>,
    ) -> Vec<&'a dyn Array> {
        batches
            .iter()
            .filter_map(of)
            .map(|array| array as &dyn Array)
            .collect()
    }
    let rows = if first.rows.num_columns() == 0 {
        let rows_n = batches.iter().map(StreamBatch::len).sum();
        let options = RecordBatchOptions::new().with_row_count(Some(rows_n));
        RecordBatch::try_new_with_options(first.rows.schema(), vec![], &options)?
    } else {
        concat_batches(first.rows.schema_ref(), batches.iter().map(|b| &b.rows))?
    };
    let event_time = match first.event_time {
        Some(_) => Some(joined(&all(batches, |b| b.event_time.as_ref()))?),
        None => None,
    };
    let ops = match first.ops {
        Some(_) => Some(joined(&all(batches, |b| b.ops.as_ref()))?),
        None => None,
    };
    let origin = match &first.origin {
        Some(origin) => Some(Origin {
            source: Arc::clone(&origin.source),
            row: joined(&all(batches, |b| b.origin.as_ref().map(|o| &o.row)))?,
            offset: joined(&all(batches, |b| b.origin.as_ref().map(|o| &o.offset)))?,
        }),
        None => None,
    };
    Ok(Some(StreamBatch {
        rows,
        event_time,
        origin,
        ops,
    }))
}

#[cfg(test)]
pub(super) mod tests;
