//! Select items of an aggregate.
//!
//! Owns: finding the aggregate calls in an item, their arguments and result types. An item that is
//! one call becomes that call; any other item becomes an expression over the calls, computed after
//! the window has fired.

use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{
    self, DuplicateTreatment, Expr as SqlExpr, FunctionArg, FunctionArgExpr, FunctionArguments,
    Ident,
};
use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::{AggregateCall, AggregateFunction, Expr};

use super::functions::functions;
use super::parse::{Ast, Parsed, visit_mut};
use super::{Error, Scope, resolve_ast};
use crate::problem::{did_you_mean, listed};

/// The calls of all items of one aggregate.
#[derive(Debug, Default)]
pub(crate) struct Aggregates {
    /// In the order in which they are needed first.
    pub calls: Vec<AggregateCall>,
}

/// What a select item turned into.
#[derive(Debug)]
pub(crate) enum AggregateItem {
    /// The call at this index.
    Call(usize),
    /// An expression over keys, window bounds and calls.
    Over(Box<Ast>),
}

/// Names that may be called, and what they mean.
const NAMES: &[(&str, AggregateFunction)] = &[
    ("count", AggregateFunction::Count),
    ("sum", AggregateFunction::Sum),
    ("avg", AggregateFunction::Avg),
    ("mean", AggregateFunction::Avg),
    ("min", AggregateFunction::Min),
    ("max", AggregateFunction::Max),
    ("stddev", AggregateFunction::StddevSamp),
    ("stddev_samp", AggregateFunction::StddevSamp),
    ("stddev_pop", AggregateFunction::StddevPop),
    ("var", AggregateFunction::VarSamp),
    ("var_samp", AggregateFunction::VarSamp),
    ("var_pop", AggregateFunction::VarPop),
    ("variance", AggregateFunction::VarSamp),
    ("approx_distinct", AggregateFunction::ApproxDistinct),
    ("first_value", AggregateFunction::FirstValue),
    ("last_value", AggregateFunction::LastValue),
    ("array_agg", AggregateFunction::ArrayAgg),
    ("bool_and", AggregateFunction::BoolAnd),
    ("bool_or", AggregateFunction::BoolOr),
];

/// Name of the hidden column of a call: what was written, behind a `_`, with which no name of a user
/// begins. People read it in `.bad`.
fn hidden_name(call: &ast::Function) -> String {
    format!("_{call}")
}

impl Aggregates {
    /// Takes the calls out of one item. `name` is the item's output column.
    pub fn add(
        &mut self,
        item: &Parsed,
        name: &str,
        scope: &Scope,
    ) -> Result<AggregateItem, Error> {
        if let SqlExpr::Function(call) = &item.ast
            && let Some(found) = aggregate_call(call, scope)?
        {
            self.calls.push(AggregateCall {
                name: name.to_owned(),
                ..found
            });
            return Ok(AggregateItem::Call(self.calls.len() - 1));
        }
        let mut ast = item.ast.clone();
        visit_mut(&mut ast, &mut |expr| {
            let SqlExpr::Function(call) = expr else {
                return ControlFlow::Continue(());
            };
            match aggregate_call(call, scope) {
                Ok(None) => ControlFlow::Continue(()),
                Ok(Some(found)) => {
                    let name = self.hidden(found, call);
                    *expr = SqlExpr::Identifier(Ident::with_quote('"', name));
                    ControlFlow::Continue(())
                }
                Err(error) => ControlFlow::Break(error),
            }
        })?;
        Ok(AggregateItem::Over(Box::new(ast)))
    }

    /// The hidden column of a call; the same call is computed once.
    fn hidden(&mut self, call: AggregateCall, written: &ast::Function) -> String {
        let same = |other: &&AggregateCall| {
            AggregateCall {
                name: other.name.clone(),
                ..call.clone()
            } == **other
        };
        if let Some(other) = self
            .calls
            .iter()
            .filter(|c| c.name.starts_with('_'))
            .find(same)
        {
            return other.name.clone();
        }
        let name = hidden_name(written);
        self.calls.push(AggregateCall {
            name: name.clone(),
            ..call
        });
        name
    }
}

/// What to write instead of an aggregate that is not there.
fn unsupported_hint(name: &str) -> Option<String> {
    if name.contains("median") || name.contains("percentile") || name.contains("quantile") {
        let hint = "take `array_agg(x) AS xs` (at most 10,000 items), and in a select step behind it \
                    `array_sort(xs)[CAST(array_length(xs) AS BIGINT) / 2 + 1]` for the middle one";
        return Some(hint.to_owned());
    }
    let names = || NAMES.iter().map(|(name, _)| *name);
    did_you_mean(name, names()).or_else(|| Some(format!("the aggregates are {}", listed(names()))))
}

