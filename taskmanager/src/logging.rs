//! The log of this process.
//!
//! Owns: how its lines are written. In the form for machines every line is one JSON object, a panic too.
//! What is logged is `RUST_LOG`'s to say.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Begins to log.
pub fn start(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    match format {
        Format::Text => log.with_target(false).init(),
        Format::Json => {
            log.json().flatten_event(true).with_span_list(false).init();
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
    }
}

/// Says why this process ends.
pub fn last_word(format: Format, error: &anyhow::Error) {
    match format {
        Format::Text => eprintln!("error: {error:#}"),
        Format::Json => tracing::error!("{error:#}"),
    }
}
