//! Why a value or a row cannot be decoded.
//!
//! Owns: the reasons and their words, as they appear in `reason` of a `.bad` row. Small and `Copy`,
//! because the decoders return them from their inner loops.

use std::fmt;

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The text is not JSON here.
    Syntax,
    /// A line is not a JSON object.
    NotAnObject,
    /// Text follows the end of the row's value.
    TrailingText,
    /// More nested arrays and objects than [`crate::formats::json::scan::NESTING_MAX`].
    TooDeep,
    /// An object names a key twice.
    DuplicateKey,
    /// A string, where a number belongs.
    StringForNumber,
    /// A number, where a string belongs.
    NumberForString,
    /// A value of another JSON type.
    WrongType(&'static str),
    /// A fraction, where an integer belongs.
    Fraction,
    /// More digits after the point than the scale holds.
    TooPrecise,
    /// The number does not fit its type.
    Overflow,
    /// The bytes are not UTF-8.
    Utf8,
    /// Half of a surrogate pair.
    LoneSurrogate,
    /// An unescaped control character, or a string without end.
    ControlCharacter,
    /// An escape that JSON does not have.
    Escape,
    /// NULL or missing, in a column that is not nullable.
    Null,
    /// Not a number.
    NotANumber,
    /// Not `true` or `false`.
    NotABoolean,
    /// Not a date `YYYY-MM-DD`.
    NotADate,
    /// Not a time of the column's `parse` rule.
    NotATime,
    /// A TIMESTAMPTZ without an offset from UTC.
    NoOffset,
    /// Not base64.
    NotBase64,
    /// The row is longer than [`crate::formats::decoded::ROW_BYTES_MAX`].
    RowTooLong,
    /// A quoted field has no closing quote.
    UnclosedQuote,
    /// A row of CSV has more or fewer fields than the header.
    FieldCount,
    /// A CSV file whose header lacks a declared column.
    NotInHeader,
    /// Text follows a closing quote.
    TextAfterQuote,
    /// The value does not convert from the file's type to the column's.
    Convert,
    /// Written by the generator on purpose.
    Broken,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Syntax => "not JSON",
            Fault::NotAnObject => "not a JSON object",
            Fault::TrailingText => "text after the end of the object",
            Fault::TooDeep => "nested too deep",
            Fault::DuplicateKey => "a key occurs twice",
            Fault::StringForNumber => "a string where a number belongs",
            Fault::NumberForString => "a number where a string belongs",
            Fault::WrongType(expected) => {
                return write!(f, "another type where {expected} belongs");
            }
            Fault::Fraction => "a fraction where an integer belongs",
            Fault::TooPrecise => "more digits after the point than the scale holds",
            Fault::Overflow => "the number is out of range",
            Fault::Utf8 => "not UTF-8",
            Fault::LoneSurrogate => "half of a surrogate pair",
            Fault::ControlCharacter => "a control character or no end in a string",
            Fault::Escape => "an unknown escape in a string",
            Fault::Null => "null or missing in a column that is not nullable",
            Fault::NotANumber => "not a number",
            Fault::NotABoolean => "not true or false",
            Fault::NotADate => "not a date like 2026-01-31",
            Fault::NotATime => "not a time as `parse` of the column expects it",
            Fault::NoOffset => "a TIMESTAMPTZ needs an offset or Z",
            Fault::NotBase64 => "not base64",
            Fault::RowTooLong => "the row is too long",
            Fault::UnclosedQuote => "a quoted field does not end",
            Fault::FieldCount => "the number of fields is not that of the header",
            Fault::NotInHeader => "the header of the file does not name it",
            Fault::TextAfterQuote => "text after a closing quote",
            Fault::Convert => "the file's value does not fit the column's type",
            Fault::Broken => "the row is broken on purpose",
        })
    }
}

/// A fault with the place where it was met: what a whole row is refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFault {
    /// What is wrong.
    pub fault: Fault,
    /// The column, if it is known.
    pub column: Option<usize>,
    /// Where in the buffer.
    pub at: usize,
}

impl RowFault {
    /// A fault outside of any column.
    #[cold]
    pub fn at(fault: Fault, at: usize) -> Self {
        RowFault {
            fault,
            column: None,
            at,
        }
    }

    /// The reason in words; `name` is the column's, `start` the row's first byte.
    pub fn reason(&self, name: Option<&str>, start: usize) -> String {
        let at = self.at.saturating_sub(start);
        match name {
            Some(name) => format!("column {name}: {} (byte {at} of the row)", self.fault),
            None => format!("{} (byte {at} of the row)", self.fault),
        }
    }
}
