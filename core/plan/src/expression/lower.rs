//! Syntax tree to physical expression.
//!
//! Owns: the rules that make DataFusion's expressions ours: checked arithmetic, microseconds, casts
//! that fail. DataFusion's own simplifier is not used, because it folds constants with arithmetic
//! that wraps; only each function's own rewrite is applied.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType as ArrowType, Field, Fields, TimeUnit};
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DFSchemaRef, DataFusionError, ScalarValue, SchemaError};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::{Cast, ScalarFunction, TryCast};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{BinaryExpr as LogicalBinary, Expr as Logical, ExprSchemable, Operator};
use datafusion_optimizer::analyzer::type_coercion::TypeCoercionRewriter;
use datafusion_physical_expr::expressions::BinaryExpr;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion_sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
};
use streamforge_core::job_graph::Column;

use super::canonical::canonical_scalar;
use super::cure::elsewhere;
use super::float::decimals_beside_floats;
use super::functions::{functions, is_immutable, refusal};
use super::guard::{guard, is_arithmetic};
use super::parse::{Ast, visit, visit_mut};
use super::{Error, no_such_column};
use crate::arrow_type::schema;
use crate::problem::did_you_mean;

/// The columns an expression may name.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    columns: Vec<Column>,
    schema: DFSchemaRef,
}

impl Scope {
    pub fn new(columns: &[Column]) -> Result<Self, Error> {
        let arrow = schema(columns);
        let schema = DFSchema::from_unqualified_fields(arrow.fields().clone(), HashMap::new())
            .map_err(|error| Error::new(error.strip_backtrace()))?;
        Ok(Self {
            columns: columns.to_vec(),
            schema: Arc::new(schema),
        })
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// An expression with all rules applied, not yet compiled.
pub(super) struct Lowered(Logical);

/// Applies the rules.
pub(super) fn lower(ast: &Ast, scope: &Scope) -> Result<Lowered, Error> {
    check_calls(ast)?;
    let mut ast = ast.clone();
    call_at_time_zone(&mut ast)?;
    let options = ParserOptions::new()
        .with_parse_float_as_decimal(true)
        .with_enable_ident_normalization(false)
        .with_map_string_types_to_utf8view(false);
    let planner = SqlToRel::new_with_options(functions(), options);
    let logical = planner
        .sql_to_expr(ast, &scope.schema, &mut PlannerContext::new())
        .map_err(|error| plan_error(&error, scope))?;
    check_kinds(&logical)?;
    let rewritten = in_micros(logical)
        .and_then(|expr| decimals_beside_floats(expr, &scope.schema))
        .and_then(|expr| coerce(expr, scope))
        .and_then(|expr| simplify_calls(expr, scope))
        .and_then(|expr| coerce(expr, scope))
        .and_then(|expr| subtract_from_zero(expr, scope))
        .and_then(|expr| coerce(expr, scope))
        .and_then(|expr| compare_in_micros(expr, scope))
        .and_then(fold_literals);
    rewritten
        .map(|expr| Lowered(expr.unalias()))
        .map_err(|error| plan_error(&error, scope))
}

impl Lowered {
    pub fn data_type(&self, scope: &Scope) -> Result<ArrowType, Error> {
        self.0
            .get_type(scope.schema.as_ref())
            .map_err(|error| plan_error(&error, scope))
    }

    /// Whether NULL may come out. A function's own word for it is not relied on: a wrong `false`
    /// would make every batch an error.
    pub fn nullable(&self, scope: &Scope) -> bool {
        let calls = self.0.exists(|expr| {
            Ok(matches!(
                expr,
                Logical::ScalarFunction(_) | Logical::TryCast(_)
            ))
        });
        calls.unwrap_or(true) || self.0.nullable(scope.schema.as_ref()).unwrap_or(true)
    }

    /// The compiled expression, returning `wanted`.
    pub fn physical(
        &self,
        wanted: &ArrowType,
        scope: &Scope,
    ) -> Result<Arc<dyn PhysicalExpr>, Error> {
        let mut expr = self.0.clone();
        if self.data_type(scope)? != *wanted {
            expr = Logical::Cast(Cast::new(Box::new(expr), wanted.clone()));
        }
        let mut props = ExecutionProps::new();
        props.config_options = Some(Arc::clone(functions().config()));
        let physical = create_physical_expr(&expr, &scope.schema, &props)
            .and_then(|expr| checked(expr, scope));
        physical.map_err(|error| plan_error(&error, scope))
    }
}

/// Refuses calls that are known but not allowed, before the planner says something less helpful.
fn check_calls(ast: &Ast) -> Result<(), Error> {
    visit(ast, &mut |expr| {
        let ast::Expr::Function(call) = expr else {
            return ControlFlow::Continue(());
        };
        call_mistake(call).map_or(ControlFlow::Continue(()), ControlFlow::Break)
    })
}

fn call_mistake(call: &ast::Function) -> Option<Error> {
    let name = call.name.to_string();
    if call.over.is_some() {
        return Some(Error::with_hint(
            "window functions (OVER) are not supported",
            "use an `aggregate` transform with a window",
        ));
    }
    if let Some((reason, instead)) = refusal(&name) {
        return Some(Error::with_hint(
            format!("`{name}` is not supported: it {reason}"),
            instead,
        ));
    }
    match functions().scalar(&name) {
        Some(function) if is_immutable(function) => None,
        Some(_) => Some(Error::with_hint(
            format!("`{name}` does not always give the same answer, so a replay would differ"),
            "only immutable functions are allowed; take times from the data",
        )),
        None if functions().is_aggregate(&name) => Some(Error::with_hint(
            format!("`{name}` is an aggregate; it cannot stand here"),
            "aggregates belong in `aggregate.select`, and do not nest",
        )),
        None => Some(Error {
            message: format!("no function is named `{name}`"),
            hint: elsewhere(&name).or_else(|| did_you_mean(&name, functions().names())),
        }),
    }
}

/// `x AT TIME ZONE z` becomes `at_time_zone(x, z)`: DataFusion's own cast fails the whole batch on an
/// ambiguous local time.
fn call_at_time_zone(ast: &mut Ast) -> Result<(), Error> {
    visit_mut(ast, &mut |expr| {
        if let ast::Expr::AtTimeZone {
            timestamp,
            time_zone,
        } = expr
        {
            let arg = |expr: &ast::Expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr.clone()));
            let args = FunctionArguments::List(FunctionArgumentList {
                duplicate_treatment: None,
                args: vec![arg(timestamp), arg(time_zone)],
                clauses: vec![],
            });
            *expr = ast::Expr::Function(ast::Function {
                name: ast::ObjectName::from(vec![ast::Ident::new("at_time_zone")]),
                uses_odbc_syntax: false,
                parameters: FunctionArguments::None,
                args,
                filter: None,
                null_treatment: None,
                over: None,
                within_group: vec![],
            });
        }
        ControlFlow::Continue(())
    })
}

