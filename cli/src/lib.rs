//! The streamforge command.
//!
//! Owns: what a person at a terminal sees: commands, output rules, exit codes, the progress view, and
//! `verify`, the oracle. Decides nothing about jobs: the document is `streamforge-plan`'s, the run
//! `streamforge-host`'s. Start at: [`main`], [`args::Command`], [`verify`].

use std::process::ExitCode;

use clap::Parser as _;

pub mod args;
mod changes;
mod commands;
mod document;
pub mod exit;
mod hosting;
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
    exit::report(commands::dispatch(cli.command))
}
