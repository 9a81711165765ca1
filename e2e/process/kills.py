"""The kill ledger: SIGKILLs at random moments, each resumed at another parallelism.

    kills.py [--kills 200] [--seed N] [--jobs departures,origins,tails,tails-one,clicks]
             [--task-managers 3]

Runs the jobs of examples/flights and a clicks job over and over, killing the process at random
moments until the kills are used up; then every job is let run to its end. With --task-managers the
tasks run in so many processes, and what is killed is one of them, several at once, or the coordinator
with all. After each kill every
visible output file must be whole and those seen before must be unchanged; at each end `streamforge
verify` must find no difference, and for the flights DuckDB must agree to the last row. Writes
bench/results/<date>-kills.md. Exit 0 when nothing differed.

Needs a build of streamforge, the flights (examples/flights/fetch.py) and duckdb.
"""

import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples/flights"), str(ROOT / "bench")]
import compare  # noqa: E402  (the folders are known only now)
import report  # noqa: E402

# What slows a job down so that kills find it at work, and how often it takes a checkpoint.
SLOW = "      rateLimit: {rowsPerSecond: 80000}\n"
CHECKPOINT = "checkpoint: {interval: 100ms}"
# A process that takes longer than this to end by itself hangs.
END_SECONDS_MAX = 300


class Job:
    """One job in a folder of its own, until it has ended and its result was compared."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.folder = folder
        self.store = folder / "store"
        self.seen = {}
        self.kills = 0
        folder.mkdir(parents=True)
        if kind == "clicks":
            text = (ROOT / "examples/clicks/job.yaml").read_text()
            text = text.replace("path: out/", f"path: {folder}/out/")
            text = text.replace("rows: 4000000", "rows: 500000")
            text = text.replace("      eventTime:", SLOW + "      eventTime:")
            self.document = folder / "job.yaml"
        else:
            name, _, given_input = kind.partition("-")
            self.document = compare.documents(
                folder, name, ROOT / "examples/flights", given_input or "months"
            )
            text = self.document.read_text().replace("      eventTime:", SLOW + "      eventTime:")
        lines = [line for line in text.splitlines() if not line.startswith("  checkpoint:")]
        self.document.write_text("\n".join([*lines, f"  {CHECKPOINT}"]) + "\n")

    def start(self, binary, parallelism, task_managers):
        command = [binary, "run", self.document, "--store", self.store, "--parallelism", parallelism]
        if task_managers:
            command += ["--task-managers", task_managers]
        log = open(self.folder / "stderr.log", "w")
        return subprocess.Popen(
            list(map(str, command)), stdout=subprocess.DEVNULL, stderr=log, cwd=self.folder
        )

    def look(self):
        """Complaints about what is visible now, compared with the last look."""
        complaints = []
        now = {}
        for path in sorted((self.folder / "out").rglob("*.ndjson")):
            if any(part.startswith(("_", ".")) for part in path.relative_to(self.folder).parts):
                continue
            data = path.read_bytes()
            now[path] = hashlib.sha256(data).hexdigest()
            if path in self.seen:
                continue
            try:
                whole = data.endswith(b"\n") and all(json.loads(x) for x in data.splitlines())
            except ValueError:
                whole = False
            if not whole:
                complaints.append(f"half-written: {path.name}")
        for path, digest in self.seen.items():
            if now.get(path) != digest:
                complaints.append(f"changed or gone: {path.name}")
        self.seen = now
        return complaints

    def differences(self, binary, db):
        """Complaints about the finished job's result."""
        complaints = []
        verify = subprocess.run(
            list(map(str, [binary, "verify", self.document, "--store", self.store])),
            capture_output=True,
            text=True,
            cwd=self.folder,
        )
        if verify.returncode != 0:
            complaints.append(f"verify: {(verify.stdout + verify.stderr)[-1500:]}")
        if self.kind != "clicks":
            name = self.kind.partition("-")[0]
            n, _ = compare.differing(db, name, self.folder / "out")
            if n:
                complaints.append(f"DuckDB: {n} rows differ")
        return complaints


def children(process):
    """The processes that it started."""
    pids = []
    for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        try:
            pids += map(int, (thread / "children").read_text().split())
        except FileNotFoundError:
            pass  # the thread has just ended
    return pids


def kill_task_managers(process, rng):
    """Kills one of them, or several at once; returns how many."""
    there = children(process)
    victims = rng.sample(there, rng.randint(1, len(there)) if rng.random() < 0.3 else min(1, len(there)))
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended
    return len(victims)


