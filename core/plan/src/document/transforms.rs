//! Transforms: their expressions, output columns and changelog mode.

use std::collections::BTreeSet;

use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::{AggregateSpec, Column, Emit, Expr, NamedExpr};
use streamforge_crds::v1alpha1::{self as written, Transform};

use super::nodes::Context;
use super::resolve::ResolvedAggregate;
use super::{Kind, Output, windows};
use crate::expression::{
    AggregateItem, Aggregates, Error, Parsed, Scope, check_words, no_column_named, parse, quoted,
    resolve_as, resolve_ast, resolve_item,
};
use crate::problem::listed;

/// Where a transform stands and where each of its inputs is named.
pub(super) struct Place<'a> {
    pub path: &'a str,
    pub input_paths: &'a [&'a str],
}

type Done = (Kind, Vec<Column>, bool);

pub(super) fn resolve(
    transform: &Transform,
    place: &Place<'_>,
    inputs: &[&Output],
    context: &mut Context<'_>,
) -> Option<Done> {
    if let Some(union) = &transform.union {
        return self::union(union, place, inputs, context);
    }
    let input = inputs.first()?;
    if let Some(filter) = &transform.filter {
        let path = format!("{}.filter", place.path);
        let predicate = self::filter(filter, input, &path, context)?;
        return Some((
            Kind::Filter(predicate),
            input.columns.clone(),
            input.updating,
        ));
    }
    if let Some(select) = &transform.select {
        let path = format!("{}.select", place.path);
        let items = self::select(select, input, &path, context)?;
        let columns = items.iter().map(column_of).collect();
        return Some((Kind::Select(items), columns, input.updating));
    }
    if let Some(unnest) = &transform.unnest {
        let path = format!("{}.unnest", place.path);
        return self::unnest(unnest, input, &path, context);
    }
    let aggregate = transform.aggregate.as_ref()?;
    self::aggregate(aggregate, place, input, context)
}

fn column_of(item: &NamedExpr) -> Column {
    Column {
        name: item.name.clone(),
        data_type: item.expr.data_type.clone(),
        nullable: item.expr.nullable,
    }
}

/// Everything an expression over this output may name.
fn scope_of(input: &Output) -> Result<Scope, Error> {
    let mut columns = input.columns.clone();
    columns.extend(input.hidden.iter().cloned());
    Scope::new(&columns)
}

fn filter(sql: &str, input: &Output, path: &str, context: &mut Context<'_>) -> Option<Expr> {
    let predicate = scope_of(input).and_then(|scope| {
        let parsed = parse(sql)?;
        if parsed.alias.is_some() {
            return Err(Error::new("a filter has no name; leave `AS` out"));
        }
        resolve_as(&parsed, &scope, &[DataType::Boolean])
    });
    reported(predicate, path, sql, context)
}

fn reported<T>(
    result: Result<T, Error>,
    path: &str,
    sql: &str,
    context: &mut Context<'_>,
) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            context.add_in(path, sql, error);
            None
        }
    }
}

fn select(
    items: &[String],
    input: &Output,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Vec<NamedExpr>> {
    let scope = reported(scope_of(input), path, "", context)?;
    let mut names = Names::default();
    let mut named = Vec::new();
    for (idx, sql) in items.iter().enumerate() {
        let path = format!("{path}[{}]", context.places.document_idx(path, idx));
        let item = parse(sql).and_then(|parsed| {
            check_words(&parsed.ast, &scope)?;
            let name = names.of(&parsed)?;
            Ok(NamedExpr {
                name,
                expr: resolve_item(&parsed, &scope)?,
            })
        });
        named.extend(reported(item, &path, sql, context));
    }
    (named.len() == items.len()).then_some(named)
}

/// Names of an output's columns, while they are given.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    /// The name of an item: its `AS`, or the bare column it is.
    fn of(&mut self, item: &Parsed) -> Result<String, Error> {
        let name = match (&item.alias, item.bare_column()) {
            (Some(alias), _) => alias.clone(),
            (None, Some(column)) => column.to_owned(),
            (None, None) => {
                let sql = item.ast.to_string();
                let proposed = proposed_name(&sql);
                return Err(Error::with_hint(
                    "the item needs a name",
                    format!("write `{sql} AS {proposed}`"),
                ));
            }
        };
        self.add(&name)?;
        Ok(name)
    }

    fn add(&mut self, name: &str) -> Result<(), Error> {
        if name.is_empty() {
            return Err(Error::new("the name is empty"));
        }
        if name.starts_with('_') {
            let hint = format!("write `AS {}`", name.trim_start_matches('_'));
            return Err(Error::with_hint(
                format!("`{name}`: names beginning with `_` are the system's"),
                hint,
            ));
        }
        if !self.0.insert(name.to_owned()) {
            return Err(Error::with_hint(
                format!("two columns of the output are named `{name}`"),
                "give one of them another name with `AS`",
            ));
        }
        Ok(())
    }
}

