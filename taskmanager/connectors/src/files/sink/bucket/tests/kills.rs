//! Attempts that die at each of their requests, and what the next one makes of it.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

use super::guillotine::Guillotine;
use super::*;
use crate::files::config::Rollover;

/// What goes into one interval.
#[derive(Clone, Copy)]
struct Batch {
    rows_n: i64,
    /// Text in each row.
    bytes_n: usize,
    /// The checkpoint is given up; the next one carries the interval.
    is_given_up: bool,
    /// A savepoint, or the end.
    closes: bool,
}

const SMALL: Batch = Batch {
    rows_n: 2,
    bytes_n: 3,
    is_given_up: false,
    closes: false,
};

/// Two files, the first of more than a part.
const BATCHES: [Batch; 7] = [
    SMALL,
    Batch {
        is_given_up: true,
        ..SMALL
    },
    SMALL,
    Batch {
        rows_n: 9,
        bytes_n: 1 << 20,
        ..SMALL
    },
    Batch {
        closes: true,
        ..SMALL
    },
    SMALL,
    Batch {
        closes: true,
        ..SMALL
    },
];

/// First row of a batch.
fn first_row(batch: usize) -> i64 {
    BATCHES[..batch].iter().map(|it| it.rows_n).sum()
}

/// What the store knows of a job; all else dies with the process.
#[derive(Default)]
struct Head {
    /// Batches that are committed.
    batches_n: usize,
    /// As the newest manifest has it.
    listed: Vec<StagedInterval>,
    /// As a coordinator that lives on knows it.
    unconfirmed: Vec<StagedInterval>,
    epochs_n: u64,
}

/// Text that does not compress.
fn text(row: i64, bytes_n: usize) -> String {
    let mut seed = row.unsigned_abs() + 1;
    let mut text = String::with_capacity(bytes_n + 16);
    while text.len() < bytes_n {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(&format!("{:016x}", seed ^ (seed >> 31)));
    }
    text.truncate(bytes_n);
    text
}

