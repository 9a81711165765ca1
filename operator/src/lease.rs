//! Who leads, when several operators run.
//!
//! Owns: the Lease, its renewal, and when a leader steps down. The Lease keeps two operators from
//! working on the same jobs; it is no fence, the head of each job's store is (C5). So a leader whose
//! renewals get no answer goes on (F2): nobody else can take a Lease that cannot be reached. It steps
//! down only when it reads another holder.
//!
//! A Lease counts as expired when its renew time has not changed for its duration *as seen here*: the
//! clocks of two machines are never compared.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep};

/// How long a Lease is good for after its renewal.
const DURATION: Duration = Duration::from_secs(8);

/// How often it is renewed, or looked at.
const EVERY: Duration = Duration::from_secs(1);

/// How long the API server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// One operator's claim.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    me: String,
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
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            me: me.to_owned(),
        }
    }

    /// Waits until this operator leads.
    pub async fn lead(&self) {
        let mut seen: Option<Seen> = None;
        loop {
            match tokio::time::timeout(ANSWER_WITHIN, self.try_to_lead(&mut seen)).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "lease not taken"),
                Err(_) => tracing::warn!("lease not taken: no answer"),
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
        if !free {
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
        loop {
            sleep(EVERY).await;
            match tokio::time::timeout(ANSWER_WITHIN, self.renew()).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(other))) => return other,
                // F2: no answer is no reason to stop.
                Ok(Err(error)) => tracing::warn!(%error, "lease not renewed, going on"),
                Err(_) => tracing::warn!("lease not renewed, going on: no answer"),
            }
        }
    }

    /// `Some`: another one holds it.
    async fn renew(&self) -> Result<Option<String>, kube::Error> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let mut nobody = None;
            self.try_to_lead(&mut nobody).await?;
            return Ok(None);
        };
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.me && !holder.is_empty() {
            return Ok(Some(holder));
        }
        spec.holder_identity = Some(self.me.clone());
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let renewed = self
            .leases
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        // Lost to another write: the next look says whose it was.
        won(renewed).map(|_| None)
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
        if let Ok(Err(error)) = tokio::time::timeout(ANSWER_WITHIN, released).await {
            tracing::warn!(%error, "lease not released");
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
