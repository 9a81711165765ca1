//! Settings of topics and brokers that a sink must know.
//!
//! Owns: asking for them, and what is taken when they may not be seen. Start at: [`TopicView::look`].

use std::path::Path;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use streamforge_engine::error::Error;

use super::config::{ANSWER_TIMEOUT, Access, cannot_open};
use super::encode::TopicLimits;
use super::lookup::{Error as LookupError, LookupPlace, TopicFacts};

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
        let facts = topic_facts(place, topic).await?;
        let admin = admin(&place.access, place.secrets.as_deref())?;
        let wanted = ResourceSpecifier::Topic(topic);
        let limit = setting(&admin, wanted, "max.message.bytes").await;
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
}

/// A topic's partitions and identity.
pub async fn topic_facts(place: &LookupPlace, topic: &str) -> Result<TopicFacts, Error> {
    let (place, topic) = (place.clone(), topic.to_owned());
    let action = format!("look at topic {topic}");
    let asked = tokio::task::spawn_blocking(move || {
        let lookup = place.open()?;
        lookup.topic(&topic).map_err(|error: LookupError| {
            let retry = error.may_pass();
            crate::error::failed(format!("look at topic {topic}"), retry, error)
        })
    });
    asked
        .await
        .unwrap_or_else(|error| Err(crate::error::failed(action, true, error)))
}

/// For how long a group's offsets are kept after their commit; `None`: it may not be seen.
pub async fn offsets_kept_for(place: &LookupPlace) -> Option<Duration> {
    let admin = admin(&place.access, place.secrets.as_deref()).ok()?;
    let broker = {
        let place = place.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let lookup = place.open().ok()?;
            lookup.some_broker().ok()
        });
        asked.await.ok().flatten()?
    };
    let wanted = ResourceSpecifier::Broker(broker);
    let minutes: u64 = setting(&admin, wanted, "offsets.retention.minutes")
        .await?
        .parse()
        .ok()?;
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

async fn setting(
    admin: &AdminClient<DefaultClientContext>,
    resource: ResourceSpecifier<'_>,
    name: &str,
) -> Option<String> {
    let options = AdminOptions::new().request_timeout(Some(ANSWER_TIMEOUT));
    let described = admin.describe_configs([&resource], &options).await;
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
