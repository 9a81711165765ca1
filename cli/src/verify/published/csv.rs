//! Reading CSV as our sinks write it: RFC 4180, NULL the empty field, the empty string `""`.

use anyhow::{Result, bail, ensure};

/// What is not fixed by RFC 4180.
#[derive(Debug)]
pub struct Dialect<'a> {
    /// Between fields.
    pub delimiter: char,
    /// Unquoted text that means NULL, besides the empty field.
    pub null: Option<&'a str>,
}

/// All rows; a NULL field is `None`.
pub fn parse(text: &str, dialect: &Dialect<'_>) -> Result<Vec<Vec<Option<String>>>> {
    ensure!(
        text.is_empty() || text.ends_with('\n'),
        "the last line is cut"
    );
    let mut rows = Vec::new();
    let mut row = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (field, after) = unquoted(quoted)?;
                (Some(field), after)
            }
            None => {
                let end = rest.find([dialect.delimiter, '\n']).unwrap_or(rest.len());
                let (field, after) = rest.split_at(end);
                let field = field.strip_suffix('\r').unwrap_or(field);
                let null = field.is_empty() || Some(field) == dialect.null;
                ((!null).then(|| field.to_owned()), after)
            }
        };
        row.push(field);
        let after = after.strip_prefix('\r').unwrap_or(after);
        rest = if let Some(after) = after.strip_prefix('\n') {
            rows.push(std::mem::take(&mut row));
            after
        } else if let Some(after) = after.strip_prefix(dialect.delimiter) {
            after
        } else {
            bail!("text after a closing quote");
        };
    }
    Ok(rows)
}

/// A field whose opening quote is read, and what comes after its closing one.
fn unquoted(mut rest: &str) -> Result<(String, &str)> {
    let mut field = String::new();
    loop {
        let Some((part, after)) = rest.split_once('"') else {
            bail!("unclosed quote")
        };
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field, after)),
        }
    }
}
