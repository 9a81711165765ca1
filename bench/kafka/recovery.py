"""How long output stops when a task manager is killed: Flink 2.3 and StreamForge, the same way.

    recovery.py [--kills 10] [--heartbeats 10000,50000] [--only flink|streamforge]

5,000 rows/s go into a topic of 3 partitions; a job of 3 subtasks counts them by ten keys in windows of
200 ms and writes the counts to another topic, at least once, with a checkpoint every second. Then a task
manager that works is killed with SIGKILL. The figure is the largest gap between two output records,
by the time that their producer gave them; without a kill it is some 200 ms. Flink has a spare task manager (a
JVM each) and is killed once per heartbeat.timeout, whose default is 50 s; StreamForge has none to spare.

Needs a broker (`e2e/services/with kafka -- ...`), a release build and Java 17. Writes
bench/results/<date>-recovery-kafka.md.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parent
sys.path[:0] = [str(BENCH), str(BENCH / "flink")]
import compare as flink  # noqa: E402  (flink/compare.py; the folders are known only now)
import report  # noqa: E402

KAFKA = BENCH.parent / "e2e/services/kafka"
RATE = 5_000
REST = "127.0.0.1:18081"
STEADY_S = 10

JOB = """
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: live}}
spec:
  parallelism: 3
  sources:
    - name: live
      kafka: {{bootstrapServers: "{bootstrap}", topics: [live], startFrom: Latest}}
      format: {{json: {{}}}}
      schema: [{{name: k, type: BIGINT}}, {{name: t, type: TIMESTAMP, parse: EpochMillis}}]
      eventTime: {{column: t}}
  transforms:
    - name: counts
      from: live
      aggregate: {{groupBy: ["k % 10 AS k"], window: {{tumbling: {{size: 200ms}}}}, select: ["count(*) AS n"]}}
  sinks:
    - name: out
      from: counts
      kafka: {{bootstrapServers: "{bootstrap}", topic: liveout}}
      format: {{json: {{}}}}
      delivery: AtLeastOnce
  checkpoint: {{interval: 1s}}
  restart: {{backoff: {{initial: 100ms, max: 1s}}}}
"""

SETUP = """
create table live (k bigint, t bigint, ts as to_timestamp_ltz(t, 3), watermark for ts as ts) with (
  'connector' = 'kafka', 'topic' = 'live', 'properties.bootstrap.servers' = '{bootstrap}',
  'properties.group.id' = 'flink-live', 'scan.startup.mode' = 'latest-offset', 'format' = 'json');
create table liveout (k bigint, n bigint, w timestamp_ltz(3)) with (
  'connector' = 'kafka', 'topic' = 'liveout', 'properties.bootstrap.servers' = '{bootstrap}',
  'format' = 'json', 'sink.delivery-guarantee' = 'at-least-once');
"""

QUERY = """
insert into liveout select mod(k, 10), count(*), window_start
  from table(tumble(table live, descriptor(ts), interval '0.2' second))
  group by mod(k, 10), window_start, window_end;
"""

CLUSTER = """
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: 16123
jobmanager.bind-host: 127.0.0.1
jobmanager.memory.process.size: 900m
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: 18081
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.resource-id: {name}
taskmanager.numberOfTaskSlots: 1
taskmanager.cpu.cores: 1
taskmanager.memory.task.heap.size: 512m
taskmanager.memory.task.off-heap.size: 32m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.managed.size: 256m
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
heartbeat.timeout: {heartbeat_ms}
heartbeat.interval: {interval_ms}
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 1000
restart-strategy.fixed-delay.delay: 0 s
state.backend.type: hashmap
execution.checkpointing.dir: file://{checkpoints}
execution.checkpointing.interval: 1 s
"""


def tool(name, *arguments):
    return [str(KAFKA), "tool", f"org.apache.kafka.tools.{name}", *map(str, arguments)]


def recreate(bootstrap, name):
    at = ["--bootstrap-server", bootstrap, "--topic", name]
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(tool("TopicCommand", *at, "--delete", "--if-exists"), **quiet)
    subprocess.run(tool("TopicCommand", *at, "--create", "--partitions", 3), **quiet)


@contextlib.contextmanager
def ended(process):
    """Kills what was started, and what that started, whatever happens."""
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start(command, **keywords):
    return subprocess.Popen(list(map(str, command)), start_new_session=True, **keywords)


class Feed(threading.Thread):
    """Rows at a steady rate, each with the time at which it was written."""

    def __init__(self, producer):
        super().__init__(daemon=True)
        self.producer, self.over = producer, False

    def run(self):
        began, sent = time.time(), 0
        while not self.over:
            due = int((time.time() - began) * RATE)
            now = int(time.time() * 1000)
            rows = (
                b'%d|{"k":%d,"t":%d}\n' % (random.randrange(1000), random.randrange(1000), now)
                for _ in range(due - sent)
            )
            with contextlib.suppress(BrokenPipeError, ValueError):
                self.producer.stdin.write(b"".join(rows))
                self.producer.stdin.flush()
            sent = due
            time.sleep(0.01)


def times(output):
    """When the output's records were written, in ms, in order."""
    found = []
    for line in output.read_text(errors="replace").splitlines():
        if line.startswith("CreateTime:") and "\t" in line:
            found.append(int(line.split("\t")[0].split(":")[1]))
    return sorted(found)


