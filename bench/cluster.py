"""What a cluster costs: install, first result, and how long output stops when something dies.

    cluster.py [--kills 20] [--operator-minutes 5] [--outage 120] [--only install,first,pods,operators,outage]

To be run in a cluster without the charts: `e2e/cluster/with --bare -- python3 bench/cluster.py`. A job of three task
managers reads a generator at a steady rate and writes to two topics of Kafka, exactly once and at least once; both are
read here, and each record is noted when it comes. Then task managers are deleted by force, one by one; operators are, every
20 s; the API server is stopped. Measured is how long nothing came. Writes bench/results/<date>-cluster.md.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import threading
import time

import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLUSTER = os.environ["STREAMFORGE_CLUSTER"]
OPERATOR = os.environ["STREAMFORGE_NAMESPACE"]
NAMESPACE = "bench"
JOB = "steady"
# Output that does not come back within this time is a failure.
SECONDS_MAX = 60

DOCUMENT = """
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parallelism: 3
  sources:
    - name: clicks
      generator: {{clicks: {{{rows}users: 1000, skew: 0.0, outOfOrderness: 1s, seed: 7}}}}
      eventTime: {{column: ts, maxOutOfOrderness: 1s}}
      rateLimit: {{rowsPerSecond: {rate}}}
  transforms:
    - {{name: few, from: clicks, filter: "user_id LIKE '%0'"}}
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {{tumbling: {{size: 30d}}}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {{name: once, from: few, kafka: {{bootstrapServers: "{broker}", topic: once}}, format: {{json: {{}}}}}}
    - {{name: flow, from: few, kafka: {{bootstrapServers: "{broker}", topic: flow}}, format: {{json: {{}}}}, delivery: AtLeastOnce}}
    - {{name: state, from: per_user, blackhole: {{}}}}
  checkpoint: {{interval: {interval}, storage: {{uri: "s3://{bucket}/{namespace}/{name}", s3: {s3}}}}}
  restart: {{backoff: {{initial: 100ms, max: 1s}}}}
  taskManager: {{slots: 1}}
"""


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


def status():
    return get("streamjob", JOB).get("status", {})


def pods(component="task-manager", namespace=NAMESPACE):
    return get("pods", namespace=namespace, label=f"app.kubernetes.io/component={component}")["items"]


def uids():
    return sorted(pod["metadata"]["uid"] for pod in pods())


def is_ready(pod):
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def whole():
    """The job runs, on three task managers that are ready."""
    ready = [pod for pod in pods() if is_ready(pod)]
    return len(ready) == 3 and status().get("phase") == "Running"


def document(name, rate, rows="", interval="200ms"):
    keys = "credentialsSecret: {name: keys}"
    return DOCUMENT.format(
        name=name, namespace=NAMESPACE, rate=rate, rows=rows, interval=interval, bucket=os.environ["S3_BUCKET"],
        broker=os.environ["POD_KAFKA_BOOTSTRAP"],
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


def first(once, rate):
    """Seconds from `kubectl apply` to the first committed record."""
    began = time.monotonic()
    kubectl("apply", "-f", "-", input=document(JOB, rate))
    until("the first record", lambda: once.times, 300)
    return once.times[0] - began


def kill_pods(kills, once, flow):
    """Per kill: how long no committed record came, and how long none at all."""
    gaps = []
    for n in range(kills):
        until("three task managers", whole)
        time.sleep(2 + random.random())
        victim = random.choice(pods())["metadata"]["name"]
        began = time.monotonic()
        kubectl("-n", NAMESPACE, "delete", "pod", victim, "--force", "--grace-period=0")
        until("a committed record", lambda: once.times and once.times[-1] > began + 0.5)
        time.sleep(4)
        gaps.append((once.gap(began), flow.gap(began)))
        print(f"kill {n + 1}: {victim}: committed {gaps[-1][0]:.2f} s, at least once {gaps[-1][1]:.2f} s", flush=True)
    return gaps


def kill_operators(minutes, once, flow):
    """Output while the leading operator is killed every 20 s."""
    until("three task managers", whole)
    before, began = uids(), time.monotonic()
    while time.monotonic() < began + minutes * 60:
        kubectl(
            "-n", OPERATOR, "delete", "pod", "-l", "app.kubernetes.io/component=operator",
            "--force", "--grace-period=0",
        )  # fmt: skip
        time.sleep(20)
    ended = time.monotonic()
    return {
        "per_second": min(flow.per_second(began, ended)),
        "committed_gap_s": once.gap(began, ended),
        "flow_gap_s": flow.gap(began, ended),
        "same_pods": uids() == before,
    }


def outage(seconds, once, flow):
    """Output while the API server is gone, and how long the status is wrong afterwards."""
    until("three task managers", whole)
    before, began = uids(), time.monotonic()
    subprocess.run([CLUSTER, "stop", "kube-apiserver", "KILL"], check=True)
    time.sleep(seconds)
    ended = time.monotonic()
    old = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    subprocess.run([CLUSTER, "up"], check=True, stdout=subprocess.DEVNULL)
    back = time.monotonic()
    newest = lambda: status()["checkpoint"]["lastCompleted"]["time"]  # noqa: E731
    until("a true status", lambda: newest() >= old)
    return {
        "per_second": min(flow.per_second(began, ended)),
        "committed_gap_s": once.gap(began, ended),
        "flow_gap_s": flow.gap(began, ended),
        "same_pods": uids() == before,
        "status_true_s": time.monotonic() - back,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--operator-minutes", type=float, default=5)
    parser.add_argument("--outage", type=float, default=120)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--only", default="pods,operators,outage")
    given = parser.parse_args()
    only = given.only.split(",")
    rows = [("helm install (two charts) to operator ready", f"{install():.1f} s", "20 s")]
    prepare()
    once, flow = Topic("once"), Topic("flow")
    try:
        seconds = first(once, given.rate)
        rows.append(("kubectl apply to the first committed record", f"{seconds:.1f} s", "15 s"))
        if "pods" in only:
            gaps = kill_pods(given.kills, once, flow)
            for name, values in zip(["committed", "at least once"], zip(*gaps)):
                middle, worst = statistics.median(values), max(values)
                rows.append((f"pod killed, {given.kills} times: no output ({name})", f"{middle:.2f} s median, {worst:.2f} s worst", "1.5 s, 3 s"))
        if "operators" in only:
            rows += lines(f"all operators killed every 20 s for {given.operator_minutes:g} min", kill_operators(given.operator_minutes, once, flow))
        if "outage" in only:
            rows += lines(f"API server gone for {given.outage:g} s", outage(given.outage, once, flow))
    finally:
        for topic in [once, flow]:
            topic.reader.kill()
        write(rows, given)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def lines(what, found):
    pods_said = "the same" if found["same_pods"] else "REPLACED"
    yield f"{what}: rows in the poorest second", f"{found['per_second']}", "not 0"
    yield f"{what}: longest time without committed records", f"{found['committed_gap_s']:.1f} s", ""
    yield f"{what}: longest time without any record", f"{found['flow_gap_s']:.1f} s", ""
    yield f"{what}: task-manager pods", pods_said, "the same"
    if "status_true_s" in found:
        yield f"{what}: status true again", f"{found['status_true_s']:.1f} s", "10 s"


def write(rows, given):
    today = datetime.date.today().isoformat()
    table = "\n".join(f"| {what} | {figure} | {aim} |" for what, figure, aim in rows)
    text = f"""# In a cluster, {today}

Kubernetes of `e2e/cluster`, three task managers of one slot, {given.rate:,} rows/s from a generator, a checkpoint every
200 ms; `bench/cluster.py`. {report.machine()}, {report.commit()}.

| what | measured | aim |
|---|--:|--:|
{table}
"""
    path = ROOT / f"bench/results/{today}-cluster.md"
    path.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
