//! Whether the topic that rows go to is the one that earlier rows went to (KF-K1).
//!
//! Owns: how often a sink looks at its topic's identity while it writes, and what it says of another one.
//! Brokers take rows for a topic by its name: of one that was deleted and re-created nobody else tells.

use std::time::{Duration, Instant};

use streamforge_engine::error::Error;
use tokio::sync::Mutex;

use super::lookup::LookupPlace;
use super::split::is_another;
use super::topic_settings::TopicView;

/// A look that is older says nothing any more: for so long rows may go to another topic.
pub const LOOK_EVERY: Duration = Duration::from_secs(3);

/// The topic is another one.
#[derive(Debug, thiserror::Error)]
#[error(
    "topic `{topic}` was deleted and re-created since rows were written for it (its identity was {stored} and \
     is {now}): what was written before is gone with the old one. To write to the new one, start the job anew \
     with --fresh. If it is the topic of another cluster, because bootstrapServers changed: put that back for \
     one start, stop the job, then change it"
)]
pub struct AnotherTopic {
    /// Which topic.
    pub topic: String,
    /// Identity when rows were written or staged.
    pub stored: String,
    /// Identity now.
    pub now: String,
}

/// Refuses a topic that is not the one rows were written for.
pub fn check_identity(topic: &str, stored: Option<&str>, now: Option<&str>) -> Result<(), Error> {
    if !is_another(stored, now) {
        return Ok(());
    }
    Err(Error::OutputReplaced {
        action: format!("write to topic {topic}"),
        source: Box::new(AnotherTopic {
            topic: topic.to_owned(),
            stored: stored.unwrap_or_default().to_owned(),
            now: now.unwrap_or_default().to_owned(),
        }),
    })
}

/// Looks at a topic's identity now and then.
#[derive(Debug)]
pub struct IdentityWatch {
    place: LookupPlace,
    topic: String,
    looked: Mutex<Instant>,
}

impl IdentityWatch {
    /// For a topic that is looked at now.
    pub fn new(place: LookupPlace, topic: String) -> Self {
        Self {
            place,
            topic,
            looked: Mutex::new(Instant::now()),
        }
    }

    /// Refuses another topic than this one, if the last look is too old to say that it is none.
    pub async fn check(&self, stored: Option<&str>) -> Result<(), Error> {
        // One look for all slots: who waits for it finds its answer.
        let mut looked = self.looked.lock().await;
        if stored.is_none() || looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        let began = Instant::now();
        let now = TopicView::identity(&self.place, &self.topic).await?;
        check_identity(&self.topic, stored, now.as_deref())?;
        *looked = began;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use streamforge_engine::error::Recovery;

    use super::*;

    #[test]
    fn kf_k1_output_that_is_another_topic_is_refused_with_both_identities() {
        assert!(check_identity("t", Some("old"), Some("old")).is_ok());
        assert!(check_identity("t", Some("old"), None).is_ok(), "not told");

        let error = check_identity("t", Some("old"), Some("new")).unwrap_err();

        assert_eq!(error.recovery(), Recovery::Stop);
        let text = error.with_causes();
        for word in ["`t`", "was old", "is new", "--fresh"] {
            assert!(text.contains(word), "{text}");
        }
    }
}
