//! Who may open a channel here.
//!
//! Owns: the one place where an opening's job, generation, epoch and sender are checked (C5). A
//! channel is opened once per epoch (B2).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use streamforge_core::ids::JobId;
use streamforge_core::messages::Stamp;
use streamforge_proto::convert::exchange::{Opening, PROTOCOL};
use tonic::Status;

use super::super::{Broken, ChannelName, Report, lock};
use super::uplink::Uplink;
use crate::inbox::Inbox;

/// Where an accepted channel leads.
#[derive(Debug)]
pub struct Port {
    /// The task manager that may open it.
    pub from: String,
    /// Of the task that receives.
    pub inbox: Arc<Inbox>,
    /// Which of its lanes.
    pub lane: usize,
    /// Back to the sender.
    pub uplink: Arc<Uplink>,
}

#[derive(Debug)]
enum Expected {
    Waiting(Port),
    /// Kept, to be closed with the attempt.
    Opened(Arc<Uplink>),
}

/// One attempt's channels into this process.
pub struct Admitted {
    stamp: Stamp,
    channels: Mutex<HashMap<ChannelName, Expected>>,
    closed: AtomicBool,
    report: Report,
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted")
            .field("stamp", &self.stamp)
            .finish_non_exhaustive()
    }
}

impl Admitted {
    /// No channel yet.
    pub fn new(stamp: Stamp, report: Report) -> Self {
        Self {
            stamp,
            channels: Mutex::default(),
            closed: AtomicBool::new(false),
            report,
        }
    }

    /// Which attempt.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// A channel that may be opened from now on.
    pub fn expect(&self, channel: ChannelName, port: Port) {
        lock(&self.channels).insert(channel, Expected::Waiting(port));
    }

    /// Says that a channel broke, unless the attempt is over.
    pub fn report(&self, broken: Broken) {
        if !self.is_closed() {
            (self.report)(broken);
        }
    }

    /// Whether the attempt is over.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the attempt's channels into this process.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // The map goes, and with it the cycle from a port to its attempt.
        for expected in std::mem::take(&mut *lock(&self.channels)).into_values() {
            match expected {
                Expected::Waiting(port) => port.uplink.close(),
                Expected::Opened(uplink) => uplink.close(),
            }
        }
    }

    fn take(&self, channel: ChannelName, from: &str) -> Result<Port, Status> {
        let mut channels = lock(&self.channels);
        let uplink = match channels.get(&channel) {
            None => {
                let text = format!("channel {channel} is not accepted yet");
                return Err(Status::unavailable(text));
            }
            Some(Expected::Opened(_)) => {
                let text = format!("channel {channel} was opened before in this epoch");
                return Err(Status::failed_precondition(text));
            }
            Some(Expected::Waiting(port)) if port.from != from => {
                let text = format!("channel {channel} is `{}`'s, not `{from}`'s", port.from);
                return Err(Status::failed_precondition(text));
            }
            Some(Expected::Waiting(port)) => Arc::clone(&port.uplink),
        };
        match channels.insert(channel, Expected::Opened(uplink)) {
            Some(Expected::Waiting(port)) => Ok(port),
            _ => Err(Status::internal("a channel changed under its lock")),
        }
    }
}

/// All attempts that run here, one per job.
#[derive(Debug, Default)]
pub struct Registry {
    attempts: Mutex<HashMap<JobId, Arc<Admitted>>>,
    /// Of attempts that ended, so that their openings stay refused.
    ended: Mutex<HashMap<JobId, Stamp>>,
}

fn is_older(one: &Stamp, other: &Stamp) -> bool {
    (one.generation, one.epoch) < (other.generation, other.epoch)
}

impl Registry {
    /// An attempt begins; the job's former one, if it is still there, ends.
    pub fn begin(&self, admitted: Arc<Admitted>) {
        let job = admitted.stamp.job.clone();
        let former = lock(&self.attempts).insert(job, admitted);
        if let Some(former) = former {
            former.close();
        }
    }

    /// An attempt ends.
    pub fn end(&self, admitted: &Arc<Admitted>) {
        let stamp = admitted.stamp();
        let mut attempts = lock(&self.attempts);
        if attempts
            .get(&stamp.job)
            .is_some_and(|current| Arc::ptr_eq(current, admitted))
        {
            attempts.remove(&stamp.job);
            lock(&self.ended).insert(stamp.job.clone(), stamp.clone());
        }
    }

