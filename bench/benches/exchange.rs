//! Bytes per CPU-second through a channel, beside plain tonic with the same frames.
//!
//! Owns: two exchanges of one process over loopback, a task that sends and one that takes; and the
//! same frames, encoded beforehand, through a bare tonic stream whose receiver throws them away. The
//! two take turns; CPU is the whole process's. What the exchange does on top: it cuts and encodes,
//! hands over between threads, counts credit, copies into memory of its own, decodes and checks.
//! Aim: at least 70 % of plain tonic's bytes per CPU-second.
//!
//! `cargo bench --bench exchange -- --rounds 9 --mib 512`

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, SubtaskIdx};
use streamforge_core::manifest::CheckpointKind;
use streamforge_core::messages::Stamp;
use streamforge_engine::barrier::Barrier;
use streamforge_engine::batch::StreamBatch;
use streamforge_engine::task::Element;
use streamforge_proto::convert::exchange::rows_bytes;
use streamforge_proto::v1;
use streamforge_proto::v1::downstream::What;
use streamforge_proto::v1::exchange_client::ExchangeClient;
use streamforge_proto::v1::exchange_server::{Exchange as Service, ExchangeServer};
use streamforge_taskmanager::exchange::frame::{Encoder, batch_bytes};
use streamforge_taskmanager::exchange::{ChannelName, Config, Exchange};
use streamforge_taskmanager::inbox::{Inbox, Next};
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// As in the programs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCH_ROWS: usize = 8192;
const PATIENCE: Duration = Duration::from_secs(30);

/// Threads of each runtime, in both contestants.
const THREADS: usize = 1;

/// Rows as a session window shuffles them whole: two numbers, a time, a text of 200 bytes.
fn wide(rows_n: usize) -> StreamBatch {
    let n = rows_n as i64;
    let text = |idx: i64| format!("{idx:08}").repeat(25);
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..n))),
        (
            "price",
            Arc::new(Int64Array::from_iter_values((0..n).map(|i| i * 7))),
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values((0..n).map(text))),
        ),
    ];
    with_times(RecordBatch::try_from_iter(columns).expect("columns are equally long"))
}

/// Rows as a sliced window shuffles them: a key, a slice, two sums.
fn narrow(rows_n: usize) -> StreamBatch {
    let n = rows_n as i64;
    let column = |factor: i64| Arc::new(Int64Array::from_iter_values((0..n).map(|i| i * factor)));
    let columns: [(&str, ArrayRef); 4] = [
        ("key", column(1)),
        ("slice", column(2)),
        ("count", column(3)),
        ("sum", column(5)),
    ];
    with_times(RecordBatch::try_from_iter(columns).expect("columns are equally long"))
}

