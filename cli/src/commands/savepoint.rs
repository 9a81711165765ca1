//! `streamforge savepoint` and `stop --savepoint`.
//!
//! Owns: asking for a savepoint and waiting until it is whole, or is known not to become so. It is
//! asked for by name, so a coordinator that died in between is asked again; the store has the last
//! word when the job has ended.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use chrono::Utc;
use streamforge_core::savepoint::check_name;
use streamforge_proto::v1;
use streamforge_proto::v1::control_client::ControlClient;
use tonic::Code;
use tonic::transport::Channel;

use super::checkpoints::{state_bytes, time};
use super::{block_on, bytes, control, open_history, print};
use crate::args::{ControlArgs, SavepointArgs};
use crate::exit::Outcome;
use crate::store::StorePlace;

/// How often the coordinator is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a coordinator may be away before nobody waits for the next one any more.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Runs `streamforge savepoint`.
pub fn run(args: &SavepointArgs) -> Result<Outcome> {
    let by_time = || Utc::now().format("%Y%m%d-%H%M%S").to_string();
    let name = args.name.clone().unwrap_or_else(by_time);
    take(&args.control, &name, false)
}

/// Runs `streamforge stop --savepoint`.
pub fn stop(args: &ControlArgs, name: &str) -> Result<Outcome> {
    take(args, name, true)
}

fn take(args: &ControlArgs, name: &str, stops: bool) -> Result<Outcome> {
    check_name(name)?;
    let place = control::place_of(args)?;
    let asking = Asking { args, name, stops };
    let said = block_on(asking.take(&place))?;
    let folder = place.savepoint(name);
    eprintln!("{said}; a job begins with it by --restore-from {folder}");
    print(&format!("{folder}\n"))
}

struct Asking<'a> {
    args: &'a ControlArgs,
    name: &'a str,
    stops: bool,
}

/// What one question led to.
enum Answer {
    /// It is whole; for people.
    Done(String),
    /// It is under way.
    GoesOn,
    /// Nobody knows, for now; for people.
    Away(anyhow::Error),
}

impl Asking<'_> {
    async fn take(&self, place: &StorePlace) -> Result<String> {
        // A job that is not there to begin with is not waited for.
        let (mut client, mut heard) = (None, None::<Instant>);
        let mut is_told = false;
        loop {
            match self.ask(&mut client).await? {
                Answer::Done(said) => return Ok(said),
                Answer::GoesOn => heard = Some(Instant::now()),
                Answer::Away(cause) => {
                    client = None;
                    if let Some(said) = stored(place, self.name).await {
                        return Ok(said);
                    }
                    let Some(heard) = heard else {
                        return Err(cause);
                    };
                    if !std::mem::replace(&mut is_told, true) {
                        eprintln!(
                            "the coordinator is away ({cause:#}); waiting {} s for the next one",
                            AWAY_MAX.as_secs()
                        );
                    }
                    if heard.elapsed() > AWAY_MAX {
                        let name = self.name;
                        return Err(cause).context(format!(
                            "savepoint {name} is not there; ask for it again by its name"
                        ));
                    }
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Orders it where that was not done yet, and asks how far it is.
    async fn ask(&self, known: &mut Option<ControlClient<Channel>>) -> Result<Answer> {
        let client = match known {
            Some(client) => client,
            None => {
                let client = match control::connect(self.args).await {
                    Ok(client) => known.insert(client),
                    Err(cause) => return Ok(Answer::Away(cause)),
                };
                let (name, stop) = (self.name.to_owned(), self.stops);
                let order = v1::SavepointRequest { name, stop };
                if let Err(status) = client.savepoint(order).await {
                    return answer_of_error(status);
                }
                client
            }
        };
        let name = self.name.to_owned();
        let request = v1::SavepointStatusRequest { name };
        match client.savepoint_status(request).await {
            Ok(state) => self.answer_of(state.get_ref()),
            Err(status) => answer_of_error(status),
        }
    }

    fn answer_of(&self, state: &v1::SavepointState) -> Result<Answer> {
        let name = self.name;
        Ok(match state.phase.as_str() {
            "Completed" => {
                let (id, size) = (state.checkpoint, bytes(state.bytes));
                Answer::Done(match state.before {
                    false => format!("savepoint {name} is checkpoint {id}, {size} of state"),
                    true => format!(
                        "savepoint {name} was there already: checkpoint {id} of {}, {size} of state",
                        time(state.time_ms)
                    ),
                })
            }
            "Failed" => bail!("savepoint {name}: {}", state.reason),
            "" => Answer::Away(anyhow!("the coordinator was not asked for it")),
            _ => Answer::GoesOn,
        })
    }
}

fn answer_of_error(status: tonic::Status) -> Result<Answer> {
    let refuses = status.code() == Code::FailedPrecondition;
    let cause = control::refused(status);
    if refuses {
        Err(cause)
    } else {
        Ok(Answer::Away(cause))
    }
}

/// What the store says; `None`: nothing yet.
async fn stored(place: &StorePlace, name: &str) -> Option<String> {
    let history = open_history(place).await.ok()?;
    let manifest = history.savepoint(name).await.ok()?;
    let (id, size) = (manifest.id, bytes(state_bytes(&manifest)));
    Some(format!(
        "savepoint {name} is checkpoint {id}, {size} of state"
    ))
}
