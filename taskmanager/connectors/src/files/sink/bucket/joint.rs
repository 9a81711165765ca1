//! Parquet files that become one, by their row groups.
//!
//! Owns: where the row groups of each segment lie in the joined file, and the footer as it would be if
//! the file ended here. Copies and decodes no rows: of a segment's file the bytes of its row groups are
//! taken as they are. Start at: [`Joint`].

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataReader,
    ParquetMetaDataWriter, RowGroupMetaData,
};

/// The four bytes that a Parquet file begins with.
const MAGIC_BYTES: u64 = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Joint {
    /// Of the first segment: all have its schema.
    facts: Option<FileMetaData>,
    groups: Vec<RowGroupMetaData>,
    bytes_n: u64,
}

impl Joint {
    /// Puts a segment behind those before; answers which bytes of its file are to be copied there.
    pub(super) fn add(&mut self, segment: &Path) -> Result<Range<u64>, ParquetError> {
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&File::open(segment)?)?;
        // The first one brings the magic bytes along.
        let start = if self.facts.is_some() { MAGIC_BYTES } else { 0 };
        let facts = self
            .facts
            .get_or_insert_with(|| metadata.file_metadata().clone());
        let columns = metadata.row_groups().iter().flat_map(|it| it.columns());
        let ends = columns.map(|column| {
            let (at, bytes_n) = column.byte_range();
            at + bytes_n
        });
        let end = ends.max().unwrap_or(start).max(start);
        for group in metadata.row_groups() {
            let moved = moved(group, facts, (start, self.bytes_n))?;
            self.groups.push(moved);
        }
        self.bytes_n += end - start;
        Ok(start..end)
    }

    /// What must follow the row groups added so far to make them a file.
    pub(super) fn footer(&self) -> Result<Bytes, ParquetError> {
        let Some(facts) = &self.facts else {
            return Ok(Bytes::new());
        };
        let rows_n = self.groups.iter().map(RowGroupMetaData::num_rows).sum();
        let facts = FileMetaData::new(
            facts.version(),
            rows_n,
            facts.created_by().map(str::to_owned),
            facts.key_value_metadata().cloned(),
            facts.schema_descr_ptr(),
            facts.column_orders().cloned(),
        );
        let metadata = ParquetMetaData::new(facts, self.groups.clone());
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &metadata).finish()?;
        Ok(footer.into())
    }
}

/// A row group as it is in the joined file: `places` are one place in its own file and in the joined one.
fn moved(
    group: &RowGroupMetaData,
    facts: &FileMetaData,
    places: (u64, u64),
) -> Result<RowGroupMetaData, ParquetError> {
    let place = |at: u64| i64::try_from(at).map_err(|_| ParquetError::General("too long".into()));
    let (from, to) = (place(places.0)?, place(places.1)?);
    let moved = |at: i64| at - from + to;
    let mut columns = Vec::with_capacity(group.num_columns());
    for (idx, column) in group.columns().iter().enumerate() {
        // The descriptions are shared, not kept once for each segment.
        let mut copy = ColumnChunkMetaData::builder(facts.schema_descr().column(idx))
            .set_compression(column.compression())
            .set_encodings_mask(*column.encodings_mask())
            .set_total_compressed_size(column.compressed_size())
            .set_total_uncompressed_size(column.uncompressed_size())
            .set_num_values(column.num_values())
            .set_data_page_offset(moved(column.data_page_offset()))
            .set_dictionary_page_offset(column.dictionary_page_offset().map(moved));
        if let Some(statistics) = column.statistics() {
            copy = copy.set_statistics(statistics.clone());
        }
        columns.push(copy.build()?);
    }
    let at = columns.first().map(ColumnChunkMetaData::byte_range);
    let mut copy = RowGroupMetaData::builder(facts.schema_descr_ptr())
        .set_column_metadata(columns)
        .set_num_rows(group.num_rows())
        .set_total_byte_size(group.total_byte_size());
    if let Some((at, _)) = at {
        copy = copy.set_file_offset(place(at)?);
    }
    copy.build()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    fn rows(range: Range<i64>) -> RecordBatch {
        let texts = StringArray::from_iter_values(range.clone().map(|n| format!("text {}", n % 3)));
        let columns: [(&str, ArrayRef); 2] = [
            ("n", Arc::new(Int64Array::from_iter_values(range))),
            ("text", Arc::new(texts)),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// A file with a row group for each of these ranges.
    fn file(path: PathBuf, groups: &[Range<i64>]) -> PathBuf {
        let file = File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, rows(0..1).schema(), None).unwrap();
        for group in groups {
            writer.write(&rows(group.clone())).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
        path
    }

    #[test]
    fn after_each_segment_bytes_and_footer_are_a_file_with_all_rows_so_far() {
        let folder = tempfile::tempdir().unwrap();
        let segments = [
            file(folder.path().join("0"), &[0..100, 100..150]),
            file(folder.path().join("1"), &[150..151, 151..152]),
            file(folder.path().join("2"), &[152..200, 200..300]),
        ];
        let mut joint = Joint::default();
        assert!(joint.footer().unwrap().is_empty());
        let mut bytes = Vec::new();
        for (segment, (rows_n, groups_n)) in segments.iter().zip([(150, 2), (152, 4), (300, 6)]) {
            let range = joint.add(segment).unwrap();
            let (start, end) = (range.start as usize, range.end as usize);
            bytes.extend_from_slice(&fs::read(segment).unwrap()[start..end]);

            let mut whole = bytes.clone();
            whole.extend_from_slice(&joint.footer().unwrap());
            let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(whole)).unwrap();
            assert_eq!(reader.metadata().num_row_groups(), groups_n);
            assert_eq!(reader.schema(), &rows(0..1).schema());
            let statistics = reader.metadata().row_groups()[groups_n - 1]
                .column(0)
                .statistics();
            let most = rows_n - 1;
            assert_eq!(
                statistics.unwrap().max_bytes_opt(),
                Some(i64::to_le_bytes(most).as_slice())
            );
            let batches: Vec<_> = reader.build().unwrap().map(Result::unwrap).collect();
            let all = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
            assert_eq!(all, rows(0..rows_n));
        }
    }
}