fn with_times(rows: RecordBatch) -> StreamBatch {
    let times = TimestampMicrosecondArray::from_iter_values(0..rows.num_rows() as i64);
    StreamBatch {
        event_time: Some(times),
        ..StreamBatch::plain(rows)
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Run {
    bytes: u64,
    rows: u64,
    cpu: Duration,
    wall: Duration,
}

impl Run {
    fn mb_per_cpu_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.cpu.as_secs_f64()
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Times `work`, which returns bytes and rows.
fn timed(work: impl FnOnce() -> (u64, u64)) -> Run {
    let (began, cpu_began) = (Instant::now(), cpu());
    let (bytes, rows) = work();
    Run {
        bytes,
        rows,
        cpu: cpu() - cpu_began,
        wall: began.elapsed(),
    }
}

/// The exchange's side.
struct Ours {
    here: Exchange,
    there: Exchange,
    epoch: u64,
}

impl Ours {
    fn start() -> Self {
        let config = Config {
            threads: THREADS,
            ..Config::default()
        };
        Self {
            here: Exchange::start(config.clone()).expect("loopback has free ports"),
            there: Exchange::start(config).expect("loopback has free ports"),
            epoch: 0,
        }
    }

    fn run(&mut self, batch: &StreamBatch, batches_n: u64) -> Run {
        self.epoch += 1;
        let stamp = Stamp {
            job: JobId("bench".to_owned()),
            generation: Generation::from_stored(1),
            epoch: Epoch::from_stored(self.epoch),
        };
        let report: streamforge_taskmanager::exchange::Report = Arc::new(|broken| {
            // The attempt that is closed first makes the other end say so.
            drop(broken);
        });
        let there = self
            .there
            .attempt(stamp.clone(), "there".to_owned(), Arc::clone(&report));
        let here = self.here.attempt(stamp, "here".to_owned(), report);
        let channel = ChannelName {
            edge: 0,
            sender: SubtaskIdx(0),
            receiver: SubtaskIdx(0),
        };
        let inbox = Arc::new(Inbox::new(1));
        there.accept(channel, "here", Arc::clone(&inbox), 0);
        let address = self.there.address().to_string();
        let caller = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime without a driver");
        let sender = caller
            .block_on(here.open(channel, &address, Arc::new(Inbox::new(0))))
            .expect("the channel was accepted");
        let totals = self.here.totals();
        let sent = || totals.bytes_sent.load(Ordering::Relaxed);
        let before = sent();
        timed(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..batches_n {
                        assert!(sender.push(Element::Batch(batch.clone())));
                    }
                    let id = CheckpointId::from_stored(1);
                    let kind = CheckpointKind::Ordinary;
                    let begun_by = Generation::ZERO;
                    assert!(sender.push(Element::Barrier(Barrier { id, kind, begun_by })));
                });
                let mut rows_n = 0;
                loop {
                    match inbox.next(|_, _| true, PATIENCE) {
                        Next::Element(_, Element::Batch(batch)) => rows_n += batch.len() as u64,
                        Next::Element(_, Element::Barrier(_)) => break (sent() - before, rows_n),
                        other => panic!("nothing else was sent: {other:?}"),
                    }
                }
            })
        })
    }
}

/// Takes messages and throws them away.
struct Sink;

type Answers = Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::Upstream, Status>> + Send>>;

#[tonic::async_trait]
impl Service for Sink {
    type ChannelStream = Answers;

    async fn channel(
        &self,
        request: Request<Streaming<v1::Downstream>>,
    ) -> Result<Response<Answers>, Status> {
        let mut messages = request.into_inner();
        let mut bytes = 0;
        while let Some(message) = messages.message().await? {
            if let Some(What::Rows(rows)) = &message.what {
                bytes += rows_bytes(rows);
            }
        }
        let credit = v1::Upstream {
            number: 1,
            what: Some(v1::upstream::What::Credit(bytes)),
        };
        let answers: Answers = Box::pin(tokio_stream::once(Ok(credit)));
        Ok(Response::new(answers))
    }
}

/// Plain tonic's side.
struct Plain {
    here: Runtime,
    _there: Runtime,
    address: SocketAddr,
}

impl Plain {
    fn start() -> Self {
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(THREADS)
                .enable_all()
                .build()
                .expect("threads start")
        };
        let (here, there) = (runtime(), runtime());
        let address = there.block_on(async {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
            let listener = listener.expect("loopback has free ports");
            let address = listener.local_addr().expect("it is bound");
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let server = tonic::transport::Server::builder().add_service(ExchangeServer::new(Sink));
            tokio::spawn(server.serve_with_incoming(incoming));
            address
        });
        Self {
            here,
            _there: there,
            address,
        }
    }

    /// The same frames, cut and encoded beforehand.
    fn run(&self, frames: &[(v1::Rows, u64)], times: u64) -> Run {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", self.address))
            .expect("an address is a URI")
            .tcp_nodelay(true);
        let client = self.here.block_on(endpoint.connect());
        let mut client = ExchangeClient::new(client.expect("it listens"));
        let frames: Arc<[(v1::Rows, u64)]> = frames.into();
        let rows_n = frames.iter().map(|(_, rows)| rows).sum::<u64>() * times;
        timed(|| {
            let frames_n = frames.len() as u64 * times;
            let messages = futures::stream::iter(0..frames_n).map_rows(frames);
            let sending = self.here.spawn(async move {
                let mut answers = client.channel(messages).await?.into_inner();
                answers.message().await
            });
            let answer = self.here.block_on(sending).expect("no panic");
            match answer.expect("no break").and_then(|answer| answer.what) {
                Some(v1::upstream::What::Credit(bytes)) => (bytes, rows_n),
                other => panic!("the sink answers with its bytes: {other:?}"),
            }
        })
    }
}

