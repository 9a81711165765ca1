//! What happened, in order, as a number that two runs of a seed must share (O6), and as text.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that are kept of a history for whoever wants to know how it ended.
const TAIL_LINES_MAX: usize = 60;

/// The last lines of a history, for after it broke off.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: String) {
        // A line is added whole.
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The lines.
    pub fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .fold(String::new(), |text, line| text + line + "\n")
    }
}

/// Where the text goes.
#[derive(Clone, Debug)]
enum Readers {
    None,
    Terminal,
    Tail(Tail),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    readers: Readers,
}

impl Trace {
    /// Nothing happened yet; nobody reads, or all of it is printed.
    pub fn new(prints: bool) -> Self {
        let readers = if prints {
            Readers::Terminal
        } else {
            Readers::None
        };
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            readers,
        }
    }

    /// Nothing happened yet; the last lines are kept.
    pub fn kept(tail: &Tail) -> Self {
        Self {
            readers: Readers::Tail(tail.clone()),
            ..Self::new(false)
        }
    }

    /// Something happened.
    pub fn note(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = (self.hash ^ number)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
    }

    /// Something a person who replays a seed wants to read.
    pub fn say(&self, text: impl FnOnce() -> String) {
        match &self.readers {
            Readers::None => {}
            Readers::Terminal => eprintln!("{}", text()),
            Readers::Tail(tail) => tail.push(text()),
        }
    }

    /// The number.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