/// Refuses what the planner lets through but no row can be evaluated with.
fn check_kinds(expr: &Logical) -> Result<(), Error> {
    let mut mistake = None;
    let _ = expr.apply(|expr| {
        mistake = match expr {
            Logical::Exists(_)
            | Logical::InSubquery(_)
            | Logical::ScalarSubquery(_)
            | Logical::SetComparison(_) => Some(Error::new("subqueries are not supported")),
            Logical::Placeholder(_) | Logical::ScalarVariable(..) => {
                Some(Error::new("parameters and variables are not supported"))
            }
            Logical::Unnest(_) => Some(Error::with_hint(
                "unnest cannot stand here",
                "use an `unnest` transform",
            )),
            #[expect(deprecated, reason = "the variant exists as long as DataFusion has it")]
            Logical::Wildcard { .. } => Some(Error::with_hint(
                "`*` is not an expression",
                "name the columns",
            )),
            Logical::ScalarFunction(ScalarFunction { func, .. }) if !is_immutable(func) => {
                Some(Error::with_hint(
                    format!(
                        "`{}` does not always give the same answer, so a replay would differ",
                        func.name()
                    ),
                    "only immutable functions are allowed; take times from the data",
                ))
            }
            _ => None,
        };
        Ok(match mistake {
            Some(_) => TreeNodeRecursion::Stop,
            None => TreeNodeRecursion::Continue,
        })
    });
    mistake.map_or(Ok(()), Err)
}

