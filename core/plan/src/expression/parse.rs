//! Text to syntax tree, within limits.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion_sql::parser::DFParserBuilder;
use datafusion_sql::sqlparser::ast::{Expr, Ident, visit_expressions, visit_expressions_mut};
use datafusion_sql::sqlparser::dialect::GenericDialect;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};
use streamforge_crds::v1alpha1::EXPRESSION_BYTES_MAX;

use super::Error;

/// The syntax tree of an expression.
pub(crate) type Ast = Expr;

/// Longest chain of operators, as in `a OR b OR c`. Planning recurses along it.
const CHAIN_MAX: usize = 400;
/// Deepest nesting of parentheses and calls.
const NESTING_MAX: usize = 50;
/// Deepest nesting of CASE, CAST and other words of syntax.
const SYNTAX_NESTING_MAX: usize = 12;

/// An expression and the name given to it.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    pub ast: Ast,
    pub alias: Option<String>,
}

impl Parsed {
    /// The column, if the expression is nothing but a column.
    pub fn bare_column(&self) -> Option<&str> {
        match &self.ast {
            Expr::Identifier(ident) => Some(&ident.value),
            _ => None,
        }
    }
}

/// `expression` or `expression AS name`.
pub(crate) fn parse(text: &str) -> Result<Parsed, Error> {
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(Error::new(format!(
            "the expression has {} bytes; at most {EXPRESSION_BYTES_MAX} are allowed",
            text.len()
        )));
    }
    if text.trim() == "*" {
        return Err(Error::with_hint(
            "`*` is not an expression",
            "name the columns",
        ));
    }
    let tokens = Tokenizer::new(&GenericDialect {}, text)
        .tokenize_with_location()
        .map_err(|error| Error::new(format!("this is not an SQL expression: {error}")))?;
    check_nesting(&tokens)?;
    check_chains(&tokens)?;
    let parsed = DFParserBuilder::new(tokens)
        .with_dialect(&GenericDialect {})
        .with_recursion_limit(NESTING_MAX)
        .build()
        .and_then(|mut parser| parser.parse_into_expr())
        .map_err(|error| Error::new(syntax_message(&error.strip_backtrace())))?;
    Ok(Parsed {
        ast: parsed.expr,
        alias: parsed.alias.map(|alias| alias.value),
    })
}

/// Chains of operators within parentheses and calls too: whoever walks the tree goes as deep.
fn check_chains(tokens: &[TokenWithSpan]) -> Result<(), Error> {
    // Of AND and OR, and of what is between two of them: `a = 1 OR b = 2` is one and one deep.
    let mut outer: Vec<(usize, usize)> = Vec::new();
    let (mut logical, mut chain) = (0_usize, 0_usize);
    for token in tokens {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                outer.push((std::mem::take(&mut logical), std::mem::take(&mut chain)));
            }
            Token::RParen | Token::RBracket | Token::RBrace => {
                (logical, chain) = outer.pop().unwrap_or_default();
            }
            Token::Comma => (logical, chain) = (0, 0),
            Token::Word(word) if word.quote_style.is_none() => match word.keyword {
                Keyword::WHEN | Keyword::THEN | Keyword::ELSE => (logical, chain) = (0, 0),
                Keyword::AND | Keyword::OR => (logical, chain) = (logical + 1, 0),
                // The AND that follows is its own.
                Keyword::BETWEEN => logical = logical.saturating_sub(1),
                _ => {}
            },
            Token::Word(_)
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Whitespace(_)
            | Token::Period => {}
            _ => chain += 1,
        }
        if logical + chain > CHAIN_MAX {
            return Err(Error::with_hint(
                format!("more than {CHAIN_MAX} operators in a chain"),
                "use `x IN (a, b, ...)`, or split the expression over two select steps",
            ));
        }
    }
    Ok(())
}

/// Words that the parser takes for syntax first and, if that fails, reads again as a name.
const SYNTAX_WORDS: [Keyword; 19] = [
    Keyword::ARRAY,
    Keyword::CASE,
    Keyword::CAST,
    Keyword::CEIL,
    Keyword::CONVERT,
    Keyword::EXISTS,
    Keyword::EXTRACT,
    Keyword::FLOOR,
    Keyword::INTERVAL,
    Keyword::MAP,
    Keyword::NOT,
    Keyword::OVERLAY,
    Keyword::POSITION,
    Keyword::SAFE_CAST,
    Keyword::STRUCT,
    Keyword::SUBSTR,
    Keyword::SUBSTRING,
    Keyword::TRIM,
    Keyword::TRY_CAST,
];

