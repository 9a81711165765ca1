"""The same bytes into Flink 2.3 and into StreamForge, in turn; medians; a table and a picture.

    compare.py [--rows 3000000] [--runs 5] [--parallelism 2] [--queries hop,tumble] [--only flink]

Each measurement is a fresh process. Flink runs the query twice in its JVM and only the second,
warm run counts (wall and CPU of the INSERT alone); StreamForge's figures are those of the whole
process, start included. Peak RSS is that of the whole process for both. Needs a release build of
streamforge and Java 17; fetches Flink's jars from PyPI. Writes bench/results/<date>-flink.{md,svg}.
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
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parent
sys.path.insert(0, str(BENCH))
import report  # noqa: E402  (the folder is known only now)

CACHE = pathlib.Path(os.environ.get("STREAMFORGE_CACHE", pathlib.Path.home() / ".cache/streamforge"))
FLINK = "2.3.0"
QUERIES = {
    "all_columns": "all columns",
    "filter": "filter, two columns",
    "hop": "hop 2 s/10 s, count",
    "tumble": "tumble 10 s, count",
}
# What the project set out to reach: rows per second against Flink's, and RSS.
TARGETS = {"all_columns": 5.0, "filter": 4.0, "hop": 5.0, "tumble": 4.0}


def install_flink():
    """Unpacks Flink's jars and compiles the runner; returns the class path."""
    home = CACHE / f"flink-{FLINK}"
    lib = home / "pyflink/lib"
    if not lib.is_dir():
        print(f"fetching Flink {FLINK} (330 MB) from PyPI", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run(
                [*pip, "--dest", folder, f"apache-flink-libraries=={FLINK}"], check=True
            )
            (package,) = pathlib.Path(folder).iterdir()
            with zipfile.ZipFile(package) as z:
                z.extractall(home)
    classes = home / "classes"
    classes.mkdir(exist_ok=True)
    path = ":".join(map(str, sorted(lib.glob("*.jar"))))
    subprocess.run(
        ["javac", "-cp", path, "-d", str(classes), str(HERE / "Queries.java")], check=True
    )
    return f"{path}:{classes}"


def measured(command, **keywords):
    """Runs a command; returns (stdout, wall seconds, CPU seconds, peak RSS in MB)."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=out, stderr=err, **keywords)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode != 0:
            sys.exit(f"{command[0]} exited with {child.returncode}:\n{err.read().decode()[-4000:]}")
        cpu = usage.ru_utime + usage.ru_stime
        return out.read().decode(), wall, cpu, usage.ru_maxrss / 1024


def run_flink(class_path, query, given, work):
    setup = work / "setup.sql"
    setup.write_text((HERE / "setup.sql").read_text().replace("@INPUT@", str(given.input)))
    checkpoints = work / "flink-checkpoints"
    options = (HERE / "jvm.options").read_text().split()
    arguments = [setup, HERE / f"queries/{query}.sql", given.parallelism, 2, checkpoints]
    out, _, _, rss = measured(
        ["java", *options, "-cp", class_path, "Queries", *map(str, arguments)]
    )
    shutil.rmtree(checkpoints, ignore_errors=True)
    warm = json.loads(out.splitlines()[-1])
    return {"wall_s": warm["wall_s"], "cpu_s": warm["cpu_s"], "rss_mb": rss}


def run_streamforge(query, given, work):
    job = work / f"{query}.yaml"
    text = (BENCH / f"jobs/{query}.yaml").read_text()
    job.write_text(text.replace("@INPUT@", f"{given.input}/*.ndjson"))
    store = work / "store"
    shutil.rmtree(store, ignore_errors=True)
    command = [given.binary, "run", job, "--store", store, "--parallelism", given.parallelism]
    _, wall, cpu, rss = measured(list(map(str, command)), cwd=work)
    return {"wall_s": wall, "cpu_s": cpu, "rss_mb": rss}


def medians(runs):
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--rows", type=int, default=3_000_000)
    args.add_argument("--files", type=int, default=4)
    args.add_argument("--runs", type=int, default=5)
    args.add_argument("--parallelism", type=int, default=2)
    args.add_argument("--queries", default=",".join(QUERIES))
    args.add_argument("--only", choices=["flink", "streamforge"])
    args.add_argument("--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge"))
    args.add_argument("--results", type=pathlib.Path, default=BENCH / "results")
    given = args.parse_args()
    given.binary = pathlib.Path(given.binary).resolve()
    given.input = CACHE / f"bids/{given.rows}-{given.files}"
    generate = [sys.executable, str(BENCH / "bids/generate.py"), str(given.input)]
    subprocess.run(
        [*generate, "--rows", str(given.rows), "--files", str(given.files)], check=True
    )
    queries = given.queries.split(",")
    runs = {}
    with tempfile.TemporaryDirectory(prefix="streamforge-bench-") as work:
        work = pathlib.Path(work)
        class_path = None if given.only == "streamforge" else install_flink()
        for n in range(given.runs):
            for query in queries:
                if given.only != "streamforge":
                    result = run_flink(class_path, query, given, work)
                    runs.setdefault((query, "flink"), []).append(result)
                if given.only != "flink":
                    result = run_streamforge(query, given, work)
                    runs.setdefault((query, "streamforge"), []).append(result)
                shown = {who: runs[q, who][-1] for q, who in runs if q == query}
                print(f"run {n + 1}, {query}: {json.dumps(shown)}", file=sys.stderr)
    result = {key: medians(of) for key, of in runs.items()}
    print(report.table(result, queries, given.rows, QUERIES, TARGETS))
    if given.only is None:
        stem = f"{datetime.date.today().isoformat()}-flink"
        report.write(given.results, stem, result, queries, given, QUERIES, TARGETS)


if __name__ == "__main__":
    main()
