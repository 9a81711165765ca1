//! The functions an expression may call.
//!
//! Owns: the registry of scalar functions (all of DataFusion's built-in ones, and `at_time_zone`) and
//! the reference page about them. Functions that are not immutable are known only to be refused:
//! replaying a record must give the same answer.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use datafusion_common::config::ConfigOptions;
use datafusion_common::{Result, TableReference, plan_err};
use datafusion_expr::planner::{ContextProvider, ExprPlanner};
use datafusion_expr::{
    AggregateUDF, HigherOrderUDF, ScalarUDF, TableSource, Volatility, WindowUDF,
};

use super::at_time_zone::AtTimeZone;
use super::bounded::bounded;
use super::date_trunc::in_micros;
use crate::arrow_type::UTC;

/// What the SQL planner asks for names.
pub(crate) struct Functions {
    options: Arc<ConfigOptions>,
    scalar: HashMap<String, Arc<ScalarUDF>>,
    aggregate_names: Vec<String>,
    planners: Vec<Arc<dyn ExprPlanner>>,
}

static FUNCTIONS: LazyLock<Functions> = LazyLock::new(Functions::new);

/// The only registry there is.
pub(crate) fn functions() -> &'static Functions {
    &FUNCTIONS
}

impl Functions {
    fn new() -> Self {
        let mut options = ConfigOptions::default();
        options.execution.time_zone = Some(UTC.to_owned());
        let at_time_zone = Arc::new(ScalarUDF::new_from_impl(AtTimeZone::default()));
        let mut scalar = HashMap::new();
        for function in datafusion_functions::all_default_functions()
            .into_iter()
            .chain(datafusion_functions_nested::all_default_nested_functions())
            .chain([at_time_zone])
        {
            let function = in_micros(bounded(function));
            for alias in function.aliases() {
                scalar.insert(alias.clone(), Arc::clone(&function));
            }
            scalar.insert(function.name().to_owned(), function);
        }
        let aggregate_names = datafusion_functions_aggregate::all_default_aggregate_functions()
            .iter()
            .flat_map(|f| std::iter::once(f.name().to_owned()).chain(f.aliases().to_vec()))
            .collect();
        Self {
            options: Arc::new(options),
            scalar,
            aggregate_names,
            planners: vec![
                Arc::new(datafusion_functions::core::planner::CoreFunctionPlanner::default()),
                Arc::new(datafusion_functions_nested::planner::NestedFunctionPlanner),
                Arc::new(datafusion_functions_nested::planner::FieldAccessPlanner),
                Arc::new(datafusion_functions::datetime::planner::DatetimeFunctionPlanner),
                Arc::new(datafusion_functions::unicode::planner::UnicodeFunctionPlanner),
            ],
        }
    }

    pub fn config(&self) -> &Arc<ConfigOptions> {
        &self.options
    }

    /// Whether DataFusion knows an aggregate of this name, admitted here or not.
    pub fn is_aggregate(&self, name: &str) -> bool {
        self.aggregate_names
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    }

    pub fn scalar(&self, name: &str) -> Option<&Arc<ScalarUDF>> {
        self.scalar.get(&name.to_ascii_lowercase())
    }

    /// Names of the functions that may be called.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.scalar
            .iter()
            .filter(|(_, f)| is_admitted(f))
            .map(|(name, _)| name.as_str())
    }
}

/// Whether the same arguments always give the same result.
pub(crate) fn is_immutable(function: &ScalarUDF) -> bool {
    function.signature().volatility == Volatility::Immutable
}

/// Functions that break a promise of ours as DataFusion computes them, and what to write instead.
const REFUSED: [(&str, &str, &str); 4] = [
    (
        "date_bin",
        "wraps for times outside years 1678..2262",
        "use `date_trunc`, or a window",
    ),
    (
        "array_repeat",
        "may need any amount of memory for one row",
        "use `make_array`",
    ),
    (
        "array_resize",
        "may need any amount of memory for one row",
        "use `array_slice`",
    ),
    (
        "version",
        "gives another answer after an upgrade",
        "leave it out",
    ),
];

/// Why a function is not admitted, and what to write instead.
pub(crate) fn refusal(name: &str) -> Option<(&'static str, &'static str)> {
    let name = name
        .strip_prefix("list_")
        .map_or(name.to_owned(), |rest| format!("array_{rest}"));
    REFUSED
        .iter()
        .find(|(refused, ..)| refused.eq_ignore_ascii_case(&name))
        .map(|(_, reason, instead)| (*reason, *instead))
}

/// Whether a function may be called.
pub(crate) fn is_admitted(function: &ScalarUDF) -> bool {
    is_immutable(function) && refusal(function.name()).is_none()
}

