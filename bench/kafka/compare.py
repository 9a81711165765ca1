"""Kafka in, a 10 s tumble, Kafka out: the same topic and broker for Flink 2.3 and for StreamForge.

    compare.py [--rows 1000000] [--runs 5] [--parallelism 2] [--task-managers N]

Needs a broker (`e2e/services/with kafka -- ...` starts one and exports KAFKA_BOOTSTRAP), a release
build and Java 17; fetches Flink's jars from PyPI and its Kafka connector from Maven Central.
The topic has 4 partitions and bids of about 250 B. Each measurement is a fresh process; Flink runs
the query twice in its JVM and only the second, warm run counts (the INSERT alone), StreamForge's
figures are those of the whole process, start included. The broker's CPU is in neither. A run whose
output does not hold every bid is an error, not a figure. Writes bench/results/<date>-kafka.{md,svg}.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parent
sys.path[:0] = [str(BENCH), str(BENCH / "flink")]
import compare as flink  # noqa: E402  (the folders are known only now)
import report  # noqa: E402

CONNECTOR = "5.0.0-2.2"
KAFKA = BENCH.parent / "e2e/services/kafka"
DELIVERIES = {"at_least_once": ("at-least-once", "AtLeastOnce"), "exactly_once": ("exactly-once", "ExactlyOnce")}
NAMES = {"at_least_once": "at least once", "exactly_once": "exactly once"}
TARGETS = {"at_least_once": 4.0, "exactly_once": 4.0}


def tool(name, *arguments, **keywords):
    command = [KAFKA, "tool", f"org.apache.kafka.tools.{name}", *arguments]
    return subprocess.run(list(map(str, command)), check=True, **keywords)


def topic(bootstrap, name, partitions):
    """A topic of this name without a record in it."""
    at = ["--bootstrap-server", bootstrap]
    tool("TopicCommand", *at, "--delete", "--if-exists", "--topic", name, stdout=subprocess.DEVNULL)
    tool(
        "TopicCommand", *at, "--create", "--topic", name, "--partitions", partitions,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def load(bootstrap, rows):
    """Puts the bids into their topic."""
    folder = flink.CACHE / f"bids/{rows}-1"
    generate = [sys.executable, BENCH / "bids/generate.py", folder, "--rows", str(rows), "--files", "1"]
    subprocess.run(generate, check=True)
    topic(bootstrap, "bids", 4)
    (file,) = folder.glob("*.ndjson")
    with file.open("rb") as lines:
        tool("ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", "bids", stdin=lines, stdout=subprocess.DEVNULL)


def connector():
    """Flink's Kafka connector, fetched once."""
    jar = flink.CACHE / f"flink-{flink.FLINK}/flink-sql-connector-kafka-{CONNECTOR}.jar"
    if not jar.exists():
        artifact = f"org.apache.flink:flink-sql-connector-kafka:{CONNECTOR}"
        maven = ["mvn", "--batch-mode", "--quiet", "--no-transfer-progress", "dependency:copy"]
        subprocess.run([*maven, f"-Dartifact={artifact}", f"-DoutputDirectory={jar.parent}"], check=True)
    return jar


def counted(bootstrap, name, committed=True):
    """The bids that the windows in a topic counted."""
    isolation = "read_committed" if committed else "read_uncommitted"
    out = tool(
        "consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", name, "--from-beginning",
        "--timeout-ms", "5000", "--command-property", f"isolation.level={isolation}",
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ).stdout  # fmt: skip
    # Kafka's tools log to stdout, too.
    return sum(json.loads(line)["n"] for line in out.splitlines() if line.startswith(b"{"))


def run_flink(class_path, delivery, given, work):
    topic(given.bootstrap, "flink_out", 4)
    setup = work / "setup.sql"
    text = (HERE / "setup.sql").read_text()
    setup.write_text(text.replace("@BOOTSTRAP@", given.bootstrap).replace("@DELIVERY@", DELIVERIES[delivery][0]))
    checkpoints = work / "flink-checkpoints"
    options = (BENCH / "flink/jvm.options").read_text().split()
    arguments = [setup, BENCH / "flink/queries/tumble.sql", given.parallelism, 2, checkpoints]
    out, _, _, rss = flink.measured(["java", *options, "-cp", class_path, "Queries", *map(str, arguments)])
    shutil.rmtree(checkpoints, ignore_errors=True)
    warm = json.loads(out.splitlines()[-1])
    return {"wall_s": warm["wall_s"], "cpu_s": warm["cpu_s"], "rss_mb": rss}


