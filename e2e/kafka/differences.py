"""Compares the result of a job of the kill ledger with DuckDB's.

    differences.py tumbling|hopping|session INPUT.ndjson FOLDER

INPUT has rows of k, n and ts (seconds); FOLDER has the result's files, NDJSON or Parquet, with rows of
k, t0, t1, c and s. Prints how many rows differ and some of them; exit 0 when none does.
"""

import pathlib
import sys

import duckdb

QUERIES = {
    "tumbling": "SELECT k, ts // 10 * 10 AS t0, t0 + 10 AS t1, count(*) AS c, sum(n) AS s FROM rows GROUP BY ALL",
    "hopping": """
SELECT k, t0, t0 + 10 AS t1, count(*) AS c, sum(n) AS s
FROM (SELECT *, ts // 5 * 5 - unnest([0, 5]) AS t0 FROM rows) GROUP BY ALL""",
    "session": """
SELECT k, min(ts) AS t0, max(ts) + 5 AS t1, count(*) AS c, sum(n) AS s
FROM (
  SELECT *, sum(opens) OVER (PARTITION BY k ORDER BY ts, nr) AS visit
  FROM (
    SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts, nr) < 5 THEN 0 ELSE 1 END AS opens
    FROM (SELECT *, row_number() OVER () AS nr FROM rows)))
GROUP BY k, visit""",
}
COLUMNS = "k, CAST(t0 AS BIGINT) AS t0, CAST(t1 AS BIGINT) AS t1, CAST(c AS BIGINT) AS c, CAST(s AS BIGINT) AS s"


def main():
    windows, given, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    db = duckdb.connect()
    db.execute(
        f"CREATE TABLE rows AS SELECT * FROM read_json('{given}', format = 'newline_delimited', "
        "columns = {k: 'VARCHAR', n: 'BIGINT', ts: 'BIGINT'})"
    ).fetchall()
    parquet = sorted(map(str, folder.glob("*.parquet")))
    if parquet:
        result = f"read_parquet({parquet})"
    else:
        files = sorted(map(str, folder.glob("*.ndjson")))
        if not files:
            sys.exit("there is no result")
        result = (
            f"read_json({files}, format = 'newline_delimited', columns = {{k: 'VARCHAR', "
            "t0: 'BIGINT', t1: 'BIGINT', c: 'BIGINT', s: 'BIGINT'})"
        )
    db.execute(f"CREATE TABLE got AS SELECT {COLUMNS} FROM {result}").fetchall()
    db.execute(f"CREATE TABLE want AS SELECT {COLUMNS} FROM ({QUERIES[windows]})").fetchall()
    wrong = 0
    for name, one, other in (("too many", "got", "want"), ("missing", "want", "got")):
        rows = db.execute(f"FROM {one} EXCEPT ALL FROM {other} ORDER BY ALL").fetchall()
        wrong += len(rows)
        for row in rows[:5]:
            print(f"{name}: {row}")
    if wrong:
        sys.exit(f"{wrong} rows differ")
    n = db.execute("SELECT count(*) FROM want").fetchall()[0][0]
    print(f"{n} rows are equal")


if __name__ == "__main__":
    main()
