//! What runs: stages of chained operators and the exchanges between them.
//!
//! Owns: the deployed plan as data. Expressions travel as SQL text with resolved types and are
//! compiled where they run (C8), so a plan can be stored and read by a later version. Built by
//! `core/plan`, stored next to the checkpoints, read by task managers. Start at: [`JobGraph`].

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::ids::{OperatorUid, StageIdx, SubtaskIdx, TaskId};

/// Version of the plan format, written into every stored plan.
pub const PLAN_FORMAT_VERSION: u16 = 1;

/// One column of an operator's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Case-sensitive name.
    pub name: String,
    /// SQL type.
    pub data_type: DataType,
    /// Whether NULL may occur.
    pub nullable: bool,
}

/// A SQL expression with its resolved type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expr {
    /// Text as the user wrote it, without `AS name`.
    pub sql: String,
    /// Type it was resolved to.
    pub data_type: DataType,
    /// Whether it may be NULL.
    pub nullable: bool,
}

/// An expression and the name of the column it makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedExpr {
    /// Name of the output column.
    pub name: String,
    /// What it is computed from.
    pub expr: Expr,
}

/// A job, ready to run at any parallelism up to `max_parallelism`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobGraph {
    /// [`PLAN_FORMAT_VERSION`] of the writer.
    pub format_version: u16,
    /// Name of the StreamJob.
    pub name: String,
    /// Number of key groups; fixed while state exists.
    pub max_parallelism: u32,
    /// True if every source ends by itself.
    pub bounded: bool,
    /// Stages in topological order; every stage runs in `parallelism` subtasks.
    pub stages: Vec<Stage>,
    /// Exchanges between stages.
    pub edges: Vec<Edge>,
}

/// Operators that run in one task, chained by calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// In topological order: an operator's chained inputs come before it.
    pub operators: Vec<Operator>,
}

/// One operator of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// Name of its state and counters.
    pub uid: OperatorUid,
    /// Name of the document's node it comes from.
    pub node: String,
    /// What it does.
    pub kind: OperatorKind,
    /// Where its rows come from; empty for a source.
    pub inputs: Vec<Input>,
    /// Columns of its main output (empty for a sink).
    pub output: Vec<Column>,
    /// True if its main output is a changelog with retractions.
    pub updating: bool,
}

/// Where an operator's input comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// An earlier operator of the same stage.
    Chained {
        /// Its index within the stage.
        operator: usize,
        /// Which of its outputs.
        port: Port,
    },
    /// An exchange, by index into [`JobGraph::edges`].
    Edge(usize),
}

/// Which output of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Port {
    /// The node's rows.
    Main,
    /// Rows that could not be decoded, evaluated or written; columns [`bad_columns`].
    Bad,
    /// (record, missed window) pairs; columns [`late_columns`].
    Late,
}

/// An exchange from one stage to a later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// Sending stage.
    pub from_stage: StageIdx,
    /// Sending operator within it.
    pub from_operator: usize,
    /// Its output.
    pub port: Port,
    /// Receiving stage.
    pub to_stage: StageIdx,
    /// Receiving operator within it.
    pub to_operator: usize,
    /// How rows find their subtask.
    pub exchange: Exchange,
}

/// How rows find their subtask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exchange {
    /// Subtask i to subtask i.
    Forward,
    /// To the owner of the row's key group (K1).
    KeyGroup {
        /// Indices, in the rows that cross, of the key's columns, in order. Empty: one constant key.
        columns: Vec<usize>,
    },
}

/// What an operator does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorKind {
    /// Reads an outside system.
    Source(SourceSpec),
    /// Keeps the rows for which the predicate is true.
    Filter {
        /// BOOLEAN expression over the input.
        predicate: Expr,
    },
    /// Computes columns.
    Project {
        /// One per output column.
        items: Vec<NamedExpr>,
    },
    /// One row per element of a list; the other columns are kept.
    Unnest {
        /// LIST expression; its name becomes the last column. A NULL or empty list makes no row.
        item: NamedExpr,
    },
    /// All rows of all inputs.
    Union,
    /// First half of a windowed aggregate: lateness, slices, partial aggregation.
    WindowPartial(AggregateSpec),
    /// Second half: keyed state and firing.
    WindowFinal(AggregateSpec),
    /// Writes to an outside system.
    Sink(SinkSpec),
}

/// An outside system and what the document says about it, which only its connector reads, and
/// [`SinkPlace`](crate::sink_place::SinkPlace).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connector {
    /// `kafka`, `file`, `generator`, `print`, `blackhole`.
    pub kind: String,
    /// The document's block of that name, defaults filled in, durations and sizes as written.
    pub config: serde_json::Value,
}