def run_streamforge(delivery, given, work):
    topic(given.bootstrap, "streamforge_out", 4)
    job = work / "job.yaml"
    text = (HERE / "tumble.yaml").read_text()
    job.write_text(text.replace("@BOOTSTRAP@", given.bootstrap).replace("@DELIVERY@", DELIVERIES[delivery][1]))
    store = work / "store"
    shutil.rmtree(store, ignore_errors=True)
    command = [given.binary, "run", job, "--store", store, "--parallelism", given.parallelism]
    if given.task_managers:
        command += ["--task-managers", given.task_managers]
    _, wall, cpu, rss = flink.measured(list(map(str, command)), cwd=work)
    found = counted(given.bootstrap, "streamforge_out")
    if found != given.rows:
        sys.exit(f"{delivery}: the output counts {found:,} of {given.rows:,} bids")
    return {"wall_s": wall, "cpu_s": cpu, "rss_mb": rss}


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--rows", type=int, default=1_000_000)
    args.add_argument("--runs", type=int, default=5)
    args.add_argument("--parallelism", type=int, default=2)
    args.add_argument("--task-managers", type=int, default=0)
    args.add_argument("--bootstrap", default=os.environ.get("KAFKA_BOOTSTRAP"))
    args.add_argument("--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge"))
    args.add_argument("--only", choices=["flink", "streamforge"])
    given = args.parse_args()
    if not given.bootstrap:
        sys.exit("no broker: export KAFKA_BOOTSTRAP, or run this by e2e/services/with kafka --")
    given.binary = pathlib.Path(given.binary).resolve()
    load(given.bootstrap, given.rows)
    runs = {}
    with tempfile.TemporaryDirectory(prefix="streamforge-bench-") as work:
        work = pathlib.Path(work)
        class_path = None if given.only == "streamforge" else f"{flink.install_flink()}:{connector()}"
        for n in range(given.runs):
            for delivery in DELIVERIES:
                if given.only != "streamforge":
                    runs.setdefault((delivery, "flink"), []).append(run_flink(class_path, delivery, given, work))
                if given.only != "flink":
                    runs.setdefault((delivery, "streamforge"), []).append(run_streamforge(delivery, given, work))
                shown = {who: runs[d, who][-1] for d, who in runs if d == delivery}
                print(f"run {n + 1}, {delivery}: {json.dumps(shown)}", file=sys.stderr)
    result = {key: {k: statistics.median(run[k] for run in of) for k in of[0]} for key, of in runs.items()}
    table = report.table(result, list(DELIVERIES), given.rows, NAMES, TARGETS)
    print(table)
    if given.only is None:
        stem = f"{datetime.date.today().isoformat()}-kafka"
        text = f"""# Kafka to Kafka against Flink 2.3, {stem[:10]}

{given.rows:,} bids of about 250 B in a topic of 4 partitions, a 10 s tumble by bidder, JSON out; the
same broker for both, in turn; medians of {given.runs} runs; parallelism {given.parallelism}; a checkpoint every 10 s.
Flink's figures are those of a warm JVM (second run in its process); StreamForge's are those of the
whole process, start included. The broker runs on the same cores and is in neither.

{table}

![bars]({stem}.svg)

- Machine: {report.machine()}
- Commit: {report.commit()}
- Flink {flink.FLINK}, its Kafka connector {CONNECTOR}
- Repeat: `make bench-kafka`
"""
        (BENCH / f"results/{stem}.md").write_text(text)
        (BENCH / f"results/{stem}.svg").write_text(report.bars(result, list(DELIVERIES), given.rows, NAMES))


if __name__ == "__main__":
    main()
