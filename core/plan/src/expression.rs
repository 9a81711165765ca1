//! SQL expressions: text to checked, typed and compiled.
//!
//! Owns: what an expression may contain and how it computes. Arithmetic never wraps, a bad cast is an
//! error of its row and not NULL, `1.5` is a decimal, names are case-sensitive, only immutable
//! functions exist. Does no I/O. Start at: [`compile`].

mod aggregate;
mod at_time_zone;
mod bounded;
mod canonical;
mod comparison;
mod constant;
mod cure;
mod date_trunc;
mod float;
mod functions;
mod guard;
mod keyword;
mod lower;
mod parse;

use std::sync::Arc;

use datafusion_physical_expr::PhysicalExpr;
use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::{Column, Expr};

use crate::arrow_type::{arrow_type, foreign_type_name, sql_type};
use crate::problem::{did_you_mean, listed};
use crate::stack::on_large_stack;

pub(crate) use aggregate::{AggregateItem, Aggregates};
pub use functions::function_reference;
pub(crate) use keyword::check as check_words;
pub(crate) use lower::Scope;
pub(crate) use parse::{Parsed, columns_of, parse, quoted};

/// Why an expression is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn with_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: Some(hint.into()),
        }
    }
}

/// A stored expression, ready to run over batches with these columns. Its result has exactly the
/// Arrow type of `expr.data_type`.
pub fn compile(expr: &Expr, input: &[Column]) -> Result<Arc<dyn PhysicalExpr>, Error> {
    on_large_stack(|| compile_here(expr, input))
}

fn compile_here(expr: &Expr, input: &[Column]) -> Result<Arc<dyn PhysicalExpr>, Error> {
    let scope = Scope::new(input)?;
    let parsed = parse(&expr.sql)?;
    let lowered = lower::lower(&parsed.ast, &scope)?;
    let wanted = arrow_type(&expr.data_type);
    if sql_type(&lowered.data_type(&scope)?).as_ref() != Some(&expr.data_type) {
        return Err(Error::new(format!(
            "`{}` was planned as {} but compiles to another type",
            expr.sql, expr.data_type
        )));
    }
    lowered.physical(&wanted, &scope)
}

/// A parsed expression with its type; compiled once, so that what can fail there fails here.
pub(crate) fn resolve_item(parsed: &Parsed, scope: &Scope) -> Result<Expr, Error> {
    resolve_ast(&parsed.ast, scope)
}

pub(crate) fn resolve_ast(ast: &parse::Ast, scope: &Scope) -> Result<Expr, Error> {
    keyword::check(ast, scope)?;
    let lowered = lower::lower(ast, scope).map_err(|it| cure::with_cure(it, ast, scope))?;
    let found = lowered.data_type(scope)?;
    let data_type = sql_type(&found).ok_or_else(|| no_column_type(&found))?;
    let physical = lowered.physical(&arrow_type(&data_type), scope)?;
    comparison::check(ast, scope)?;
    constant::check(&physical, scope.columns())?;
    let nullable = lowered.nullable(scope);
    Ok(Expr {
        sql: ast.to_string(),
        data_type,
        nullable,
    })
}

fn no_column_type(found: &arrow::datatypes::DataType) -> Error {
    let message = format!(
        "the result is {}, which no column can be",
        foreign_type_name(found)
    );
    match found {
        arrow::datatypes::DataType::Null => Error::with_hint(message, "write CAST(NULL AS TEXT)"),
        arrow::datatypes::DataType::Interval(_) | arrow::datatypes::DataType::Duration(_) => {
            Error::with_hint(
                message,
                "take a number out of it, as in date_part('epoch', ...)",
            )
        }
        _ => Error {
            message,
            hint: None,
        },
    }
}

/// A parsed expression that must be of one type.
pub(crate) fn resolve_as(
    parsed: &Parsed,
    scope: &Scope,
    wanted: &[DataType],
) -> Result<Expr, Error> {
    let expr = resolve_item(parsed, scope)?;
    if wanted.contains(&expr.data_type) {
        return Ok(expr);
    }
    let names: Vec<String> = wanted.iter().map(DataType::to_string).collect();
    Err(Error::new(format!(
        "the result is {}, not {}",
        expr.data_type,
        names.join(" or ")
    )))
}

pub(crate) fn no_such_column(name: &str, columns: &[Column]) -> Error {
    let names = || columns.iter().map(|column| column.name.as_str());
    let hint = did_you_mean(name, names())
        .unwrap_or_else(|| format!("the columns are {}", listed(names())));
    Error::with_hint(no_column_named(name), hint)
}

/// What is said of a name that no column has.
pub(crate) fn no_column_named(name: &str) -> String {
    format!("no column is named `{name}`")
}

#[cfg(test)]
mod tests;
