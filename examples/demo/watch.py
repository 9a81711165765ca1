"""Waits until a running job's newest checkpoint has read a share of the rows it will read.

    watch.py BINARY STORE SHARE
"""

import json
import subprocess
import sys
import time

ROWS = 4_000_000
SECONDS_MAX = 120


def rows_in(binary, store):
    command = [binary, "checkpoints", "show", "--store", store, "-o", "json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        return 0
    return json.loads(shown.stdout)["ledger"].get("clicks", {}).get("rows_in", 0)


def main():
    binary, store, share = sys.argv[1], sys.argv[2], float(sys.argv[3])
    start = time.monotonic()
    while (rows := rows_in(binary, store)) < share * ROWS:
        if time.monotonic() - start > SECONDS_MAX:
            sys.exit("no checkpoint got that far")
        time.sleep(0.02)
    print(f"the newest checkpoint covers {rows:,} of {ROWS:,} rows")


if __name__ == "__main__":
    main()
