"""What a cluster costs: install, first result, and how long output stops when something dies.

    cluster.py [--kills 20] [--crashes 10] [--singles 5] [--operator-minutes 5] [--outage 120]
               [--only pods,crashes,operators,outage,single] [--check]

To be run in a cluster without the charts: `e2e/cluster/with --bare -- python3 bench/cluster.py`. A job of three task
managers reads a generator at a steady rate and writes to two topics of Kafka, exactly once and at least once; both are
read here, and each record is noted when it comes. Then pods of task managers are deleted by force, one by one; their
processes are killed, and the kubelet restarts the container; all operators are deleted, every 20 s; the API server is
stopped; last, pods of a job with one task manager are deleted. Measured is how long nothing came: the longest time
between two records from the death until the next one, the return of the replacement included.

The input has to be steady, a few rows every 20 ms (`rowsPerSecond` of the generator): the time between two gusts would be
taken for a pause. Whether the result is right after as many kills is not asked here: `make e2e-slow` does that. Writes
bench/results/<date>-cluster.md; --check writes nothing and fails where an aim is missed.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import typing

import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLUSTER = os.environ["STREAMFORGE_CLUSTER"]
OPERATOR = os.environ["STREAMFORGE_NAMESPACE"]
NAMESPACE = "bench"
# Output that does not come back within this time is a failure.
SECONDS_MAX = 60
# What the issue asks for.
INSTALLED_S, FIRST_S, STATUS_TRUE_S = 20, 15, 10
PAUSE_MEDIAN_S, PAUSE_WORST_S = 1.5, 3
# Of checkpoints; two of these may pass without one, and the start of an operator that was killed.
INTERVAL_S = 0.2

DOCUMENT = """
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parallelism: {parallelism}
  sources:
    - name: clicks
      generator: {{clicks: {{{rows}rowsPerSecond: {rate}, users: 1000, skew: 0.0, outOfOrderness: 1s, seed: 7}}}}
      eventTime: {{column: ts, maxOutOfOrderness: 1s}}
  transforms:
    - {{name: few, from: clicks, filter: "user_id LIKE '%0'"}}
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {{tumbling: {{size: 30d}}}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {{name: once, from: few, kafka: {{bootstrapServers: "{broker}", topic: {name}-once}}, format: {{json: {{}}}}}}
    - {{name: flow, from: few, kafka: {{bootstrapServers: "{broker}", topic: {name}-flow}}, format: {{json: {{}}}}, delivery: AtLeastOnce}}
    - {{name: state, from: per_user, blackhole: {{}}}}
  checkpoint: {{interval: {interval}, storage: {{uri: "s3://{bucket}/{namespace}/{name}", s3: {s3}}}}}
  restart: {{backoff: {{initial: 100ms, max: 1s}}}}
  taskManager: {{slots: 1}}
"""


class Row(typing.NamedTuple):
    """A line of the table."""

    what: str
    figure: str
    aim: str = ""
    is_missed: bool = False


def at_most(what, seconds, aim_s, digits=1):
    return Row(what, f"{seconds:.{digits}f} s", f"{aim_s:g} s", seconds > aim_s)


def kubectl(*arguments, **keywords):
    run = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=False, **keywords)
    if run.returncode:
        raise SystemExit(f"kubectl {' '.join(arguments)}: {run.stderr}")
    return run.stdout


def kafka(name, *arguments):
    return [str(ROOT / "e2e/services/kafka"), "tool", f"org.apache.kafka.tools.{name}", *map(str, arguments)]


def until(what, look, seconds=SECONDS_MAX * 2):
    end = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return found


class Topic:
    """Reads a topic and notes when each record came."""

    def __init__(self, name):
        self.name, self.times = name, []
        broker = os.environ["KAFKA_BOOTSTRAP"]
        command = kafka("TopicCommand", "--bootstrap-server", broker, "--create", "--topic", name, "--partitions", 3)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.reader = subprocess.Popen(
            kafka(
                "consumer.ConsoleConsumer", "--bootstrap-server", broker, "--topic", name,
                "--command-property", "isolation.level=read_committed",
                "--command-property", "fetch.max.wait.ms=20",
            ),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for _ in self.reader.stdout:
            self.times.append(time.monotonic())

    def gap(self, since, until=None):
        """The longest time without a record after `since`, and until the last one or `until`."""
        times = [since, *[t for t in self.times if t >= since and (until is None or t <= until)]]
        return max((b - a for a, b in zip(times, times[1:])), default=0.0)

    def per_second(self, since, until):
        counts = collections.Counter(int(t - since) for t in self.times if since <= t < until)
        return [counts[second] for second in range(int(until - since))]


def get(kind, name="", namespace=NAMESPACE, label=None):
    arguments = ["-n", namespace, "get", kind, *([name] if name else []), *(["-l", label] if label else [])]
    return json.loads(kubectl(*arguments, "-o", "json"))


def status(job):
    return get("streamjob", job).get("status", {})


def pods(job):
    return get("pods", label=f"app.kubernetes.io/component=task-manager,app.kubernetes.io/instance={job}")["items"]


def uids(job):
    return sorted(pod["metadata"]["uid"] for pod in pods(job))


def is_ready(pod):
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def whole(job):
    """All its task managers are ready, and have work."""
    wanted = get("streamjob", job)["spec"]["parallelism"]
    now = status(job)
    ready = [pod for pod in pods(job) if is_ready(pod)]
    return len(ready) == wanted and now.get("phase") == "Running" and now.get("parallelism") == wanted


def leader():
    return get("lease", "streamforge-operator", OPERATOR)["spec"].get("holderIdentity")


def leads_and_is_ready(name):
    """An operator that leads, another one than this, and is ready: the restart is over."""
    led = leader()
    if led in (name, None, ""):
        return False
    ready = get("pods", "", OPERATOR, "app.kubernetes.io/component=operator")["items"]
    return any(pod["metadata"]["name"] == led and is_ready(pod) for pod in ready)


def document(name, rate, parallelism, rows="", interval=f"{INTERVAL_S * 1000:.0f}ms"):
    keys = "credentialsSecret: {name: keys}"
    return DOCUMENT.format(
        name=name, namespace=NAMESPACE, parallelism=parallelism, rate=rate, rows=rows, interval=interval,
        bucket=os.environ["S3_BUCKET"], broker=os.environ["POD_KAFKA_BOOTSTRAP"],
        s3=f'{{endpoint: "{os.environ["POD_S3_ENDPOINT"]}", region: us-east-1, {keys}}}',
    )  # fmt: skip


def install():
    """Seconds from `helm install` to the operator's readiness."""
    helm = ["helm", "upgrade", "--install", "--reset-values", "--namespace", OPERATOR, "--create-namespace", "--wait"]
    began = time.monotonic()
    for name in ["streamforge-crds", "streamforge"]:
        subprocess.run([*helm, name, ROOT / "charts" / name], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def prepare():
    kubectl("create", "namespace", NAMESPACE)
    kubectl(
        "-n", NAMESPACE, "create", "secret", "generic", "keys",
        f"--from-literal=accessKeyId={os.environ['AWS_ACCESS_KEY_ID']}",
        f"--from-literal=secretAccessKey={os.environ['AWS_SECRET_ACCESS_KEY']}",
    )  # fmt: skip


class Job:
    """A job that runs, and what is seen of its output."""

    def __init__(self, name, rate, parallelism):
        self.name = name
        self.once, self.flow = Topic(f"{name}-once"), Topic(f"{name}-flow")
        began = time.monotonic()
        kubectl("apply", "-f", "-", input=document(name, rate, parallelism))
        until("the first record", lambda: self.once.times, 300)
        self.first_s = self.once.times[0] - began

    def await_whole(self):
        until("all task managers", lambda: whole(self.name))

    def gaps(self, since, until=None):
        return self.once.gap(since, until), self.flow.gap(since, until)

    def end(self):
        for topic in [self.once, self.flow]:
            topic.reader.kill()
        kubectl("-n", NAMESPACE, "delete", "streamjob", self.name, "--wait=false")


def delete_by_force(pod):
    kubectl("-n", NAMESPACE, "delete", "pod", pod, "--force", "--grace-period=0")


def crash(pod):
    """Kills the process: the pod stays, and its container is started again."""
    pid = subprocess.run([CLUSTER, "pid", NAMESPACE, pod], capture_output=True, text=True, check=True).stdout
    os.kill(int(pid), signal.SIGKILL)


def kill_pods(job, kills, kill):
    """Per kill: how long no committed record came, and how long none at all."""
    gaps = []
    for n in range(kills):
        job.await_whole()
        time.sleep(2 + random.random())
        victim = random.choice(pods(job.name))["metadata"]["name"]
        began = time.monotonic()
        kill(victim)
        # Its successor gets work again, and what that costs counts.
        until("another pod is gone or not ready", lambda: not whole(job.name) or time.monotonic() > began + 5)
        job.await_whole()
        time.sleep(3)
        gaps.append(job.gaps(began))
        print(f"{kill.__name__} {n + 1}: {victim}: committed {gaps[-1][0]:.2f} s, at least once {gaps[-1][1]:.2f} s", flush=True)
    return gaps


def kill_operators(job, minutes):
    """Output while all operators are deleted every 20 s, how long nobody led, and how long a restart took."""
    job.await_whole()
    before, began = uids(job.name), time.monotonic()
    without, restarts, committed = [], [], []
    while time.monotonic() < began + minutes * 60:
        led, killed = leader(), time.monotonic()
        kubectl(
            "-n", OPERATOR, "delete", "pod", "-l", "app.kubernetes.io/component=operator",
            "--force", "--grace-period=0",
        )  # fmt: skip
        until("another leader", lambda: leader() not in (led, None, ""))
        without.append(time.monotonic() - killed)
        until("an operator that is ready", lambda: leads_and_is_ready(led))
        restarts.append(time.monotonic() - killed)
        time.sleep(max(0, killed + 20 - time.monotonic()))
        committed.append(job.once.gap(killed, time.monotonic()))
        print(f"operators: led again after {without[-1]:.2f} s, ready after {restarts[-1]:.2f} s, committed {committed[-1]:.2f} s, "
              f"at least once {job.flow.gap(killed, time.monotonic()):.2f} s", flush=True)  # fmt: skip
    ended = time.monotonic()
    return {
        "per_second": min(job.flow.per_second(began, ended)),
        "committed_gap_s": max(committed),
        "leaderless_s": max(without),
        "restart_s": max(restarts),
        "committed_beyond_restart_s": max(gap - restart for gap, restart in zip(committed, restarts)),
        "flow_gap_s": job.flow.gap(began, ended),
        "same_pods": uids(job.name) == before,
    }


def outage(job, seconds):
    """Output while the API server is gone, and how long the status is wrong afterwards."""
    job.await_whole()
    before, began = uids(job.name), time.monotonic()
    subprocess.run([CLUSTER, "stop", "kube-apiserver", "KILL"], check=True)
    time.sleep(seconds)
    ended = time.monotonic()
    old = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    subprocess.run([CLUSTER, "up"], check=True, stdout=subprocess.DEVNULL)
    back = time.monotonic()
    newest = lambda: status(job.name)["checkpoint"]["lastCompleted"]["time"]  # noqa: E731
    until("a true status", lambda: newest() >= old)
    return {
        "per_second": min(job.flow.per_second(began, ended)),
        "committed_gap_s": job.once.gap(began, ended),
        "flow_gap_s": job.flow.gap(began, ended),
        "same_pods": uids(job.name) == before,
        "status_true_s": time.monotonic() - back,
    }


def pauses(what, gaps, has_aim=True):
    for name, values in zip(["committed", "at least once"], zip(*gaps)):
        middle, worst = statistics.median(values), max(values)
        aim = f"{PAUSE_MEDIAN_S:g} s, {PAUSE_WORST_S:g} s" if has_aim else ""
        is_missed = has_aim and (middle > PAUSE_MEDIAN_S or worst > PAUSE_WORST_S)
        yield Row(f"{what}, {len(gaps)} times: no output ({name})", f"{middle:.2f} s median, {worst:.2f} s worst", aim, is_missed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--crashes", type=int, default=10)
    parser.add_argument("--singles", type=int, default=5)
    parser.add_argument("--operator-minutes", type=float, default=5)
    parser.add_argument("--outage", type=float, default=120)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--only", default="pods,crashes,operators,outage,single")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    rows = [at_most("helm install (two charts) to operator ready", install(), INSTALLED_S)]
    prepare()
    try:
        measure(given, given.only.split(","), rows)
    finally:
        text = table(rows, given)
        print(text)
        if not given.check:
            (ROOT / f"bench/results/{datetime.date.today().isoformat()}-cluster.md").write_text(text)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    missed = [f"{row.what}: {row.figure} (aim {row.aim})" for row in rows if row.is_missed]
    if given.check and missed:
        sys.exit("missed: " + "; ".join(missed))


def measure(given, only, rows):
    job = Job("steady", given.rate, 3)
    try:
        rows.append(at_most("kubectl apply to the first committed record", job.first_s, FIRST_S))
        if "pods" in only:
            rows += pauses("pod deleted by force", kill_pods(job, given.kills, delete_by_force))
        if "crashes" in only:
            rows += pauses("process killed in its pod", kill_pods(job, given.crashes, crash))
        if "operators" in only:
            rows += lines(f"all operators killed every 20 s for {given.operator_minutes:g} min", kill_operators(job, given.operator_minutes))
        if "outage" in only:
            rows += lines(f"API server gone for {given.outage:g} s", outage(job, given.outage))
    finally:
        job.end()
    if "single" in only:
        single = Job("single", given.rate, 1)
        try:
            rows += pauses("the only pod deleted by force", kill_pods(single, given.singles, delete_by_force), has_aim=False)
            rows += pauses("the only process killed in its pod", kill_pods(single, given.singles, crash), has_aim=False)
        finally:
            single.end()


def lines(what, found):
    pods_said, intervals_s = "the same" if found["same_pods"] else "REPLACED", 2 * INTERVAL_S
    yield Row(f"{what}: rows in the poorest second", f"{found['per_second']}", "not 0", found["per_second"] == 0)
    gap = f"{what}: longest time without committed records"
    if "restart_s" in found:
        yield Row(gap, f"{found['committed_gap_s']:.1f} s")
    else:
        yield at_most(gap, found["committed_gap_s"], intervals_s, 2)
    yield Row(f"{what}: longest time without any record", f"{found['flow_gap_s']:.1f} s")
    yield Row(f"{what}: task-manager pods", pods_said, "the same", not found["same_pods"])
    if "restart_s" in found:
        yield Row(f"{what}: longest time without a leader", f"{found['leaderless_s']:.1f} s")
        yield Row(f"{what}: longest restart, until one leads and is ready", f"{found['restart_s']:.1f} s")
        beyond = "longest time without committed records that is not the restart"
        yield at_most(f"{what}: {beyond}", found["committed_beyond_restart_s"], intervals_s, 2)
    if "status_true_s" in found:
        yield at_most(f"{what}: status true again", found["status_true_s"], STATUS_TRUE_S)


def table(rows, given):
    today = datetime.date.today().isoformat()
    lines_of = "\n".join(f"| {row.what} | {row.figure} | {row.aim} |" for row in rows)
    return f"""# In a cluster, {today}

Kubernetes of `e2e/cluster`, three task managers of one slot, {given.rate:,} rows/s from a generator at a steady pace, a
checkpoint every 200 ms; `bench/cluster.py`. {report.machine()}, {report.commit()}.

| what | measured | aim |
|---|--:|--:|
{lines_of}
"""


if __name__ == "__main__":
    main()
