//! One request to the store at a time, asked again until it is answered.
//!
//! Owns: which request is under way and for what, and when it is repeated. A lane that is taken
//! over by another purpose forgets the old request: its late answer has an id that is no longer
//! known.

use crate::decision::Decision;
use crate::store_request::{RequestId, StoreAnswer, StoreRequest};

/// Wait before a request is repeated; doubles up to [`RETRY_MS_MAX`].
const RETRY_MS_INITIAL: u64 = 100;

/// Longest wait before a request is repeated: a store that comes back is noticed soon.
const RETRY_MS_MAX: u64 = 5_000;

/// Hands out ids of requests.
#[derive(Debug, Default)]
pub(crate) struct RequestIds(u64);

impl RequestIds {
    fn next(&mut self) -> RequestId {
        self.0 += 1;
        RequestId(self.0)
    }
}

#[derive(Debug)]
pub(crate) struct Lane<P> {
    current: Option<Current<P>>,
}

#[derive(Debug)]
struct Current<P> {
    purpose: P,
    request: StoreRequest,
    attempts_n: u32,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    UnderWay(RequestId),
    AgainAt(u64),
}

/// A request that was answered, with what it takes to ask it again.
#[derive(Debug)]
pub(crate) struct Answered<P> {
    pub purpose: P,
    pub request: StoreRequest,
    pub answer: StoreAnswer,
    /// How often it has been asked, this one included.
    pub attempts_n: u32,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Self { current: None }
    }
}

impl<P> Lane<P> {
    pub(crate) fn is_free(&self) -> bool {
        self.current.is_none()
    }

    /// Asks; forgets whatever was asked before.
    pub(crate) fn ask(
        &mut self,
        ids: &mut RequestIds,
        purpose: P,
        request: StoreRequest,
    ) -> Decision {
        let id = ids.next();
        let decision = Decision::Store(id, request.clone());
        let state = State::UnderWay(id);
        self.current = Some(Current {
            purpose,
            request,
            attempts_n: 1,
            state,
        });
        decision
    }

    /// The lane's request was answered, and the lane is free; `None`: it was another's.
    pub(crate) fn on_answer(
        &mut self,
        id: RequestId,
        answer: StoreAnswer,
    ) -> Result<Answered<P>, StoreAnswer> {
        match self.current.take() {
            Some(current) if current.state == State::UnderWay(id) => {
                let Current {
                    purpose,
                    request,
                    attempts_n,
                    ..
                } = current;
                Ok(Answered {
                    purpose,
                    request,
                    answer,
                    attempts_n,
                })
            }
            other => {
                self.current = other;
                Err(answer)
            }
        }
    }

    /// Takes the same request up again after a while.
    pub(crate) fn ask_again_later(&mut self, now_ms: u64, answered: Answered<P>) {
        let Answered {
            purpose,
            request,
            attempts_n,
            ..
        } = answered;
        let wait_ms = RETRY_MS_INITIAL.saturating_mul(1 << (attempts_n - 1).min(10));
        let at_ms = now_ms + wait_ms.min(RETRY_MS_MAX);
        self.current = Some(Current {
            purpose,
            request,
            attempts_n,
            state: State::AgainAt(at_ms),
        });
    }

    /// Asks another request after the same wait, counting on.
    pub(crate) fn ask_later(&mut self, now_ms: u64, answered: Answered<P>, request: StoreRequest) {
        self.ask_again_later(
            now_ms,
            Answered {
                request,
                ..answered
            },
        );
    }

    /// Asks another request now, as part of the same attempt (a read-back after a put).
    pub(crate) fn ask_on(
        &mut self,
        ids: &mut RequestIds,
        answered: Answered<P>,
        request: StoreRequest,
    ) -> Decision {
        let attempts_n = answered.attempts_n;
        let decision = self.ask(ids, answered.purpose, request);
        if let Some(current) = &mut self.current {
            current.attempts_n = attempts_n;
        }
        decision
    }

    pub(crate) fn on_tick(&mut self, ids: &mut RequestIds, now_ms: u64) -> Option<Decision> {
        let current = self.current.as_mut()?;
        if !matches!(current.state, State::AgainAt(at_ms) if at_ms <= now_ms) {
            return None;
        }
        let id = ids.next();
        current.state = State::UnderWay(id);
        current.attempts_n += 1;
        Some(Decision::Store(id, current.request.clone()))
    }

    pub(crate) fn clear(&mut self) {
        self.current = None;
    }
}