/// A mistake inside `n` such words is looked for 2^n times, so their nesting is bounded before.
fn check_nesting(tokens: &[TokenWithSpan]) -> Result<(), Error> {
    // Per open parenthesis or CASE: the words just before it. `before`: words just before this token.
    let mut open: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut before = 0;
    for token in tokens {
        match &token.token {
            Token::Whitespace(_) => continue,
            Token::LParen | Token::LBracket | Token::LBrace => {
                open.push(before);
                depth += std::mem::take(&mut before);
            }
            Token::RParen | Token::RBracket | Token::RBrace => {
                depth -= open.pop().unwrap_or(0);
                before = 0;
            }
            Token::Word(word) if word.keyword == Keyword::CASE && word.quote_style.is_none() => {
                open.push(before + 1);
                depth += std::mem::take(&mut before) + 1;
            }
            Token::Word(word) if word.keyword == Keyword::END && word.quote_style.is_none() => {
                depth -= open.pop().unwrap_or(0);
                before = 0;
            }
            Token::Word(word) if SYNTAX_WORDS.contains(&word.keyword) => before += 1,
            _ => before = 0,
        }
        if depth + before > SYNTAX_NESTING_MAX {
            return Err(Error::with_hint(
                format!("CASE, CAST, NOT and their like nest deeper than {SYNTAX_NESTING_MAX}"),
                "split the expression over two select steps",
            ));
        }
    }
    Ok(())
}

fn syntax_message(message: &str) -> String {
    let start = message
        .find("ParserError(\"")
        .map(|at| at + "ParserError(\"".len());
    let inner = match start {
        Some(start) => message
            .get(start..)
            .unwrap_or(message)
            .trim_end_matches("\")"),
        None => message,
    };
    if message.contains("RecursionLimitExceeded") || message.contains("recursion limit") {
        return format!("parentheses and calls nest deeper than {NESTING_MAX}");
    }
    let inner = inner.strip_prefix("SQL error: ").unwrap_or(inner);
    let inner = inner.replace("found: EOF", "found: the end");
    format!("this is not an SQL expression: {inner}")
}

/// A column's name as it must be written in an expression.
pub(crate) fn quoted(name: &str) -> String {
    let plain = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    // A plain word may still be a keyword; the parser is the judge of that, before and within others.
    let is_itself = || {
        let alone = parse(name).is_ok_and(|parsed| parsed.bare_column() == Some(name));
        alone && parse(&format!("CAST({name} AS TEXT) || {name}")).is_ok()
    };
    if plain && is_itself() {
        name.to_owned()
    } else {
        Ident::with_quote('"', name).to_string()
    }
}

/// Calls `visit` with each expression within `ast`, inner ones first, until it breaks. The tree walk
/// is compiled once per closure type and is large, so the closure is behind a pointer.
pub(crate) fn visit(
    ast: &Ast,
    visit: &mut dyn FnMut(&Expr) -> ControlFlow<Error>,
) -> Result<(), Error> {
    match visit_expressions(ast, visit) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// The same with expressions that may be replaced.
pub(crate) fn visit_mut(
    ast: &mut Ast,
    visit: &mut dyn FnMut(&mut Expr) -> ControlFlow<Error>,
) -> Result<(), Error> {
    match visit_expressions_mut(ast, visit) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Names of the columns that an expression mentions; a few more may be among them (struct fields).
pub(crate) fn columns_of(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let Ok(parsed) = parse(text) else {
        return names;
    };
    let visited = visit(&parsed.ast, &mut |expr| {
        match expr {
            Expr::Identifier(ident) => {
                names.insert(ident.value.clone());
            }
            Expr::CompoundIdentifier(parts) => {
                names.extend(parts.first().map(|ident| ident.value.clone()));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    debug_assert!(visited.is_ok(), "nothing breaks the walk");
    names
}
