//! The streamforge command.
//!
//! Owns: what a person at a terminal sees: commands, output rules, exit codes, the progress view, and
//! `verify`, the oracle. Decides nothing about jobs: the document is `streamforge-plan`'s, the run
//! `streamforge-host`'s. Start at: [`main`], [`args::Command`], [`verify`].

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use streamforge_taskmanager::file_size::fail_writes_beyond_limit;

pub mod args;
mod changes;
mod commands;
mod document;
pub mod exit;
mod hosting;
mod left;
mod metrics;
mod progress;
mod screen;
mod stopping;
mod store;
pub mod table;
mod task_managers;
mod time;
mod unread;
pub mod verify;

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let cli = args::Cli::parse();
    let handled =
        fail_writes_beyond_limit().context("handle the signal of files that are too large");
    exit::report(handled.and_then(|()| commands::dispatch(cli.command)))
}
