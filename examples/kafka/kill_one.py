"""Kills one task manager of a running job: kill_one.py PID

Waits until the coordinator with this process id has children that have worked for a moment (half a
second of CPU), then sends SIGKILL to the first of them.
"""

import os
import pathlib
import signal
import sys
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def task_managers(coordinator):
    """Process id -> CPU seconds of its task managers."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[1]) == coordinator and "streamforge-tas" in name:
            found[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return found


def main():
    coordinator = int(sys.argv[1])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and pathlib.Path(f"/proc/{coordinator}").exists():
        busy = [pid for pid, cpu in task_managers(coordinator).items() if cpu > 0.5]
        if busy:
            os.kill(busy[0], signal.SIGKILL)
            print(f"killed task manager process {busy[0]}", flush=True)
            return
        time.sleep(0.02)
    print("the job was over before one could be killed", flush=True)


if __name__ == "__main__":
    main()