/// Numbers to messages.
trait MapRows {
    fn map_rows(
        self,
        frames: Arc<[(v1::Rows, u64)]>,
    ) -> impl tokio_stream::Stream<Item = v1::Downstream> + Send + 'static;
}

impl<S: tokio_stream::Stream<Item = u64> + Send + 'static> MapRows for S {
    fn map_rows(
        self,
        frames: Arc<[(v1::Rows, u64)]>,
    ) -> impl tokio_stream::Stream<Item = v1::Downstream> + Send + 'static {
        tokio_stream::StreamExt::map(self, move |number| {
            let (rows, _) = &frames[number as usize % frames.len()];
            v1::Downstream {
                number,
                what: Some(What::Rows(rows.clone())),
            }
        })
    }
}

/// Cuts a batch as the exchange does.
fn frames(batch: &StreamBatch) -> Vec<(v1::Rows, u64)> {
    let frames_n = batch_bytes(batch).div_ceil(Config::default().frame_bytes);
    let step = batch.len().div_ceil(frames_n);
    let mut encoder = Encoder::default();
    (0..batch.len())
        .step_by(step)
        .map(|offset| {
            let rows_n = step.min(batch.len() - offset);
            let encoded = encoder.encode(&batch.slice(offset, rows_n));
            (encoded.expect("plain types").rows, rows_n as u64)
        })
        .collect()
}

fn median(runs: &[Run]) -> Run {
    let mut runs = runs.to_vec();
    runs.sort_by(|a, b| a.mb_per_cpu_s().total_cmp(&b.mb_per_cpu_s()));
    runs[runs.len() / 2]
}

fn argument(name: &str, default: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let given = arguments.nth(1).and_then(|text| text.parse().ok());
    given.unwrap_or(default)
}

fn main() {
    let (rounds, mib) = (argument("--rounds", 7), argument("--mib", 256));
    let (mut ours, plain) = (Ours::start(), Plain::start());
    println!(
        "| rows | frame B | exchange MB/CPU-s | plain tonic MB/CPU-s | ratio | exchange MB/s | plain MB/s | exchange ns CPU/row |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for (name, batch) in [("235 B", wide(BATCH_ROWS)), ("40 B", narrow(BATCH_ROWS))] {
        let frames = frames(&batch);
        let frame_bytes = frames.first().map_or(0, |(rows, _)| rows_bytes(rows));
        let batches_n = (mib * 1024 * 1024).div_ceil(batch_bytes(&batch) as u64);
        let (mut of_ours, mut of_plain) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let (one, other) = (ours.run(&batch, batches_n), plain.run(&frames, batches_n));
            // The first round warms both up.
            if round > 0 {
                of_ours.push(one);
                of_plain.push(other);
            }
        }
        let (ours, plain) = (median(&of_ours), median(&of_plain));
        let per_s = |run: &Run| run.bytes as f64 / 1e6 / run.wall.as_secs_f64();
        println!(
            "| {name} | {frame_bytes} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} |",
            ours.mb_per_cpu_s(),
            plain.mb_per_cpu_s(),
            ours.mb_per_cpu_s() / plain.mb_per_cpu_s(),
            per_s(&ours),
            per_s(&plain),
            ours.cpu.as_nanos() as f64 / ours.rows as f64,
        );
    }
}