impl ContextProvider for Functions {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        plan_err!("subqueries are not supported (`{name}`)")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalar.get(name).map(Arc::clone)
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _: &[String]) -> Option<arrow::datatypes::DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.names().map(str::to_owned).collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The reference page of functions, as Markdown; the same text every time.
pub fn function_reference() -> String {
    let mut sections: BTreeMap<String, BTreeMap<String, Arc<ScalarUDF>>> = BTreeMap::new();
    for function in functions().scalar.values().filter(|f| is_admitted(f)) {
        let section = function
            .documentation()
            .map_or("Other", |doc| doc.doc_section.label);
        sections
            .entry(section.to_owned())
            .or_default()
            .insert(function.name().to_owned(), Arc::clone(function));
    }
    let mut page = String::from(REFERENCE_HEAD);
    for (section, members) in sections {
        let _ = write!(
            page,
            "\n## {section}\n\n| function | what it does |\n|---|---|\n"
        );
        for (name, function) in members {
            let _ = writeln!(page, "{}", reference_line(&name, &function));
        }
    }
    page.push_str(REFERENCE_TAIL);
    page
}

/// `[label](target)` as `label`: the targets are pages of DataFusion's own manual.
fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((_, after)) = after.split_once(')') else {
            break;
        };
        let (start, label) = before.rsplit_once('[').unwrap_or((before, ""));
        plain.push_str(start);
        plain.push_str(label);
        rest = after;
    }
    plain.push_str(rest);
    plain
}

fn reference_line(name: &str, function: &ScalarUDF) -> String {
    let cell = |text: &str| {
        without_links(text)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace('|', "\\|")
    };
    let (syntax, mut text) = match function.documentation() {
        Some(doc) => {
            let first = doc.description.split("\n\n").next().unwrap_or_default();
            (cell(&doc.syntax_example), cell(first))
        }
        None => (format!("{name}(...)"), String::new()),
    };
    if !function.aliases().is_empty() {
        let mut aliases = function.aliases().to_vec();
        aliases.sort();
        let _ = write!(text, " Also: {}.", aliases.join(", "));
    }
    format!("| `{syntax}` | {} |", text.trim())
}

const REFERENCE_HEAD: &str = "\
# Functions

<!-- Generated by `cargo xtask docgen` from the functions that are compiled in. Do not edit. -->

Expressions are SQL in DataFusion's dialect, which is close to PostgreSQL's. Only *immutable*
functions exist: the same arguments always give the same result, because after a failure records are
replayed and must give the same rows. So there is no `now()`, `random()` or `uuid()`.

Rules that differ from what you may be used to:

- Names are case-sensitive and never folded. Quote with `\"...\"` what is not `[A-Za-z_][A-Za-z0-9_]*`.
- `1.5` is a DECIMAL. Arithmetic never wraps: an overflow, a division by zero or a bad cast sends the
  row to the node's `.bad` output. `TRY_CAST` gives NULL instead.
- `ts AT TIME ZONE 'Europe/Paris'` turns a TIMESTAMP (local time there) into a TIMESTAMPTZ and a
  TIMESTAMPTZ into local TIMESTAMP. An ambiguous local time is the earlier instant; one in a gap moves
  forward by the gap.
- `lpad` and `rpad` make at most 65,536 characters, `repeat` 65,536 bytes, `range` and `generate_series`
  10,000 items: more is refused by `validate` where it is a literal, and sends the row to `.bad` where
  it is computed.
- A REAL or DOUBLE has one zero and one NaN: -0 is read as 0 and never comes out, and every NaN is the
  same value, greater than all numbers, in every function and for every key.
- What cannot be computed for any row (`x / 0`, `CAST('a' AS INT)`, a broken regular expression) is
  refused by `validate`, and so is TEXT compared with a number. Behind CASE, AND and OR a row may
  still be sent to `.bad` on purpose (`ELSE 1 / 0`).
- Times are microseconds. `to_timestamp` and its kin, and `range` over times, are limited to the years
  1677 to 2262.

## Aggregates

In `aggregate.select`, each with `FILTER (WHERE ...)` if wanted. The argument is any expression.

| aggregate | result |
|---|---|
| `count(*)`, `count(x)`, `count(DISTINCT x)` | BIGINT |
| `sum(x)` | INT: BIGINT. BIGINT: DECIMAL(38,0). DECIMAL(p,s): DECIMAL(38,s). REAL, DOUBLE: DOUBLE |
| `avg(x)` | INT, BIGINT: DECIMAL(38,6). DECIMAL(p,s): DECIMAL(38,s+6), at most scale 38. Rounded half away from zero. REAL, DOUBLE: DOUBLE |
| `min(x)`, `max(x)` | type of x |
| `stddev(x)`, `stddev_samp(x)`, `stddev_pop(x)`, `var(x)`, `var_samp(x)`, `var_pop(x)` | DOUBLE |
| `approx_distinct(x)` | BIGINT, within a few percent (standard error 0.8 %) |
| `first_value(x)`, `last_value(x)` | type of x; by event time, ties by the smallest or largest x, NULL last |
| `array_agg(x)` | list of x, sorted by event time, then value; at most 10,000 items |
| `bool_and(x)`, `bool_or(x)` | BOOLEAN |

A group whose result is out of range is one row in the node's `.bad` output. A select item may also
combine aggregates and groupBy columns: `sum(amount) / count(*) AS mean`.
";

const REFERENCE_TAIL: &str = "\n";