    /// Checks an opening and hands out its channel.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`: older, foreign or repeated; `UNAVAILABLE`: this task manager is not
    /// that far yet.
    pub fn open(&self, opening: &Opening) -> Result<Port, Status> {
        if opening.protocol != PROTOCOL {
            let text = format!(
                "exchange protocol {} is not {PROTOCOL}, this task manager's",
                opening.protocol
            );
            return Err(Status::failed_precondition(text));
        }
        let stamp = &opening.stamp;
        let current = lock(&self.attempts).get(&stamp.job).map(Arc::clone);
        let Some(current) = current else {
            let ended = lock(&self.ended);
            return Err(match ended.get(&stamp.job) {
                Some(ended) if ended == stamp || is_older(stamp, ended) => refused(stamp, ended),
                _ => Status::unavailable("no attempt of this job is here yet"),
            });
        };
        if current.stamp == *stamp {
            let channel = ChannelName {
                edge: opening.edge,
                sender: opening.sender,
                receiver: opening.receiver,
            };
            return current.take(channel, &opening.task_manager);
        }
        if is_older(stamp, &current.stamp) {
            return Err(refused(stamp, &current.stamp));
        }
        Err(Status::unavailable("this attempt is not here yet"))
    }
}

fn refused(stamp: &Stamp, current: &Stamp) -> Status {
    Status::failed_precondition(format!(
        "generation {} epoch {} is over: generation {} epoch {} was the last here",
        stamp.generation, stamp.epoch, current.generation, current.epoch
    ))
}

#[cfg(test)]
mod tests {
    use super::super::super::Totals;
    use super::*;
    use streamforge_core::ids::{Epoch, Generation, SubtaskIdx};
    use tonic::Code;

    fn stamp(generation: u64, epoch: u64) -> Stamp {
        Stamp {
            job: JobId("j".to_owned()),
            generation: Generation::from_stored(generation),
            epoch: Epoch::from_stored(epoch),
        }
    }

    const CHANNEL: ChannelName = ChannelName {
        edge: 0,
        sender: SubtaskIdx(1),
        receiver: SubtaskIdx(2),
    };

    fn opening(stamp: Stamp) -> Opening {
        Opening {
            protocol: PROTOCOL,
            stamp,
            edge: 0,
            sender: SubtaskIdx(1),
            receiver: SubtaskIdx(2),
            task_manager: "a".to_owned(),
        }
    }

    fn begin(registry: &Registry, stamp: Stamp) -> Arc<Admitted> {
        let admitted = Arc::new(Admitted::new(stamp, Arc::new(|_| {})));
        registry.begin(Arc::clone(&admitted));
        let totals = Arc::new(Totals::default());
        let uplink = Arc::new(Uplink::new(CHANNEL, 1, Arc::clone(&admitted), totals));
        let port = Port {
            from: "a".to_owned(),
            inbox: Arc::new(Inbox::new(1)),
            lane: 0,
            uplink,
        };
        admitted.expect(CHANNEL, port);
        admitted
    }

    fn answer(registry: &Registry, opening: &Opening) -> Code {
        registry
            .open(opening)
            .map_or_else(|s| s.code(), |_| Code::Ok)
    }

    #[test]
    fn lower_generation_is_refused_whatever_its_epoch_c5() {
        let registry = Registry::default();
        begin(&registry, stamp(2, 5));

        for older in [stamp(1, 5), stamp(1, 9), stamp(2, 4)] {
            let code = answer(&registry, &opening(older));
            assert_eq!(code, Code::FailedPrecondition);
        }
        for newer in [stamp(2, 6), stamp(3, 5)] {
            assert_eq!(answer(&registry, &opening(newer)), Code::Unavailable);
        }
        assert_eq!(answer(&registry, &opening(stamp(2, 5))), Code::Ok);
    }

    #[test]
    fn channel_is_opened_once_per_epoch_b2() {
        let registry = Registry::default();
        begin(&registry, stamp(2, 5));

        assert_eq!(answer(&registry, &opening(stamp(2, 5))), Code::Ok);
        let code = answer(&registry, &opening(stamp(2, 5)));
        assert_eq!(code, Code::FailedPrecondition);
    }

    #[test]
    fn another_task_manager_does_not_get_the_channel() {
        let registry = Registry::default();
        begin(&registry, stamp(2, 5));
        let mut zombie = opening(stamp(2, 5));
        zombie.task_manager = "b".to_owned();

        assert_eq!(answer(&registry, &zombie), Code::FailedPrecondition);
        assert_eq!(answer(&registry, &opening(stamp(2, 5))), Code::Ok);
    }

    #[test]
    fn another_protocol_is_refused() {
        let registry = Registry::default();
        begin(&registry, stamp(2, 5));
        let mut newer = opening(stamp(2, 5));
        newer.protocol = PROTOCOL + 1;

        assert_eq!(answer(&registry, &newer), Code::FailedPrecondition);
    }

    #[test]
    fn attempt_that_ended_stays_refused() {
        let registry = Registry::default();
        let admitted = begin(&registry, stamp(2, 5));
        registry.end(&admitted);

        let code = answer(&registry, &opening(stamp(2, 5)));
        assert_eq!(code, Code::FailedPrecondition);
        assert_eq!(answer(&registry, &opening(stamp(2, 6))), Code::Unavailable);
    }
}
