//! `streamforge validate`: every mistake at once.

use anyhow::Result;
use serde_json::json;
use streamforge_plan::Mistaken;

use super::print;
use crate::args::{TextOrJson, ValidateArgs};
use crate::document::{check, mistakes, print_mistakes};
use crate::exit::{Outcome, and_notes};

/// Runs the command.
pub fn run(args: &ValidateArgs) -> Result<Outcome> {
    let found = match check(&args.document, &[])? {
        Ok(document) => Mistaken {
            problems: Vec::new(),
            notes: document.loaded.notes,
        },
        Err(mistaken) => mistaken,
    };
    let Mistaken { problems, notes } = &found;
    match args.output {
        TextOrJson::Json => {
            let report = json!({"problems": problems, "notes": notes});
            print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
        }
        TextOrJson::Text => print_mistakes(&found),
    }
    if problems.is_empty() {
        let file = args.document.job.display();
        eprintln!("{file}: no mistakes{}", and_notes(notes.len()));
        return Ok(Outcome::Done);
    }
    Err(mistakes(&found).into())
}
