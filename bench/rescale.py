"""How long moved key groups and splits pause when a running job is scaled from one subtask to two and back.

    rescale.py [--rounds 10] [--rate 20000] [--users 1000000] [--rows 1000000]

The job of recovery.py, its state filled first, then at a steady rate with checkpoints every 200 ms on two
task managers of one slot. `streamforge scale` is asked for 2 and 1 in turn. Measured, in the tasks
that gain something: from the hand-over's barrier to the moment they go on with it (its rows held
meanwhile included). Writes bench/results/<date>-rescale.md.

Needs a build of streamforge and streamforge-taskmanager.
"""

import argparse
import datetime
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import recovery
import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS_MAX = 60
PAUSE = re.compile(r"goes on with what it gained.*?task=(\d+)\.(\d+).*?pause_ms=(\d+)")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target/release/streamforge")
    parser.add_argument("--print", action="store_true", help="write no file")
    return parser.parse_args()


def scale(binary, folder, log_file, parallelism):
    before = log_file.read_text().count("handed over")
    command = [binary, "scale", "job.yaml", "--store", "store", "--parallelism", str(parallelism)]
    subprocess.run(list(map(str, command)), cwd=folder, check=True)
    until = time.monotonic() + SECONDS_MAX
    while log_file.read_text().count("handed over") == before:
        if time.monotonic() > until:
            sys.exit(f"no hand-over to {parallelism} within {SECONDS_MAX} s")
        time.sleep(0.01)


def main():
    args = arguments()
    binary = args.bin.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job = recovery.JOB.format(users=args.users, rate=args.rate)
        (folder / "job.yaml").write_text(job)
        log_file = folder / "log"
        with log_file.open("w") as log:
            recovery.fill(binary, folder, args.rows, args.rate, log)
            process = recovery.run(
                binary, folder, log, "--task-managers", "2", "--parallelism", "1"
            )
            try:
                recovery.wait_for(
                    "the first output", lambda: recovery.attempts(folder), process, SECONDS_MAX
                )
                time.sleep(2)
                for n in range(args.rounds):
                    scale(binary, folder, log_file, 2 - n % 2)
                    time.sleep(1)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
        size = recovery.state_bytes(folder)
        text = log_file.read_text()
    found = [(int(stage), int(ms)) for stage, _, ms in PAUSE.findall(text)]
    if "attempt failed" in text:
        sys.exit("an attempt failed: a hand-over is to restart nothing")
    lines = [
        f"# Rescale 1 -> 2 -> 1, {datetime.date.today()}",
        "",
        f"- Machine: {report.machine()}",
        f"- Commit: {report.commit()}",
        "",
        f"{args.rounds} hand-overs, {size / 1e6:.0f} MB in the store's parts, {args.rate:,} rows/s, nothing"
        " restarted.",
        "",
        "| what moved | hand-overs | median pause | longest |",
        "|---|---|---|---|",
    ]
    for stage in sorted({stage for stage, _ in found}):
        pauses = [ms for of, ms in found if of == stage]
        what = "splits" if stage == 0 else "key groups"
        median = statistics.median(pauses)
        lines.append(f"| {what} | {len(pauses)} | {median:.0f} ms | {max(pauses)} ms |")
    page = "\n".join(lines) + "\n"
    print(page)
    if not args.print:
        (ROOT / f"bench/results/{datetime.date.today()}-rescale.md").write_text(page)


if __name__ == "__main__":
    main()
