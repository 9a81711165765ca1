//! Checkpoints and failures as a pure state machine: events in, decisions out.
//!
//! Owns: when a checkpoint is taken, when it is committed, what is published in which order, who may
//! write (generation, epoch), what is kept, and what a failure leads to. Never does I/O, reads no
//! clock, draws no random number: time and a seed come in through the door, and the shell
//! (`operator/host`) carries out what is decided.
//!
//! Start at: [`Coordinator::on`]. One module per rule of the design:
//!
//! * [`head`]: the head swap is the commit point, serial, with read-back (C2, C4, C5).
//! * `start`: takeover, restore, refusal of what must not be restored (C7).
//! * `members` and `placement`: who is there, and who runs what (K2).
//! * `channels`: who loses its place when two cannot reach each other (B2).
//! * `adoption`: an attempt that outlived its coordinator goes on (F1).
//! * `hand_over`: owners change while the attempt goes on (K3); `leaving`: who may end.
//! * `fence`: whether this coordinator is still the one, whatever it waits for (C5).
//! * `attempt`: an epoch from deployment to its end; manifest 0 before the first row (C10).
//! * `checkpoint`: acknowledgements by expected set (C1), give-up (A2), the end of a job (C11).
//! * [`publish`]: commit notices until confirmed, one id of a sink after the other (C3, X5).
//! * `recording`: a stop notes what it has published before it ends (X3).
//! * [`retention`] and `cleaning`: what may be deleted, and when (C6).
//! * `savepoint`: a checkpoint copied whole to a place of its own, and `import`: a start from one (C9).
//! * [`restart`]: which failures count, and how long to wait.

mod adoption;
mod attempt;
mod channels;
mod checkpoint;
mod cleaning;
pub mod compatibility;
mod config;
mod coordinator;
mod decision;
mod ending;
mod error;
mod fence;
mod hand_over;
pub mod head;
mod import;
mod input;
mod lane;
mod leaving;
mod members;
mod placement;
mod progress;
pub mod publish;
mod recording;
pub mod restart;
pub mod retention;
mod savepoint;
mod splits;
mod start;
mod status;
mod store_request;

pub use config::{CheckpointPolicy, Config, MemberPolicy, RestartPolicy};
pub use coordinator::Coordinator;
pub use decision::{Decision, Outcome, Report};
pub use error::Error;
pub use input::Input;
pub use savepoint::SavepointState;
pub use splits::deal_splits;
pub use status::{CheckpointStatus, CompletedCheckpoint, FailedCheckpoint, Failure, Phase, Status};
pub use store_request::{
    ELSEWHERE, ExpectedObject, Piece, PutCondition, RequestId, StoreAnswer, StoreRequest, Version,
    expected_objects,
};

#[cfg(test)]
mod tests;
