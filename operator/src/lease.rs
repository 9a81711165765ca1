//! Who leads, when several operators run.
//!
//! Owns: the Lease, its renewal, and when a leader steps down. The Lease keeps two operators from
//! working on the same jobs; it is no fence, the head of each job's store is (C5). So a leader whose
//! renewals get no answer goes on (F2): nobody else can take a Lease that cannot be reached. It steps
//! down only when it reads another holder.
//!
//! A Lease counts as expired when its renew time has not changed for its duration *as seen here*: the
//! clocks of two machines are never compared. It is free at once when its holder's pod is gone: a pod that
//! is deleted by force cannot release it, for its token is void before its process has ended.
//!
//! A leader that was frozen for longer than the Lease is good for wakes up and knows nothing of the one who
//! leads by now. Its writes to the API server wait until it has looked ([`Leadership`]).

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long a Lease is good for after its renewal.
const DURATION: Duration = Duration::from_secs(8);

/// How often it is renewed, or looked at.
const EVERY: Duration = Duration::from_secs(1);

/// How long the API server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A look at the Lease that took longer was interrupted by a pause of this process: what it found may be
/// as old as the pause.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// What the writes of a leader wait for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// When the newest look at the Lease began that found no other holder.
    looked: watch::Sender<Instant>,
    /// When the API server renewed the Lease last.
    renewed: watch::Sender<Option<Instant>>,
}

impl Leadership {
    /// Of somebody who leads since now.
    #[must_use]
    pub fn begin() -> Self {
        Self {
            looked: watch::Sender::new(Instant::now()),
            renewed: watch::Sender::new(None),
        }
    }

    /// A look that began then found nobody else. Nobody else can have taken the Lease within its duration
    /// from then on.
    pub fn confirm(&self, began: Instant) {
        self.looked.send_replace(began);
    }

    /// How long ago the API server renewed the Lease; none: never.
    #[must_use]
    pub fn renewed(&self) -> Option<Duration> {
        self.renewed.borrow().map(|at| at.elapsed())
    }

    /// Waits, if the newest look is older than a Lease is good for, until there is a newer one.
    pub async fn confirmed(&self) {
        let mut looked = self.looked.subscribe();
        let is_new = |began: &Instant| began.elapsed() < DURATION;
        // It is never closed: `self` can send.
        let _closed = looked.wait_for(is_new).await;
    }
}

/// What a look at the Lease came to.
enum Renewal {
    /// It is ours.
    Ours,
    /// Somebody wrote it at the same time: look again.
    Crossed,
    /// This one has it.
    Lost(String),
}

/// Looks in a row that got no answer.
#[derive(Default)]
struct Missed {
    looks_n: u32,
}

impl Missed {
    /// One more, as a warning from the second on: a Lease outlives one by far.
    fn tell(&mut self, what: &str, why: &dyn std::fmt::Display) {
        self.looks_n = self.looks_n.saturating_add(1);
        if self.looks_n > 1 {
            tracing::warn!(%why, "{what}");
        } else {
            tracing::info!(%why, "{what}");
        }
    }
}

/// One operator's claim.
pub struct Elector {
    leases: Api<Lease>,
    pods: Api<Pod>,
    name: String,
    me: String,
    leadership: Leadership,
}

/// A Lease as it was seen last.
struct Seen {
    holder: String,
    renewed: Option<MicroTime>,
    since: Instant,
}

