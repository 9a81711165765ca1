//! Floating-point numbers in expressions.
//!
//! Owns: the rule that a DECIMAL beside a REAL or DOUBLE becomes a DOUBLE, as in PostgreSQL (DataFusion
//! would make a DECIMAL(30,15) of the DOUBLE, which cuts digits and cannot hold numbers above 10^15), and
//! the rule that both zeros are equal (Arrow compares by the total order, where -0 is less than 0).

use arrow::datatypes::DataType as ArrowType;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, ScalarValue};
use datafusion_expr::expr::{Cast, ScalarFunction};
use datafusion_expr::{BinaryExpr, Case, Expr as Logical, ExprSchemable, Operator};

/// Functions whose arguments keep their own types.
const MIXED: [&str; 3] = ["struct", "named_struct", "map"];

/// Applies the rule wherever several values must have one type.
pub(super) fn decimals_beside_floats(
    expr: Logical,
    schema: &DFSchema,
) -> Result<Logical, DataFusionError> {
    expr.transform_up(|mut expr| {
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
    .map(|transformed| transformed.data)
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

/// Lets -0 equal 0 in every comparison. Types must agree already.
pub(super) fn zeros_are_equal(
    expr: Logical,
    schema: &DFSchema,
) -> Result<Logical, DataFusionError> {
    expr.transform_up(|mut expr| {
        let compared: Vec<&mut Logical> = match &mut expr {
            Logical::BinaryExpr(binary) if compares(binary.op) => {
                vec![binary.left.as_mut(), binary.right.as_mut()]
            }
            Logical::Between(between) => vec![
                between.expr.as_mut(),
                between.low.as_mut(),
                between.high.as_mut(),
            ],
            Logical::InList(list) => {
                let mut all = vec![list.expr.as_mut()];
                all.extend(&mut list.list);
                all
            }
            Logical::Case(case) if case.expr.is_some() => {
                let whens = case.when_then_expr.iter_mut();
                let whens = whens.map(|(when, _)| when.as_mut());
                case.expr.as_deref_mut().into_iter().chain(whens).collect()
            }
            _ => Vec::new(),
        };
        let mut changed = false;
        for side in compared {
            changed |= add_zero(side, schema);
        }
        Ok(Transformed::new_transformed(expr, changed))
    })
    .map(|transformed| transformed.data)
}

fn compares(op: Operator) -> bool {
    matches!(
        op,
        Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq
            | Operator::IsDistinctFrom
            | Operator::IsNotDistinctFrom
    )
}

/// `-0 + 0` is 0, and every other number stays what it is.
fn add_zero(side: &mut Logical, schema: &DFSchema) -> bool {
    let zero = match side.get_type(schema) {
        Ok(ArrowType::Float64) => ScalarValue::Float64(Some(0.0)),
        Ok(ArrowType::Float32) => ScalarValue::Float32(Some(0.0)),
        _ => return false,
    };
    match side {
        Logical::Literal(ScalarValue::Float64(Some(value)), _) => *value += 0.0,
        Logical::Literal(ScalarValue::Float32(Some(value)), _) => *value += 0.0,
        Logical::Literal(..) => return false,
        _ => {
            let zero = Box::new(Logical::Literal(zero, None));
            let number = Box::new(std::mem::take(side));
            *side = Logical::BinaryExpr(BinaryExpr::new(number, Operator::Plus, zero));
        }
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
