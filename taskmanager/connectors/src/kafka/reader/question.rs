//! Questions to brokers that a reader asks while it goes on reading.
//!
//! Owns: one question at a time on a thread made for blocking calls, and the pause after one that was
//! not answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::kafka::check::{Answers, Error as CheckError, check};
use crate::kafka::config::SourceConfig;
use crate::kafka::edge::Edge;
use crate::kafka::enumerator::topics_of;
use crate::kafka::lookup::{Ask, Error as LookupError, TopicFacts};
use crate::kafka::split::Description;

/// Pause after a question that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// What is asked.
#[derive(Debug)]
pub enum Question {
    /// May these be read from there?
    Check(Vec<(Description, i64)>),
    /// Which partitions are there beside these?
    Look(BTreeSet<String>),
}

/// What is there now.
#[derive(Debug)]
pub struct Found {
    /// Every topic that the source means.
    pub topics: BTreeMap<String, TopicFacts>,
    /// Every partition that was not known, at its begin.
    pub partitions: Vec<Description>,
}

/// What was answered.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::Check`].
    Checked(Result<Answers, CheckError>),
    /// To [`Question::Look`].
    Looked(Result<Found, LookupError>),
}

impl Answer {
    /// Whether it is none, of some split at least.
    pub fn is_error(&self) -> bool {
        match self {
            Self::Checked(Ok(answers)) => answers.unanswered.is_some(),
            Self::Looked(Ok(_)) => false,
            Self::Checked(Err(_)) | Self::Looked(Err(_)) => true,
        }
    }
}

/// See the module.
pub struct Questions<E: Edge> {
    edge: E,
    config: SourceConfig,
    asker: Option<Arc<E::Asker>>,
    pending: Option<Receiver<Answered<E::Asker>>>,
    not_before: Option<Instant>,
    failed_n: u32,
}

/// An answer, and whom to ask the next time.
type Answered<A> = (Answer, Option<Arc<A>>);

impl<E: Edge> Questions<E> {
    /// About this source.
    pub fn new(edge: E, config: SourceConfig) -> Self {
        Questions {
            edge,
            config,
            asker: None,
            pending: None,
            not_before: None,
            failed_n: 0,
        }
    }

    /// How many questions failed one after the other.
    pub fn failed_in_a_row(&self) -> u32 {
        self.failed_n
    }

    /// Asks, unless something is being asked or the pause after a failure lasts.
    pub fn ask(&mut self, question: Question) {
        let paused = self.not_before.is_some_and(|at| self.edge.now() < at);
        if self.pending.is_some() || paused {
            return;
        }
        let (answers, pending) = channel();
        self.pending = Some(pending);
        let (edge, config, asker) = (self.edge.clone(), self.config.clone(), self.asker.clone());
        self.edge.spawn(move || {
            // The reader may be gone: then nobody wants to know.
            let _ = answers.send(answer(&edge, &config, asker, question));
        });
    }

    /// The answer, once.
    pub fn take(&mut self) -> Option<Answer> {
        let (answer, asker) = match self.pending.as_ref()?.try_recv() {
            Ok(answered) => answered,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                // Its thread ended without an answer: ask again.
                self.pending = None;
                return None;
            }
        };
        self.pending = None;
        self.asker = asker;
        let failed = answer.is_error();
        self.failed_n = if failed { self.failed_n + 1 } else { 0 };
        self.not_before = failed.then(|| self.edge.now() + PAUSE);
        Some(answer)
    }
}

fn answer<E: Edge>(
    edge: &E,
    config: &SourceConfig,
    asker: Option<Arc<E::Asker>>,
    question: Question,
) -> Answered<E::Asker> {
    let asker = match asker {
        Some(asker) => asker,
        None => match edge.asker() {
            Ok(asker) => Arc::new(asker),
            Err(error) => return (Answer::Checked(Err(CheckError::Client(error))), None),
        },
    };
    let answer = match question {
        Question::Check(splits) => {
            Answer::Checked(check(&*asker, &splits, config.on_offset_out_of_range))
        }
        Question::Look(known) => Answer::Looked(look(&*asker, config, &known)),
    };
    (answer, Some(asker))
}

fn look(
    lookup: &impl Ask,
    config: &SourceConfig,
    known: &BTreeSet<String>,
) -> Result<Found, LookupError> {
    let mut found = Found {
        topics: BTreeMap::new(),
        partitions: Vec::new(),
    };
    for topic in topics_of(config, lookup)? {
        let facts = lookup.topic(&topic)?;
        for partition in 0..facts.partitions_n {
            let new = Description {
                topic: topic.clone(),
                partition,
                topic_id: facts.id.clone(),
                start: 0,
                end: None,
            };
            // One without a leader is found when it has one.
            if !known.contains(&new.id().0) && facts.leader(partition).is_some() {
                let (start, _) = lookup.range(&topic, partition)?;
                found.partitions.push(Description { start, ..new });
            }
        }
        found.topics.insert(topic, facts);
    }
    Ok(found)
}
