//! Questions to brokers that a reader asks while it goes on reading.
//!
//! Owns: one question at a time on a thread made for blocking calls, and the pause after one that was
//! not answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::kafka::check::{Checked, Error as CheckError, check};
use crate::kafka::config::SourceConfig;
use crate::kafka::enumerator::topics_of;
use crate::kafka::lookup::{Error as LookupError, Lookup, LookupPlace, TopicFacts};
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
    Checked(Result<Vec<Checked>, CheckError>),
    /// To [`Question::Look`].
    Looked(Result<Found, LookupError>),
}

/// See the module.
#[derive(Debug)]
pub struct Questions {
    place: LookupPlace,
    config: SourceConfig,
    lookup: Option<Arc<Lookup>>,
    pending: Option<Receiver<(Answer, Option<Arc<Lookup>>)>>,
    not_before: Option<Instant>,
    failed_n: u32,
}

impl Questions {
    /// About this source.
    pub fn new(place: LookupPlace, config: SourceConfig) -> Self {
        Questions {
            place,
            config,
            lookup: None,
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
        let paused = self.not_before.is_some_and(|at| Instant::now() < at);
        if self.pending.is_some() || paused {
            return;
        }
        let (answers, pending) = channel();
        self.pending = Some(pending);
        let (place, config, lookup) =
            (self.place.clone(), self.config.clone(), self.lookup.clone());
        tokio::task::spawn_blocking(move || {
            let (answer, lookup) = answer(&place, &config, lookup, question);
            // The reader may be gone: then nobody wants to know.
            let _ = answers.send((answer, lookup));
        });
    }

    /// The answer, once.
    pub fn take(&mut self) -> Option<Answer> {
        let (answer, lookup) = match self.pending.as_ref()?.try_recv() {
            Ok(answered) => answered,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                // Its thread ended without an answer: ask again.
                self.pending = None;
                return None;
            }
        };
        self.pending = None;
        self.lookup = lookup;
        let failed = matches!(answer, Answer::Checked(Err(_)) | Answer::Looked(Err(_)));
        self.failed_n = if failed { self.failed_n + 1 } else { 0 };
        self.not_before = failed.then(|| Instant::now() + PAUSE);
        Some(answer)
    }
}

fn answer(
    place: &LookupPlace,
    config: &SourceConfig,
    lookup: Option<Arc<Lookup>>,
    question: Question,
) -> (Answer, Option<Arc<Lookup>>) {
    let lookup = match lookup {
        Some(lookup) => lookup,
        None => match place.open() {
            Ok(lookup) => Arc::new(lookup),
            Err(error) => return (Answer::Checked(Err(CheckError::Client(error))), None),
        },
    };
    let answer = match question {
        Question::Check(splits) => {
            Answer::Checked(check(&lookup, &splits, config.on_offset_out_of_range))
        }
        Question::Look(known) => Answer::Looked(look(&lookup, config, &known)),
    };
    (answer, Some(lookup))
}

fn look(
    lookup: &Lookup,
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
            if !known.contains(&new.id().0) {
                let (start, _) = lookup.range(&topic, partition)?;
                found.partitions.push(Description { start, ..new });
            }
        }
        found.topics.insert(topic, facts);
    }
    Ok(found)
}
