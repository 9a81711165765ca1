//! A watch that says whether it lives.
//!
//! Owns: listing and watching one kind, again and again, and noting every sign of life: answers, events
//! and the bookmarks that the API server sends each minute though nothing happens. So a watch that died
//! without a word is seen ([`Pulses`]) and begun anew. One object that cannot be read is told in the log, and keeps
//! nobody from hearing of the others. Never decides what an event means. Start at: [`follow`].

mod item;

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{AsyncBufReadExt as _, Stream, StreamExt as _};
use hyper::Request;
use hyper::header::{ACCEPT_ENCODING, HeaderValue};
use kube::api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::core::Status;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::heard::{Heard, Ours};
use crate::one_line::one_line;

pub use item::{Item, Page, Unread, member, members};

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

/// A watch that has failed for so long is told in the log.
const TOLD_AFTER: Duration = Duration::from_secs(60);

/// When each watch gave its last sign of life. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pulses(Arc<Mutex<Signs>>);

#[derive(Debug, Default)]
struct Signs {
    of_watches: Vec<Instant>,
    /// When anything of this operator went on, whatever the API server says.
    turned: Option<Instant>,
}

impl Pulses {
    fn all(&self) -> MutexGuard<'_, Signs> {
        // Every critical section leaves them whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more watch.
    #[must_use]
    pub fn begin(&self) -> Pulse {
        let (mut all, now) = (self.all(), Instant::now());
        all.of_watches.push(now);
        all.turned = Some(now);
        Pulse {
            all: self.clone(),
            idx: all.of_watches.len() - 1,
        }
    }

    /// How long the most silent watch has been silent; none: there is no watch.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        self.all().of_watches.iter().map(Instant::elapsed).max()
    }

    /// Something was done: a watch heard, failed or gave up waiting, or a pass came to its end.
    pub fn turn(&self) {
        self.all().turned = Some(Instant::now());
    }

    /// For how long nothing was done; none: there is no watch, and nothing to do.
    #[must_use]
    pub fn standstill(&self) -> Option<Duration> {
        self.all().turned.map(|turned| turned.elapsed())
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
        let (mut all, now) = (self.all.all(), Instant::now());
        all.turned = Some(now);
        if let Some(last) = all.of_watches.get_mut(self.idx) {
            *last = now;
        }
    }
}

type Events<V> = BoxStream<'static, kube::Result<WatchEvent<Item<V>>>>;

/// What is listed and watched.
pub trait Source: Send + Sync {
    /// What comes of it.
    type Value: Resource + Clone + Debug + DeserializeOwned + Send + 'static;

    /// One page.
    fn list(
        &self,
        params: &ListParams,
    ) -> impl Future<Output = kube::Result<Page<Self::Value>>> + Send;

    /// Events from a version on.
    fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> impl Future<Output = kube::Result<Events<Self::Value>>> + Send;

    /// What is told of an object that cannot be read; none: nothing.
    fn rest(_unread: &Unread) -> Option<Self::Value> {
        None
    }
}

/// Whole objects.
#[derive(Debug)]
pub struct Whole<K>(pub Api<K>);

/// Their metadata.
#[derive(Debug)]
pub struct Metadata<K>(pub Api<K>);

/// Whole objects of ours, and of those that cannot be read what can.
#[derive(Debug)]
pub struct Own<K>(pub Api<K>);

impl<K> Source for Whole<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    type Value = K;

    async fn list(&self, params: &ListParams) -> kube::Result<Page<K>> {
        page(&self.0, request(&self.0).list(params)).await
    }

    async fn watch(&self, params: &WatchParams, version: &str) -> kube::Result<Events<K>> {
        events(&self.0, request(&self.0).watch(params, version)).await
    }
}

impl<K> Source for Metadata<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    type Value = PartialObjectMeta<K>;

    async fn list(&self, params: &ListParams) -> kube::Result<Page<PartialObjectMeta<K>>> {
        page(&self.0, request(&self.0).list_metadata(params)).await
    }

    async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> kube::Result<Events<PartialObjectMeta<K>>> {
        events(&self.0, request(&self.0).watch_metadata(params, version)).await
    }
}

impl<K> Source for Own<K>
where
    K: Ours + Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    type Value = Heard<K>;

    async fn list(&self, params: &ListParams) -> kube::Result<Page<Heard<K>>> {
        page(&self.0, request(&self.0).list(params)).await
    }

    async fn watch(&self, params: &WatchParams, version: &str) -> kube::Result<Events<Heard<K>>> {
        events(&self.0, request(&self.0).watch(params, version)).await
    }

    fn rest(unread: &Unread) -> Option<Heard<K>> {
        K::rest(unread)
    }
}

