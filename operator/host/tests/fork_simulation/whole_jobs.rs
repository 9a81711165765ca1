//! The host itself: its loop, its transport, its handle, and the history that people see.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::CheckpointKind;
use streamforge_host::history::{self, History};
use streamforge_host::{
    CheckpointPolicy, Error, JobConfig, JobHandle, MemberPolicy, Outcome, Phase, RestartPolicy,
    TaskManagerEnd, in_process, start,
};
use streamforge_store::{MemoryStore, ObjectStore};

use crate::process::graph;
use crate::sink::Sink;
use crate::tasks::{Tasks, all_rows, uid};
use crate::world::Rng;

fn config(rewind_to: Option<CheckpointId>) -> JobConfig {
    JobConfig {
        new_job: None,
        graph: graph().into(),
        document: "doc".into(),
        parallelism: 2,
        checkpoint: CheckpointPolicy {
            interval_ms: 15,
            ..CheckpointPolicy::default()
        },
        restart: RestartPolicy {
            failures_n_max: 2,
            backoff_max_ms: 10,
            ..Default::default()
        },
        members: MemberPolicy::default(),
        address: "here".to_owned(),
        rewind_to,
        restore_from: None,
        drop_state: false,
    }
}

/// Tasks that work until their coordinator is gone.
async fn work(mut end: TaskManagerEnd, store: MemoryStore, sink: Arc<Mutex<Sink>>, slow: bool) {
    let (mut tasks, mut rng) = (Tasks::default(), Rng::new(7));
    loop {
        match end.commands.try_recv() {
            Ok((stamp, command)) => {
                tasks.on_command(stamp, command, &mut sink.lock().unwrap(), &store);
            }
            Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => return,
            Err(tokio::sync::mpsc::error::TryRecvError::Empty) => {
                tasks.step(&mut rng, &mut sink.lock().unwrap(), &store, true);
            }
        }
        while let Some(event) = tasks.out.pop_front() {
            if end.events.send(event).await.is_err() {
                return;
            }
        }
        let wait = if slow {
            Duration::from_millis(1)
        } else {
            Duration::from_micros(50)
        };
        tokio::time::sleep(wait).await;
    }
}

struct Rig {
    store: MemoryStore,
    sink: Arc<Mutex<Sink>>,
}

impl Rig {
    fn new() -> Self {
        Self {
            store: MemoryStore::new(),
            sink: Arc::default(),
        }
    }

    fn start(&self, config: JobConfig, slow: bool) -> JobHandle {
        let (transport, end) = in_process();
        tokio::spawn(work(end, self.store.clone(), Arc::clone(&self.sink), slow));
        start(config, Arc::new(self.store.clone()), transport)
    }

    /// A job that was stopped after some checkpoints.
    async fn stopped() -> (Self, CheckpointId) {
        let rig = Self::new();
        let handle = rig.start(config(None), true);
        let mut status = handle.status();
        let reached = |n| move |it: &streamforge_host::Status| it.checkpoint.completed_n >= n;
        status.wait_for(reached(4)).await.unwrap();
        handle.stop();
        match handle.outcome().await {
            Outcome::Stopped {
                checkpoint: Some(id),
                unpublished_n: 0,
                note: None,
                savepoint_failed: None,
            } => (rig, id),
            other => panic!("{other:?}"),
        }
    }

    async fn history(&self) -> History {
        History::load(Arc::new(self.store.clone())).await.unwrap()
    }