impl Elector {
    /// For the Lease of this name.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, me: &str) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client, namespace),
            name: name.to_owned(),
            me: me.to_owned(),
            leadership: Leadership::begin(),
        }
    }

    /// What this operator's writes wait for while it leads.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Waits until this operator leads.
    pub async fn lead(&self) {
        let mut seen: Option<Seen> = None;
        let mut missed = Missed::default();
        loop {
            let began = Instant::now();
            match tokio::time::timeout(ANSWER_WITHIN, self.try_to_lead(&mut seen)).await {
                Ok(Ok(true)) => return self.leadership.confirm(began),
                Ok(Ok(false)) => missed = Missed::default(),
                Ok(Err(error)) => missed.tell("lease not taken", &error),
                Err(_) => missed.tell("lease not taken", &"no answer"),
            }
            sleep(EVERY).await;
        }
    }

    async fn try_to_lead(&self, seen: &mut Option<Seen>) -> Result<bool, kube::Error> {
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            let new = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.claim(0)),
            };
            return won(self.leases.create(&PostParams::default(), &new).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let now = Instant::now();
        let unchanged = seen
            .as_ref()
            .filter(|seen| seen.holder == holder && seen.renewed == spec.renew_time);
        let since = unchanged.map_or(now, |seen| seen.since);
        *seen = Some(Seen {
            holder: holder.clone(),
            renewed: spec.renew_time.clone(),
            since,
        });
        // Its own from before: the container was started anew, and nobody led meanwhile.
        let free = holder.is_empty() || holder == self.me || now - since > DURATION;
        if !free && !self.is_gone(&holder).await {
            return Ok(false);
        }
        let terms = spec.lease_transitions.unwrap_or(0);
        let claimed = Lease {
            spec: Some(self.claim(terms + 1)),
            ..lease
        };
        // The resource version makes this the only one that succeeds.
        won(self
            .leases
            .replace(&self.name, &PostParams::default(), &claimed)
            .await)
    }

    /// Whether there is no such pod any more.
    async fn is_gone(&self, holder: &str) -> bool {
        match self.pods.get_metadata_opt(holder).await {
            Ok(found) => found.is_none(),
            Err(error) => {
                tracing::debug!(%error, holder, "the holder's pod is not seen");
                false
            }
        }
    }

    fn claim(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Renews until another one holds the Lease; returns who.
    pub async fn hold(&self) -> String {
        let mut missed = Missed::default();
        loop {
            sleep(EVERY).await;
            let began = Instant::now();
            match tokio::time::timeout(ANSWER_WITHIN, self.renew()).await {
                Ok(Ok(Renewal::Ours)) => {
                    missed = Missed::default();
                    self.leadership.renewed.send_replace(Some(Instant::now()));
                }
                Ok(Ok(Renewal::Crossed)) => continue,
                Ok(Ok(Renewal::Lost(other))) => return other,
                // F2: no answer is no reason to stop.
                Ok(Err(error)) => missed.tell("lease not renewed, going on", &error),
                Err(_) => missed.tell("lease not renewed, going on", &"no answer"),
            }
            if began.elapsed() < LOOK_MAX {
                self.leadership.confirm(began);
            }
        }
    }

    async fn renew(&self) -> Result<Renewal, kube::Error> {
        let ours = |won| if won { Renewal::Ours } else { Renewal::Crossed };
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let mut nobody = None;
            return self.try_to_lead(&mut nobody).await.map(ours);
        };
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.me && !holder.is_empty() {
            return Ok(Renewal::Lost(holder));
        }
        spec.holder_identity = Some(self.me.clone());
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let renewed = self
            .leases
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        won(renewed).map(ours)
    }

    /// Gives the Lease up, so that the next one need not wait: this operator is ending.
    pub async fn release(&self) {
        let released = async {
            let mut lease = self.leases.get(&self.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.me) {
                spec.holder_identity = None;
                self.leases
                    .replace(&self.name, &PostParams::default(), &lease)
                    .await?;
            }
            Ok::<(), kube::Error>(())
        };
        match tokio::time::timeout(ANSWER_WITHIN, released).await {
            // Whoever deletes a pod by force takes its token away before it has ended.
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
                tracing::info!("lease not released: this operator's pod is gone already");
            }
            Ok(Err(error)) => tracing::warn!(%error, "lease not released"),
            Ok(Ok(())) | Err(_) => {}
        }
    }
}

/// Whether a write was ours: another one's conflict is an answer, too.
fn won<T>(written: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt as _;
    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// An elector of an API server that answers with this Lease, or with none at all.
    fn elector(holder: Option<&str>) -> (Elector, Arc<AtomicUsize>) {
        let asked_n = Arc::new(AtomicUsize::new(0));
        let lease = holder.map(|holder| {
            let lease = serde_json::json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"},
                "spec": {"holderIdentity": holder},
            });
            lease.to_string()
        });
        let counted = Arc::clone(&asked_n);
        let server = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            let lease = lease.clone().ok_or_else(|| io::Error::other("gone"));
            async move { lease.map(|lease| Response::new(Body::from(lease.into_bytes()))) }
        });
        let client = Client::new(server, "n");
        (Elector::new(client, "n", "l", "me"), asked_n)
    }

    /// As it is when a process wakes up after half a minute.
    fn frozen(elector: &Elector) -> Leadership {
        let leadership = elector.leadership();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(30));
        leadership.confirm(long_ago.expect("this machine runs for longer"));
        leadership
    }

    #[tokio::test]
    async fn leader_that_was_frozen_steps_down_before_it_writes_anything() {
        let (elector, _) = elector(Some("other"));
        assert!(elector.leadership().confirmed().now_or_never().is_some());
        let leadership = frozen(&elector);

        let first = tokio::select! {
            biased;
            () = leadership.confirmed() => "wrote".to_owned(),
            other = elector.hold() => other,
        };

        assert_eq!(first, "other");
    }

    #[tokio::test]
    async fn leader_that_was_frozen_and_leads_still_goes_on_when_it_has_looked() {
        let (elector, asked_n) = elector(Some("me"));
        let leadership = frozen(&elector);

        tokio::select! {
            () = leadership.confirmed() => {}
            _ = elector.hold() => panic!("nobody else leads"),
        }

        assert_eq!(asked_n.load(Ordering::SeqCst), 2, "read and renewed");
        assert!(leadership.renewed().is_some());
    }

    #[tokio::test]
    async fn attack_44_leader_that_gets_no_answer_goes_on_f2() {
        let (elector, _) = elector(None);
        let leadership = frozen(&elector);

        tokio::select! {
            () = leadership.confirmed() => {}
            _ = elector.hold() => panic!("nobody else leads"),
        }
        assert_eq!(leadership.renewed(), None);
    }
}
