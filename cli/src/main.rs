//! The `streamforge` program: arguments in, exit code out. Everything else is in the library.

use std::process::ExitCode;

/// Rows are many small buffers that live for milliseconds and die on another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    streamforge_cli::main()
}
