//! What a client of the memory store is made to suffer.
//!
//! Owns: the kinds of faults and two plans for them. A simulation brings its own seeded plan by
//! implementing [`Faults`], or passes a closure.

use std::collections::VecDeque;

/// What the client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A read of a whole object.
    Get,
    /// A read of part of an object.
    GetRange,
    /// A write.
    Put,
    /// A listing.
    List,
    /// The removal of one object.
    Delete,
}

/// One call of a client.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// What is asked for.
    pub kind: OperationKind,
    /// Of which key (or with which prefix).
    pub key: &'a str,
}

/// What happens to one call. All but `None` look alike to the client: no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is answered.
    None,
    /// The call never arrives.
    FailBefore,
    /// The call takes effect and its answer is lost.
    FailAfter,
    /// A put is still under way: it arrives when the test calls [`super::MemoryStore::land`],
    /// under the condition it was sent with. Other calls fail.
    LandLater,
    /// This client is dead. Nothing it asks for happens.
    Dead,
}

/// Decides the fate of each call of one client.
pub trait Faults: Send + std::fmt::Debug {
    /// Called once per operation (per key for deletes), in order.
    fn on_operation(&mut self, operation: Operation<'_>) -> Fault;
}

/// A client without faults.
#[derive(Clone, Copy, Debug)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn on_operation(&mut self, _operation: Operation<'_>) -> Fault {
        Fault::None
    }
}

/// Faults for the next puts, in order; everything else is answered.
#[derive(Clone, Debug, Default)]
pub struct ScriptedFaults {
    puts: VecDeque<Fault>,
}

impl ScriptedFaults {
    /// The fates of the next puts; after them, no faults.
    #[must_use]
    pub fn for_puts(puts: impl IntoIterator<Item = Fault>) -> Self {
        Self {
            puts: puts.into_iter().collect(),
        }
    }
}

impl Faults for ScriptedFaults {
    fn on_operation(&mut self, operation: Operation<'_>) -> Fault {
        match operation.kind {
            OperationKind::Put => self.puts.pop_front().unwrap_or(Fault::None),
            OperationKind::Get
            | OperationKind::GetRange
            | OperationKind::List
            | OperationKind::Delete => Fault::None,
        }
    }
}
