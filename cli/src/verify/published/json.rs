//! Reading one line of JSON, numbers kept as written.
//!
//! Owns: a small parser for what our own sinks write, so that DECIMAL values keep all their digits
//! and `verify` shares no decoder with the sources. Start at: [`parse`].

use anyhow::{Result, bail, ensure};

/// Deepest nesting that is read.
const DEPTH_MAX: usize = 128;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// As written.
    Number(String),
    /// Unescaped.
    Text(String),
    /// In order.
    Array(Vec<Json>),
    /// In order.
    Object(Vec<(String, Json)>),
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

/// Reads one value and nothing after it.
pub fn parse(text: &str) -> Result<Json> {
    let mut parser = Parser {
        rest: text,
        depth: 0,
    };
    let value = parser.value()?;
    parser.space();
    ensure!(parser.rest.is_empty(), "unexpected text after the value");
    Ok(value)
}

impl Parser<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Result<Json> {
        if self.eat("null") {
            return Ok(Json::Null);
        }
        if self.eat("true") {
            return Ok(Json::Bool(true));
        }
        if self.eat("false") {
            return Ok(Json::Bool(false));
        }
        if self.eat("\"") {
            return self.text().map(Json::Text);
        }
        self.depth += 1;
        ensure!(self.depth <= DEPTH_MAX, "nested deeper than {DEPTH_MAX}");
        let value = if self.eat("[") {
            self.array()
        } else if self.eat("{") {
            self.object()
        } else {
            self.number()
        };
        self.depth -= 1;
        value
    }

    fn array(&mut self) -> Result<Json> {
        let mut items = Vec::new();
        if self.eat("]") {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value()?);
            if self.eat("]") {
                return Ok(Json::Array(items));
            }
            ensure!(self.eat(","), "expected `,` or `]`");
        }
    }

    fn object(&mut self) -> Result<Json> {
        let mut fields = Vec::new();
        if self.eat("}") {
            return Ok(Json::Object(fields));
        }
        loop {
            ensure!(self.eat("\""), "expected a field name");
            let name = self.text()?;
            ensure!(self.eat(":"), "expected `:`");
            fields.push((name, self.value()?));
            if self.eat("}") {
                return Ok(Json::Object(fields));
            }
            ensure!(self.eat(","), "expected `,` or `}}`");
        }
    }

    fn number(&mut self) -> Result<Json> {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E')))
            .unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        ensure!(number.parse::<f64>().is_ok(), "expected a value");
        self.rest = rest;
        Ok(Json::Number(number.to_owned()))
    }

    /// The rest of a string whose opening quote is read.
    fn text(&mut self) -> Result<String> {
        let mut out = String::new();
        loop {
            let Some(end) = self.rest.find(['"', '\\']) else {
                bail!("unclosed string")
            };
            let (plain, rest) = self.rest.split_at(end);
            out.push_str(plain);
            let mut chars = rest.chars();
            let mark = chars.next();
            let escape = if mark == Some('\\') {
                chars.next()
            } else {
                None
            };
            self.rest = chars.as_str();
            match (mark, escape) {
                (Some('"'), _) => return Ok(out),
                (_, Some('n')) => out.push('\n'),
                (_, Some('t')) => out.push('\t'),
                (_, Some('r')) => out.push('\r'),
                (_, Some('b')) => out.push('\u{8}'),
                (_, Some('f')) => out.push('\u{c}'),
                (_, Some(c @ ('"' | '\\' | '/'))) => out.push(c),
                (_, Some('u')) => out.push(self.escaped()?),
                _ => bail!("unknown escape"),
            }
        }
    }

    fn escaped(&mut self) -> Result<char> {
        let first = self.hex()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or_else(|| anyhow::anyhow!("lone surrogate"));
        }
        ensure!(self.rest.starts_with("\\u"), "lone surrogate");
        self.rest = self.rest.get(2..).unwrap_or_default();
        let second = self.hex()?;
        ensure!((0xdc00..0xe000).contains(&second), "lone surrogate");
        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        char::from_u32(code).ok_or_else(|| anyhow::anyhow!("lone surrogate"))
    }

    fn hex(&mut self) -> Result<u32> {
        let Some(digits) = self.rest.get(..4) else {
            bail!("cut escape")
        };
        let code = u32::from_str_radix(digits, 16)?;
        self.rest = self.rest.get(4..).unwrap_or_default();
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_every_digit_and_strings_are_unescaped() {
        let line = r#"{"a":12345678901234567890.123400,"b":"\u00e9\ud83d\ude00\"\\\n","c":[null,true,{}]}"#;

        let Json::Object(fields) = parse(line).unwrap() else {
            panic!()
        };

        assert_eq!(
            fields[0].1,
            Json::Number("12345678901234567890.123400".into())
        );
        assert_eq!(fields[1].1, Json::Text("é😀\"\\\n".into()));
        let items = vec![Json::Null, Json::Bool(true), Json::Object(vec![])];
        assert_eq!(fields[2].1, Json::Array(items));
    }

    #[test]
    fn broken_lines_are_errors() {
        for text in [
            "",
            "{",
            "{\"a\"}",
            "[1,]",
            "\"a",
            "1 2",
            "nul",
            "\"\\ud800\"",
            "\"\\x\"",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(10_000)).is_err());
    }
}
