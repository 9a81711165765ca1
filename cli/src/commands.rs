//! The commands, one file each.

use std::io::Write as _;

use anyhow::Result;
use clap::CommandFactory as _;
use streamforge_host::history::History;

use crate::args::{Cli, Command};
use crate::exit::Outcome;
use crate::store::StorePlace;

mod checkpoints;
mod control;
mod explain;
mod run;
mod savepoint;
mod validate;
mod verify;

pub use checkpoints::bytes;

/// Does what was asked.
pub fn dispatch(command: Command) -> Result<Outcome> {
    match command {
        Command::Checkpoints(args) => checkpoints::run(&args),
        Command::Crd => print(&streamforge_crds::crd_yaml()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "streamforge", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Validate(args) => validate::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Status(args) => control::status(&args),
        Command::Scale(args) => control::scale(&args),
        Command::Savepoint(args) => savepoint::run(&args),
        Command::Stop(args) => match &args.savepoint {
            None => control::stop(&args.control),
            Some(name) => savepoint::stop(&args.control, name),
        },
        Command::Drain(args) => control::drain(&args),
    }
}

/// Writes data to stdout.
fn print(text: &str) -> Result<Outcome> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Outcome::Done)
}

/// A runtime for commands that read a store.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

/// What a store holds, opened for reading beside whoever writes it.
async fn open_history(place: &StorePlace) -> Result<History> {
    Ok(History::load(place.open_read_only().await?).await?)
}