/// The call, if the function is an aggregate; its name is still empty.
fn aggregate_call(call: &ast::Function, scope: &Scope) -> Result<Option<AggregateCall>, Error> {
    let name = call.name.to_string().to_ascii_lowercase();
    let Some((_, function)) = NAMES.iter().find(|(known, _)| *known == name) else {
        return match functions().is_aggregate(&name) && functions().scalar(&name).is_none() {
            false => Ok(None),
            true => Err(Error {
                message: format!("the aggregate `{name}` is not supported"),
                hint: unsupported_hint(&name),
            }),
        };
    };
    let (arg, distinct) = argument(call, &name)?;
    let function = match (function, distinct) {
        (AggregateFunction::Count, true) => AggregateFunction::CountDistinct,
        (function, false) => *function,
        // Of these the smallest, the largest, any and all are the same with or without DISTINCT.
        (
            function @ (AggregateFunction::Min
            | AggregateFunction::Max
            | AggregateFunction::BoolAnd
            | AggregateFunction::BoolOr),
            true,
        ) => *function,
        (_, true) => {
            return Err(Error::with_hint(
                format!("{name}(DISTINCT ...) is not supported"),
                "DISTINCT is supported in count(DISTINCT x)",
            ));
        }
    };
    let arg = arg.map(|arg| resolve_ast(arg, scope)).transpose()?;
    let filter = call
        .filter
        .as_deref()
        .map(|filter| filter_of(filter, scope))
        .transpose()?;
    let (data_type, nullable) = result_type(function, &name, arg.as_ref())?;
    Ok(Some(AggregateCall {
        name: String::new(),
        function,
        arg,
        filter,
        data_type,
        nullable,
    }))
}

fn filter_of(filter: &Ast, scope: &Scope) -> Result<Expr, Error> {
    let expr = resolve_ast(filter, scope)?;
    match expr.data_type {
        DataType::Boolean => Ok(expr),
        other => Err(Error::new(format!(
            "FILTER (WHERE ...) needs a BOOLEAN, not {other}"
        ))),
    }
}

/// The only argument, none for `*`, and whether DISTINCT was written.
fn argument<'a>(call: &'a ast::Function, name: &str) -> Result<(Option<&'a Ast>, bool), Error> {
    if call.over.is_some() {
        return Err(Error::with_hint(
            "OVER is not supported",
            "the window is the transform's",
        ));
    }
    if !call.within_group.is_empty() || call.null_treatment.is_some() {
        return Err(Error::new(
            "WITHIN GROUP and IGNORE NULLS are not supported",
        ));
    }
    let FunctionArguments::List(list) = &call.args else {
        return Err(Error::new(format!(
            "`{name}` needs its argument in parentheses"
        )));
    };
    if !list.clauses.is_empty() {
        return Err(Error::with_hint(
            format!("{name} takes no ORDER BY or other clause"),
            "first_value, last_value and array_agg go by event time",
        ));
    }
    let distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
    match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))] => Ok((Some(arg), distinct)),
        [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] if name == "count" && !distinct => {
            Ok((None, false))
        }
        [] if name == "count" => Ok((None, false)),
        args => Err(Error::new(format!(
            "{name} takes one argument, not {}",
            args.len()
        ))),
    }
}

fn result_type(
    function: AggregateFunction,
    name: &str,
    arg: Option<&Expr>,
) -> Result<(DataType, bool), Error> {
    let arg_type = arg.map(|arg| &arg.data_type);
    let wrong = |wanted: &str| match arg_type {
        Some(found) => Err(Error::new(format!("{name} needs {wanted}, not {found}"))),
        None => Err(Error::new(format!("{name} needs an argument"))),
    };
    let data_type = match function {
        AggregateFunction::Count
        | AggregateFunction::CountDistinct
        | AggregateFunction::ApproxDistinct => return Ok((DataType::BigInt, false)),
        AggregateFunction::Sum => match arg_type {
            Some(DataType::Int) => DataType::BigInt,
            Some(DataType::BigInt) => DataType::Decimal(38, 0),
            Some(DataType::Decimal(_, scale)) => DataType::Decimal(38, *scale),
            Some(DataType::Real | DataType::Double) => DataType::Double,
            _ => return wrong("a number"),
        },
        AggregateFunction::Avg => match arg_type {
            Some(DataType::Int | DataType::BigInt) => DataType::Decimal(38, 6),
            Some(DataType::Decimal(_, scale)) => DataType::Decimal(38, (*scale + 6).min(38)),
            Some(DataType::Real | DataType::Double) => DataType::Double,
            _ => return wrong("a number"),
        },
        AggregateFunction::StddevPop
        | AggregateFunction::StddevSamp
        | AggregateFunction::VarPop
        | AggregateFunction::VarSamp => match arg_type {
            Some(found) if is_number(found) => DataType::Double,
            _ => return wrong("a number"),
        },
        AggregateFunction::Min | AggregateFunction::Max => match arg_type {
            Some(found) if !matches!(found, DataType::List(_) | DataType::Struct(_)) => {
                found.clone()
            }
            _ => return wrong("a value that has an order"),
        },
        AggregateFunction::FirstValue | AggregateFunction::LastValue => match arg_type {
            Some(found) => found.clone(),
            None => return wrong("a value"),
        },
        AggregateFunction::ArrayAgg => match arg_type {
            Some(found) => DataType::List(Box::new(found.clone())),
            None => return wrong("a value"),
        },
        AggregateFunction::BoolAnd | AggregateFunction::BoolOr => match arg_type {
            Some(DataType::Boolean) => DataType::Boolean,
            _ => return wrong("a BOOLEAN"),
        },
    };
    Ok((data_type, true))
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