/// Longest name that is proposed.
const PROPOSED_CHARS_MAX: usize = 30;

/// A name made of the words of an expression.
fn proposed_name(sql: &str) -> String {
    let lower = sql.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut name = String::new();
    for word in words
        .map(|word| word.trim_matches('_'))
        .filter(|word| !word.is_empty())
    {
        if name.len() + word.len() > PROPOSED_CHARS_MAX {
            break;
        }
        if !name.is_empty() {
            name.push('_');
        }
        name.push_str(word);
    }
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name
    } else {
        format!("value{name}")
    }
}

fn unnest(sql: &str, input: &Output, path: &str, context: &mut Context<'_>) -> Option<Done> {
    let item = scope_of(input).and_then(|scope| {
        let parsed = parse(sql)?;
        let mut names = Names(
            input
                .columns
                .iter()
                .map(|column| column.name.clone())
                .collect(),
        );
        if parsed.alias.is_none() {
            let column = parsed.bare_column().unwrap_or("value").to_owned();
            return Err(Error::with_hint(
                "the item needs a name of its own",
                format!("write `{} AS {}_item`", parsed.ast, column),
            ));
        }
        let name = names.of(&parsed)?;
        let expr = resolve_item(&parsed, &scope)?;
        match &expr.data_type {
            DataType::List(_) => Ok(NamedExpr { name, expr }),
            other => Err(Error::new(format!(
                "unnest needs a list (T[]), not {other}"
            ))),
        }
    });
    let item = reported(item, path, sql, context)?;
    let DataType::List(element) = &item.expr.data_type else {
        return None;
    };
    let mut columns = input.columns.clone();
    let data_type = element.as_ref().clone();
    columns.push(Column {
        name: item.name.clone(),
        data_type,
        nullable: true,
    });
    Some((Kind::Unnest(item), columns, input.updating))
}

fn union(
    names: &[String],
    place: &Place<'_>,
    inputs: &[&Output],
    context: &mut Context<'_>,
) -> Option<Done> {
    let first = inputs.first()?;
    let mut columns = first.columns.clone();
    let mut fits = true;
    for (idx, input) in inputs.iter().enumerate().skip(1) {
        let name = names.get(idx).map(String::as_str).unwrap_or_default();
        let first_name = names.first().map(String::as_str).unwrap_or_default();
        let path = place.input_paths.get(idx).copied().unwrap_or(place.path);
        if names.iter().take(idx).any(|earlier| earlier == name) {
            context.add(path, format!("`{name}` is in the union twice"), None);
        }
        for difference in differences(&first.columns, &input.columns, first_name, name) {
            fits = false;
            let hint = "all outputs of a union have the same columns; use `select` and CAST";
            context.add(path, difference, Some(hint.to_owned()));
        }
        for column in &mut columns {
            let other = input.columns.iter().find(|other| other.name == column.name);
            column.nullable |= other.is_some_and(|other| other.nullable);
        }
    }
    fits.then(|| {
        (
            Kind::Union,
            columns,
            inputs.iter().any(|input| input.updating),
        )
    })
}

