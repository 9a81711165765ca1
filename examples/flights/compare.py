"""Runs the three flights jobs at several parallelisms and compares their output with DuckDB.

    compare.py [--parallelism 1,2,4] [--inputs months,one] [--jobs departures,origins,tails]

Every output row must be equal to DuckDB's: exactly, and means of doubles within 1e-9. Exit 0 when no row
differs, no event time disagrees with the file's time_hour, and nothing was late or bad.
Needs duckdb (make flights installs it), data/ (fetch.py) and a build of streamforge.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import duckdb

HERE = pathlib.Path(__file__).resolve().parent
# The one file as it is, or a file per month read in the order of their names.
INPUTS = {
    "months": ("data/months/*.csv", "26h"),
    "one": ("data/flights.csv", "340d"),
}
# For each job: the columns compared exactly (with their types), those compared as numbers, and the
# same result as a query over all flights.
FLIGHTS = """
CREATE VIEW flights AS
SELECT *, CAST(make_timestamp(year, month, day, sched_dep_time // 100, sched_dep_time % 100, 0)
  AT TIME ZONE 'America/New_York' AS TIMESTAMP) AS ts
FROM read_csv('{data}', nullstr = 'NA')
"""
JOBS = {
    "departures": (
        {
            "carrier": "VARCHAR",
            "window_start": "TIMESTAMP",
            "window_end": "TIMESTAMP",
            "scheduled": "BIGINT",
            "departed": "BIGINT",
            "cancelled": "BIGINT",
            "delay_minutes": "BIGINT",
            "delay_mean": "DECIMAL(38, 6)",
        },
        [],
        """
SELECT carrier, date_trunc('hour', ts) AS window_start, window_start + INTERVAL 1 HOUR AS window_end,
  count(*) AS scheduled, count(dep_time) AS departed,
  count(*) FILTER (WHERE dep_time IS NULL) AS cancelled,
  CAST(sum(dep_delay) AS BIGINT) AS delay_minutes,
  -- The mean of integers is exact: rounded half away from zero at the sixth digit.
  CAST(sign(sum(dep_delay)) * ((abs(sum(dep_delay)) * 2000000 + count(dep_delay))
    // (2 * count(dep_delay))) AS DECIMAL(38, 6)) / 1000000 AS delay_mean_,
  CAST(delay_mean_ AS DECIMAL(38, 6)) AS delay_mean
FROM flights GROUP BY carrier, date_trunc('hour', ts)
""",
    ),
    "origins": (
        {
            "origin": "VARCHAR",
            "window_start": "TIMESTAMP",
            "window_end": "TIMESTAMP",
            "departures": "BIGINT",
            "carriers": "BIGINT",
            "delay_max": "BIGINT",
        },
        ["delay_mean"],
        """
SELECT origin, window_start, window_start + INTERVAL 6 HOUR AS window_end,
  count(*) AS departures, count(DISTINCT carrier) AS carriers, avg(dep_delay) AS delay_mean,
  max(dep_delay) AS delay_max
FROM (
  SELECT *, unnest(generate_series(0, 5)) AS back,
    date_trunc('hour', ts) - back * INTERVAL 1 HOUR AS window_start
  FROM flights WHERE dep_time IS NOT NULL)
GROUP BY origin, window_start
""",
    ),
    "tails": (
        {
            "tailnum": "VARCHAR",
            "window_start": "TIMESTAMP",
            "window_end": "TIMESTAMP",
            "flights": "BIGINT",
            "airports": "BIGINT",
            "delay_minutes": "BIGINT",
        },
        [],
        """
SELECT tailnum, min(ts) AS window_start, max(ts) + INTERVAL 8 HOUR AS window_end,
  count(*) AS flights, count(DISTINCT origin) AS airports,
  CAST(sum(dep_delay) AS BIGINT) AS delay_minutes
FROM (
  SELECT *, sum(opens) OVER (PARTITION BY tailnum ORDER BY ts ROWS UNBOUNDED PRECEDING) AS spell
  FROM (
    SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY tailnum ORDER BY ts) < INTERVAL 8 HOUR
      THEN 0 ELSE 1 END AS opens
    FROM flights WHERE dep_time IS NOT NULL))
GROUP BY tailnum, spell
""",
    ),
}


def connect(folder=HERE):
    """A connection with the view `flights` over the original file."""
    db = duckdb.connect()
    db.execute("SET timezone = 'UTC'").fetchall()
    db.execute(FLIGHTS.format(data=folder / "data/flights.csv")).fetchall()
    return db


def number(db, query):
    """The one number that a query answers."""
    return db.execute(query).fetchall()[0][0]


def rows_of(files, columns):
    """A query for the rows of all files a sink published; none when there are no files."""
    names = sorted(map(str, files.glob("*.ndjson")))
    if not names:
        cells = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns.items())
        return f"SELECT {cells} WHERE false"
    spec = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
    return (
        f"SELECT * FROM read_json({names}, format = 'newline_delimited', columns = {{{spec}}})"
    )


def differing(db, job, out):
    """How many rows the published output and DuckDB's result do not have in common."""
    exact, means, query = JOBS[job]
    columns = exact | {name: "DOUBLE" for name in means}
    db.execute(f"CREATE OR REPLACE TEMP TABLE got AS {rows_of(out / job, columns)}").fetchall()
    db.execute(f"CREATE OR REPLACE TEMP TABLE want AS {query}").fetchall()
    names = ", ".join(exact)
    n = 0
    for one, other in (("got", "want"), ("want", "got")):
        n += number(
            db,
            f"SELECT count(*) FROM "
            f"(SELECT {names} FROM {one} EXCEPT ALL SELECT {names} FROM {other})",
        )
    same = " AND ".join(f"w.{name} IS NOT DISTINCT FROM g.{name}" for name in exact)
    for mean in means:
        n += number(
            db,
            f"SELECT count(*) FROM want w JOIN got g ON {same} WHERE (w.{mean} IS NULL) <> "
            f"(g.{mean} IS NULL) OR abs(w.{mean} - g.{mean}) > 1e-9 * greatest(1, abs(w.{mean}))",
        )
    return n, number(db, "SELECT count(*) FROM want")


def lines_in(folder):
    return sum(1 for f in folder.glob("*.ndjson") for _ in f.open("rb"))


def documents(work, job, data, given_input):
    """Writes the job's document with absolute paths into `work`; returns its path."""
    path, disorder = INPUTS[given_input]
    text = (HERE / f"{job}.yaml").read_text()
    text = text.replace("data/months/*.csv", str(data / path))
    text = text.replace("maxOutOfOrderness: 26h", f"maxOutOfOrderness: {disorder}")
    text = text.replace("path: out/", f"path: {work}/out/")
    document = work / f"{job}.yaml"
    document.write_text(text)
    return document


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--parallelism", default="1,2,4")
    args.add_argument("--inputs", default=",".join(INPUTS))
    args.add_argument("--jobs", default=",".join(JOBS))
    args.add_argument(
        "--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge")
    )
    args = args.parse_args()
    binary = pathlib.Path(args.binary).resolve()
    db = connect()
    wrong_hours = number(
        db,
        "SELECT count(*) FROM flights WHERE date_trunc('hour', ts) <> CAST(time_hour AS TIMESTAMP)",
    )
    print(f"event times that disagree with time_hour, in DuckDB: {wrong_hours}")
    failed = wrong_hours
    for job in args.jobs.split(","):
        for given_input in args.inputs.split(","):
            for parallelism in args.parallelism.split(","):
                with tempfile.TemporaryDirectory(prefix="streamforge-flights-") as work:
                    work = pathlib.Path(work)
                    document = documents(work, job, HERE, given_input)
                    store = work / "store"
                    command = [binary, "run", document, "--store", store]
                    start = time.monotonic()
                    run = subprocess.run(
                        [*command, "--parallelism", parallelism], capture_output=True, text=True
                    )
                    took = time.monotonic() - start
                    if run.returncode != 0:
                        sys.exit(f"{job}: exit {run.returncode}\n{run.stderr[-4000:]}")
                    n, rows_n = differing(db, job, work / "out")
                    late = lines_in(work / f"out/{job}_late")
                    bad = lines_in(work / f"out/{job}_bad")
                    wrong = lines_in(work / "out/wrong_hours")
                    failed += n + late + bad + wrong
                    print(
                        f"{job}, {given_input}, parallelism {parallelism}: {rows_n:,} rows, "
                        f"{n} differ, {late} late, {bad} bad, {wrong} wrong hours, {took:.1f} s"
                    )
    print("all equal" if failed == 0 else "NOT EQUAL")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
