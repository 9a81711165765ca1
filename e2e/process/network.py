"""Partitions and loss between real processes, each in a network namespace of its own.

    network.py [--scenario full,one-way,coordinator,pair,loss,slow,delay,reset] [--seconds 4] [--binary PATH]

A coordinator and three task managers of the clicks job live in four namespaces on one bridge. While
the job runs, one task manager's network is cut or thinned for some seconds, and then let go:

  full         it reaches nobody and nobody reaches it
  one-way      what it says arrives, what is said to it does not
  coordinator  it and the coordinator do not reach each other; the other task managers do
  pair         it and one other task manager do not reach each other; both reach the coordinator
  loss         30 % of what is said to it is lost
  slow         its link carries 2 Mbit/s (tbf)
  delay        what it says and hears takes 100 to 200 ms longer (toxiproxy)
  reset        each of its connections, new ones too, is reset (toxiproxy)

The others must publish again within the bound printed beside each scenario, the job must end with
exit code 0, and `streamforge verify` must find no difference. Exit 0 when all was so.

Under delay and reset all connections of all task managers go through a proxy in a fifth namespace, from the
beginning on. Needs root, `ip`, `tc`, `nft` and toxiproxy; fails and says so where namespaces cannot be made. Touches no network
but its own.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASK_MANAGERS = 3
COORDINATOR = "10.203.7.1"
PROXY = "10.203.7.2"
PORT = 7100
EXCHANGE_PORT = 7200
CACHE = pathlib.Path(os.environ.get("STREAMFORGE_CACHE", pathlib.Path.home() / ".cache/streamforge"))
# From the beginning of the fault to the next published file, in seconds. A silent peer is found after
# failureDetection.timeout; the new epoch restores a small state.
BOUNDS = {"full": 10, "one-way": 10, "coordinator": 10, "pair": 10, "loss": 30, "slow": 30, "delay": 10, "reset": 10}
PROXIED = ("delay", "reset")
END_SECONDS_MAX = 180

DOCUMENT = """
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 3
  sources:
    - name: clicks
      generator: {clicks: {rows: 600000, users: 500, outOfOrderness: 3s, lateFraction: 0.01, seed: 7}}
      eventTime: {column: ts, maxOutOfOrderness: 3s}
      rateLimit: {rowsPerSecond: 40000}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: 1s}}
        select: ["count(*) AS clicks", "sum(amount) AS spend", "count(DISTINCT page) AS pages"]
  sinks:
    - {name: results, from: per_user, file: {path: out/per_user/}, format: {json: {}}}
    - {name: late, from: per_user.late, file: {path: out/late/}, format: {json: {}}}
  checkpoint: {interval: 100ms, timeout: 5s}
  restart: {window: 60s, backoff: {initial: 50ms, max: 500ms}}
  failureDetection: {heartbeat: 100ms, timeout: 1s}
