//! Tests of the coordinators' end.

use std::net::SocketAddr;

use kube::{Client, Resource as _};
use streamforge_host::policy::{self, StoreAddress};
use streamforge_store::MemoryStore;

use super::*;
use crate::stream_job::testing::{UID, job, settings};
use crate::stream_job::validate::validate;

pub(crate) fn start(job: &StreamJob) -> Start {
    let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // Nobody listens there: events are lost.
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(nowhere).unwrap();
    let desired = validate(job, &settings()).unwrap();
    let spec = &desired.document.spec;
    let address = StoreAddress {
        uri: "memory:".to_owned(),
        settings: String::new(),
    };
    Start {
        job: ObjectRef::from_obj(job),
        uid: UID.to_owned(),
        revision: 1,
        config: JobConfig {
            new_job: None,
            graph: desired.document.graph.clone(),
            document: desired.document.text.clone(),
            parallelism: spec.parallelism,
            checkpoint: policy::checkpoints(spec),
            restart: policy::restarts(spec),
            members: policy::members(spec),
            address: "operator:7100".to_owned(),
            rewind_to: None,
            restore_from: None,
            drop_state: false,
        },
        store: Arc::new(MemoryStore::default()),
        terms: policy::terms(spec, address, None, Vec::new()),
        events: (Recorder::new(client, "test"), job.object_ref(&())),
    }
}

/// A coordinator of this revision that has said this, and perhaps ended so.
pub(crate) fn put(
    fleet: &Fleet,
    job: &StreamJob,
    (revision, status, outcome): (u64, Status, Option<Outcome>),
) {
    let start = start(job);
    let orders = fleet.listener.open(&start.uid, start.terms).orders();
    let coordinator = Coordinator {
        job: start.job,
        revision,
        since: tokio::time::Instant::now(),
        orders,
        status: watch::channel(status).1,
        outcome: watch::channel(outcome.map(Arc::new)).1,
        abandon: Box::new(|| {}),
    };
    fleet.table().insert(start.uid, Arc::new(coordinator));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_coordinator_works_any_more_when_the_listener_goes_f1() {
    let listener = Listener::start(SocketAddr::from(([127, 0, 0, 1], 0)), None).unwrap();
    let address = listener.address();
    let fleet = Fleet::new(listener);
    fleet.start(start(&job()));
    let coordinator = fleet.get(UID).unwrap();
    let mut status = coordinator.status.clone();
    let leads = status.wait_for(|status| status.phase == Phase::Deploying);
    drop(leads.await.unwrap());

    fleet.end().await;

    assert!(status.has_changed().is_err(), "it works");
    assert!(fleet.is_empty() && coordinator.outcome.borrow().is_none());
    let connected = tokio::net::TcpStream::connect(address).await;
    connected.expect("whoever calls now is told to call again");
}
