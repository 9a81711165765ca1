//! Mistakes of an expression that no row could make good.
//!
//! Owns: computing once, when the document is read, what does not depend on a row: whatever has no
//! column in it, a division by a literal zero, and literals that are a little language of their own
//! (regular expressions, units, zones, lengths). Start at: [`check`].
//!
//! Behind CASE, AND and OR only the literals are looked at: `ELSE 1 / 0` is a way to send a row to
//! `.bad` on purpose.

use std::sync::Arc;

use arrow::datatypes::{DataType as ArrowType, Schema, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::{DataFusionError, ScalarValue};
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::expressions::{BinaryExpr, CaseExpr, Column, Literal};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use streamforge_core::job_graph;

use super::Error;
use crate::arrow_type::schema;

/// Functions whose literals are tried, and the argument that any value stands for: with the others
/// as they are, the function fails for all values of it or for none.
const TRIED: [(&str, usize); 14] = [
    ("at_time_zone", 0),
    ("date_part", 1),
    ("date_trunc", 1),
    ("decode", 0),
    ("digest", 0),
    ("encode", 0),
    ("lpad", 0),
    ("regexp_count", 0),
    ("regexp_instr", 0),
    ("regexp_like", 0),
    ("regexp_match", 0),
    ("regexp_replace", 0),
    ("repeat", 0),
    ("rpad", 0),
];

/// Computes what can be computed without a row; the first that fails is the mistake.
pub(super) fn check(
    expr: &Arc<dyn PhysicalExpr>,
    columns: &[job_graph::Column],
) -> Result<(), Error> {
    let schema = schema(columns);
    walk(expr, &schema, Reached::Always).map(|_| ())
}

/// When an expression is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    /// For every row.
    Always,
    /// For rows that something before it lets through.
    Sometimes,
}

/// Whether the expression is constant; what is a mistake in it for every row was found.
fn walk(expr: &Arc<dyn PhysicalExpr>, schema: &Schema, reached: Reached) -> Result<bool, Error> {
    if expr.downcast_ref::<Literal>().is_some() {
        return Ok(true);
    }
    if expr.downcast_ref::<Column>().is_some() {
        return Ok(false);
    }
    let mut constant = true;
    for (idx, child) in expr.children().into_iter().enumerate() {
        let reached = if guards(expr, idx) {
            Reached::Sometimes
        } else {
            reached
        };
        constant &= walk(child, schema, reached)?;
    }
    if !constant {
        try_literals(expr, schema, reached)?;
    } else if reached == Reached::Always {
        value_of(expr).map_err(|error| mistake(&error))?;
    }
    Ok(constant)
}

/// Whether this child is computed for some rows only.
fn guards(expr: &Arc<dyn PhysicalExpr>, child: usize) -> bool {
    let binary = expr.downcast_ref::<BinaryExpr>();
    let chain = binary.is_some_and(|b| matches!(b.op(), Operator::And | Operator::Or));
    expr.downcast_ref::<CaseExpr>().is_some() || (chain && child > 0)
}

fn is_constant(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<Column>().is_none() && expr.children().into_iter().all(is_constant)
}

/// The value of an expression over one row without columns.
fn value_of(expr: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue, DataFusionError> {
    let one = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &one)?;
    match expr.evaluate(&row)? {
        ColumnarValue::Scalar(scalar) => Ok(scalar),
        ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0),
    }
}

fn mistake(error: &DataFusionError) -> Error {
    let reason = reason(error);
    let hint = if reason.contains("regular expression") {
        Some("a backslash makes a sign stand for itself, as in `\\(`")
    } else if reason.contains("annot cast") {
        Some("write a value of that type")
    } else {
        None
    };
    Error {
        message: format!("no row can be computed: {reason}"),
        hint: hint.map(str::to_owned),
    }
}

