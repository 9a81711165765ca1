//! SQL types as users write them.
//!
//! Owns: the type words of the document (`BIGINT`, `DECIMAL(18,2)`, `TEXT[]`, `STRUCT(a INT)`), their
//! parsing and printing. Knows no Arrow; the engine maps them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A column's type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// true or false
    Boolean,
    /// 32-bit signed
    Int,
    /// 64-bit signed
    BigInt,
    /// 32-bit float
    Real,
    /// 64-bit float
    Double,
    /// exact decimal, precision 1..=38, scale 0..=precision
    Decimal(u8, u8),
    /// UTF-8
    Text,
    /// bytes
    Bytea,
    /// days since the epoch
    Date,
    /// microseconds, no zone
    Timestamp,
    /// microseconds, UTC
    TimestampTz,
    /// `T[]`
    List(Box<DataType>),
    /// `STRUCT(a INT, b TEXT)`
    Struct(Vec<(String, DataType)>),
}

/// Largest nesting of lists and structs that a type may have.
pub const TYPE_DEPTH_MAX: usize = 16;

/// Why a type's text is not a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a type: {reason}")]
pub struct ParseError {
    /// What was written.
    pub text: String,
    /// What is wrong, and what to write.
    pub reason: String,
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataType::Boolean => f.write_str("BOOLEAN"),
            DataType::Int => f.write_str("INT"),
            DataType::BigInt => f.write_str("BIGINT"),
            DataType::Real => f.write_str("REAL"),
            DataType::Double => f.write_str("DOUBLE"),
            DataType::Decimal(p, s) => write!(f, "DECIMAL({p},{s})"),
            DataType::Text => f.write_str("TEXT"),
            DataType::Bytea => f.write_str("BYTEA"),
            DataType::Date => f.write_str("DATE"),
            DataType::Timestamp => f.write_str("TIMESTAMP"),
            DataType::TimestampTz => f.write_str("TIMESTAMPTZ"),
            DataType::List(item) => write!(f, "{item}[]"),
            DataType::Struct(fields) => {
                f.write_str("STRUCT(")?;
                for (i, (name, data_type)) in fields.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    if is_plain_name(name) {
                        write!(f, "{comma}{name} {data_type}")?;
                    } else {
                        write!(f, "{comma}\"{}\" {data_type}", name.replace('"', "\"\""))?;
                    }
                }
                f.write_str(")")
            }
        }
    }
}