/// How bytes become rows and back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// One JSON object per line.
    Json,
    /// RFC 4180.
    Csv {
        /// First line names the columns.
        header: bool,
        /// One byte.
        delimiter: char,
        /// Text that means NULL, besides the empty field.
        null: Option<String>,
    },
    /// Apache Parquet.
    Parquet,
    /// One BYTEA or TEXT column per line.
    Raw,
}

/// One column of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceColumn {
    /// Its name, type and nullability.
    pub column: Column,
    /// JSON pointer (RFC 6901) instead of the field of that name.
    pub path: Option<String>,
    /// How text or a number becomes a time.
    pub parse: TimeParse,
}

/// How text or a number becomes a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeParse {
    /// RFC 3339 text; an offset is optional for TIMESTAMP.
    #[default]
    Rfc3339,
    /// A number of seconds.
    EpochSeconds,
    /// A number of milliseconds.
    EpochMillis,
    /// A number of microseconds.
    EpochMicros,
    /// A strftime pattern.
    Pattern(String),
}

/// What to do with a record that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnBadRecord {
    /// To the node's `.bad`.
    #[default]
    Divert,
    /// The job fails.
    Fail,
}

/// Where event time comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventTimeSpec {
    /// TIMESTAMP expression over the source's columns; a bare column name in the simple case.
    pub expr: Expr,
    /// How far behind the largest time seen a row may come, in microseconds.
    pub max_out_of_orderness_us: i64,
    /// After how long without rows a split stops holding the watermark. Bounded splits never do.
    pub idle_timeout_ms: Option<u64>,
}

/// A source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// Outside system.
    pub connector: Connector,
    /// How its bytes become rows; none for a generator.
    pub format: Option<Format>,
    /// Declared columns, in order. The operator's `output` lists those that anybody reads, in the
    /// same order; only these are decoded.
    pub columns: Vec<SourceColumn>,
    /// Event time, if any.
    pub event_time: Option<EventTimeSpec>,
    /// Bad records.
    pub on_bad_record: OnBadRecord,
    /// Rows per second over all subtasks.
    pub rate_limit: Option<u64>,
    /// True if it ends by itself.
    pub bounded: bool,
    /// True if somebody needs each row's origin: a `.bad` or `.late` reader, or a late log.
    pub origin: bool,
}

/// When a windowed aggregate emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Emit {
    /// First when `end <= W`, corrections by retraction until `end + allowedLateness <= W`.
    OnTime,
    /// One result, when `end + allowedLateness <= W`.
    Once,
}

/// Which windows a record belongs to. Microseconds, half-open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowSpec {
    /// `[n*size + offset, (n+1)*size + offset)`.
    Tumbling {
        /// Length.
        size_us: i64,
        /// `0 <= offset < size`.
        offset_us: i64,
        /// IANA name; other than UTC only with whole days.
        time_zone: String,
    },
    /// Windows of `size` that begin every `slide`; `slide <= size`.
    Hopping {
        /// Length.
        size_us: i64,
        /// Distance of starts.
        slide_us: i64,
        /// `0 <= offset < slide`.
        offset_us: i64,
        /// IANA name; other than UTC only with whole days.
        time_zone: String,
    },
    /// Records of one key less than `gap` apart.
    Session {
        /// Distance.
        gap_us: i64,
    },
}

/// One aggregate of a `select`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggregateCall {
    /// Output column.
    pub name: String,
    /// Which.
    pub function: AggregateFunction,
    /// Argument over the aggregate's input; none for `count(*)`.
    pub arg: Option<Expr>,
    /// `FILTER (WHERE ...)`.
    pub filter: Option<Expr>,
    /// Type of the result.
    pub data_type: DataType,
    /// Whether the result may be NULL.
    pub nullable: bool,
}

/// Aggregates whose merge is commutative and associative in value (G1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AggregateFunction {
    /// `count(*)`, `count(x)`: BIGINT.
    Count,
    /// `count(DISTINCT x)`: BIGINT.
    CountDistinct,
    /// INT -> BIGINT, BIGINT -> DECIMAL(38,0), DECIMAL(p,s) -> DECIMAL(38,s), floats -> DOUBLE.
    Sum,
    /// Ints and decimals -> DECIMAL(38, min(s + 6, 38)), rounded half away from zero; floats -> DOUBLE.
    Avg,
    /// Type of the argument.
    Min,
    /// Type of the argument.
    Max,
    /// DOUBLE.
    StddevPop,
    /// DOUBLE.
    StddevSamp,
    /// DOUBLE.
    VarPop,
    /// DOUBLE.
    VarSamp,
    /// HyperLogLog over the stable hash: BIGINT.
    ApproxDistinct,
    /// By event time, ties by the smallest value, NULL last.
    FirstValue,
    /// By event time, ties by the largest value, NULL last.
    LastValue,
    /// Sorted by event time, then value; at most 10,000 items.
    ArrayAgg,
    /// All true.
    BoolAnd,
    /// Any true.
    BoolOr,
}