def one_life(job, binary, rng, kill, task_managers, kinds):
    """Starts the job once; returns 'killed', 'ended' or a complaint."""
    process = job.start(binary, rng.randint(1, 4), task_managers)
    if kill and task_managers:
        # Some task managers first, while the coordinator lives.
        for _ in range(rng.randint(0, 4)):
            try:
                process.wait(timeout=rng.uniform(0.1, kill))
                break
            except subprocess.TimeoutExpired:
                n = kill_task_managers(process, rng)
                kinds["task manager" if n == 1 else "several task managers"] += 1
    if kill:
        try:
            process.wait(timeout=rng.uniform(0, kill))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kinds["coordinator and all task managers" if task_managers else "the process"] += 1
            return "killed"
    else:
        process.wait(timeout=END_SECONDS_MAX)
    if process.returncode != 0:
        text = (job.folder / "stderr.log").read_text()
        return f"exit {process.returncode}: {text[-1500:]}"
    return "ended"


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--kills", type=int, default=200)
    args.add_argument("--seed", type=int, default=None)
    args.add_argument("--jobs", default="departures,origins,tails,tails-one,clicks")
    args.add_argument("--task-managers", type=int, default=0, help="0: all in one process")
    args.add_argument("--within", type=float, default=1.5, help="seconds until a kill, at most")
    args.add_argument("--keep", action="store_true", help="keep the folder of a job that differs")
    args.add_argument(
        "--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge")
    )
    args = args.parse_args()
    binary = pathlib.Path(args.binary).resolve()
    seed = args.seed if args.seed is not None else int(time.time())
    rng = random.Random(seed)
    print(f"seed {seed}", file=sys.stderr)
    db = compare.connect()
    kinds = args.jobs.split(",")
    kills = collections.Counter()
    how_killed = collections.Counter()
    ends = collections.Counter()
    complaints = []
    with tempfile.TemporaryDirectory(prefix="streamforge-kills-") as folder:
        jobs, made = {}, 0
        while sum(kills.values()) < args.kills or jobs:
            killing = sum(kills.values()) < args.kills
            kind = rng.choice(kinds if killing else list(jobs))
            if kind not in jobs:
                made += 1
                jobs[kind] = Job(kind, pathlib.Path(folder) / f"{made}-{kind}")
            job = jobs[kind]
            within = args.within if killing else None
            how = one_life(job, binary, rng, within, args.task_managers, how_killed)
            found = job.look()
            if how == "killed":
                kills[kind] += 1
                job.kills += 1
            elif how == "ended":
                ends[kind] += 1
                found += job.differences(binary, db)
            else:
                found.append(how)
            if how == "ended" or found:
                kept = pathlib.Path(tempfile.gettempdir()) / f"kept-{job.folder.name}"
                if found and args.keep:
                    shutil.copytree(job.folder, kept, dirs_exist_ok=True)
                shutil.rmtree(job.folder)
                del jobs[kind]
                state = "; ".join(found) or "equal"
                print(
                    f"{sum(kills.values())} kills; {kind} after {job.kills}: {state}",
                    file=sys.stderr,
                )
            complaints += [f"{kind}: {what}" for what in found]
    text = ledger(seed, kinds, kills, how_killed, ends, complaints)
    print(text)
    results = ROOT / "bench/results"
    results.mkdir(exist_ok=True)
    name = "kills-task-managers" if args.task_managers else "kills"
    (results / f"{datetime.date.today().isoformat()}-{name}.md").write_text(text)
    sys.exit(bool(complaints))


def ledger(seed, kinds, kills, how_killed, ends, complaints):
    killed = "\n".join(f"| {what} | {n} |" for what, n in sorted(how_killed.items()))
    rows = "\n".join(f"| {kind} | {kills[kind]} | {ends[kind]} |" for kind in kinds)
    found = "\n".join(f"- {what}" for what in complaints) or "None."
    return f"""# Kill ledger, {datetime.date.today().isoformat()}

{sum(kills.values())} SIGKILLs at random moments, each followed by a resume at a random parallelism
of 1 to 4; {sum(ends.values())} jobs came to their end and were compared (`verify`, and DuckDB for
the flights). Checkpoints every 100 ms.

| job | kills | ends compared |
|---|--:|--:|
{rows}

| killed | times |
|---|--:|
{killed}

Differences, and files half-written, changed or gone: {len(complaints)}

{found}

- Machine: {report.machine()}
- Commit: {report.commit()}
- Repeat: `make kills`, this run with `--seed {seed}`
"""


if __name__ == "__main__":
    main()
