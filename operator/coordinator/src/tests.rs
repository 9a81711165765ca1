//! The rules, each against the whole coordinator, a store in a map and tasks made of words.

mod adopting;
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
mod retaining;
mod rig;
mod saving;
mod starting;
mod words;
