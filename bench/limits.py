"""Memory, checkpoints and scaling on this machine: the figures that are not about Flink.

    limits.py [slow-sink] [single-keys] [checkpoints] [scaling] [processes]        default: all of them

slow-sink    a sink of 1,000 rows/s behind a source at full speed: RSS stays flat for 60 s
single-keys  1,000,000 keys with one event each: their state is gone once the watermark passed
checkpoints  the tumbling bids query with a checkpoint every second against one without
scaling      one subtask against two, for many files and for one big file
processes    one task manager of one slot against two, rows shuffled between them by gRPC

Needs a release build of streamforge. Writes bench/results/<date>-limits.md.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH / "flink")]
import report  # noqa: E402  (the folders are known only now)
from compare import CACHE, measured  # noqa: E402

ROWS = 3_000_000
# Long enough that the start of the process does not count.
SCALING_ROWS = 12_000_000
SLOW_SINK_SECONDS = 60
# What comes before is the process filling its buffers once.
WARM_UP_SECONDS = 10

SLOW_SINK = """
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: slow-sink}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {clicks: {users: 1000, seed: 1}}
      eventTime: {column: ts}
  transforms:
    - {name: some, from: clicks, filter: "amount >= 0"}
  sinks:
    - {name: out, from: some, file: {path: out/}, format: {json: {}}, rateLimit: {rowsPerSecond: 1000}}
  checkpoint: {interval: 1s}
"""

SINGLE_KEYS = """
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: single-keys}
spec:
  parallelism: 2
  sources:
    - name: events
      file: {path: "in/*.ndjson", order: ByName}
      format: {json: {}}
      schema: [{name: k, type: BIGINT, nullable: false}, {name: ts, type: TIMESTAMP, parse: EpochMillis}]
      eventTime: {column: ts, maxOutOfOrderness: 1s}
      rateLimit: {rowsPerSecond: 400000}
  transforms:
    - name: per_key
      from: events
      aggregate:
        groupBy: [k]
        window: {tumbling: {size: 10s}}
        select: ["count(*) AS n"]
  sinks:
    - {name: out, from: per_key, blackhole: {}}
  checkpoint: {interval: 250ms}
