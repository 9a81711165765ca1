//! An aligned table for people.
//!
//! Columns whose values are all numbers are aligned to the right. No colours, no frame: it is read in
//! terminals, logs and pasted mails.

use std::fmt;

/// Rows of text under headings.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(headings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            rows: vec![headings.into_iter().map(Into::into).collect()],
        }
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

fn is_number(text: &str) -> bool {
    text.is_empty() || text.parse::<f64>().is_ok()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns_n = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, idx: usize| row.get(idx).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns_n)
            .map(|idx| {
                self.rows
                    .iter()
                    .map(|row| cell(row, idx).chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let numeric: Vec<bool> = (0..columns_n)
            .map(|idx| {
                self.rows
                    .iter()
                    .skip(1)
                    .all(|row| is_number(&cell(row, idx)))
            })
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (idx, (width, numeric)) in widths.iter().zip(&numeric).enumerate() {
                let gap = if idx == 0 { "" } else { "  " };
                let text = cell(row, idx);
                let pad = " ".repeat(width.saturating_sub(text.chars().count()));
                line += gap;
                line += &if *numeric {
                    format!("{pad}{text}")
                } else {
                    format!("{text}{pad}")
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_right_and_words_left() {
        let mut table = Table::new(["NODE", "IN"]);
        table.row(["clicks", "7"]);
        table.row(["é", "1000"]);

        assert_eq!(
            table.to_string(),
            "NODE      IN\nclicks     7\né       1000\n"
        );
    }
}