    fn assert_all_rows_once(&self) {
        let mut visible = self.sink.lock().unwrap().visible.clone();
        visible.sort();
        assert_eq!(visible, all_rows().into_iter().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn job_runs_to_its_end_and_does_not_run_again() {
    let rig = Rig::new();
    let handle = rig.start(config(None), false);
    let status = handle.status();

    assert_eq!(handle.outcome().await, Outcome::Finished { before: false });
    rig.assert_all_rows_once();
    assert_eq!(status.borrow().phase, Phase::Ended);
    assert_eq!(
        status.borrow().ledger[&uid("in")].rows_in,
        all_rows().len() as u64
    );

    let again = rig.start(config(None), false);
    assert_eq!(again.outcome().await, Outcome::Finished { before: true });
}

#[tokio::test]
async fn stopped_job_goes_on_at_another_parallelism() {
    let (rig, stopped_at) = Rig::stopped().await;
    let manifest = rig.history().await.manifest(stopped_at).await.unwrap();
    assert_eq!(manifest.kind, CheckpointKind::Stop);
    assert!(rig.sink.lock().unwrap().visible.len() < all_rows().len());

    let handle = rig.start(
        JobConfig {
            parallelism: 3,
            ..config(None)
        },
        false,
    );

    assert_eq!(handle.outcome().await, Outcome::Finished { before: false });
    rig.assert_all_rows_once();
}

#[tokio::test]
async fn corrupt_checkpoint_is_refused_before_any_output_and_the_rewind_it_names_works_c7() {
    let (rig, newest) = Rig::stopped().await;
    let history = rig.history().await;
    let parts = &history.manifest(newest).await.unwrap().operators[&uid("agg")].parts;
    let older = history.retained().iter().rev().nth(1).unwrap().id;
    let older_parts = &history.manifest(older).await.unwrap().operators[&uid("agg")].parts;
    let known = |key: &String| older_parts.iter().any(|part| part.key == *key);
    let new = parts
        .iter()
        .find(|part| !known(&part.key))
        .expect("it has a part of its own");
    let visible_n = rig.sink.lock().unwrap().visible.len();
    rig.store.tamper(&new.key, |mut bytes| {
        bytes[0] ^= 1;
        bytes
    });

    let outcome = rig.start(config(None), false).outcome().await;

    let Outcome::Failed(error @ Error::Damaged { .. }) = outcome else {
        panic!("{outcome:?}")
    };
    let text = error.to_string();
    assert!(
        text.contains(&format!("object {} is corrupt", new.key)),
        "{text}"
    );
    assert!(
        text.contains(&format!("streamforge run job.yaml --rewind-to {older}")),
        "{text}"
    );
    assert_eq!(
        rig.sink.lock().unwrap().visible.len(),
        visible_n,
        "no output"
    );
    let damaged = history.manifest(newest).await.unwrap();
    assert_eq!(history.damages(&damaged).await.unwrap().len(), 1);

    let rewound = rig.start(config(Some(older)), false);
    assert_eq!(rewound.outcome().await, Outcome::Finished { before: false });
}

#[tokio::test]
async fn only_task_manager_that_is_gone_ends_the_job() {
    let store = MemoryStore::new();
    let (transport, end) = in_process();
    drop(end);

    let outcome = start(config(None), Arc::new(store), transport)
        .outcome()
        .await;

    let Outcome::Failed(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.to_string().contains("the task manager"), "{error}");
}

#[tokio::test]
async fn history_of_a_store_without_a_job_says_so() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());

    let refused = History::load(store).await.unwrap_err();

    assert!(matches!(refused, history::Error::NoJob { .. }), "{refused}");
    assert_eq!(
        refused.to_string(),
        "read memory: no job has run with this store"
    );
}

#[tokio::test]
async fn history_lists_what_is_kept_with_its_plan() {
    let (rig, newest) = Rig::stopped().await;

    let history = rig.history().await;

    assert_eq!(history.retained().last().unwrap().id, newest);
    let manifest = history.manifest(newest).await.unwrap();
    assert_eq!(history.plan(&manifest.plan).await.unwrap().document, "doc");
    assert_eq!(
        history.damages(&manifest).await.unwrap(),
        Vec::<String>::new()
    );
    let unknown = history
        .manifest(CheckpointId::from_stored(9_999))
        .await
        .unwrap_err();
    assert!(
        unknown.to_string().contains("does not keep it"),
        "{unknown}"
    );
}