/// Rewrites each expression within `expr`, inner ones first. The tree walk is compiled once per closure
/// type and is large, so the closure is behind a pointer.
pub(super) fn rewritten(
    expr: Logical,
    rewrite: &dyn Fn(Logical) -> Result<Transformed<Logical>, DataFusionError>,
) -> Result<Logical, DataFusionError> {
    expr.transform_up(rewrite)
        .map(|transformed| transformed.data)
}

/// The same type with all times in microseconds.
fn micros_type(data_type: &ArrowType) -> ArrowType {
    let field =
        |field: &Field| Arc::new(field.clone().with_data_type(micros_type(field.data_type())));
    match data_type {
        ArrowType::Timestamp(_, zone) => {
            ArrowType::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(Arc::clone))
        }
        ArrowType::List(item) => ArrowType::List(field(item)),
        ArrowType::Struct(fields) => {
            ArrowType::Struct(fields.iter().map(|f| field(f)).collect::<Fields>())
        }
        other => other.clone(),
    }
}

/// SQL's TIMESTAMP is nanoseconds in DataFusion, which ends in 2262; here it is microseconds.
fn in_micros(expr: Logical) -> Result<Logical, DataFusionError> {
    let rewrite = |expr: Logical| {
        Ok(match expr {
            Logical::Cast(Cast { expr, field }) => {
                let data_type = micros_type(field.data_type());
                Transformed::yes(Logical::Cast(Cast::new(expr, data_type)))
            }
            Logical::TryCast(TryCast { expr, field }) => {
                let data_type = micros_type(field.data_type());
                Transformed::yes(Logical::TryCast(TryCast::new(expr, data_type)))
            }
            other => Transformed::no(other),
        })
    };
    rewritten(expr, &rewrite)
}

fn coerce(expr: Logical, scope: &Scope) -> Result<Logical, DataFusionError> {
    let mut rewriter = TypeCoercionRewriter::new(&scope.schema);
    expr.rewrite(&mut rewriter)
        .map(|transformed| transformed.data)
}

