"""How long output stops when one of three task managers is killed.

    recovery.py [--kills 50] [--rate 20000] [--users 1000000] [--seed N]

A job with a large keyed state (an hour's window over many users) and a small branch that writes every
thousandth row, at a steady rate with checkpoints every 200 ms. Its state is filled first, as fast as it
goes. Then a random task manager is killed again and again, each time when all of them have work. Measured: from the SIGKILL to the first newly visible file of a *new* attempt, which is committed
and published. At the end the job is stopped. Writes bench/results/<date>-recovery.{md,svg}.

Needs a build of streamforge and streamforge-taskmanager.
"""

import argparse
import datetime
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
# A kill after which nothing comes for so long is a failure.
SECONDS_MAX = 30

JOB = """
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: recovery}}
spec:
  parallelism: 3
  sources:
    - name: clicks
      generator: {{clicks: {{rows: 2000000000, users: {users}, skew: 0.0, outOfOrderness: 1s, seed: 7}}}}
      eventTime: {{column: ts, maxOutOfOrderness: 1s}}
      rateLimit: {{rowsPerSecond: {rate}}}
  transforms:
    - {{name: few, from: clicks, filter: "user_id LIKE '%000'"}}
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {{tumbling: {{size: 30d}}}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {{name: seen, from: few, file: {{path: out/seen/}}, format: {{json: {{}}}}}}
    - {{name: results, from: per_user, file: {{path: out/per_user/}}, format: {{json: {{}}}}}}
  checkpoint: {{interval: 200ms, retain: 3}}
  failureDetection: {{heartbeat: 500ms, timeout: 5s}}
  restart: {{backoff: {{initial: 100ms, max: 1s}}}}
"""


def attempts(folder):
    """The attempts that visible files are of -> the subtasks that wrote them."""
    found = {}
    for path in (folder / "out/seen").glob("*.ndjson"):
        # part-<sink>-<attempt>-<checkpoint>-<slot>-<n>
        pieces = path.stem.split("-")
        found.setdefault(int(pieces[2]), set()).add(int(pieces[4]))
    return found


def is_whole(folder):
    """Whether the newest attempt has output of all its subtasks: none of them is spare."""
    found = attempts(folder)
    return bool(found) and len(found[max(found)]) == 3


def children(process):
    pids = []
    for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        pids += map(int, (thread / "children").read_text().split())
    return pids


def run(binary, folder, log, *arguments):
    command = [binary, "run", "job.yaml", "--store", "store", *arguments]
    return subprocess.Popen(
        list(map(str, command)), cwd=folder, stdout=subprocess.DEVNULL, stderr=log
    )


def state_bytes(folder):
    return sum(path.stat().st_size for path in (folder / "store/parts").rglob("*") if path.is_file())


def wait_for(what, condition, process, seconds=SECONDS_MAX):
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            sys.exit(f"the job ended while waiting for {what}")
        if time.monotonic() > until:
            sys.exit(f"{what} did not come within {seconds} s")
        time.sleep(0.002)


def fill(binary, folder, rows, rate, log):
    """Runs without a limit until so many rows are read, then stops with a checkpoint."""
    document = (folder / "job.yaml").read_text()
    fast = document.replace(f"rowsPerSecond: {rate}", "rowsPerSecond: 100000000")
    (folder / "job.yaml").write_text(fast)
    process = run(binary, folder, log)
    until = time.monotonic() + rows / 400_000
    time.sleep(max(0, until - time.monotonic()))
    process.send_signal(signal.SIGTERM)
    if process.wait(timeout=120) != 3:
        sys.exit("the job did not stop with a checkpoint")
    (folder / "job.yaml").write_text(document)


def measure(binary, folder, kills, rng, log):
    process = run(binary, folder, log, "--task-managers", "3")
    times = []
    try:
        wait_for("the first output", lambda: attempts(folder), process, 60)
        for n in range(kills):
            wait_for("all subtasks", lambda: is_whole(folder), process)
            time.sleep(rng.random())
            attempt = max(attempts(folder))
            victim = rng.choice(children(process))
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            wait_for(
                f"output after kill {n + 1}", lambda: max(attempts(folder)) > attempt, process
            )
            times.append(time.monotonic() - killed)
            print(f"kill {n + 1}: {times[-1] * 1000:.0f} ms", file=sys.stderr)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    return times


def histogram(times):
    """An SVG with one bar per 100 ms."""
    step, width, height = 0.1, 640, 240
    bars = [0] * (int(max(times) / step) + 1)
    for it in times:
        bars[int(it / step)] += 1
    bar = width / max(len(bars), 10)
    shapes = []
    for n, count in enumerate(bars):
        tall = (height - 40) * count / max(bars)
        shapes.append(
            f'<rect x="{n * bar:.1f}" y="{height - 20 - tall:.1f}" width="{bar - 2:.1f}" '
            f'height="{tall:.1f}" fill="#4878a8"/>'
        )
        if n % 2 == 0:
            shapes.append(
                f'<text x="{n * bar:.1f}" y="{height - 5}" font-size="11">{n * step:.1f} s</text>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif">{"".join(shapes)}</svg>\n'
    )


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--kills", type=int, default=50)
    args.add_argument("--rate", type=int, default=20_000)
    args.add_argument("--users", type=int, default=1_000_000)
    args.add_argument("--fill", type=int, default=6_000_000, help="rows, about, to fill the state with")
    args.add_argument("--seed", type=int, default=int(time.time()))
    args.add_argument(
        "--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge")
    )
    args = args.parse_args()
    binary = pathlib.Path(args.binary).resolve()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="streamforge-recovery-") as name:
        folder = pathlib.Path(name)
        (folder / "job.yaml").write_text(JOB.format(users=args.users, rate=args.rate))
        with open(folder / "stderr.log", "w") as log:
            fill(binary, folder, args.fill, args.rate, log)
            state = state_bytes(folder)
            try:
                times = measure(binary, folder, args.kills, rng, log)
            except SystemExit:
                kept = pathlib.Path(tempfile.gettempdir()) / "recovery-stderr.log"
                kept.write_bytes((folder / "stderr.log").read_bytes())
                print(f"its log is {kept}", file=sys.stderr)
                raise
    times.sort()
    text = f"""# Recovery, {datetime.date.today().isoformat()}

{len(times)} SIGKILLs of one of three task managers, {args.rate:,} rows/s, checkpoints every 200 ms,
{state / 1e6:.0f} MB of state in the store. From the signal to the first output that the next attempt
committed and published:

| | ms |
|---|--:|
| median | {statistics.median(times) * 1000:.0f} |
| 90 % | {times[int(len(times) * 0.9)] * 1000:.0f} |
| worst | {times[-1] * 1000:.0f} |

- Machine: {report.machine()}
- Commit: {report.commit()}
- Repeat: `bench/recovery.py --kills {args.kills} --seed {args.seed}`
"""
    print(text)
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{datetime.date.today().isoformat()}-recovery"
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".svg").write_text(histogram(times))


if __name__ == "__main__":
    main()