"""


class Unable(Exception):
    """This machine cannot make namespaces or filters."""


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise Unable(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


class Network:
    """Namespaces of one run, on one bridge. Gone when it is left."""

    def __init__(self):
        self.prefix = f"sfnet{os.getpid()}"
        self.namespaces = []

    def __enter__(self):
        if os.geteuid() != 0:
            raise Unable("network namespaces need root")
        for tool in ("ip", "tc", "nft"):
            if shutil.which(tool) is None:
                raise Unable(f"`{tool}` is not installed (packages iproute2 and nftables)")
        try:
            self.switch = self.namespace("sw")
            run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "br0", "up")
            self.coordinator = self.host("co", COORDINATOR)
            self.proxy = self.host("px", PROXY)
            self.task_managers = [self.host(f"t{n}", address(n)) for n in range(1, TASK_MANAGERS + 1)]
        except BaseException:
            self.__exit__()
            raise
        return self

    def namespace(self, name):
        name = f"{self.prefix}{name}"
        run("ip", "netns", "add", name)
        self.namespaces.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def host(self, name, ip):
        own = self.namespace(name)
        port = f"p{name}"
        run("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", own)
        run("ip", "-n", self.switch, "link", "set", port, "master", "br0")
        run("ip", "-n", self.switch, "link", "set", port, "up")
        run("ip", "-n", own, "address", "add", f"{ip}/24", "dev", "eth0")
        run("ip", "-n", own, "link", "set", "eth0", "up")
        run("ip", "netns", "exec", own, "nft", "add table inet fault")
        for hook in ("input", "output"):
            chain = f"add chain inet fault {hook} {{ type filter hook {hook} priority 0 ; }}"
            run("ip", "netns", "exec", own, "nft", chain)
        return own

    def fault(self, scenario, namespace):
        """Begins it at one task manager."""
        rules = {
            "full": ["input iif eth0 drop", "output oif eth0 drop"],
            "one-way": ["input iif eth0 drop"],
            "coordinator": [f"input ip saddr {COORDINATOR} drop", f"output ip daddr {COORDINATOR} drop"],
            "pair": [f"input ip saddr {address(1)} drop", f"output ip daddr {address(1)} drop"],
            "slow": [],
            "loss": ["input iif eth0 numgen random mod 100 < 30 drop"],
        }
        for rule in rules[scenario]:
            run("ip", "netns", "exec", namespace, "nft", f"add rule inet fault {rule}")
        if scenario == "slow":
            tbf = ["tbf", "rate", "2mbit", "burst", "16kb", "latency", "400ms"]
            run("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", "root", *tbf)

    def heal(self, scenario, namespace):
        if scenario == "slow":
            run("tc", "-n", namespace, "qdisc", "del", "dev", "eth0", "root")
        run("ip", "netns", "exec", namespace, "nft", "flush table inet fault")

    def __exit__(self, *_):
        for name in reversed(self.namespaces):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self.namespaces = []


def address(n):
    return f"10.203.7.{10 + n}"


def proxied_address(n):
    """Where the others reach task manager `n` when proxies are between."""
    return f"10.203.7.{30 + n}"


class Proxies:
    """One toxiproxy: two proxies for each task manager, to the coordinator and from the others."""

    API = "http://127.0.0.1:8474"
    TOXICS = {
        "delay": {"type": "latency", "attributes": {"latency": 150, "jitter": 50}},
        "reset": {"type": "reset_peer", "attributes": {"timeout": 0}},
    }

    def __init__(self, namespace, log):
        programs = sorted(CACHE.glob("tools/bin/toxiproxy-*"))
        if not programs:
            raise Unable("toxiproxy is not installed: scripts/setup network")
        self.namespace = namespace
        for n in range(1, TASK_MANAGERS + 1):
            run("ip", "-n", namespace, "address", "add", f"{proxied_address(n)}/24", "dev", "eth0")
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, str(programs[-1])],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        give_up = time.monotonic() + 30
        while not self.is_up():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise Unable("toxiproxy does not start")
            time.sleep(0.02)
        for n in range(1, TASK_MANAGERS + 1):
            self.add(f"to-coordinator-{n}", f"{PROXY}:{PORT + n}", f"{COORDINATOR}:{PORT}")
            port = EXCHANGE_PORT
            self.add(f"to-{n}", f"{proxied_address(n)}:{port}", f"{address(n)}:{port}")

    def is_up(self):
        try:
            self.ask("GET", "/version")
        except Unable:
            return False
        return True

    def ask(self, method, path, body=None):
        """The API listens where only its own namespace reaches it."""
        program = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", ASK, method, self.API + path]
        run(*program, json.dumps(body) if body is not None else "")

    def add(self, name, listen, upstream):
        self.ask("POST", "/proxies", {"name": name, "listen": listen, "upstream": upstream, "enabled": True})

    def links(self, n):
        return (f"to-coordinator-{n}", f"to-{n}")

    def fault(self, scenario, n):
        for link in self.links(n):
            for stream in ("upstream", "downstream"):
                toxic = {"name": stream, "stream": stream, **self.TOXICS[scenario]}
                self.ask("POST", f"/proxies/{link}/toxics", toxic)

    def heal(self, n):
        for link in self.links(n):
            for stream in ("upstream", "downstream"):
                self.ask("DELETE", f"/proxies/{link}/toxics/{stream}")

    def kill(self):
        self.process.kill()
        self.process.wait()


# One request to toxiproxy, whose API refuses what looks like a browser.
ASK = """
import sys, urllib.request
method, url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode() or None, {"User-Agent": "streamforge"}, method=method)
urllib.request.urlopen(request, timeout=10)
"""


class Job:
    """The processes of one scenario."""

    def __init__(self, folder, binary, network, is_proxied):
        self.folder = folder
        self.binary = binary
        self.processes = {}
        (folder / "job.yaml").write_text(DOCUMENT)
        listen = f"{COORDINATOR}:{PORT}"
        self.start(
            network.coordinator, "coordinator", binary, "run", "job.yaml", "--store", "store", "--listen", listen
        )
        worker = binary.with_name("streamforge-taskmanager")
        for n, namespace in enumerate(network.task_managers, 1):
            coordinator = f"{PROXY}:{PORT + n}" if is_proxied else listen
            self.start(
                namespace, f"tm-{n}", worker, "--name", f"tm-{n}", "--slots", 2,
                "--coordinator", coordinator, "--listen", f"{address(n)}:{EXCHANGE_PORT}",
                "--advertise", proxied_address(n) if is_proxied else address(n),
            )  # fmt: skip

    def start(self, namespace, name, *command):
        log = open(self.folder / f"{name}.log", "w")
        command = ["ip", "netns", "exec", namespace, *map(str, command)]
        self.processes[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, cwd=self.folder
        )

    def files(self):
        return len(list((self.folder / "out/per_user").rglob("part-*")))

    def coordinator(self):
        return self.processes["coordinator"]

    def await_output(self, seconds):
        """Seconds until something new is published; fails after so many."""
        before, began = self.files(), time.monotonic()
        while self.files() == before:
            waited = time.monotonic() - began
            if waited > seconds:
                raise AssertionError(f"nothing was published for {seconds} s")
            if self.coordinator().poll() is not None:
                raise AssertionError("the coordinator ended too early: the fault came too late to matter")
            time.sleep(0.01)
        return time.monotonic() - began

    def finish(self):
        code = self.coordinator().wait(timeout=END_SECONDS_MAX)
        if code != 0:
            raise AssertionError(f"exit code {code}")
        verify = subprocess.run(
            [self.binary, "verify", "job.yaml", "--store", "store"],
            cwd=self.folder, capture_output=True, text=True,
        )  # fmt: skip
        if verify.returncode != 0:
            raise AssertionError(f"verify: {verify.stdout}{verify.stderr}")

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def logs(self):
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))
        )


def play(scenario, binary, seconds):
    """Plays one scenario; returns what to print."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"sf-{scenario}-"))
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        proxies = None
        if scenario in PROXIED:
            log = stack.enter_context(open(folder / "toxiproxy.log", "w"))
            proxies = Proxies(network.proxy, log)
            stack.callback(proxies.kill)
        job = Job(folder, binary, network, proxies is not None)
        try:
            for _ in range(3):
                job.await_output(60)
            victim = network.task_managers[-1]
            if proxies is None:
                network.fault(scenario, victim)
            else:
                proxies.fault(scenario, TASK_MANAGERS)
            # Whatever was on its way is published at once; the recovery shows in what comes after
            # the fault has been noticed.
            began = time.monotonic()
            longest = 0
            while time.monotonic() - began < seconds:
                longest = max(longest, job.await_output(BOUNDS[scenario]))
            if proxies is None:
                network.heal(scenario, victim)
            else:
                proxies.heal(TASK_MANAGERS)
            job.await_output(BOUNDS[scenario])
            job.finish()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"{scenario}: {error}\n{job.logs()}") from None
        finally:
            job.kill()
        text = (folder / "coordinator.log").read_text()
    shutil.rmtree(folder)
    attempts = len(re.findall(r"\brunning\b", text))
    bound = f"{longest:.1f} s without output at most (bound {BOUNDS[scenario]} s)"
    return f"{bound}, {attempts} attempts, verify equal"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scenario", default=",".join(BOUNDS))
    parser.add_argument("--seconds", type=float, default=4, help="how long a fault lasts")
    parser.add_argument(
        "--binary", default=os.environ.get("STREAMFORGE_BIN", "target/release/streamforge")
    )
    args = parser.parse_args()
    binary = pathlib.Path(args.binary).resolve()
    failed = 0
    for scenario in args.scenario.split(","):
        try:
            print(f"{scenario}: {play(scenario, binary, args.seconds)}", flush=True)
        except Unable as error:
            print(f"network tests cannot run here: {error}", file=sys.stderr)
            return 2
        except AssertionError as error:
            failed += 1
            print(error, file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
