//! Golden job files and their runner.
