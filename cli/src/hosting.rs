//! Where a run's tasks are: in this process, in others beside it, or wherever task managers come
//! from.
//!
//! Owns: turning the command line into a listener, its certificates and the policy about task
//! managers that the coordinator follows. Start at: [`Hosting::of`].

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use streamforge_crds::v1alpha1::StreamJobSpec;
use streamforge_host::MemberPolicy;
use streamforge_host::policy::{self, StoreAddress};
use streamforge_host::sessions::{Sessions, SessionsConfig};
use streamforge_proto::tls::Tls;

use crate::args::{RunArgs, TlsArgs};
use crate::screen::Screen;
use crate::store::StorePlace;
use crate::task_managers::{Crew, CrewConfig};

/// Where a run's tasks are.
pub enum Hosting {
    /// In this process.
    Here {
        /// Bytes of keyed state that they may hold together.
        state_bytes_max: u64,
    },
    /// In other processes.
    Elsewhere {
        /// Their sessions.
        sessions: Box<Sessions>,
        /// Those that this process started. They end with it.
        crew: Option<Crew>,
        /// For the coordinator.
        members: MemberPolicy,
    },
}

impl Hosting {
    /// What the command line asks for; listens, and starts what is to be started.
    ///
    /// # Errors
    /// When the address is taken, a certificate is unusable or the binary is not there.
    pub fn of(
        args: &RunArgs,
        spec: &StreamJobSpec,
        place: &StorePlace,
        screen: &Screen,
    ) -> Result<Self> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let listen = match (args.task_managers, args.listen) {
            (None, None) => {
                return Ok(Self::Here {
                    state_bytes_max: spec.state.memory_limit.bytes(),
                });
            }
            (_, Some(address)) => address,
            (Some(_), None) => loopback,
        };
        let (uri, settings) = place.for_task_managers()?;
        let sessions = Sessions::listen(SessionsConfig {
            listen,
            tls: certificates(&args.tls)?,
            terms: policy::terms(
                spec,
                StoreAddress { uri, settings },
                Some(spec.restart.window.to_std()),
                args.accept_lost_marker.clone(),
            ),
        })?;
        let address = sessions.address();
        let crew = match args.task_managers {
            None => {
                tracing::info!(%address, "waiting for task managers");
                None
            }
            Some(n) => {
                let config = CrewConfig {
                    coordinator: address,
                    task_managers_n: n,
                    slots: spec.parallelism.div_ceil(n).max(1),
                    secrets: args.place.secrets.clone(),
                    local_copies: args.local_copies.clone(),
                    logs_json: crate::task_managers::logs_json(spec),
                };
                Some(Crew::start(&config, screen)?)
            }
        };
        Ok(Self::Elsewhere {
            sessions: Box::new(sessions),
            crew,
            members: policy::members(spec),
        })
    }
}

fn certificates(args: &TlsArgs) -> Result<Option<Tls>> {
    let (Some(ca), Some(cert), Some(key)) = (&args.tls_ca, &args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let read =
        |path: &Path| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    Ok(Some(Tls {
        ca: read(ca)?,
        certificate: read(cert)?,
        key: read(key)?,
        // A coordinator calls nobody.
        peer_name: String::new(),
    }))
}
