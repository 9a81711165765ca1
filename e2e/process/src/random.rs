//! Random moments, from a seed that a failing test prints.
//!
//! Owns: a small generator (SplitMix64). Never reads a clock.

/// Numbers that are the same for the same seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From `SEED`, else from the process id; prints it, so that a failure can be repeated.
    pub fn from_environment() -> Self {
        let given = std::env::var("SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
        println!("repeat with SEED={seed}");
        Self(seed)
    }

    /// From a given seed.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit.max(1)
    }
}
