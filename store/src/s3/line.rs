//! The line to a server: who we are there, and how long to wait.
//!
//! Owns: the client, and another one when the secret that it was made of was replaced. A server that
//! refuses, or does not answer, may have been asked with keys or certificates of yesterday: whoever is
//! refused looks at the files, and asks once more if they say something else. So keys may be replaced
//! under a running job. Never shows them: no `Debug` of its own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_s3::Client;
use streamforge_core::s3::{S3Access, S3Place};

use super::client;
use super::failure::Refusal;
use super::retry::Limits;
use super::secret::{self, Secret};

/// See the module. Clones share it.
#[derive(Clone)]
pub(super) struct Line {
    inner: Arc<Inner>,
}

struct Inner {
    access: S3Access,
    secrets: Option<PathBuf>,
    limits: Limits,
    location: String,
    now: Mutex<Now>,
}

struct Now {
    client: Client,
    made_of: Secret,
    /// Which client this is: the first, the second.
    version: u64,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({})", self.inner.location)
    }
}

impl Line {
    /// Makes the client. The server is not asked.
    ///
    /// # Errors
    /// [`Refusal::Setup`] or [`Refusal::NoCredentials`].
    pub(super) async fn open(
        place: &S3Place,
        secrets: Option<&Path>,
        limits: Limits,
    ) -> Result<Self, Refusal> {
        let made_of = secret::of(&place.access, secrets)?;
        let now = Now {
            client: Box::pin(client::connect(&place.access, made_of.clone())).await?,
            made_of,
            version: 0,
        };
        let inner = Inner {
            access: place.access.clone(),
            secrets: secrets.map(Path::to_owned),
            limits,
            location: place.to_string(),
            now: Mutex::new(now),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // Every critical section leaves it whole.
        self.inner
            .now
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Cheap: clones share their connections.
    pub(super) fn client(&self) -> Client {
        self.now().client.clone()
    }

    /// Which client [`Self::client`] gives, or an earlier one.
    pub(super) fn version(&self) -> u64 {
        self.now().version
    }

    /// Where it leads, for people.
    pub(super) fn location(&self) -> &str {
        &self.inner.location
    }

    /// How long to wait.
    pub(super) fn limits(&self) -> Limits {
        self.inner.limits
    }

    /// The client of this version was refused: whether there is another one.
    pub(super) async fn renew(&self, version: u64) -> bool {
        if self.version() > version {
            return true; // by somebody else who was refused
        }
        let Inner {
            access, secrets, ..
        } = &*self.inner;
        // What is gone, or half written, may be whole the next time.
        let Ok(secret) = secret::of(access, secrets.as_deref()) else {
            return false;
        };
        if self.now().made_of == secret {
            return false;
        }
        // Boxed: it is large, seldom wanted, and a part of every call.
        let made = Box::pin(client::connect(access, secret.clone())).await;
        let Ok(client) = made else {
            return false;
        };
        let mut now = self.now();
        *now = Now {
            client,
            made_of: secret,
            version: now.version + 1,
        };
        true
    }
}
