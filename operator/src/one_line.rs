//! Texts of others in a line of ours.
//!
//! Owns: what is done with line breaks, terminal escapes and marks that cannot be seen in a text that somebody
//! else wrote, before a log, an event or a status shows it. Start at: [`one_line`].

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with everything that would move the cursor or turn the text around written as an escape.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(moves) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => plain.push_str("\\n"),
            '\r' => plain.push_str("\\r"),
            '\t' => plain.push_str("\\t"),
            c if moves(c) => {
                let written = write!(plain, "\\u{{{:x}}}", u32::from(c));
                debug_assert!(written.is_ok(), "a String takes all that is written");
            }
            c => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

/// The text in one line, and of a long one the begin.
#[must_use]
pub fn at_most(chars_max: usize, text: &str) -> String {
    let plain = one_line(text);
    if plain.chars().nth(chars_max).is_none() {
        return plain.into_owned();
    }
    let kept = plain.chars().take(chars_max.saturating_sub(1));
    kept.chain(['…']).collect()
}

/// Controls, separators of lines and paragraphs, and what turns the direction of a text.
fn moves(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{feff}'
        )
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_ends_with_a_mark_at_its_limit() {
        assert_eq!(at_most(4, "🦀🦀🦀🦀"), "🦀🦀🦀🦀");
        assert_eq!(at_most(4, "🦀🦀🦀🦀🦀"), "🦀🦀🦀…");
        assert_eq!(at_most(4, "a\nbc"), "a\\n…");
    }

    #[test]
    fn text_that_would_move_the_cursor_is_shown_as_escapes_and_others_as_they_are() {
        for (text, line) in [
            ("plain `text`, ünïcode 🦀", "plain `text`, ünïcode 🦀"),
            ("a\nERROR b\r\tc", "a\\nERROR b\\r\\tc"),
            ("\u{1b}[31mred\u{1b}[0m", "\\u{1b}[31mred\\u{1b}[0m"),
            (
                "nul \u{0} del \u{7f} nel \u{85}",
                "nul \\u{0} del \\u{7f} nel \\u{85}",
            ),
            (
                "\u{202e}drawkcab\u{2066}x\u{2028}",
                "\\u{202e}drawkcab\\u{2066}x\\u{2028}",
            ),
        ] {
            assert_eq!(one_line(text), line);
        }
    }
}
