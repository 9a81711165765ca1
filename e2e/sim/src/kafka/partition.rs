//! One partition as its leader has it now.

use std::sync::Arc;

use super::log::Log;
use crate::rng::Rng;

/// A leader that was away for longer is known to be: 3 s by the clock of clients.
const KNOWN_AWAY_AFTER_MS: u64 = 150;

/// See the module.
#[derive(Clone, Debug)]
pub struct Partition {
    /// What it will hold.
    pub log: Arc<Log>,
    /// Entries of that which are written.
    pub written_n: usize,
    /// The oldest offset kept.
    pub low: i64,
    /// Nothing is written before.
    pub silent_until_ms: u64,
    /// Since when its leader is away, and until when.
    away: Option<(u64, u64)>,
    /// Times that it came back before that, and when it did last.
    returned: (u64, u64),
}

impl Partition {
    /// One in which nothing is written.
    pub fn new(log: Arc<Log>) -> Self {
        Self {
            low: log.first,
            log,
            written_n: 0,
            silent_until_ms: 0,
            away: None,
            returned: (0, 0),
        }
    }

    /// The high watermark.
    pub fn end(&self) -> i64 {
        self.log.end_of(self.written_n)
    }

    /// The last stable offset.
    pub fn stable(&self) -> i64 {
        self.log.stable(self.written_n)
    }

    /// The highest event time in it.
    pub fn latest(&self) -> Option<i64> {
        let offsets = self.log.first..self.end();
        offsets.filter_map(|offset| self.log.ts(offset)).max()
    }

    /// Its leader goes away.
    pub fn leave(&mut self, now_ms: u64, until_ms: u64) {
        self.returned = self.returned(now_ms);
        let since_ms = self.away.filter(|_| self.is_away(now_ms));
        let since_ms = since_ms.map_or(now_ms, |(since_ms, _)| since_ms);
        self.away = Some((since_ms, until_ms));
    }

    /// Whether nobody answers for it.
    pub fn is_away(&self, now_ms: u64) -> bool {
        self.away.is_some_and(|(_, until_ms)| now_ms < until_ms)
    }

    /// How often its leader came back, and when it did last.
    pub fn returned(&self, now_ms: u64) -> (u64, u64) {
        let (times, _) = self.returned;
        match self.away {
            Some((_, until_ms)) if until_ms <= now_ms => (times + 1, until_ms),
            _ => self.returned,
        }
    }

    /// Whether clients believe that its leader answers.
    pub fn answers(&self, now_ms: u64) -> bool {
        let away = self.away.filter(|(_, until_ms)| now_ms < *until_ms);
        away.is_none_or(|(since_ms, _)| now_ms - since_ms < KNOWN_AWAY_AFTER_MS)
    }

    /// Some more is written; the highest event time in it.
    pub fn write(&mut self, now_ms: u64, limit: usize, rng: &mut Rng) -> Option<i64> {
        if now_ms < self.silent_until_ms || self.is_away(now_ms) {
            return None;
        }
        if rng.one_in(20) {
            self.silent_until_ms = now_ms + rng.below(500);
        }
        let from = self.end();
        self.written_n = limit.min(self.written_n + 1 + rng.pick(3));
        (from..self.end()).filter_map(|at| self.log.ts(at)).max()
    }
}