type Built = Result<Request<Vec<u8>>, kube::core::request::Error>;

fn request<K: Resource>(api: &Api<K>) -> kube::core::Request {
    kube::core::Request::new(api.resource_url())
}

fn client<K: Resource + Clone>(api: &Api<K>) -> Client {
    api.clone().into_client()
}

async fn page<K: Resource + Clone, V: DeserializeOwned>(
    api: &Api<K>,
    request: Built,
) -> kube::Result<Page<V>> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    let text = client(api).request_text(request).await?;
    Page::read(&text).map_err(kube::Error::SerdeError)
}

async fn events<K: Resource + Clone, V: DeserializeOwned + Send + 'static>(
    api: &Api<K>,
    request: Built,
) -> kube::Result<Events<V>> {
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    // An API server that compresses begins anew with each event, which is not read (tower-rs/tower-http#737).
    let plain = HeaderValue::from_static("identity");
    request.headers_mut().insert(ACCEPT_ENCODING, plain);
    let lines = client(api).request_stream(request).await?.lines();
    let events = lines.filter_map(|line| {
        let event = match line {
            Ok(line) => event(&line),
            Err(error) => Some(Err(kube::Error::ReadEvents(error))),
        };
        std::future::ready(event)
    });
    Ok(events.boxed())
}

/// One line of a watch; none: it was cut off.
fn event<V: DeserializeOwned>(line: &str) -> Option<kube::Result<WatchEvent<Item<V>>>> {
    match item::event(line) {
        Ok(event) => Some(Ok(event)),
        Err(error) if error.is_eof() => None,
        Err(error) => Some(Err(match serde_json::from_str::<Status>(line) {
            Ok(status) => kube::Error::Api(status.boxed()),
            Err(_) => kube::Error::SerdeError(error),
        })),
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

/// For how long a watch has failed.
#[derive(Default)]
struct Failing {
    since: Option<Instant>,
    is_told: bool,
}

impl Failing {
    /// What fails once in a while is nothing; what goes on to is told once.
    fn tell(&mut self, kind: &str, reason: &str) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < TOLD_AFTER || std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(kind, reason, "watch failed");
        } else {
            tracing::warn!(kind, reason, "watch fails again and again");
        }
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
            // From where it was the same would come again.
            kube::Error::SerdeError(error) => {
                tracing::warn!(%error, "what came is no list and no event");
                Self::Relist
            }
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
    let mut failing = Failing::default();
    loop {
        let end = match &mut version {
            None => match list(&source, labels, &pulse, &mut tell).await {
                Ok(found) => {
                    if std::mem::take(&mut was_forbidden) {
                        tracing::info!(kind, "allowed to watch again");
                    }
                    version = Some(found);
                    patience = Patience(AGAIN_MIN);
                    failing = Failing::default();
                    continue;
                }
                Err(end) => end,
            },
            Some(version) => {
                let began = Instant::now();
                let end = watch(&source, labels, &pulse, version, &mut tell).await;
                if began.elapsed() > AGAIN_MAX {
                    patience = Patience(AGAIN_MIN);
                    failing = Failing::default();
                }
                end
            }
        };
        pulse.all.turn();
        let is_forbidden = matches!(end, End::Forbidden(_));
        match end {
            End::Again => {}
            End::Relist => version = None,
            End::Failed(reason) => failing.tell(kind, &reason),
            End::Forbidden(reason) => {
                // An answer all the same: of a namespace that is gone nothing else will ever come.
                pulse.beat();
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
        let items = page.items.into_iter();
        items
            .filter_map(known::<S>)
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
            WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                note(version, &item);
                known::<S>(item)
                    .into_iter()
                    .for_each(|it| tell(Event::Apply(it)));
            }
            WatchEvent::Deleted(item) => {
                note(version, &item);
                known::<S>(item)
                    .into_iter()
                    .for_each(|it| tell(Event::Delete(it)));
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

fn note<V: Resource>(version: &mut String, item: &Item<V>) {
    let newest = match item {
        Item::Read(object) => &object.meta().resource_version,
        Item::Unread(unread) => &unread.metadata.resource_version,
    };
    if let Some(newest) = newest {
        version.clone_from(newest);
    }
}

/// What is told of an object.
fn known<S: Source>(item: Item<S::Value>) -> Option<S::Value> {
    let unread = match item {
        Item::Read(object) => return Some(object),
        Item::Unread(unread) => unread,
    };
    let rest = S::rest(&unread);
    if rest.is_none() {
        tracing::warn!(
            kind = std::any::type_name::<S::Value>(),
            namespace = unread.metadata.namespace,
            name = unread.metadata.name,
            reason = %one_line(&unread.reason),
            "an object cannot be read, and is not seen"
        );
    }
    rest
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
