//! Seeded simulation of whole jobs in one thread.
//!
//! Owns: a deterministic shell around the real coordinator, the real task cores and operators, the
//! real planner and formats: the host's loop, the task managers' threads, the network, the clock, the
//! store and the world outside are replaced by a queue each, and one seeded generator picks who moves
//! next. Coordinators fork, freeze and die, task managers die, store calls fail, get lost or arrive
//! late, jobs stop and go on at another parallelism, savepoints are taken and begun with. Topics that are
//! read grow, get partitions, fall silent and lose their leaders; the reader is the real one. Decides
//! nothing about rows.
//!
//! Start at: [`world::run`]; the invariants are in [`watch`], [`outside`], [`oracle`] and [`kafka`].

pub mod attempt;
pub mod book;
pub mod broker;
pub mod calamity;
pub mod fleet;
pub mod input;
pub mod job;
pub mod kafka;
pub mod net;
pub mod operators;
pub mod oracle;
pub mod outside;
pub mod process;
pub mod publish;
pub mod reader;
pub mod rng;
pub mod saved;
pub mod task;
pub mod task_manager;
pub mod totals;
pub mod trace;
pub mod upload;
pub mod watch;
pub mod world;
