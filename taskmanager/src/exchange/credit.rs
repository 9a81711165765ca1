//! Credit of one channel, in bytes of rows.
//!
//! Owns: when a frame may be sent, and when credit goes back. Pure arithmetic; the same rules at both
//! ends, so that the receiver can tell a sender that breaks them.
//!
//! Invariant B1: frames that were sent and not yet taken by the task have at most `window` bytes, or,
//! if one frame is larger than half of it, half and that frame.

/// Parts of the window that credit goes back in: fewer make the sender wait for it, more are
/// messages for nothing.
const RETURNS_PER_WINDOW: u64 = 2;

fn return_at(window: u64) -> u64 {
    window.div_ceil(RETURNS_PER_WINDOW)
}

/// One end's view of what the sender may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    window: u64,
    /// Below zero after a frame larger than the window.
    available: i64,
}

/// The other end broke the rules of credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A frame came for which there was no credit.
    #[error("a frame of {bytes} bytes came with {available} bytes of credit left")]
    Overdrawn {
        /// Its bytes.
        bytes: u64,
        /// Credit at that moment.
        available: i64,
    },
    /// Credit came back that was never given.
    #[error("{bytes} bytes of credit came on top of {available} of {window}")]
    Overgranted {
        /// That came.
        bytes: u64,
        /// That was there.
        available: i64,
        /// All there is.
        window: u64,
    },
}

impl Credit {
    /// All of a window.
    pub fn full(window: u64) -> Self {
        let window = window.clamp(1, i64::MAX as u64 / 2);
        Self {
            window,
            available: window as i64,
        }
    }

    /// Bytes that may still be sent; below zero after an oversized frame.
    pub fn available(&self) -> i64 {
        self.available
    }

    /// Whether a frame of so many bytes may be sent. One that is larger than what is sure to come
    /// back (less than half of the window is kept back unsaid) needs only that.
    pub fn allows(&self, bytes: u64) -> bool {
        let sure = self.window - return_at(self.window) + 1;
        self.available >= bytes.min(sure).min(self.window) as i64
    }

    /// A frame is sent, or came.
    ///
    /// # Errors
    /// [`Error::Overdrawn`]; nothing changed.
    pub fn spend(&mut self, bytes: u64) -> Result<(), Error> {
        if !self.allows(bytes) {
            let available = self.available;
            return Err(Error::Overdrawn { bytes, available });
        }
        self.available = self
            .available
            .saturating_sub_unsigned(bytes.min(i64::MAX as u64));
        Ok(())
    }

    /// Credit came back, or is given back.
    ///
    /// # Errors
    /// [`Error::Overgranted`]; nothing changed.
    pub fn grant(&mut self, bytes: u64) -> Result<(), Error> {
        let raised = self.available.saturating_add_unsigned(bytes);
        if raised > self.window as i64 {
            return Err(Error::Overgranted {
                bytes,
                available: self.available,
                window: self.window,
            });
        }
        self.available = raised;
        Ok(())
    }
}

/// The receiver's account: what lies in the queue, and what the sender is owed.
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    credit: Credit,
    queued: u64,
    owed: u64,
}

impl Ledger {
    /// Nothing queued, nothing owed.
    pub fn new(window: u64) -> Self {
        Self {
            credit: Credit::full(window),
            queued: 0,
            owed: 0,
        }
    }

    /// Bytes of rows that wait for the task.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// The window: what the sender is given first.
    pub fn window(&self) -> u64 {
        self.credit.window
    }

    /// A frame came.
    ///
    /// # Errors
    /// [`Error::Overdrawn`]: the sender breaks the rules.
    pub fn on_frame(&mut self, bytes: u64) -> Result<(), Error> {
        self.credit.spend(bytes)?;
        self.queued += bytes;
        Ok(())
    }

    /// The task took a frame; says what to give back now, if anything.
    #[must_use]
    pub fn on_taken(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.min(self.queued);
        self.queued -= bytes;
        self.owed += bytes;
        if self.owed < return_at(self.credit.window) {
            return None;
        }
        let back = std::mem::take(&mut self.owed);
        // What is owed was spent before, so it fits.
        self.credit.grant(back).ok().map(|()| back)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frame_waits_until_there_is_credit_for_all_of_it() {
        let mut credit = Credit::full(100);

        credit.spend(60).unwrap();
        assert!(!credit.allows(41));
        assert!(credit.allows(40));
        credit.grant(25).unwrap();
        assert!(credit.allows(65));
    }

    #[test]
    fn frame_without_credit_is_the_senders_fault_b1() {
        let mut ledger = Ledger::new(100);
        ledger.on_frame(60).unwrap();

        assert_eq!(
            ledger.on_frame(60),
            Err(Error::Overdrawn {
                bytes: 60,
                available: 40
            })
        );
        assert_eq!(ledger.queued(), 60);
    }

    #[test]
    fn credit_above_the_window_is_the_receivers_fault() {
        let mut credit = Credit::full(100);
        credit.spend(10).unwrap();

        assert!(matches!(
            credit.grant(11),
            Err(Error::Overgranted { bytes: 11, .. })
        ));
        assert_eq!(credit.grant(10), Ok(()));
    }

    #[test]
    fn credit_goes_back_half_a_window_at_a_time() {
        let mut ledger = Ledger::new(100);
        ledger.on_frame(50).unwrap();
        ledger.on_frame(40).unwrap();

        assert_eq!(ledger.on_taken(49), None);
        assert_eq!(ledger.on_taken(1), Some(50));
        assert_eq!(ledger.on_taken(40), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Any frames, taken at any time: no deadlock, and never more in the queue than B1 says.
        #[test]
        fn every_frame_gets_through_and_the_queue_is_bounded_b1(
            window in 1_u64..400,
            frames in prop::collection::vec((1_u64..900, 0_usize..4), 1..80),
        ) {
            let (mut credit, mut ledger) = (Credit::full(window), Ledger::new(window));
            let mut queue = std::collections::VecDeque::new();
            let largest = frames.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
            let bound = window.max(return_at(window) + largest);
            for (bytes, taken_first) in frames {
                for _ in 0..taken_first {
                    if let Some(taken) = queue.pop_front()
                        && let Some(back) = ledger.on_taken(taken)
                    {
                        credit.grant(back).unwrap();
                    }
                }
                while !credit.allows(bytes) {
                    let taken = queue.pop_front().expect("an empty queue has given its credit back");
                    if let Some(back) = ledger.on_taken(taken) {
                        credit.grant(back).unwrap();
                    }
                }
                credit.spend(bytes).unwrap();
                ledger.on_frame(bytes).unwrap();
                queue.push_back(bytes);
                prop_assert!(ledger.queued() <= bound, "{} > {bound}", ledger.queued());
            }
        }
    }
}
