//! `streamforge validate`: every mistake at once.

use anyhow::Result;
use serde_json::json;

use super::print;
use crate::args::{TextOrJson, ValidateArgs};
use crate::document::{check, print_problems};
use crate::exit::{Outcome, WrongDocument};

/// Runs the command.
pub fn run(args: &ValidateArgs) -> Result<Outcome> {
    let checked = check(&args.document, &[])?;
    let empty = Vec::new();
    let (problems, notes) = match &checked {
        Ok(document) => (&empty, &document.loaded.notes),
        Err(problems) => (problems, &empty),
    };
    match args.output {
        TextOrJson::Json => {
            let report = json!({"problems": problems, "notes": notes});
            print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
        }
        TextOrJson::Text => {
            print_problems(problems);
            print_problems(notes);
        }
    }
    if problems.is_empty() {
        eprintln!("{}: no mistakes", args.document.job.display());
        return Ok(Outcome::Done);
    }
    Err(WrongDocument {
        problems_n: problems.len(),
    }
    .into())
}
