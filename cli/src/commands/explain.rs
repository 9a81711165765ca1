//! `streamforge explain`: how a job will run.

use anyhow::Result;

use super::print;
use crate::args::{ExplainArgs, ExplainOutput};
use crate::document;
use crate::exit::{Outcome, printable};

/// Runs the command.
pub fn run(args: &ExplainArgs) -> Result<Outcome> {
    let document = document::open(&args.document, &[])?;
    let loaded = &document.loaded;
    let text = match args.output {
        ExplainOutput::Text => streamforge_plan::explain_text(loaded),
        ExplainOutput::Json => streamforge_plan::explain_json(loaded),
        ExplainOutput::Dot => streamforge_plan::explain_dot(loaded),
    };
    document::print_notes(&loaded.notes);
    print(&printable(&text))
}
