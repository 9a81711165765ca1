//! Room for recursion.
//!
//! Owns: the one place where this crate starts a thread: not to do two things at once, but because
//! planning an expression recurses along it, and a thread is the safe way to a larger stack. The
//! limits of `expression::parse` are chosen so that this stack is never filled.

use std::thread;

/// Enough for the deepest expression that is accepted, in an unoptimised build; only pages that are
/// touched cost memory.
const STACK_BYTES: usize = 64 << 20;

/// Runs `work` on a large stack and waits for it.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let builder = thread::Builder::new()
            .name("plan".to_owned())
            .stack_size(STACK_BYTES);
        match builder.spawn_scoped(scope, work) {
            Ok(handle) => match handle.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            Err(error) => panic!("start a thread to plan in: {error}"),
        }
    })
}
