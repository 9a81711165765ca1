//! A watch that says whether it lives.
//!
//! Owns: listing and watching one kind, again and again, and noting every sign of life: answers, events
//! and the bookmarks that the API server sends each minute though nothing happens. So a watch that died
//! without a word is seen ([`Pulses`]) and begun anew. Never decides what an event means.
//! Start at: [`follow`].

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use kube::api::{ListParams, ObjectList, PartialObjectMeta, WatchEvent, WatchParams};
use kube::runtime::watcher::Event;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// Server-side limit of a watch: shorter than what load balancers forget silent connections after.
const WATCH_SECONDS: u32 = 200;

/// A watch that is silent for so long is dead: a bookmark comes every minute.
const SILENT_MAX: Duration = Duration::from_secs(130);

/// How long a request may take to be answered.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// Waits after failures: twice the one before, from and to.
const AGAIN_MIN: Duration = Duration::from_millis(200);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// To, where it is forbidden: a namespace that is not there has no rights either, and comes seldom.
const FORBIDDEN_AGAIN_MAX: Duration = Duration::from_secs(60);

/// When each watch gave its last sign of life. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pulses(Arc<Mutex<Vec<Instant>>>);

impl Pulses {
    fn all(&self) -> MutexGuard<'_, Vec<Instant>> {
        // Every critical section leaves the list whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more watch.
    #[must_use]
    pub fn begin(&self) -> Pulse {
        let mut all = self.all();
        all.push(Instant::now());
        Pulse {
            all: self.clone(),
            idx: all.len() - 1,
        }
    }

    /// How long the most silent watch has been silent; none: there is no watch.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.all().iter().map(Instant::elapsed).max()
    }
}

/// That of one watch.
#[derive(Debug)]
pub struct Pulse {
    all: Pulses,
    idx: usize,
}

impl Pulse {
    fn beat(&self) {
        if let Some(last) = self.all.all().get_mut(self.idx) {
            *last = Instant::now();
        }
    }
}

type Events<V> = BoxStream<'static, kube::Result<WatchEvent<V>>>;

/// What is listed and watched.
pub trait Source: Send + Sync {
    /// What comes of it.
    type Value: Resource + Clone + Debug + DeserializeOwned + Send + 'static;

    /// One page.
    fn list(
        &self,
        params: &ListParams,
    ) -> impl Future<Output = kube::Result<ObjectList<Self::Value>>> + Send;

    /// Events from a version on.
    fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> impl Future<Output = kube::Result<Events<Self::Value>>> + Send;
}

/// Whole objects.
#[derive(Debug)]
pub struct Whole<K>(pub Api<K>);

/// Their metadata.
#[derive(Debug)]
pub struct Metadata<K>(pub Api<K>);

impl<K> Source for Whole<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    type Value = K;

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<K>> {
        self.0.list(params).await
    }

    async fn watch(&self, params: &WatchParams, version: &str) -> kube::Result<Events<K>> {
        Ok(self.0.watch(params, version).await?.boxed())
    }
}

impl<K> Source for Metadata<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    type Value = PartialObjectMeta<K>;

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<PartialObjectMeta<K>>> {
        self.0.list_metadata(params).await
    }

    async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> kube::Result<Events<PartialObjectMeta<K>>> {
        Ok(self.0.watch_metadata(params, version).await?.boxed())
    }
}

/// The waits after failures, each twice the one before.
struct Patience(Duration);

impl Patience {
    fn wait(&mut self, is_forbidden: bool) -> Duration {
        let longest = if is_forbidden {
            FORBIDDEN_AGAIN_MAX
        } else {
            AGAIN_MAX
        };
        let wait = self.0.min(longest);
        self.0 = wait * 2;
        wait
    }
}

/// Why a list or a watch came to its end.
enum End {
    /// The server ended it: it goes on where it was.
    Again,
    /// What is known is too old: it begins with a list.
    Relist,
    /// It failed.
    Failed(String),
    /// This may not be listed, or not be watched.
    Forbidden(String),
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Relist,
            kube::Error::Api(status) if status.code == 403 => {
                Self::Forbidden(status.message.clone())
            }
            kube::Error::Api(status) => {
                Self::Failed(format!("{}: {}", status.code, status.message))
            }
            error => Self::Failed(error.to_string()),
        }
    }
}

