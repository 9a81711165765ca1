//! The rules, each against the whole coordinator, a store in a map and tasks made of words.

mod adopting;
mod at_fault;
mod changed_sinks;
mod checkpoints;
mod endings;
mod failures;
mod fencing;
mod forks;
mod handing_over;
mod importing;
mod members;
mod publishing;
mod recording;
mod renaming;
mod retaining;
mod rig;
mod rolling_back;
mod saving;
mod starting;
mod words;