fn rows_of(n: usize) -> RecordBatch {
    let Batch {
        rows_n, bytes_n, ..
    } = BATCHES[n];
    let rows = first_row(n)..first_row(n) + rows_n;
    let texts = StringArray::from_iter_values(rows.clone().map(|row| text(row, bytes_n)));
    let columns: [(&str, ArrayRef); 2] = [
        ("n", Arc::new(Int64Array::from_iter_values(rows))),
        ("text", Arc::new(texts)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn batch(n: usize) -> StreamBatch {
    static MADE: OnceLock<Vec<RecordBatch>> = OnceLock::new();
    let made = MADE.get_or_init(|| (0..BATCHES.len()).map(rows_of).collect());
    StreamBatch::plain(made[n].clone())
}

/// A job with one open file at a time, in a folder of its own.
#[derive(Clone)]
struct Job {
    place: Place,
    format: OutputFormat,
    head: Arc<Mutex<Head>>,
    /// Whether the coordinator lives on, and knows what was confirmed since the manifest.
    knows: bool,
}

impl Job {
    fn new(place: &Place, name: &str, format: OutputFormat, knows: bool) -> Self {
        let mut place = place.clone();
        place.config.path.push_str(&format!("{name}/"));
        place.config.rollover = Some(Rollover {
            size: Some("1Gi".parse().unwrap()),
            every: None,
        });
        Self {
            place,
            format,
            head: Arc::default(),
            knows,
        }
    }

    fn committed_rows_n(&self) -> i64 {
        first_row(self.head.lock().unwrap().batches_n)
    }

    /// One attempt, to its end.
    async fn live(&self, endpoint: Option<String>) {
        let mut place = self.place.clone();
        if let (Some(endpoint), Some(s3)) = (endpoint, &mut place.config.s3) {
            s3.endpoint = Some(endpoint);
        }
        let (epoch, listed, done_n) = {
            let mut head = self.head.lock().unwrap();
            head.epochs_n += 1;
            let listed = if self.knows {
                head.unconfirmed.clone()
            } else {
                head.listed.clone()
            };
            head.unconfirmed.clone_from(&listed);
            (head.epochs_n, listed, head.batches_n)
        };
        let publisher = place.publisher(epoch);
        publisher.discard_unlisted(&listed).await.unwrap();
        self.publish(&publisher).await;
        assert_eq!(
            self.visible_rows().await,
            Vec::from_iter(0..first_row(done_n)),
            "all that is committed is visible when a restore is over"
        );
        let mut writer = place.writer(self.format.clone(), epoch);
        let mut staged = Vec::new();
        for (n, what) in BATCHES.iter().enumerate().skip(done_n) {
            writer.write(batch(n)).await.unwrap();
            if what.closes {
                writer.close_at_next_stage();
            }
            let id = id(100 * epoch + n as u64);
            staged.extend(writer.stage(id).unwrap().await.unwrap());
            if !what.is_given_up {
                let mut head = self.head.lock().unwrap();
                head.batches_n = n + 1;
                head.unconfirmed.append(&mut staged);
                head.listed = head.unconfirmed.clone();
            }
            self.publish(&publisher).await;
        }
    }

    async fn publish(&self, publisher: &BucketPublisher) {
        let all = self.head.lock().unwrap().unconfirmed.clone();
        for interval in all {
            publisher.publish(&slot(), &interval).await.unwrap();
            let mut head = self.head.lock().unwrap();
            head.unconfirmed.retain(|it| it.id != interval.id);
        }
    }

    /// One attempt that dies with its `requests_n`th request. False: it needed fewer.
    async fn die(&self, requests_n: usize) -> bool {
        let upstream = self.place.config.s3.as_ref().unwrap().endpoint.clone();
        let guillotine = Guillotine::new(&upstream.unwrap(), requests_n);
        let endpoint = guillotine.endpoint.clone();
        let died = tokio::select! {
            biased;
            () = guillotine.falls() => true,
            () = self.live(Some(endpoint)) => false,
        };
        let visible = self.visible_rows().await;
        let seen: BTreeSet<i64> = visible.iter().copied().collect();
        assert_eq!(seen.len(), visible.len(), "{requests_n}: {visible:?}");
        assert!(
            visible.iter().all(|row| *row < self.committed_rows_n()),
            "{requests_n}: visible before its commit"
        );
        died
    }

    /// Sorted.
    async fn visible_rows(&self) -> Vec<i64> {
        let mut all = Vec::new();
        for (key, bytes) in self.place.visible().await {
            if key.ends_with("parquet") {
                let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).unwrap();
                for batch in reader.build().unwrap() {
                    let batch = batch.unwrap();
                    let numbers = batch.column(0).as_any().downcast_ref::<Int64Array>();
                    all.extend(numbers.unwrap().values());
                }
            } else {
                let text = String::from_utf8(bytes).unwrap();
                let number = |line: &str| {
                    let (_, rest) = line.split_once("{\"n\":").unwrap();
                    rest.split_once(',').unwrap().0.parse::<i64>().unwrap()
                };
                all.extend(text.lines().map(number));
            }
        }
        all.sort_unstable();
        all
    }

    /// Lets it come to its end, and looks at everything.
    async fn end(&self, moment: &str) {
        self.live(None).await;

        let all = Vec::from_iter(0..first_row(BATCHES.len()));
        assert_eq!(self.visible_rows().await, all, "{moment}");
        assert_eq!(self.place.hidden().await, Vec::<String>::new(), "{moment}");
        let door = self.place.door();
        let uploads = door.bucket().await.unwrap().uploads("").await.unwrap();
        assert_eq!(uploads, [], "{moment}");
    }
}

const FORMATS: [OutputFormat; 2] = [OutputFormat::Json, OutputFormat::Parquet];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempt_that_dies_at_any_request_loses_and_doubles_nothing_x6() {
    for (format, knows) in FORMATS.into_iter().zip([false, true]) {
        let place = Place::new("kills");
        for requests_n in 1.. {
            let name = format!("{requests_n}");
            let job = Job::new(&place, &name, format.clone(), knows);

            let died = job.die(requests_n).await;
            if !died {
                assert!(requests_n > 25, "{requests_n} requests only");
                break;
            }

            job.end(&format!("{format:?} {requests_n}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_that_dies_at_any_request_is_done_by_the_next_x6() {
    // A checkpoint given up, more than a part, the next file; two held, a file completed without an answer.
    let moments = [&[6, 14, 22][..], &[9, 18]];
    for (n, format) in FORMATS.into_iter().enumerate() {
        let place = Place::new("restores");
        for moment in moments[n].iter().copied() {
            for requests_n in 1.. {
                let name = format!("{moment}-{requests_n}");
                let job = Job::new(&place, &name, format.clone(), n == 0);
                assert!(job.die(moment).await);
                let before = job.head.lock().unwrap().batches_n;

                job.die(requests_n).await;

                let is_over = job.head.lock().unwrap().batches_n > before;
                job.end(&format!("{format:?} {moment} {requests_n}")).await;
                if is_over {
                    break; // the other test has what comes then
                }
            }
        }
    }
}
