//! TEXT beside a number.
//!
//! Owns: refusing comparisons of the two. DataFusion would turn the text of each row into a number,
//! so a row whose text is none would be bad, and `'10' > '9'` would mean something else with quotes
//! than without. A literal in quotes is taken for the number it is. Start at: [`check`].

use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{BinaryOperator, Expr, Value, ValueWithSpan};
use streamforge_core::data_type::DataType;

use super::Error;
use super::lower::{Scope, lower};
use super::parse::{Ast, visit};
use crate::arrow_type::sql_type;

/// Reports the first comparison of a TEXT that is no literal with a number.
pub(super) fn check(ast: &Ast, scope: &Scope) -> Result<(), Error> {
    visit(ast, &mut |expr| {
        let mistake = match expr {
            Expr::BinaryOp { left, op, right } if compares(op) => mixed(left, right, scope),
            Expr::IsDistinctFrom(left, right) | Expr::IsNotDistinctFrom(left, right) => {
                mixed(left, right, scope)
            }
            Expr::Between {
                expr, low, high, ..
            } => mixed(expr, low, scope).or_else(|| mixed(expr, high, scope)),
            Expr::InList { expr, list, .. } => {
                list.iter().find_map(|item| mixed(expr, item, scope))
            }
            _ => None,
        };
        match mistake {
            None => ControlFlow::Continue(()),
            Some((text, number)) => ControlFlow::Break(Error::with_hint(
                format!("`{text}` is TEXT and is compared with a number"),
                format!("write `CAST({text} AS {number})`, or put the number in quotes"),
            )),
        }
    })
}

fn compares(op: &BinaryOperator) -> bool {
    matches!(
        op,
        BinaryOperator::Eq
            | BinaryOperator::NotEq
            | BinaryOperator::Lt
            | BinaryOperator::LtEq
            | BinaryOperator::Gt
            | BinaryOperator::GtEq
            | BinaryOperator::Spaceship
    )
}

/// The side that is TEXT, and the type of the other, a number.
fn mixed<'a>(left: &'a Expr, right: &'a Expr, scope: &Scope) -> Option<(&'a Expr, DataType)> {
    if is_text_literal(left) || is_text_literal(right) {
        return None;
    }
    match (type_of(left, scope)?, type_of(right, scope)?) {
        (DataType::Text, number) if is_number(&number) => Some((left, number)),
        (number, DataType::Text) if is_number(&number) => Some((right, number)),
        _ => None,
    }
}

fn is_text_literal(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_text_literal(inner),
        Expr::Value(ValueWithSpan { value, .. }) => {
            matches!(value, Value::SingleQuotedString(_))
        }
        _ => false,
    }
}

fn is_number(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Int
            | DataType::BigInt
            | DataType::Real
            | DataType::Double
            | DataType::Decimal(..)
    )
}

fn type_of(expr: &Expr, scope: &Scope) -> Option<DataType> {
    let found = lower(expr, scope).ok()?.data_type(scope).ok()?;
    sql_type(&found)
}