fn is_plain_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl FromStr for DataType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser { text, rest: text };
        let data_type = parser.data_type(0)?;
        parser.skip_space();
        if parser.rest.is_empty() {
            Ok(data_type)
        } else {
            Err(parser.error(format!("unexpected `{}` after the type", parser.rest)))
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn error(&self, reason: impl Into<String>) -> ParseError {
        ParseError {
            text: self.text.to_owned(),
            reason: reason.into(),
        }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: char) -> Result<(), ParseError> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(self.error(format!("expected `{token}` before `{}`", self.rest)))
        }
    }

    fn word(&mut self) -> &'a str {
        self.skip_space();
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn field_name(&mut self) -> Result<String, ParseError> {
        if !self.eat('"') {
            let word = self.word();
            return if word.is_empty() {
                Err(self.error("a struct field needs a name"))
            } else {
                Ok(word.to_owned())
            };
        }
        let mut name = String::new();
        loop {
            let end = self
                .rest
                .find('"')
                .ok_or_else(|| self.error("unclosed `\"`"))?;
            let (part, rest) = self.rest.split_at(end);
            name.push_str(part);
            self.rest = rest.get(1..).unwrap_or_default();
            match self.rest.strip_prefix('"') {
                Some(rest) => {
                    name.push('"');
                    self.rest = rest;
                }
                None => return Ok(name),
            }
        }
    }

    fn number(&mut self) -> Result<u8, ParseError> {
        let word = self.word();
        word.parse()
            .map_err(|_| self.error(format!("`{word}` is not a number from 0 to 38")))
    }

    fn data_type(&mut self, depth: usize) -> Result<DataType, ParseError> {
        if depth > TYPE_DEPTH_MAX {
            return Err(self.error(format!("nested deeper than {TYPE_DEPTH_MAX}")));
        }
        let word = self.word();
        let mut data_type = match word.to_ascii_uppercase().as_str() {
            "BOOLEAN" | "BOOL" => DataType::Boolean,
            "INT" | "INTEGER" => DataType::Int,
            "BIGINT" => DataType::BigInt,
            "REAL" => DataType::Real,
            "DOUBLE" => DataType::Double,
            "DECIMAL" | "NUMERIC" => self.decimal()?,
            "TEXT" | "VARCHAR" | "STRING" => DataType::Text,
            "BYTEA" => DataType::Bytea,
            "DATE" => DataType::Date,
            "TIMESTAMP" => DataType::Timestamp,
            "TIMESTAMPTZ" => DataType::TimestampTz,
            "STRUCT" => self.fields(depth)?,
            _ => {
                return Err(self.error(
                    "write one of BOOLEAN INT BIGINT REAL DOUBLE DECIMAL(p,s) TEXT BYTEA DATE \
                     TIMESTAMP TIMESTAMPTZ, T[] or STRUCT(name T, ...)",
                ));
            }
        };
        let mut lists = 0;
        while self.eat('[') {
            self.expect(']')?;
            lists += 1;
            if depth + lists > TYPE_DEPTH_MAX {
                return Err(self.error(format!("nested deeper than {TYPE_DEPTH_MAX}")));
            }
            data_type = DataType::List(Box::new(data_type));
        }
        Ok(data_type)
    }

    fn decimal(&mut self) -> Result<DataType, ParseError> {
        self.expect('(')?;
        let precision = self.number()?;
        let scale = if self.eat(',') { self.number()? } else { 0 };
        self.expect(')')?;
        if !(1..=38).contains(&precision) || scale > precision {
            return Err(self.error("DECIMAL(p,s) needs 1 <= p <= 38 and 0 <= s <= p"));
        }
        Ok(DataType::Decimal(precision, scale))
    }

    fn fields(&mut self, depth: usize) -> Result<DataType, ParseError> {
        self.expect('(')?;
        let mut fields: Vec<(String, DataType)> = Vec::new();
        loop {
            let name = self.field_name()?;
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(self.error(format!("two fields are named `{name}`")));
            }
            let data_type = self.data_type(depth + 1)?;
            fields.push((name, data_type));
            if !self.eat(',') {
                break;
            }
        }
        self.expect(')')?;
        Ok(DataType::Struct(fields))
    }
}

impl Serialize for DataType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DataType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for DataType {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DataType".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "maxLength": 16384,
            "description": "BOOLEAN INT BIGINT REAL DOUBLE DECIMAL(p,s) TEXT BYTEA DATE TIMESTAMP TIMESTAMPTZ, T[], STRUCT(a INT, b TEXT)"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_round_trips_through_its_text() {
        for text in [
            "BOOLEAN",
            "INT",
            "BIGINT",
            "REAL",
            "DOUBLE",
            "DECIMAL(18,2)",
            "TEXT",
            "BYTEA",
            "DATE",
            "TIMESTAMP",
            "TIMESTAMPTZ",
            "TEXT[]",
            "INT[][]",
            "STRUCT(a INT, b TEXT[])",
            "STRUCT(\"a b\" STRUCT(c DATE))",
        ] {
            assert_eq!(text.parse::<DataType>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_types_say_what_to_write() {
        for text in [
            "",
            "FLOAT8",
            "DECIMAL(39,0)",
            "DECIMAL(4,5)",
            "TEXT[",
            "STRUCT()",
            "INT x",
        ] {
            assert!(text.parse::<DataType>().is_err(), "{text}");
        }
        let deep = format!("INT{}", "[]".repeat(1000));
        assert!(deep.parse::<DataType>().is_err());
        let deep = "STRUCT(a ".repeat(1000);
        assert!(deep.parse::<DataType>().is_err());
    }
}
