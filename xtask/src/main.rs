//! Checks and generators of this repository: `cargo xtask <command>`.
//!
//! Owns: the rules that are not a compiler or clippy lint (file headers, lengths, banned marks,
//! who may import whom) and the files that are generated from code. Never part of the product.
//! Start at: [`tidy::check`], [`arrows::check`], [`generate`], [`charts::generate`].

mod arrows;
mod charts;
mod generate;
mod repo;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Checks and generators of this repository")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Headers, lengths, banned marks, trailing space, local links, changelog form.
    Tidy,
    /// Who may import whom, ours and third-party.
    Arrows,
    /// Writes crds/generated/*.yaml from the types in `crds`.
    Crdgen {
        /// Only compare; fail when a file differs from its source.
        #[arg(long)]
        check: bool,
    },
    /// Writes docs/functions.md from the list of functions.
    Docgen {
        /// Only compare; fail when a file differs from its source.
        #[arg(long)]
        check: bool,
    },
    /// Writes the generated parts of charts/; run it after crdgen.
    Chartgen {
        /// Only compare; fail when a file differs from its source.
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let root = repo::root()?;
    match command {
        Command::Tidy => tidy::check(&root),
        Command::Arrows => arrows::check(&root),
        Command::Crdgen { check } => generate::crds(&root, mode(check)),
        Command::Docgen { check } => generate::docs(&root, mode(check)),
        Command::Chartgen { check } => charts::generate(&root, mode(check)),
    }
}

fn mode(check: bool) -> generate::Mode {
    if check {
        generate::Mode::Compare
    } else {
        generate::Mode::Write
    }
}
