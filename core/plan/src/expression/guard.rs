//! A rule applied to what a physical expression yields.
//!
//! Owns: the wrapper that keeps a value within its type, batch after batch: decimals of full width
//! within 38 digits, floats with one zero and one NaN. Start at: [`guard`].
//!
//! Decimals: Arrow fails a sum only when 128 bits overflow, which is a little later than 38 digits: in
//! between it would hand on a number that its own type cannot hold.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::datatypes::{DataType as ArrowType, Decimal128Type, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{BinaryExpr, Literal};

use super::canonical::{canonical_value, holds_floats};

/// Digits a DECIMAL can have.
const PRECISION_MAX: u8 = 38;

/// What is looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    /// No decimal has more digits than its type.
    Precision,
    /// -0 is 0 and every NaN the same.
    OneZeroOneNan,
}

/// `expr`, under the rule that its result needs, if any. Literals are looked after before.
pub(super) fn guard(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    if expr.downcast_ref::<Literal>().is_some() {
        return Ok(expr);
    }
    let field = expr.return_field(schema)?;
    let rule = match field.data_type() {
        ArrowType::Decimal128(PRECISION_MAX, _) if is_arithmetic(&expr) => Rule::Precision,
        data_type if holds_floats(data_type) => Rule::OneZeroOneNan,
        _ => return Ok(expr),
    };
    Ok(Arc::new(Guarded { expr, rule, field }))
}

/// Whether it is one of `+ - * / %`.
pub(super) fn is_arithmetic(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let binary = expr.downcast_ref::<BinaryExpr>();
    binary.is_some_and(|binary| {
        matches!(
            binary.op(),
            Operator::Plus
                | Operator::Minus
                | Operator::Multiply
                | Operator::Divide
                | Operator::Modulo
        )
    })
}

#[derive(Debug)]
struct Guarded {
    expr: Arc<dyn PhysicalExpr>,
    rule: Rule,
    field: FieldRef,
}

impl PartialEq for Guarded {
    fn eq(&self, other: &Self) -> bool {
        self.rule == other.rule && self.expr.eq(&other.expr)
    }
}

impl Eq for Guarded {}

impl Hash for Guarded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rule.hash(state);
        self.expr.hash(state);
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl PhysicalExpr for Guarded {
    fn return_field(&self, _: &Schema) -> Result<FieldRef> {
        Ok(Arc::clone(&self.field))
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let value = self.expr.evaluate(batch)?;
        match self.rule {
            Rule::OneZeroOneNan => canonical_value(value),
            Rule::Precision => within_precision(&value).map(|()| value),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.expr]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let (rule, field) = (self.rule, Arc::clone(&self.field));
        match children.pop() {
            Some(expr) if children.is_empty() => Ok(Arc::new(Guarded { expr, rule, field })),
            _ => exec_err!("a guard has one child"),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt_sql(f)
    }
}

fn within_precision(value: &ColumnarValue) -> Result<()> {
    match value {
        ColumnarValue::Array(array) => {
            if let Some(array) = array.as_primitive_opt::<Decimal128Type>() {
                array.validate_decimal_precision(PRECISION_MAX)?;
            }
        }
        ColumnarValue::Scalar(ScalarValue::Decimal128(Some(number), ..)) => {
            if number.unsigned_abs() >= 10_u128.pow(u32::from(PRECISION_MAX)) {
                return exec_err!("the result has more than {PRECISION_MAX} digits");
            }
        }
        ColumnarValue::Scalar(_) => {}
    }
    Ok(())
}
