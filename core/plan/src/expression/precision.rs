//! Decimal results that have more digits than their type.
//!
//! Owns: the check behind every decimal operation whose exact result type would need more than 38
//! digits. Arrow fails such a sum only when 128 bits overflow, which is a little later: in between it
//! would hand on a number that its own type cannot hold.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::datatypes::{DataType as ArrowType, Decimal128Type, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::PhysicalExpr;

/// Digits a DECIMAL can have.
const PRECISION_MAX: u8 = 38;

/// `expr`, checked if its result is a decimal of full width.
pub(super) fn guard(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    match expr.data_type(schema)? {
        ArrowType::Decimal128(PRECISION_MAX, _) => Ok(Arc::new(WithinPrecision { expr })),
        _ => Ok(expr),
    }
}

#[derive(Debug, Eq)]
struct WithinPrecision {
    expr: Arc<dyn PhysicalExpr>,
}

// Derived impls would move the trait object (rust#78808).
impl PartialEq for WithinPrecision {
    fn eq(&self, other: &Self) -> bool {
        self.expr.eq(&other.expr)
    }
}

impl Hash for WithinPrecision {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.expr.hash(state);
    }
}

impl fmt::Display for WithinPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}

impl PhysicalExpr for WithinPrecision {
    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.expr.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let value = self.expr.evaluate(batch)?;
        match &value {
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
        Ok(value)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.expr]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match children.pop() {
            Some(expr) if children.is_empty() => Ok(Arc::new(WithinPrecision { expr })),
            _ => exec_err!("a precision check has one child"),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt_sql(f)
    }
}
