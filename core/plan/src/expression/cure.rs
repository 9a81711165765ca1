//! What to write instead, where the planner only says that something does not fit.
//!
//! Owns: habits from other dialects of SQL, found in an expression that was refused already. A guess by
//! the look of it: it only adds a hint. Start at: [`with_cure`].

use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, Subscript, Value, ValueWithSpan,
};
use streamforge_core::data_type::DataType;

use super::lower::Scope;
use super::parse::{Ast, visit};
use super::{Error, no_column_named};

/// Functions of other systems, and what does the same here.
const ELSEWHERE: [(&str, &str); 11] = [
    ("approx_count_distinct", "it is called `approx_distinct`"),
    ("collect_list", "it is called `array_agg`"),
    ("dateadd", "add an interval: `ts + INTERVAL '1 day'`"),
    ("date_add", "add an interval: `ts + INTERVAL '1 day'`"),
    (
        "datediff",
        "take the seconds of the difference: `date_part('epoch', b - a)`",
    ),
    ("if", "write `CASE WHEN condition THEN a ELSE b END`"),
    ("iff", "write `CASE WHEN condition THEN a ELSE b END`"),
    ("isnull", "write `a IS NULL`"),
    (
        "json_value",
        "name the field in the source's `schema`, with `path: /a/b`",
    ),
    (
        "get_json_object",
        "name the field in the source's `schema`, with `path: /a/b`",
    ),
    (
        "unix_timestamp",
        "write `CAST(date_part('epoch', ts) AS BIGINT)`",
    ),
];

/// What does the same here as a function of another system.
pub(super) fn elsewhere(function: &str) -> Option<String> {
    let is_it = |(name, _): &&(&str, &str)| name.eq_ignore_ascii_case(function);
    ELSEWHERE
        .iter()
        .find(is_it)
        .map(|(_, instead)| (*instead).to_owned())
}

/// The same error, with a hint if it has none and a habit explains it.
pub(super) fn with_cure(mut error: Error, ast: &Ast, scope: &Scope) -> Error {
    let mut hint = None;
    let visited = visit(ast, &mut |expr| {
        hint = hint.take().or_else(|| habit(expr, &error, scope));
        ControlFlow::Continue(())
    });
    debug_assert!(visited.is_ok(), "nothing breaks the walk");
    // Who writes a text in the wrong quotes is not helped by the names of the columns.
    if error.hint.is_none() || matches!(&hint, Some((_, true))) {
        error.hint = hint.map(|(text, _)| text).or(error.hint);
    }
    error
}

/// The habit within one expression, and whether it is surely the cause.
fn habit(expr: &Expr, error: &Error, scope: &Scope) -> Option<(String, bool)> {
    let guess = |text: String| Some((text, false));
    match expr {
        Expr::BinaryOp {
            op: BinaryOperator::PGOverlap,
            ..
        } => guess("write `AND`".to_owned()),
        Expr::RLike { expr, pattern, .. } => {
            guess(format!("write `regexp_like({expr}, {pattern})`"))
        }
        Expr::BinaryOp {
            op: BinaryOperator::Plus,
            left,
            right,
        } if is_text(left, scope) || is_text(right, scope) => {
            guess(format!("texts are joined by `{left} || {right}`"))
        }
        Expr::BinaryOp { left, right, .. } => {
            let epoch = epoch_beside_time(left, right, scope);
            guess(epoch.or_else(|| epoch_beside_time(right, left, scope))?)
        }
        Expr::Value(ValueWithSpan {
            value: Value::Number(number, _),
            ..
        }) if number.to_string().contains(['e', 'E']) => {
            guess(format!("write `CAST('{number}' AS DOUBLE)`"))
        }
        Expr::Identifier(ident)
            if ident.quote_style == Some('"') && error.message == no_column_named(&ident.value) =>
        {
            let value = ident.value.replace('\'', "''");
            let hint = format!("a text stands in single quotes: `'{value}'`");
            Some((hint, true))
        }
        Expr::CompoundIdentifier(parts) => {
            let column = scope.column(&parts.first()?.value)?;
            let is_struct = matches!(column.data_type, DataType::Struct(_));
            let (name, data_type) = (&column.name, &column.data_type);
            (!is_struct).then(|| {
                let hint = format!(
                    "`{name}` is {data_type} and has no fields; columns are named without a table"
                );
                (hint, true)
            })
        }
        Expr::CompoundFieldAccess { root, access_chain } if is_text(root, scope) => {
            let [AccessExpr::Subscript(Subscript::Index { index })] = access_chain.as_slice()
            else {
                return None;
            };
            guess(format!("write `substr({root}, {index}, 1)`"))
        }
        Expr::Function(call) if takes_list_of_floats(call, scope) => guess(
            "a number with a point is DECIMAL: write `CAST(0.5 AS DOUBLE)` beside a list of DOUBLE"
                .to_owned(),
        ),
        _ => None,
    }
}

fn type_of<'a>(expr: &Expr, scope: &'a Scope) -> Option<&'a DataType> {
    match expr {
        Expr::Identifier(ident) => scope.column(&ident.value).map(|column| &column.data_type),
        _ => None,
    }
}

fn is_text(expr: &Expr, scope: &Scope) -> bool {
    let is_literal = matches!(
        expr,
        Expr::Value(ValueWithSpan {
            value: Value::SingleQuotedString(_),
            ..
        })
    );
    is_literal || type_of(expr, scope) == Some(&DataType::Text)
}

fn epoch_beside_time(time: &Expr, number: &Expr, scope: &Scope) -> Option<String> {
    let is_time = matches!(
        type_of(time, scope),
        Some(DataType::Timestamp | DataType::TimestampTz | DataType::Date)
    );
    let is_number = matches!(
        number,
        Expr::Value(ValueWithSpan {
            value: Value::Number(..),
            ..
        })
    );
    (is_time && is_number).then(|| {
        format!(
            "write the time as in `TIMESTAMP '2026-01-31 00:00:00'`, or compare \
             `date_part('epoch', {time})` with {number}"
        )
    })
}

fn takes_list_of_floats(call: &datafusion_sql::sqlparser::ast::Function, scope: &Scope) -> bool {
    let text = call.args.to_string();
    scope
        .columns()
        .iter()
        .any(|column| match &column.data_type {
            DataType::List(item) => {
                matches!(**item, DataType::Double | DataType::Real) && text.contains(&column.name)
            }
            _ => false,
        })
}
