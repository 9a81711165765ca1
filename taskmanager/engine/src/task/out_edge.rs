//! The sending end of an exchange, as its task's core sees it.
//!
//! Owns: who receives, and whether the channel may carry rows. A channel that begins, or was idle,
//! rejoins by handshake: every receiver counts it live again and answers with its watermark; the
//! sender waits for *all* answers and raises its own to the highest before it sends anything (design
//! §3, T6).

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::SubtaskIdx;
use streamforge_core::job_graph::Exchange;

/// State of the channels of one edge; all receivers of an edge are in the same state.
#[derive(Debug, PartialEq, Eq)]
enum Join {
    /// Receivers leave this sender out of their minimum.
    Idle,
    /// Asked; these have not answered yet.
    Joining {
        pending: Vec<SubtaskIdx>,
        highest: Watermark,
    },
    /// Rows and watermarks flow.
    Live,
}

/// What the task must do about an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum JoinStep {
    /// Nothing.
    Wait,
    /// All answered: raise the sending operator to this, then send its watermark.
    Joined(Watermark),
}

/// One edge out of a task.
#[derive(Debug)]
pub struct OutEdge {
    /// Index into the job graph's edges.
    pub edge: usize,
    /// Sending operator within the stage.
    pub operator: usize,
    /// How rows find their subtask.
    pub exchange: Exchange,
    /// Subtasks that receive.
    pub receivers: Vec<SubtaskIdx>,
    /// Those that receive once the join of a hand-over is done, which asks those of before, too: they
    /// know how far the groups are that they gave away (T6).
    next: Option<Vec<SubtaskIdx>>,
    join: Join,
    sent: Watermark,
}

impl OutEdge {
    /// An edge that has not joined yet.
    pub fn new(
        edge: usize,
        operator: usize,
        exchange: Exchange,
        receivers: Vec<SubtaskIdx>,
    ) -> Self {
        let (join, sent) = (Join::Idle, Watermark::NONE);
        Self {
            edge,
            operator,
            exchange,
            receivers,
            next: None,
            join,
            sent,
        }
    }

    /// From now on these receive; whoever received before is asked once more.
    pub fn hand_over(&mut self, next: Vec<SubtaskIdx>) {
        let new = next.iter().filter(|it| !self.receivers.contains(it));
        let new: Vec<SubtaskIdx> = new.copied().collect();
        self.receivers.extend(new);
        self.next = Some(next);
    }

    /// Whether rows must wait for answers.
    pub fn is_joining(&self) -> bool {
        matches!(self.join, Join::Joining { .. })
    }

    /// Whether receivers leave it out.
    pub fn is_idle(&self) -> bool {
        self.join == Join::Idle
    }

    /// Begins the handshake; the caller sends `Rejoin` to every receiver.
    pub fn begin_join(&mut self) {
        self.join = Join::Joining {
            pending: self.receivers.clone(),
            highest: Watermark::NONE,
        };
    }

    /// The sender has nothing; the caller sends `Idle` to every receiver.
    pub fn set_idle(&mut self) {
        self.join = Join::Idle;
    }

    /// A receiver answered.
    pub fn on_answer(&mut self, receiver: SubtaskIdx, watermark: Watermark) -> JoinStep {
        let Join::Joining { pending, highest } = &mut self.join else {
            return JoinStep::Wait;
        };
        pending.retain(|waiting| *waiting != receiver);
        highest.advance(watermark);
        if !pending.is_empty() {
            return JoinStep::Wait;
        }
        let highest = *highest;
        self.join = Join::Live;
        self.sent = Watermark::NONE;
        if let Some(next) = self.next.take() {
            self.receivers = next;
        }
        JoinStep::Joined(highest)
    }

    /// Whether this watermark is news to the receivers; remembers that it is sent.
    pub fn advance(&mut self, watermark: Watermark) -> bool {
        self.join == Join::Live && self.sent.advance(watermark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_waits_for_all_receivers_and_takes_the_highest_t6() {
        let receivers = vec![SubtaskIdx(0), SubtaskIdx(1)];
        let mut edge = OutEdge::new(0, 0, Exchange::Forward, receivers);
        edge.begin_join();

        assert!(!edge.advance(Watermark(1)), "nothing is sent while joining");
        assert_eq!(edge.on_answer(SubtaskIdx(1), Watermark(95)), JoinStep::Wait);
        assert_eq!(
            edge.on_answer(SubtaskIdx(0), Watermark(80)),
            JoinStep::Joined(Watermark(95))
        );
        assert!(edge.advance(Watermark(95)));
        assert!(!edge.advance(Watermark(95)));
    }

    #[test]
    fn hand_over_asks_who_gave_groups_away_and_then_forgets_them_t6() {
        let mut edge = OutEdge::new(0, 0, Exchange::Forward, vec![SubtaskIdx(0), SubtaskIdx(1)]);
        edge.hand_over(vec![SubtaskIdx(0), SubtaskIdx(2)]);
        edge.begin_join();

        assert_eq!(edge.on_answer(SubtaskIdx(0), Watermark(80)), JoinStep::Wait);
        assert_eq!(edge.on_answer(SubtaskIdx(2), Watermark(1)), JoinStep::Wait);
        assert_eq!(
            edge.on_answer(SubtaskIdx(1), Watermark(95)),
            JoinStep::Joined(Watermark(95))
        );
        assert_eq!(edge.receivers, [SubtaskIdx(0), SubtaskIdx(2)]);
    }
}