/// Tells all events of a source, for ever. What was there at a list comes between [`Event::Init`] and
/// [`Event::InitDone`]; what was there before and does not come is gone.
pub async fn follow<S: Source>(
    source: S,
    labels: Option<&str>,
    pulse: Pulse,
    mut tell: impl FnMut(Event<S::Value>) + Send,
) -> Infallible {
    let kind = std::any::type_name::<S::Value>();
    let mut version = None;
    let mut patience = Patience(AGAIN_MIN);
    let mut was_forbidden = false;
    loop {
        let end = match &mut version {
            None => match list(&source, labels, &pulse, &mut tell).await {
                Ok(found) => {
                    if std::mem::take(&mut was_forbidden) {
                        tracing::info!(kind, "allowed to watch again");
                    }
                    version = Some(found);
                    patience = Patience(AGAIN_MIN);
                    continue;
                }
                Err(end) => end,
            },
            Some(version) => {
                let began = Instant::now();
                let end = watch(&source, labels, &pulse, version, &mut tell).await;
                if began.elapsed() > AGAIN_MAX {
                    patience = Patience(AGAIN_MIN);
                }
                end
            }
        };
        let is_forbidden = matches!(end, End::Forbidden(_));
        match end {
            End::Again => {}
            End::Relist => version = None,
            End::Failed(reason) => tracing::debug!(kind, reason, "watch failed"),
            End::Forbidden(reason) => {
                // What is forbidden for a day is told once.
                if !std::mem::replace(&mut was_forbidden, true) {
                    tracing::warn!(kind, reason, "not allowed to watch");
                }
            }
        }
        tokio::time::sleep(patience.wait(is_forbidden)).await;
    }
}

/// All pages; the version from which a watch goes on.
async fn list<S: Source>(
    source: &S,
    labels: Option<&str>,
    pulse: &Pulse,
    tell: &mut (impl FnMut(Event<S::Value>) + Send),
) -> Result<String, End> {
    let mut params = ListParams {
        label_selector: labels.map(str::to_owned),
        limit: Some(PAGE),
        ..ListParams::default()
    };
    tell(Event::Init);
    loop {
        let page = within(ANSWER_WITHIN, source.list(&params)).await?;
        pulse.beat();
        page.items
            .into_iter()
            .for_each(|object| tell(Event::InitApply(object)));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            let version = page.metadata.resource_version;
            let version = version.filter(|version| !version.is_empty());
            let version = version.ok_or_else(|| End::Failed("a list has no version".to_owned()))?;
            tell(Event::InitDone);
            return Ok(version);
        }
    }
}

/// Until the watch ends; `version` is the newest that was heard of.
async fn watch<S: Source>(
    source: &S,
    labels: Option<&str>,
    pulse: &Pulse,
    version: &mut String,
    tell: &mut (impl FnMut(Event<S::Value>) + Send),
) -> End {
    let params = WatchParams {
        label_selector: labels.map(str::to_owned),
        timeout: Some(WATCH_SECONDS),
        bookmarks: true,
        ..WatchParams::default()
    };
    let mut events = match within(ANSWER_WITHIN, source.watch(&params, version)).await {
        Ok(events) => events,
        Err(end) => return end,
    };
    pulse.beat();
    loop {
        let event = match next(&mut events).await {
            Ok(Some(event)) => event,
            Ok(None) => return End::Again,
            Err(end) => return end,
        };
        pulse.beat();
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                note(version, object.meta().resource_version.as_ref());
                tell(Event::Apply(object));
            }
            WatchEvent::Deleted(object) => {
                note(version, object.meta().resource_version.as_ref());
                tell(Event::Delete(object));
            }
            WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) if status.code == 410 => return End::Relist,
            WatchEvent::Error(status) if status.code == 403 => {
                return End::Forbidden(status.message.clone());
            }
            WatchEvent::Error(status) => return End::Failed(status.message.clone()),
        }
    }
}

fn note(version: &mut String, newest: Option<&String>) {
    if let Some(newest) = newest {
        version.clone_from(newest);
    }
}

async fn next<T>(
    events: &mut (impl Stream<Item = kube::Result<T>> + Unpin),
) -> Result<Option<T>, End> {
    match tokio::time::timeout(SILENT_MAX, events.next()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(event))) => Ok(Some(event)),
        Ok(Some(Err(error))) => Err(error.into()),
        Err(_) => Err(End::Failed("it is silent".to_owned())),
    }
}

async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = kube::Result<T>>,
) -> Result<T, End> {
    match tokio::time::timeout(limit, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(End::Failed("no answer".to_owned())),
    }
}

#[cfg(test)]
mod tests;
