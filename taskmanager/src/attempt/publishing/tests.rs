//! Tests of [`Publishing`] and of what is waited for.

use async_trait::async_trait;
use futures::FutureExt as _;
use streamforge_core::manifest::StagedObject;

use super::*;

/// Says which slots it was told to keep.
struct Kept(mpsc::UnboundedSender<BTreeSet<SlotId>>);

#[async_trait]
impl Publisher for Kept {
    async fn publish(&self, _: &SlotId, _: &StagedInterval) -> Result<(), Error> {
        Ok(())
    }

    async fn retire_others(&self, needed: &BTreeSet<SlotId>) {
        self.0.send(needed.clone()).expect("the test waits");
    }

    async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), Error> {
        Ok(())
    }
}

fn slot(number: u32) -> SlotId {
    SlotId {
        sink: OperatorUid("out".to_owned()),
        slot: number,
    }
}

fn interval(n: u64) -> StagedInterval {
    StagedInterval {
        id: CheckpointId::from_stored(n),
        objects: vec![StagedObject {
            staged: String::new(),
            published: String::new(),
            bytes: 1,
            rows: 1,
            detail: String::new(),
        }],
    }
}

/// Publishes nothing before it is let.
struct Away {
    began: mpsc::UnboundedSender<CheckpointId>,
    back: tokio::sync::Semaphore,
    /// It is told that the attempt is over; what is under way fails then.
    stopped: AtomicBool,
}

impl Away {
    fn new(began: mpsc::UnboundedSender<CheckpointId>) -> Arc<Self> {
        Arc::new(Self {
            began,
            back: tokio::sync::Semaphore::new(0),
            stopped: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl Publisher for Away {
    async fn publish(&self, _: &SlotId, interval: &StagedInterval) -> Result<(), Error> {
        self.began.send(interval.id).expect("the test waits");
        self.back.acquire().await.expect("it is open").forget();
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Error::TakenOver {
                action: "publish".to_owned(),
                source: "fenced".into(),
            });
        }
        Ok(())
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    async fn retire_others(&self, _: &BTreeSet<SlotId>) {}

    async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), Error> {
        Ok(())
    }
}

#[tokio::test]
async fn while_a_sink_is_away_one_notice_of_a_slot_waits_b1_c3() {
    let (began, mut begins) = mpsc::unbounded_channel();
    let away = Away::new(began);
    let publisher: Arc<dyn Publisher> = Arc::<Away>::clone(&away);
    let publishers = BTreeMap::from([(OperatorUid("out".to_owned()), publisher)]);
    let (events, mut said) = mpsc::channel(8);
    let publishing = Publishing::new(publishers, Arc::default(), events);
    let id = CheckpointId::from_stored;
    let first = publishing.clone();
    let first = tokio::spawn(async move { first.publish(slot(0), interval(1)).await });
    assert_eq!(begins.recv().await, Some(id(1)));

    // An hour of repeated notices, and one of the next interval.
    for n in [vec![1; 1_800], vec![2]].concat() {
        let noticed = publishing.publish(slot(0), interval(n));
        assert!(noticed.now_or_never().is_some(), "it is left to the first");
    }
    // Another slot has a turn of its own.
    let other = publishing.publish(slot(1), interval(1));
    assert!(other.now_or_never().is_none());
    assert_eq!(begins.recv().await, Some(id(1)));

    away.back.add_permits(2);
    first.await.expect("it does not panic");
    assert_eq!(begins.try_recv(), Ok(id(2)));
    assert!(begins.try_recv().is_err(), "nothing else was waiting");
    for n in [1, 2] {
        let published = Event::Published {
            slot: slot(0),
            interval: id(n),
        };
        assert_eq!(said.recv().await, Some(published));
    }
}

#[tokio::test]
async fn nothing_is_begun_after_the_attempt_is_over_and_its_failures_are_nobodys() {
    let (began, mut begins) = mpsc::unbounded_channel();
    let away = Away::new(began);
    let publisher: Arc<dyn Publisher> = Arc::<Away>::clone(&away);
    let publishers = BTreeMap::from([(OperatorUid("out".to_owned()), publisher)]);
    let (events, mut said) = mpsc::channel(8);
    let publishing = Publishing::new(publishers, Arc::default(), events);
    let first = publishing.clone();
    let first = tokio::spawn(async move { first.publish(slot(0), interval(1)).await });
    assert_eq!(begins.recv().await, Some(CheckpointId::from_stored(1)));
    publishing.publish(slot(0), interval(2)).await;

    publishing.stop();
    away.back.add_permits(2);
    first.await.expect("it does not panic");

    assert!(begins.try_recv().is_err(), "the next interval was begun");
    publishing.publish(slot(1), interval(2)).await;
    assert!(begins.try_recv().is_err(), "another slot was begun");
    assert!(
        said.try_recv().is_err(),
        "it failed because of its successor"
    );
}

#[tokio::test]
async fn slot_of_a_subtask_that_left_retires_with_its_last_interval_x4() {
    let (kept, mut told) = mpsc::unbounded_channel();
    let publisher: Arc<dyn Publisher> = Arc::new(Kept(kept));
    let publishers = BTreeMap::from([(OperatorUid("out".to_owned()), publisher)]);
    let staged = Arc::new(Staged::default());
    let (events, mut said) = mpsc::channel(8);
    let publishing = Publishing::new(publishers, Arc::clone(&staged), events);
    // Slot 1 was written by a subtask that left, slot 2 was taken over from a dead attempt.
    staged.add(slot(0), interval(3));
    staged.add(slot(1), interval(3));
    staged.inherit(slot(2), vec![interval(2)]);
    let subtasks = BTreeSet::from([SubtaskIdx(0)]);

    publishing.retire_all_but(&subtasks);
    let all = BTreeSet::from([slot(0), slot(1), slot(2)]);
    assert_eq!(told.recv().await, Some(all));

    for (of, n) in [(0, 3), (1, 3), (2, 2)] {
        publishing.publish(slot(of), interval(n)).await;
        assert!(matches!(said.recv().await, Some(Event::Published { .. })));
    }
    publishing.retire_all_but(&subtasks);
    assert_eq!(told.recv().await, Some(BTreeSet::from([slot(0)])));
}

/// Nobody answers it for a while, and what it does takes longer than people wait for a word.
struct Unreachable {
    tries_left: StdMutex<u32>,
}

#[async_trait]
impl Publisher for Unreachable {
    async fn publish(&self, _: &SlotId, _: &StagedInterval) -> Result<(), Error> {
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        let left = *self.tries_left.lock().expect("it does not panic");
        (left > 0).then(|| "nobody answers".to_owned())
    }

    async fn retire_others(&self, _: &BTreeSet<SlotId>) {}

    async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), Error> {
        let mut left = self.tries_left.lock().expect("it does not panic");
        *left -= 1;
        Err(Error::Connector {
            action: "list".to_owned(),
            retry: true,
            source: "no answer".into(),
        })
    }
}

#[tokio::test]
async fn what_an_outside_system_does_not_answer_is_tried_until_it_is_refused() {
    let publisher = Unreachable {
        tries_left: StdMutex::new(20),
    };
    let (events, _said) = mpsc::channel(8);
    let sink = OperatorUid("out".to_owned());

    let refused = patiently(&events, (&sink, &publisher), || {
        publisher.discard_unlisted(&[])
    });

    assert!(refused.await.is_err(), "it has no trouble any more");
    assert_eq!(*publisher.tries_left.lock().expect("it does not panic"), 0);
}