fn differences(first: &[Column], other: &[Column], first_name: &str, name: &str) -> Vec<String> {
    let find = |columns: &[Column], name: &str| columns.iter().find(|c| c.name == name).cloned();
    let mut found = Vec::new();
    for column in first {
        match find(other, &column.name) {
            None => found.push(format!(
                "`{name}` has no column `{}`, but `{first_name}` has",
                column.name
            )),
            Some(twin) if twin.data_type != column.data_type => found.push(format!(
                "`{}` is {} in `{name}` but {} in `{first_name}`",
                column.name, twin.data_type, column.data_type
            )),
            Some(_) => {}
        }
    }
    let missing = other
        .iter()
        .filter(|column| find(first, &column.name).is_none());
    found.extend(missing.map(|column| {
        format!(
            "`{name}` has a column `{}`, but `{first_name}` has not",
            column.name
        )
    }));
    found
}

fn aggregate(
    aggregate: &written::Aggregate,
    place: &Place<'_>,
    input: &Output,
    context: &mut Context<'_>,
) -> Option<Done> {
    let path = format!("{}.aggregate", place.path);
    check_input(place, input, context);
    let window = windows::resolve(&aggregate.window, &format!("{path}.window"), context);
    let scope = reported(scope_of(input), &path, "", context)?;
    let mut names = Names::default();
    let keys = keys(&aggregate.group_by, &scope, &mut names, &path, context);
    for bound in ["window_start", "window_end"] {
        if names.add(bound).is_err() {
            let message = format!("`{bound}` is a column of every window's output");
            let hint = Some("give the key another name with `AS`".to_owned());
            context.add(&format!("{path}.groupBy"), message, hint);
        }
    }
    let items = items(&aggregate.select, &scope, &mut names, &path, context);
    let (keys, (calls, items), window) = (keys?, items?, window?);
    let emit = match aggregate.emit {
        written::Emit::OnTime => Emit::OnTime,
        written::Emit::Once => Emit::Once,
    };
    let spec = AggregateSpec {
        input: input.columns.clone(),
        keys,
        window,
        calls,
        allowed_lateness_us: aggregate.allowed_lateness.micros(),
        emit,
        late_log: false,
    };
    let post = post(&spec, &items, &aggregate.select, &path, context)?;
    let columns = if post.is_empty() {
        fired_columns(&spec)
    } else {
        post.iter().map(column_of).collect()
    };
    let emit_is_known = !context.places.is_cut(&format!("{path}.emit"));
    let updating = emit == Emit::OnTime && emit_is_known && !aggregate.allowed_lateness.is_zero();
    Some((
        Kind::Aggregate(ResolvedAggregate { spec, post }),
        columns,
        updating,
    ))
}

fn check_input(place: &Place<'_>, input: &Output, context: &mut Context<'_>) {
    let path = place.input_paths.first().copied().unwrap_or(place.path);
    if input.updating {
        let message = "an aggregate cannot read an output that is corrected by retraction";
        let hint = "write `emit: Once` or `allowedLateness: 0s` in the aggregate upstream";
        context.add(path, message, Some(hint.to_owned()));
    }
    if !input.event_time {
        let message = "a window needs event time, which this output does not have";
        let hint = "write `eventTime: {column: ...}` in the source; side outputs have none";
        context.add(path, message, Some(hint.to_owned()));
    }
}

