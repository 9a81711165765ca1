//! Connections to other task managers.
//!
//! Owns: one connection per task manager and attempt, shared by all their channels, and its settings.
//! A new attempt connects anew, so that no name resolved and no half-dead socket outlives its epoch.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use streamforge_proto::tls::Tls;
use tonic::transport::{Channel, Endpoint};

use super::{Config, Error, lock};

/// How long a connection may take to be made, once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections of one attempt.
#[derive(Debug)]
pub struct Connections {
    tls: Option<Tls>,
    keep_alive: Duration,
    by_address: Mutex<HashMap<String, Channel>>,
}

impl Connections {
    /// None yet.
    pub fn new(config: &Config) -> Self {
        Self {
            tls: config.tls.clone(),
            keep_alive: config.keep_alive,
            by_address: Mutex::default(),
        }
    }

    /// The connection to an address, made when it is first used. Call it within the runtime that is
    /// to drive it.
    pub fn to(&self, address: &str) -> Result<Channel, Error> {
        let mut by_address = lock(&self.by_address);
        if let Some(connection) = by_address.get(address) {
            return Ok(connection.clone());
        }
        let connection = self
            .endpoint(address)
            .map_err(|source| Error::Transport {
                address: address.to_owned(),
                source,
            })?
            .connect_lazy();
        by_address.insert(address.to_owned(), connection.clone());
        Ok(connection)
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, tonic::transport::Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.keep_alive)
            .keep_alive_timeout(self.keep_alive)
            .keep_alive_while_idle(true);
        match &self.tls {
            Some(tls) => endpoint.tls_config(tls.client()),
            None => Ok(endpoint),
        }
    }
}