def wait(what, condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"{what} did not come within {seconds} s")
        time.sleep(0.05)


def is_steady(output):
    """Whether the last seconds had no gap of over a second."""
    now = int(time.time() * 1000)
    last = [it for it in times(output) if it > now - STEADY_S * 1000]
    gaps = [b - a for a, b in zip(last, last[1:])]
    return bool(gaps) and last[0] < now - (STEADY_S - 1) * 1000 and max(gaps) < 1000


def gap(output, killed_ms, patience_s):
    """The largest gap around a kill, once output is steady again."""
    wait("output after the kill", lambda: is_steady(output), patience_s)
    around = [it for it in times(output) if it > killed_ms - 1000]
    return max(b - a for a, b in zip(around, around[1:]))


@contextlib.contextmanager
def traffic(bootstrap, work):
    """Feeds the input; yields the file that the output's records come to."""
    for name in ("live", "liveout"):
        recreate(bootstrap, name)
    output = work / "output"
    key = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=|"]
    produce = tool("ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", "live", *key)
    consume = tool(
        "consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", "liveout",
        "--formatter-property", "print.timestamp=true",
    )  # fmt: skip
    with (
        output.open("wb") as sink,
        ended(start(produce, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)) as producer,
        ended(start(consume, stdout=sink, stderr=subprocess.DEVNULL)),
    ):
        feed = Feed(producer)
        feed.start()
        yield output
        feed.over = True
        feed.join()


def streamforge(given, bootstrap):
    with tempfile.TemporaryDirectory(prefix="streamforge-recovery-") as name:
        work = pathlib.Path(name)
        (work / "job.yaml").write_text(JOB.format(bootstrap=bootstrap))
        command = [given.binary, "run", "job.yaml", "--store", "store", "--task-managers", 3]
        with traffic(bootstrap, work) as output, (work / "log").open("wb") as log:
            with ended(start(command, cwd=work, stdout=log, stderr=log)) as job:
                wait("steady output", lambda: is_steady(output), 60)
                gaps = []
                for _ in range(given.kills):
                    os.kill(given.rng.choice(children(job)), signal.SIGKILL)
                    gaps.append(gap(output, int(time.time() * 1000), 60))
                    print(f"StreamForge: {gaps[-1]} ms", file=sys.stderr)
                return gaps


def children(process):
    pids = []
    for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        pids += map(int, (thread / "children").read_text().split())
    return pids


def rest(path):
    with urllib.request.urlopen(f"http://{REST}{path}", timeout=5) as answer:
        return json.load(answer)


def registered():
    try:
        return rest("/taskmanagers")["taskmanagers"]
    except OSError:
        return []


def flink_process(class_path, work, name, heap, main, heartbeat_ms):
    conf = work / name
    conf.mkdir()
    settings = CLUSTER.format(
        name=name, heartbeat_ms=heartbeat_ms, interval_ms=heartbeat_ms // 5, checkpoints=work / "checkpoints"
    )
    (conf / "config.yaml").write_text(settings)
    options = [it for it in (BENCH / "flink/jvm.options").read_text().split() if "-Xm" not in it]
    memory = [f"-Xmx{heap}", "-XX:MaxDirectMemorySize=512m"]
    command = ["java", *options, *memory, "-cp", class_path, main, "--configDir", conf]
    log = (work / f"{name}.log").open("wb")
    return start(command, stdout=log, stderr=log)