fn keys(
    items: &[String],
    scope: &Scope,
    names: &mut Names,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Vec<NamedExpr>> {
    let list = format!("{path}.groupBy");
    let mut keys = Vec::new();
    for (idx, sql) in items.iter().enumerate() {
        let path = format!("{list}[{}]", context.places.document_idx(&list, idx));
        let key = parse(sql).and_then(|parsed| {
            check_words(&parsed.ast, scope)?;
            let name = names.of(&parsed)?;
            Ok(NamedExpr {
                name,
                expr: resolve_item(&parsed, scope)?,
            })
        });
        keys.extend(reported(key, &path, sql, context));
    }
    (keys.len() == items.len()).then_some(keys)
}

type Items = (
    Vec<streamforge_core::job_graph::AggregateCall>,
    Vec<(String, AggregateItem)>,
);

fn items(
    select: &[String],
    scope: &Scope,
    names: &mut Names,
    path: &str,
    context: &mut Context<'_>,
) -> Option<Items> {
    let list = format!("{path}.select");
    let mut aggregates = Aggregates::default();
    let mut items = Vec::new();
    for (idx, sql) in select.iter().enumerate() {
        let path = format!("{list}[{}]", context.places.document_idx(&list, idx));
        let item = parse(sql).and_then(|parsed| {
            check_words(&parsed.ast, scope)?;
            let name = names.of(&parsed)?;
            let item = aggregates.add(&parsed, &name, scope)?;
            Ok((name, item))
        });
        items.extend(reported(item, &path, sql, context));
    }
    (items.len() == select.len()).then_some((aggregates.calls, items))
}

/// Columns of what a window sends when it fires.
pub(crate) fn fired_columns(spec: &AggregateSpec) -> Vec<Column> {
    let bound = |name: &str| Column {
        name: name.to_owned(),
        data_type: DataType::Timestamp,
        nullable: false,
    };
    let calls = spec.calls.iter().map(|call| Column {
        name: call.name.clone(),
        data_type: call.data_type.clone(),
        nullable: call.nullable,
    });
    let keys = spec.keys.iter().map(column_of);
    keys.chain([bound("window_start"), bound("window_end")])
        .chain(calls)
        .collect()
}

/// The projection behind the window; empty if every item is one call.
fn post(
    spec: &AggregateSpec,
    items: &[(String, AggregateItem)],
    select: &[String],
    path: &str,
    context: &mut Context<'_>,
) -> Option<Vec<NamedExpr>> {
    if items
        .iter()
        .all(|(_, item)| matches!(item, AggregateItem::Call(_)))
    {
        return Some(Vec::new());
    }
    let list = format!("{path}.select");
    let fired = fired_columns(spec);
    let scope = reported(Scope::new(&fired), &list, "", context)?;
    let bare = |column: &Column| NamedExpr {
        name: column.name.clone(),
        expr: Expr {
            sql: quoted(&column.name),
            data_type: column.data_type.clone(),
            nullable: column.nullable,
        },
    };
    let mut post: Vec<NamedExpr> = fired.iter().take(spec.keys.len() + 2).map(bare).collect();
    let mut complete = true;
    for (idx, (name, item)) in items.iter().enumerate() {
        let item_path = format!("{list}[{}]", context.places.document_idx(&list, idx));
        let ast = match item {
            AggregateItem::Call(call) => {
                post.extend(fired.get(spec.keys.len() + 2 + call).map(bare));
                continue;
            }
            AggregateItem::Over(ast) => ast,
        };
        let expr = resolve_ast(ast, &scope).map_err(|error| over_error(error, spec));
        let sql = select.get(idx).map(String::as_str).unwrap_or_default();
        match reported(expr, &item_path, sql, context) {
            Some(expr) => post.push(NamedExpr {
                name: name.clone(),
                expr,
            }),
            None => complete = false,
        }
    }
    complete.then_some(post)
}

/// A column of the input outside an aggregate is the usual mistake.
fn over_error(error: Error, spec: &AggregateSpec) -> Error {
    let input = spec
        .input
        .iter()
        .find(|column| error.message == no_column_named(&column.name));
    let Some(column) = input else { return error };
    let keys = listed(spec.keys.iter().map(|key| key.name.as_str()));
    Error::with_hint(
        format!(
            "`{}` is neither in groupBy nor inside an aggregate",
            column.name
        ),
        match spec.keys.is_empty() {
            true => format!("write for example `max({})`", quoted(&column.name)),
            false => format!(
                "the keys are {keys}; or write for example `max({})`",
                quoted(&column.name)
            ),
        },
    )
}
