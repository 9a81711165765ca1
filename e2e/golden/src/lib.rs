//! Golden job files and their runner.
//!
//! Owns: playing a story (`jobs/*.job`) through the engine, in one thread, without clock, disk or
//! network: straight, with a crash and a restore after every input line, and at parallelism 3. All of
//! them must give the output written in the file. Start at: [`story::Story`], [`play`]; a file's form
//! is described in `README.md`.

pub mod cluster;
mod operators;
pub mod play;
mod rows;
pub mod story;
