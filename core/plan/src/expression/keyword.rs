//! Columns that are called like a word of SQL.
//!
//! Owns: telling that such a name must be quoted, instead of what the planner says to the call that the
//! parser makes of it (`user`, `current_date`). Start at: [`check`].

use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{Expr, FunctionArguments};

use super::Error;
use super::lower::Scope;
use super::parse::{Ast, visit};

/// Refuses a word without parentheses that SQL takes for a call, where a column has that name.
pub(crate) fn check(ast: &Ast, scope: &Scope) -> Result<(), Error> {
    visit(ast, &mut |expr| {
        let Expr::Function(call) = expr else {
            return ControlFlow::Continue(());
        };
        let word = call.name.to_string();
        if call.args != FunctionArguments::None || scope.column(&word).is_none() {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(Error::with_hint(
            format!("`{word}` is a word of SQL here, not the column"),
            format!("write the column in quotes: `\"{word}\"`"),
        ))
    })
}
