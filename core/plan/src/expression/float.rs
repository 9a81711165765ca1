//! Floating-point numbers in expressions.
//!
//! Owns: the rule that a DECIMAL beside a REAL or DOUBLE becomes a DOUBLE, as in PostgreSQL (DataFusion
//! would make a DECIMAL(30,15) of the DOUBLE, which cuts digits and cannot hold numbers above 10^15).

use arrow::datatypes::DataType as ArrowType;
use datafusion_common::tree_node::Transformed;
use datafusion_common::{DFSchema, DataFusionError, ScalarValue};
use datafusion_expr::expr::{Cast, ScalarFunction};
use datafusion_expr::{Case, Expr as Logical, ExprSchemable};

use super::lower::rewritten;

/// Functions whose arguments keep their own types.
const MIXED: [&str; 3] = ["struct", "named_struct", "map"];

/// Applies the rule wherever several values must have one type.
pub(super) fn decimals_beside_floats(
    expr: Logical,
    schema: &DFSchema,
) -> Result<Logical, DataFusionError> {
    rewritten(expr, &|mut expr| {
        let changed = match &mut expr {
            Logical::BinaryExpr(binary) => {
                unify([binary.left.as_mut(), binary.right.as_mut()], schema)
            }
            Logical::Between(between) => unify(
                [
                    between.expr.as_mut(),
                    between.low.as_mut(),
                    between.high.as_mut(),
                ],
                schema,
            ),
            Logical::InList(list) => unify(
                [list.expr.as_mut()].into_iter().chain(&mut list.list),
                schema,
            ),
            Logical::Case(case) => unify_case(case, schema),
            Logical::ScalarFunction(ScalarFunction { func, args })
                if !MIXED.contains(&func.name()) =>
            {
                unify(args.iter_mut(), schema)
            }
            _ => false,
        };
        Ok(Transformed::new_transformed(expr, changed))
    })
}

/// What is compared has one type, what comes out has another.
fn unify_case(case: &mut Case, schema: &DFSchema) -> bool {
    let mut compared: Vec<&mut Logical> = Vec::new();
    let mut results: Vec<&mut Logical> = Vec::new();
    compared.extend(case.expr.as_deref_mut());
    for (when, then) in &mut case.when_then_expr {
        compared.push(when);
        results.push(then);
    }
    results.extend(case.else_expr.as_deref_mut());
    let compared = unify(compared, schema);
    let results = unify(results, schema);
    compared || results
}

fn unify<'a>(group: impl IntoIterator<Item = &'a mut Logical>, schema: &DFSchema) -> bool {
    let (mut floats_n, mut decimals) = (0, Vec::new());
    for expr in group {
        // A type that cannot be told is the planner's to complain of.
        match expr.get_type(schema) {
            Ok(data_type) if data_type.is_floating() => floats_n += 1,
            Ok(data_type) if data_type.is_decimal() => decimals.push(expr),
            _ => {}
        }
    }
    if floats_n == 0 || decimals.is_empty() {
        return false;
    }
    for expr in decimals {
        let decimal = std::mem::take(expr);
        *expr = match nearest_double(&decimal) {
            Some(double) => Logical::Literal(ScalarValue::Float64(Some(double)), None),
            None => Logical::Cast(Cast::new(Box::new(decimal), ArrowType::Float64)),
        };
    }
    true
}

/// A literal's double is the one nearest to its digits; a cast divides and may be one off.
fn nearest_double(expr: &Logical) -> Option<f64> {
    match expr {
        Logical::Literal(ScalarValue::Decimal128(Some(digits), _, scale), _) => {
            format!("{digits}e{}", -i32::from(*scale)).parse().ok()
        }
        Logical::Negative(inner) => nearest_double(inner).map(|double| -double),
        _ => None,
    }
}
