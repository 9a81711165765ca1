//! Clients that outlive an attempt.
//!
//! Owns: clients that ask, and producers that nobody uses at the moment. A new client has no connection:
//! a producer that needs an id of its own finds no broker to ask, and looks again half a second later;
//! closing one takes its time, too. An attempt that follows another one in the same process finds both
//! connected. Decides nothing: whoever gives a producer back knows that it is sound.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use streamforge_engine::error::Error;

use super::config::Access;
use super::lookup::LookupPlace;
use super::straight::StraightProducer;
use super::topic_settings::Asker;

/// A producer that nobody wanted for so long is closed when the next one comes.
const UNWANTED_AFTER: Duration = Duration::from_secs(60);

/// What a producer was made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerKind {
    /// The cluster.
    pub access: Access,
    /// Folder of secrets.
    pub secrets: Option<PathBuf>,
    /// What they said then.
    pub credentials: u64,
    /// Its largest message.
    pub message_bytes_max: usize,
}

/// See the module. Clones share what is kept.
#[derive(Clone, Debug, Default)]
pub struct Keeper {
    kept: Arc<Mutex<Kept>>,
}

/// The cluster, the folder of secrets, and what they said then.
type AskerKind = (Access, Option<PathBuf>, u64);

#[derive(Debug, Default)]
struct Kept {
    askers: Vec<(AskerKind, Arc<Asker>)>,
    producers: Vec<(ProducerKind, Instant, StraightProducer)>,
}

impl Keeper {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Every critical section leaves the lists whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client that asks this cluster, made at the first call and when credentials were replaced.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn asker(&self, place: &LookupPlace) -> Result<Arc<Asker>, Error> {
        let credentials = place.access.credentials(place.secrets.as_deref());
        let kind = (place.access.clone(), place.secrets.clone(), credentials);
        let mut kept = self.lock();
        let found = kept.askers.iter().find(|(theirs, _)| *theirs == kind);
        if let Some((_, asker)) = found {
            return Ok(Arc::clone(asker));
        }
        let asker = Arc::new(Asker::open(place)?);
        // The same with credentials of before is of no use to anybody.
        let is_old = |(theirs, _): &(AskerKind, _)| (&theirs.0, &theirs.1) == (&kind.0, &kind.1);
        let old: Vec<_> = kept.askers.extract_if(.., |it| is_old(it)).collect();
        close_beside(old);
        kept.askers.push((kind, Arc::clone(&asker)));
        Ok(asker)
    }

    /// It did not get an answer: the next one who asks begins with another client.
    pub fn forget(&self, asker: &Arc<Asker>) {
        let is_it = |kept: &(AskerKind, Arc<Asker>)| Arc::ptr_eq(&kept.1, asker);
        let mut kept = self.lock();
        let (gone, left) = std::mem::take(&mut kept.askers)
            .into_iter()
            .partition(is_it);
        kept.askers = left;
        let gone: Vec<_> = gone;
        close_beside(gone);
    }

    /// A producer of this kind that somebody gave back.
    #[must_use]
    pub fn take(&self, kind: &ProducerKind) -> Option<StraightProducer> {
        let mut kept = self.lock();
        let mut kinds = kept.producers.iter();
        let idx = kinds.position(|(theirs, ..)| theirs == kind)?;
        Some(kept.producers.swap_remove(idx).2)
    }

    /// Nobody uses this one now.
    pub fn give_back(&self, kind: ProducerKind, producer: StraightProducer) {
        let now = Instant::now();
        let mut kept = self.lock();
        let is_unwanted =
            |kept: &(ProducerKind, Instant, StraightProducer)| now - kept.1 > UNWANTED_AFTER;
        let (unwanted, mut left): (Vec<_>, Vec<_>) = std::mem::take(&mut kept.producers)
            .into_iter()
            .partition(is_unwanted);
        left.push((kind, now, producer));
        kept.producers = left;
        if !unwanted.is_empty() {
            close_beside(unwanted);
        }
    }
}

/// Closes clients while whoever used them goes on.
pub fn close_beside<T: Send + 'static>(clients: T) {
    let thread = std::thread::Builder::new().name("kafka-close".to_owned());
    // Without a thread the closure is dropped here, and they with it.
    let _closed_already = thread.spawn(move || drop(clients));
}