/// What DataFusion says, in our types and without the names of its parts.
fn reason(error: &DataFusionError) -> String {
    let text = error.find_root().strip_backtrace();
    let is_pattern = text.to_lowercase().contains("regex") || text.contains("egular expression");
    let what = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("error: "));
    if let Some(what) = what.filter(|_| is_pattern) {
        return format!("the regular expression is broken: {what}");
    }
    let mut text = text.lines().next().unwrap_or_default();
    for prefix in [
        "Arrow error: ",
        "Execution error: ",
        "Error during planning: ",
        "Cast error: ",
        "Parser error: ",
        "Compute error: ",
        "Invalid argument error: ",
    ] {
        text = text.strip_prefix(prefix).unwrap_or(text);
    }
    let mut text = text.to_owned();
    for (theirs, ours) in [
        ("value of Int32 type", "INT"),
        ("value of Int64 type", "BIGINT"),
        ("value of Float32 type", "REAL"),
        ("value of Float64 type", "DOUBLE"),
        ("value of Boolean type", "BOOLEAN"),
        ("value of Date32 type", "DATE"),
        ("Divide by zero error", "divide by zero"),
    ] {
        text = text.replace(theirs, ours);
    }
    text
}

fn try_literals(
    expr: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
    reached: Reached,
) -> Result<(), Error> {
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return try_binary(binary, reached);
    }
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
        return Ok(());
    };
    let Some((name, free)) = TRIED.iter().find(|(name, _)| *name == call.name()) else {
        return Ok(());
    };
    let mut args: Vec<Arc<dyn PhysicalExpr>> = expr.children().into_iter().cloned().collect();
    let constant = |(idx, arg): (usize, &Arc<dyn PhysicalExpr>)| idx == *free || is_constant(arg);
    let fixed = args.iter().enumerate().all(constant);
    let Some(arg) = args.get_mut(*free).filter(|_| fixed) else {
        return Ok(());
    };
    // `repeat` of nothing is nothing, however often.
    let text = if *name == "repeat" { "x" } else { "" };
    let data_type = arg.data_type(schema).map_err(|error| mistake(&error))?;
    let Some(any) = any_value(&data_type, text) else {
        return Ok(());
    };
    *arg = Arc::new(Literal::new(any));
    let tried = Arc::clone(expr).with_new_children(args);
    tried
        .and_then(|tried| value_of(&tried))
        .map(|_| ())
        .map_err(|error| mistake(&error))
}

/// A value that the functions above take with any sensible literals.
fn any_value(data_type: &ArrowType, text: &str) -> Option<ScalarValue> {
    match data_type {
        ArrowType::Utf8 => Some(ScalarValue::Utf8(Some(text.to_owned()))),
        ArrowType::Binary => Some(ScalarValue::Binary(Some(Vec::new()))),
        ArrowType::Date32 => Some(ScalarValue::Date32(Some(0))),
        ArrowType::Timestamp(TimeUnit::Microsecond, zone) => {
            Some(ScalarValue::TimestampMicrosecond(Some(0), zone.clone()))
        }
        _ => None,
    }
}

fn try_binary(binary: &BinaryExpr, reached: Reached) -> Result<(), Error> {
    let right = binary.right();
    if !is_constant(right) {
        return Ok(());
    }
    match binary.op() {
        Operator::Divide | Operator::Modulo if reached == Reached::Always => {
            let divisor = value_of(right).map_err(|error| mistake(&error))?;
            let exact = matches!(
                divisor,
                ScalarValue::Int32(Some(0))
                    | ScalarValue::Int64(Some(0))
                    | ScalarValue::Decimal128(Some(0), ..)
            );
            if exact {
                return Err(Error::with_hint(
                    "no row can be computed: divide by zero",
                    "divide by another number, or by `nullif(x, 0)`",
                ));
            }
            Ok(())
        }
        Operator::RegexMatch
        | Operator::RegexIMatch
        | Operator::RegexNotMatch
        | Operator::RegexNotIMatch => {
            let any = Literal::new(ScalarValue::Utf8(Some(String::new())));
            let tried = BinaryExpr::new(Arc::new(any), *binary.op(), Arc::clone(right));
            let tried: Arc<dyn PhysicalExpr> = Arc::new(tried);
            value_of(&tried)
                .map(|_| ())
                .map_err(|error| mistake(&error))
        }
        _ => Ok(()),
    }
}