fn is_comparison(op: Operator) -> bool {
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

/// Coercion compares times with text, and with what is nanoseconds, in nanoseconds; here both sides
/// become microseconds.
fn compare_in_micros(expr: Logical, scope: &Scope) -> Result<Logical, DataFusionError> {
    let rewrite = |mut expr: Logical| {
        let sides: Vec<&mut Logical> = match &mut expr {
            Logical::BinaryExpr(binary) if is_comparison(binary.op) => {
                vec![binary.left.as_mut(), binary.right.as_mut()]
            }
            Logical::Between(between) => vec![
                between.expr.as_mut(),
                between.low.as_mut(),
                between.high.as_mut(),
            ],
            Logical::InList(list) => {
                let first = std::iter::once(list.expr.as_mut());
                first.chain(&mut list.list).collect()
            }
            Logical::Case(case) => {
                let whens = case.when_then_expr.iter_mut();
                let whens = whens.flat_map(|(when, then)| [when.as_mut(), then.as_mut()]);
                let compared = case.expr.as_deref_mut().into_iter();
                let other = case.else_expr.as_deref_mut();
                compared.chain(whens).chain(other).collect()
            }
            _ => Vec::new(),
        };
        let mut changed = false;
        for side in sides {
            if let Ok(ArrowType::Timestamp(TimeUnit::Nanosecond, zone)) =
                side.get_type(scope.schema.as_ref())
            {
                let micros = ArrowType::Timestamp(TimeUnit::Microsecond, zone);
                let inner = match std::mem::take(side) {
                    Logical::Cast(Cast { expr, .. }) => expr,
                    other => Box::new(other),
                };
                *side = Logical::Cast(Cast::new(inner, micros));
                changed = true;
            }
        }
        Ok(Transformed::new_transformed(expr, changed))
    };
    rewritten(expr, &rewrite)
}

/// Lets each function rewrite its own call: some, like `coalesce`, exist only as their rewrite.
fn simplify_calls(expr: Logical, scope: &Scope) -> Result<Logical, DataFusionError> {
    let context = SimplifyContext::builder()
        .with_schema(Arc::clone(&scope.schema))
        .with_config_options(Arc::clone(functions().config()))
        .build();
    let rewrite = |expr: Logical| match expr {
        Logical::ScalarFunction(ScalarFunction { func, args }) => {
            match func.simplify(args, &context)? {
                ExprSimplifyResult::Simplified(simpler) => Ok(Transformed::yes(simpler)),
                ExprSimplifyResult::Original(args) => {
                    let same = ScalarFunction::new_udf(func, args);
                    Ok(Transformed::no(Logical::ScalarFunction(same)))
                }
            }
        }
        other => Ok(Transformed::no(other)),
    };
    rewritten(expr, &rewrite)
}

/// `-x` becomes `0 - x` where it could wrap.
fn subtract_from_zero(expr: Logical, scope: &Scope) -> Result<Logical, DataFusionError> {
    let rewrite = |expr: Logical| {
        let Logical::Negative(inner) = expr else {
            return Ok(Transformed::no(expr));
        };
        let zero = match inner.get_type(scope.schema.as_ref())? {
            data_type @ (ArrowType::Int8
            | ArrowType::Int16
            | ArrowType::Int32
            | ArrowType::Int64) => ScalarValue::new_zero(&data_type)?,
            ArrowType::Decimal128(precision, scale) => {
                ScalarValue::Decimal128(Some(0), precision, scale)
            }
            _ => return Ok(Transformed::no(Logical::Negative(inner))),
        };
        let zero = Box::new(Logical::Literal(zero, None));
        let minus = LogicalBinary::new(zero, Operator::Minus, inner);
        Ok(Transformed::yes(Logical::BinaryExpr(minus)))
    };
    rewritten(expr, &rewrite)
}

/// A cast of a literal is made once, not per batch; one that fails is left to fail with its row. What
/// is left has one zero and one NaN, as all that is computed.
fn fold_literals(expr: Logical) -> Result<Logical, DataFusionError> {
    let rewrite = |expr: Logical| match expr {
        Logical::Cast(Cast { expr: inner, field }) => match inner.as_ref() {
            Logical::Literal(value, metadata) => match value.cast_to(field.data_type()) {
                Ok(value) => {
                    let value = canonical_scalar(value)?;
                    Ok(Transformed::yes(Logical::Literal(value, metadata.clone())))
                }
                Err(_) => Ok(Transformed::no(Logical::Cast(Cast { expr: inner, field }))),
            },
            _ => Ok(Transformed::no(Logical::Cast(Cast { expr: inner, field }))),
        },
        Logical::Literal(value, metadata) => {
            let value = canonical_scalar(value)?;
            Ok(Transformed::yes(Logical::Literal(value, metadata)))
        }
        other => Ok(Transformed::no(other)),
    };
    rewritten(expr, &rewrite)
}

/// Makes all arithmetic fail instead of wrap, and keeps every value within its type.
fn checked(
    expr: Arc<dyn PhysicalExpr>,
    scope: &Scope,
) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
    let rewrite = |expr: Arc<dyn PhysicalExpr>| {
        let expr = match expr.downcast_ref::<BinaryExpr>() {
            Some(binary) if is_arithmetic(&expr) => {
                Arc::new(binary.clone().with_fail_on_overflow(true)) as Arc<dyn PhysicalExpr>
            }
            _ => expr,
        };
        guard(expr, scope.schema.as_arrow()).map(Transformed::yes)
    };
    expr.transform_up(rewrite)
        .map(|transformed| transformed.data)
}

/// An error of the planner in our words.
fn plan_error(error: &DataFusionError, scope: &Scope) -> Error {
    if let DataFusionError::SchemaError(error, _) = error.find_root()
        && let SchemaError::FieldNotFound { field, .. } = error.as_ref()
    {
        return no_such_column(&field.name, scope.columns());
    }
    let text = match error.find_root() {
        DataFusionError::Diagnostic(_, inner) => inner.strip_backtrace(),
        other => other.strip_backtrace(),
    };
    let mut text = text.as_str();
    for prefix in [
        "Error during planning: ",
        "This feature is not implemented: ",
        "Execution error: ",
        "Arrow error: ",
        "type_coercion",
        "caused by",
    ] {
        text = text.strip_prefix(prefix).unwrap_or(text).trim_start();
    }
    let text = text
        .split("\nThis issue was likely caused by")
        .next()
        .unwrap_or(text);
    Error::new(text.trim())
}
