//! Random draws that are pure functions of a seed and a number.

/// 64 well-mixed bits (SplitMix64's output function, Steele et al. 2014).
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The draws of one seed.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    seed: u64,
}

impl Draw {
    /// Draws of this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed: mix(seed) }
    }

    /// Bits for `number`; `purpose` keeps different uses of one number apart.
    pub fn bits(&self, number: u64, purpose: u64) -> u64 {
        mix(self.seed ^ mix(number) ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// In `[0, 1)`.
    pub fn unit(&self, number: u64, purpose: u64) -> f64 {
        unit(self.bits(number, purpose))
    }
}

/// 53 of the bits as a number in `[0, 1)`.
pub fn unit(bits: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    let value = (bits >> 11) as f64;
    value / 9_007_199_254_740_992.0
}

/// Draws from a fixed distribution in constant time (Walker 1977, Vose 1991).
#[derive(Clone, Debug)]
pub struct Alias {
    cells: Vec<(f64, u32)>,
}

impl Alias {
    /// Item `i` of `n` has weight `1 / (i + 1)^exponent` (Zipf).
    pub fn zipf(n: u32, exponent: f64) -> Self {
        let weights: Vec<f64> = (0..n)
            .map(|i| (f64::from(i) + 1.0).powf(-exponent))
            .collect();
        let sum: f64 = weights.iter().sum();
        let mut share: Vec<f64> = weights.iter().map(|w| w * f64::from(n) / sum).collect();
        let mut cells: Vec<(f64, u32)> = (0..n).map(|i| (1.0, i)).collect();
        let index = |i: &u32| *i as usize;
        let below = |share: &[f64], i: &u32| share.get(index(i)).is_some_and(|s| *s < 1.0);
        let (mut small, mut large): (Vec<u32>, Vec<u32>) = (0..n).partition(|i| below(&share, i));
        while let (Some(poor), Some(rich)) = (small.pop(), large.last().copied()) {
            let own = share.get(index(&poor)).copied().unwrap_or(1.0);
            if let Some(cell) = cells.get_mut(index(&poor)) {
                *cell = (own, rich);
            }
            if let Some(left) = share.get_mut(index(&rich)) {
                *left -= 1.0 - own;
            }
            if below(&share, &rich) {
                large.pop();
                small.push(rich);
            }
        }
        Self { cells }
    }

    /// The item for these bits.
    pub fn pick(&self, bits: u64) -> u32 {
        let n = self.cells.len() as u64;
        let cell = ((bits >> 32) * n) >> 32;
        let idx = u32::try_from(cell).unwrap_or(0);
        let (own, other) = self.cells.get(idx as usize).copied().unwrap_or((1.0, 0));
        let within = f64::from(u32::try_from(bits & 0xFFFF_FFFF).unwrap_or(0)) / 4_294_967_296.0;
        if within < own { idx } else { other }
    }
}
