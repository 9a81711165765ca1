//! Settings of topics and brokers that a sink must know.
//!
//! Owns: asking for them, and what is taken when they may not be seen. Start at: [`TopicView::look`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use streamforge_engine::error::Error;

use super::config::{ANSWER_TIMEOUT, Access, cannot_open};
use super::encode::TopicLimits;
use super::lookup::{Ask as _, Error as LookupError, Lookup, LookupPlace, TopicFacts};

/// What a broker takes where nothing is set and nothing may be seen: Kafka's default.
const MESSAGE_BYTES_DEFAULT: usize = 1_048_588;

/// What a sink knows of its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicView {
    /// Its identity, where brokers tell it.
    pub id: Option<String>,
    /// What it takes.
    pub limits: TopicLimits,
}

impl TopicView {
    /// Asks the brokers.
    pub async fn look(place: &LookupPlace, topic: &str) -> Result<Self, Error> {
        let asker = place.keeper.asker(place)?;
        let (facts, limit) = tokio::join!(
            asker.topic_facts(topic),
            asker.setting(ResourceSpecifier::Topic(topic), "max.message.bytes"),
        );
        if facts.is_err() {
            place.keeper.forget(&asker);
        }
        let facts = facts?;
        let message_bytes_max = limit
            .and_then(|limit| limit.parse().ok())
            .unwrap_or(MESSAGE_BYTES_DEFAULT);
        Ok(TopicView {
            id: facts.id,
            limits: TopicLimits {
                partitions_n: facts.partitions_n,
                message_bytes_max,
            },
        })
    }

    /// A topic's identity, where brokers tell it, asked by the client that is kept for such questions.
    pub async fn identity(place: &LookupPlace, topic: &str) -> Result<Option<String>, Error> {
        let asker = place.keeper.asker(place)?;
        let facts = asker.topic_facts(topic).await;
        if facts.is_err() {
            place.keeper.forget(&asker);
        }
        Ok(facts?.id)
    }
}

/// The clients that ask one cluster.
pub struct Asker {
    lookup: Arc<Lookup>,
    admin: AdminClient<DefaultClientContext>,
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asker({:?})", self.lookup)
    }
}

impl Asker {
    /// Clients of this cluster.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn open(place: &LookupPlace) -> Result<Self, Error> {
        Ok(Asker {
            lookup: Arc::new(place.open()?),
            admin: admin(&place.access, place.secrets.as_deref())?,
        })
    }

    /// A topic's partitions and identity.
    async fn topic_facts(&self, topic: &str) -> Result<TopicFacts, Error> {
        let (lookup, topic) = (Arc::clone(&self.lookup), topic.to_owned());
        let action = format!("look at topic {topic}");
        let asked = tokio::task::spawn_blocking(move || {
            lookup.topic(&topic).map_err(|error: LookupError| {
                let retry = error.may_pass();
                crate::error::failed(format!("look at topic {topic}"), retry, error)
            })
        });
        asked
            .await
            .unwrap_or_else(|error| Err(crate::error::failed(action, true, error)))
    }

    async fn some_broker(&self) -> Option<i32> {
        let lookup = Arc::clone(&self.lookup);
        let asked = tokio::task::spawn_blocking(move || lookup.some_broker().ok());
        asked.await.ok().flatten()
    }

    async fn setting(&self, resource: ResourceSpecifier<'_>, name: &str) -> Option<String> {
        let options = AdminOptions::new().request_timeout(Some(ANSWER_TIMEOUT));
        let described = self.admin.describe_configs([&resource], &options).await;
        let described = match described {
            Ok(described) => described,
            Err(error) => {
                tracing::debug!(%error, name, "a setting of kafka may not be seen");
                return None;
            }
        };
        let found = described.into_iter().next()?.ok()?;
        found.get(name)?.value.clone()
    }
}

/// For how long a group's offsets are kept after their commit; `None`: it may not be seen.
pub async fn offsets_kept_for(place: &LookupPlace) -> Option<Duration> {
    let asker = place.keeper.asker(place).ok()?;
    let wanted = ResourceSpecifier::Broker(asker.some_broker().await?);
    let minutes = asker.setting(wanted, "offsets.retention.minutes").await?;
    let minutes: u64 = minutes.parse().ok()?;
    Some(Duration::from_secs(minutes.saturating_mul(60)))
}

fn admin(
    access: &Access,
    secrets: Option<&Path>,
) -> Result<AdminClient<DefaultClientContext>, Error> {
    access
        .settings_reader(secrets)?
        .create()
        .map_err(|error| cannot_open("a client of kafka", error))
}