/// A windowed aggregate, shared by its two operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggregateSpec {
    /// Columns of the input of the first half.
    pub input: Vec<Column>,
    /// `groupBy`; may be empty.
    pub keys: Vec<NamedExpr>,
    /// Windows.
    pub window: WindowSpec,
    /// Aggregates, in output order. The second half's main output is the keys, `window_start`,
    /// `window_end`, then these.
    pub calls: Vec<AggregateCall>,
    /// Microseconds.
    pub allowed_lateness_us: i64,
    /// When to emit.
    pub emit: Emit,
    /// True if missed windows are written to the late log.
    pub late_log: bool,
}

/// What a sink promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// Staged, published after the commit.
    ExactlyOnce,
    /// Written straight through.
    AtLeastOnce,
}

/// How a sink shows retractions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangelogMode {
    /// The input has none.
    AppendOnly,
    /// A first column `_op`: `+I -U +U -D`.
    Retract,
    /// By key: the newest row; a delete is a record without a value.
    Upsert,
}

/// A sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkSpec {
    /// Outside system.
    pub connector: Connector,
    /// How rows become bytes; none where the connector needs none.
    pub format: Option<Format>,
    /// Columns of its input.
    pub input: Vec<Column>,
    /// What it promises.
    pub delivery: Delivery,
    /// How it shows retractions.
    pub changelog: ChangelogMode,
    /// Rows per second over all subtasks.
    pub rate_limit: Option<u64>,
}

impl SinkSpec {
    /// What it keeps. Files are exactly once whatever was written: the plan holds that as it was written, since a
    /// running job is adopted by its hash.
    pub fn kept_delivery(&self) -> Delivery {
        match &*self.connector.kind {
            "file" => Delivery::ExactlyOnce,
            _ => self.delivery,
        }
    }
}

fn column(name: &str, data_type: DataType, nullable: bool) -> Column {
    Column {
        name: name.to_owned(),
        data_type,
        nullable,
    }
}

/// Columns of every `.bad` output.
pub fn bad_columns() -> Vec<Column> {
    vec![
        column("raw", DataType::Bytea, true),
        column("reason", DataType::Text, false),
        column("node", DataType::Text, false),
        column("source", DataType::Text, true),
        column("position", DataType::Text, true),
        column("event_time", DataType::Timestamp, true),
    ]
}

/// Columns of the `.late` output of an aggregate with this input.
pub fn late_columns(input: &[Column]) -> Vec<Column> {
    let mut columns = input.to_vec();
    columns.extend([
        column("window_start", DataType::Timestamp, false),
        column("window_end", DataType::Timestamp, false),
        column("watermark", DataType::Timestamp, false),
        column("source", DataType::Text, true),
        column("position", DataType::Text, true),
    ]);
    columns
}

impl JobGraph {
    /// All tasks at this parallelism: one per stage and subtask.
    pub fn tasks(&self, parallelism: u32) -> impl Iterator<Item = TaskId> {
        let stages_n = u32::try_from(self.stages.len()).unwrap_or(u32::MAX);
        (0..stages_n).flat_map(move |stage| {
            let task = move |subtask| TaskId {
                stage: StageIdx(stage),
                subtask: SubtaskIdx(subtask),
            };
            (0..parallelism).map(task)
        })
    }

    /// Every stage's task of each of these subtasks.
    pub fn tasks_of<'a>(
        &'a self,
        subtasks: impl IntoIterator<Item = SubtaskIdx> + Clone + 'a,
    ) -> impl Iterator<Item = TaskId> + 'a {
        let stages_n = u32::try_from(self.stages.len()).unwrap_or(u32::MAX);
        (0..stages_n).flat_map(move |stage| {
            let task = move |subtask| TaskId {
                stage: StageIdx(stage),
                subtask,
            };
            subtasks.clone().into_iter().map(task)
        })
    }

    /// Operators of all stages with the stage they are in.
    pub fn operators(&self) -> impl Iterator<Item = (StageIdx, &Operator)> {
        self.stages.iter().enumerate().flat_map(|(idx, stage)| {
            let stage_idx = StageIdx(u32::try_from(idx).unwrap_or(u32::MAX));
            stage
                .operators
                .iter()
                .map(move |operator| (stage_idx, operator))
        })
    }
}