def flink_gap(class_path, bootstrap, heartbeat_ms):
    entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
    worker = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
    with tempfile.TemporaryDirectory(prefix="flink-recovery-") as name, contextlib.ExitStack() as stack:
        work = pathlib.Path(name)
        stack.enter_context(ended(flink_process(class_path, work, "jm", "700m", entry, heartbeat_ms)))
        workers = {}
        for n in range(4):
            process = flink_process(class_path, work, f"tm{n}", "700m", worker, heartbeat_ms)
            workers[f"tm{n}"] = stack.enter_context(ended(process))
        wait("Flink's task managers", lambda: len(registered()) == 4, 90)
        (work / "setup.sql").write_text(SETUP.format(bootstrap=bootstrap))
        (work / "query.sql").write_text(QUERY)
        output = stack.enter_context(traffic(bootstrap, work))
        options = [it for it in (BENCH / "flink/jvm.options").read_text().split() if "-Xm" not in it]
        client = ["java", *options, "-Xmx512m", "-cp", class_path, "Queries"]
        client += [work / "setup.sql", work / "query.sql", 3, 1, work / "unused"]
        log = stack.enter_context((work / "client.log").open("wb"))
        remote = {**os.environ, "FLINK_REMOTE": REST}
        stack.enter_context(ended(start(client, env=remote, stdout=log, stderr=log)))
        wait("steady output of Flink", lambda: is_steady(output), 120)
        busy = [it["id"] for it in registered() if it["freeSlots"] == 0]
        os.kill(workers[busy[0]].pid, signal.SIGKILL)
        return gap(output, int(time.time() * 1000), 180)


def connector():
    """Flink's Kafka connector, fetched once; as kafka/compare.py does."""
    jar = flink.CACHE / f"flink-{flink.FLINK}/flink-sql-connector-kafka-5.0.0-2.2.jar"
    if not jar.exists():
        artifact = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
        maven = ["mvn", "--batch-mode", "--quiet", "--no-transfer-progress", "dependency:copy"]
        subprocess.run([*maven, f"-Dartifact={artifact}", f"-DoutputDirectory={jar.parent}"], check=True)
    return jar


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--kills", type=int, default=10)
    args.add_argument("--heartbeats", default="10000,50000", help="Flink's heartbeat.timeout, ms, a run each")
    args.add_argument("--only", choices=["flink", "streamforge"])
    args.add_argument("--seed", type=int, default=int(time.time()))
    args.add_argument("--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge"))
    given = args.parse_args()
    given.binary = pathlib.Path(given.binary).resolve()
    given.rng = random.Random(given.seed)
    bootstrap = os.environ["KAFKA_BOOTSTRAP"]
    rows = []
    if given.only != "flink":
        gaps = sorted(streamforge(given, bootstrap))
        median = f"{statistics.median(gaps):,.0f}"
        rows.append(f"| StreamForge, no spare task manager | {len(gaps)} | {median} | {gaps[-1]:,} |")
    if given.only != "streamforge":
        class_path = f"{flink.install_flink()}:{connector()}"
        for heartbeat_ms in map(int, given.heartbeats.split(",")):
            it = flink_gap(class_path, bootstrap, heartbeat_ms)
            print(f"Flink, heartbeat.timeout {heartbeat_ms} ms: {it} ms", file=sys.stderr)
            rows.append(f"| Flink 2.3, one spare, heartbeat.timeout {heartbeat_ms // 1000} s | 1 | {it:,} | {it:,} |")
    table = "\n".join(["| | kills | median, ms | worst, ms |", "|---|--:|--:|--:|", *rows])
    text = f"""# Recovery beside Flink, {datetime.date.today().isoformat()}

SIGKILL of one working task manager of three: the largest gap in the output of a job Kafka -> windows of 200 ms
-> Kafka at 5,000 rows/s, a checkpoint every second. Without a kill the gap is some 200 ms.

{table}

- Machine: {report.machine()}
- Commit: {report.commit()}
- Repeat: `e2e/services/with kafka -- bench/kafka/recovery.py --kills {given.kills} --seed {given.seed}`
"""
    print(text)
    if given.only is None:
        stem = f"{datetime.date.today().isoformat()}-recovery-kafka"
        (BENCH / f"results/{stem}.md").write_text(text)


if __name__ == "__main__":
    main()