"""


def rss_mb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def manifest(binary, store):
    command = [binary, "checkpoints", "show", "--store", store, "-o", "json"]
    shown = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return json.loads(shown.stdout) if shown.returncode == 0 else None


def state_rows(manifest):
    parts = (part for state in manifest["operators"].values() for part in state["parts"])
    return sum(block["rows"] for part in parts for block in part["blocks"])


def start(binary, work, document):
    (work / "job.yaml").write_text(document)
    command = [binary, "run", "job.yaml", "--store", "store", "--progress", "none"]
    return subprocess.Popen(list(map(str, command)), cwd=work)


def slow_sink(binary, work):
    child = start(binary, work, SLOW_SINK)
    seen = []
    for _ in range(SLOW_SINK_SECONDS):
        time.sleep(1)
        seen.append(rss_mb(child.pid))
    child.send_signal(signal.SIGTERM)
    code = child.wait(timeout=120)
    steady = seen[WARM_UP_SECONDS:]
    return (
        f"Slow sink: RSS {steady[0]:,.0f} MB after {WARM_UP_SECONDS} s, then between "
        f"{min(steady):,.0f} and {max(steady):,.0f} MB until {SLOW_SINK_SECONDS} s; stopped with exit {code}."
    )


def single_keys(binary, work):
    folder = work / "in"
    folder.mkdir()
    with open(folder / "a.ndjson", "w", buffering=1 << 20) as file:
        # A tenth of the keys in each window; at the end one row far ahead, for the watermark.
        for n in range(1_000_000):
            file.write(f'{{"k":{n},"ts":{1_700_000_000_000 + n // 10}}}\n')
        file.write('{"k":-1,"ts":1700001000000}\n')
    child = start(binary, work, SINGLE_KEYS)
    most, last = 0, 0
    while child.poll() is None:
        shown = manifest(binary, work / "store")
        if shown:
            last = state_rows(shown)
            most = max(most, last)
        time.sleep(0.05)
    final = state_rows(manifest(binary, work / "store"))
    return (
        f"Single-event keys: 1,000,000 keys in windows of 100,000; at most {most:,} groups in a "
        f"checkpoint, {final:,} in the final one; exit {child.returncode}."
    )


def bids(files, rows=ROWS):
    folder = CACHE / f"bids/{rows}-{files}"
    subprocess.run(
        [sys.executable, BENCH / "bids/generate.py", folder, "--rows", str(rows), "--files", str(files)],
        check=True,
    )
    return folder


def timed(binary, work, query, folder, parallelism, interval, *arguments):
    job = work / f"{query}.yaml"
    text = (BENCH / f"jobs/{query}.yaml").read_text().replace("@INPUT@", f"{folder}/*.ndjson")
    job.write_text(text.replace("interval: 10s", f"interval: {interval}"))
    shutil.rmtree(work / "store", ignore_errors=True)
    command = [binary, "run", job, "--store", work / "store", "--parallelism", parallelism, *arguments]
    _, wall, cpu, _ = measured(list(map(str, command)), cwd=work)
    return wall, cpu


def checkpoints(binary, work):
    folder = bids(4)
    walls = {"1s": [], "1h": []}
    for _ in range(5):
        for interval, of in walls.items():
            of.append(timed(binary, work, "tumble", folder, 2, interval)[0])
    often, never = (statistics.median(walls[i]) for i in ("1s", "1h"))
    return (
        f"Checkpoints: tumble over {ROWS:,} bids in {often:.2f} s with one every second, {never:.2f} s "
        f"without: {never / often:.2f}× the throughput."
    )


def scaling(binary, work):
    lines = []
    for files in (4, 1):
        folder = bids(files, SCALING_ROWS)
        for query in ("hop", "tumble"):
            runs = {1: [], 2: []}
            for _ in range(5):
                for parallelism, of in runs.items():
                    of.append(timed(binary, work, query, folder, parallelism, "10s"))
            (one, cpu_one), (two, cpu_two) = (
                map(statistics.median, zip(*runs[p], strict=True)) for p in (1, 2)
            )
            lines.append(
                f"Scaling: {query} over {SCALING_ROWS:,} bids, {files} file(s): {one:.2f} s with 1 "
                f"subtask ({cpu_one / one:.2f} cores busy), {two:.2f} s with 2 ({cpu_two / two:.2f} cores): "
                f"{one / two:.2f}×; {cpu_two / cpu_one:.2f}× the CPU seconds."
            )
    return "\n- ".join(lines)


def processes(binary, work):
    lines = []
    folder = bids(4, SCALING_ROWS)
    for query in ("hop", "tumble"):
        runs = {1: [], 2: []}
        for _ in range(3):
            for n, of in runs.items():
                of.append(timed(binary, work, query, folder, n, "10s", "--task-managers", n))
        (one, cpu_one), (two, cpu_two) = (
            map(statistics.median, zip(*runs[n], strict=True)) for n in (1, 2)
        )
        lines.append(
            f"Processes: {query} over {SCALING_ROWS:,} bids in {one:.2f} s with 1 task manager "
            f"({cpu_one / one:.2f} cores busy), {two:.2f} s with 2 ({cpu_two / two:.2f} cores): "
            f"{one / two:.2f}×; {cpu_two / cpu_one:.2f}× the CPU seconds."
        )
    return "\n- ".join(lines)


def main():
    parts = {"slow-sink": slow_sink, "single-keys": single_keys, "checkpoints": checkpoints, "scaling": scaling}
    parts["processes"] = processes
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("part", nargs="*", help=", ".join(parts) + "; default: all")
    args.add_argument(
        "--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge")
    )
    args = args.parse_args()
    binary = pathlib.Path(args.binary).resolve()
    if unknown := set(args.part) - set(parts):
        sys.exit(f"no such part: {', '.join(unknown)}; there are {', '.join(parts)}")
    lines = []
    for name in args.part or parts:
        with tempfile.TemporaryDirectory(prefix="streamforge-limits-") as work:
            lines.append(parts[name](binary, pathlib.Path(work)))
            print(lines[-1], file=sys.stderr)
    text = f"# Memory, checkpoints, scaling, {datetime.date.today().isoformat()}\n\n"
    text += "".join(f"- {line}\n" for line in lines)
    text += f"- Machine: {report.machine()}\n- Commit: {report.commit()}\n- Repeat: `make limits`\n"
    print(text)
    if len(lines) == len(parts):
        (BENCH / f"results/{datetime.date.today().isoformat()}-limits.md").write_text(text)


if __name__ == "__main__":
    main()
