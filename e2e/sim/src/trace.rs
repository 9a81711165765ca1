//! What happened, in order, as a number that two runs of a seed must share (O6), and as text.

/// See the module.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    /// Whether it is also printed.
    pub prints: bool,
}

impl Trace {
    /// Nothing happened yet.
    pub fn new(prints: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            prints,
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
        if self.prints {
            eprintln!("{}", text());
        }
    }

    /// The number.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
