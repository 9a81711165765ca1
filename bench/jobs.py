"""What many StreamJobs cost: time until all are looked after, memory, and requests when nothing happens.

    jobs.py [--jobs 1000] [--minutes 10] [--unreachable 0] [--pods] [--check]

To be run where the charts are installed: `e2e/cluster/with --no-kafka -- python3 bench/jobs.py`. The API server and etcd
are real; controller manager and scheduler are stopped meanwhile, so no pods are made, unless --pods says otherwise (then
nobody schedules them). Jobs are posted as fast as the API server takes them. A job is looked after when all its children are
there and the operator has set observedGeneration. Requests are those that the API server counts, whoever made them; memory
and processor time are those of the leading operator's process. Of `--unreachable N` jobs the store does not answer.
Writes bench/results/<date>-jobs.md; --check writes nothing and fails where a limit is exceeded.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import http.client
import json
import os
import pathlib
import subprocess
import sys
import time

import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLUSTER = os.environ["STREAMFORGE_CLUSTER"]
OPERATOR = os.environ["STREAMFORGE_NAMESPACE"]
NAMESPACES = [f"jobs-{n}" for n in range(4)]
CHILDREN = {
    "configmaps": "/api/v1/configmaps",
    "secrets": "/api/v1/secrets",
    "serviceaccounts": "/api/v1/serviceaccounts",
    "services": "/api/v1/services",
    "poddisruptionbudgets": "/apis/policy/v1/poddisruptionbudgets",
    "networkpolicies": "/apis/networking.k8s.io/v1/networkpolicies",
    "statefulsets": "/apis/apps/v1/statefulsets",
}
JOBS = "/apis/streamforge.io/v1alpha1/streamjobs"
WRITES = {"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
# What the issue asks for.
CONVERGED_S, RSS_MIB, WRITES_PER_S, GROWTH_MIB = 120, 250, 5, 10
# An address that drops what it is sent, as a server behind a firewall does.
NOWHERE = "http://240.0.0.1:9000"


def kubectl(*arguments, **keywords):
    run = subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=False, **keywords)
    if run.returncode:
        raise SystemExit(f"kubectl {' '.join(arguments)}: {run.stderr}")
    return run.stdout


def document(name, namespace, endpoint):
    store = {
        "uri": f"s3://{os.environ['S3_BUCKET']}/{namespace}",
        "s3": {"endpoint": endpoint, "region": "us-east-1", "credentialsSecret": {"name": "keys"}},
    }
    aggregate = {"groupBy": ["user_id"], "window": {"tumbling": {"size": "1m"}}, "select": ["count(*) AS clicks", "sum(amount) AS spend"]}
    return {
        "apiVersion": "streamforge.io/v1alpha1", "kind": "StreamJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "sources": [{
                "name": "clicks", "generator": {"clicks": {"users": 1000}},
                "eventTime": {"column": "ts", "maxOutOfOrderness": "3s"},
            }],
            "transforms": [
                {"name": "valid", "from": "clicks", "filter": "amount > 0"},
                {"name": "per_user", "from": "valid", "aggregate": aggregate},
            ],
            "sinks": [{"name": "out", "from": "per_user", "blackhole": {}}],
            "checkpoint": {"storage": store},
            "taskManager": {"podTemplate": {"spec": {"schedulerName": "nobody"}}},
        },
    }  # fmt: skip


class Api:
    """The API server, by `kubectl proxy`: without kubectl's own limits."""

    def __init__(self, port):
        self.port = port

    def request(self, method, path, body=None, accept="application/json"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Accept": accept, "Content-Type": "application/json"}
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {text}")
        return text

    def names(self, path):
        """Which of our objects there are; metadata only."""
        accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
        label = "" if path == JOBS else "?labelSelector=app.kubernetes.io/managed-by%3Dstreamforge-operator"
        items = json.loads(self.request("GET", path + label, accept=accept))["items"] or []
        found = [item["metadata"] for item in items]
        return {(it["namespace"], it["name"]) for it in found if it["namespace"] in NAMESPACES}

    def jobs(self):
        items = json.loads(self.request("GET", JOBS))["items"] or []
        return [item for item in items if item["metadata"]["namespace"] in NAMESPACES]

    def counts(self):
        """Requests by verb and resource, since the API server began."""
        counts = collections.Counter()
        for line in self.request("GET", "/metrics", accept="text/plain").splitlines():
            if line.startswith("apiserver_request_total{"):
                labels, value = line[len("apiserver_request_total{") :].rsplit("} ", 1)
                label = dict(part.split("=", 1) for part in labels.split(","))
                of = {name: text.strip('"') for name, text in label.items()}
                what = of["resource"] + ("/" + of["subresource"] if of["subresource"] else "")
                counts[of["verb"], what] += float(value)
        return counts


@contextlib.contextmanager
def api_server():
    proxy = subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        yield Api(int(proxy.stdout.readline().rsplit(":", 1)[1]))
    finally:
        proxy.kill()


@contextlib.contextmanager
def without_controllers():
    """No controller makes pods, or anything else."""
    stopped = ["kube-controller-manager", "kube-scheduler"]
    for process in stopped:
        subprocess.run([CLUSTER, "stop", process], check=True)
    try:
        yield
    finally:
        subprocess.run([CLUSTER, "up"], check=True, stdout=subprocess.DEVNULL)


class Operator:
    """The process of the operator that leads."""

    def __init__(self):
        name = kubectl("-n", OPERATOR, "get", "lease", "streamforge-operator", "-o", "jsonpath={.spec.holderIdentity}")
        self.name = name
        self.pid = subprocess.run(
            [CLUSTER, "pid", OPERATOR, name], capture_output=True, text=True, check=True
        ).stdout.strip()

    def rss_mib(self, line="VmRSS"):
        for text in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if text.startswith(line + ":"):
                return int(text.split()[1]) / 1024
        raise SystemExit("the operator has ended")

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prepare(api):
    for namespace in NAMESPACES:
        keys = {"accessKeyId": os.environ["AWS_ACCESS_KEY_ID"], "secretAccessKey": os.environ["AWS_SECRET_ACCESS_KEY"]}
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        secret = {"metadata": {"name": "keys"}, "stringData": keys}
        api.request("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)


def post_all(api, given):
    endpoint = os.environ["POD_S3_ENDPOINT"]

    def post(n):
        namespace = NAMESPACES[n % len(NAMESPACES)]
        job = document(f"job-{n:04}", namespace, NOWHERE if n < given.unreachable else endpoint)
        api.request("POST", f"/apis/streamforge.io/v1alpha1/namespaces/{namespace}/streamjobs", job)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(post, range(given.jobs)))


def is_seen(job):
    return job.get("status", {}).get("observedGeneration") == job["metadata"]["generation"]


def converge(api, began, jobs_n):
    """Seconds until all jobs are looked after."""
    limit = began + 10 * CONVERGED_S
    while time.monotonic() < limit:
        if len(api.names(CHILDREN["statefulsets"])) == jobs_n and all(map(is_seen, api.jobs())):
            counts = {kind: len(api.names(path)) for kind, path in CHILDREN.items()}
            if all(n == jobs_n for n in counts.values()):
                return time.monotonic() - began
        time.sleep(1)
    raise SystemExit(f"not looked after within {10 * CONVERGED_S} s")


def settle(api):
    """Until the first rush is over: coordinators have started, and what they say is written."""
    before = sum_of(api.counts(), WRITES)
    for _ in range(60):
        time.sleep(5)
        now = sum_of(api.counts(), WRITES)
        if now - before < 5 * WRITES_PER_S:
            return
        before = now


def sum_of(counts, verbs):
    return sum(n for (verb, _), n in counts.items() if verb in verbs)


def idle(api, operator, minutes):
    """What happens while nothing does."""
    counts, cpu_s, began = api.counts(), operator.cpu_s(), time.monotonic()
    memory = [operator.rss_mib()]
    while time.monotonic() < began + minutes * 60:
        time.sleep(5)
        memory.append(operator.rss_mib())
    took = time.monotonic() - began
    spent = {key: n - counts[key] for key, n in api.counts().items() if n > counts[key]}
    return {
        "spent": {key: n / took for key, n in spent.items()},
        "cpu": (operator.cpu_s() - cpu_s) / took,
        "memory": memory,
        "writes": sum_of(spent, WRITES) / took,
        "reads": sum_of(spent, {"GET", "LIST"}) / took,
    }


def phases(api):
    """What the jobs say of themselves."""
    found = collections.Counter()
    for job in api.jobs():
        progressing = [it for it in job["status"]["conditions"] if it["type"] == "Progressing"]
        found[f"{job['status']['phase']}, Progressing {progressing[0]['status']}: {progressing[0]['reason']}"] += 1
    return found


def measure(given):
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(api_server())
        prepare(api)
        operator = Operator()
        before_mib = operator.rss_mib()
        if not given.pods:
            stack.enter_context(without_controllers())
        began, cpu_s = time.monotonic(), operator.cpu_s()
        post_all(api, given)
        posted_s = time.monotonic() - began
        print(f"{given.jobs} jobs posted in {posted_s:.1f} s", flush=True)
        converged_s = converge(api, began, given.jobs)
        cpu_s = operator.cpu_s() - cpu_s
        print(f"looked after in {converged_s:.1f} s, with {cpu_s:.1f} s of processor time", flush=True)
        settle(api)
        found = idle(api, operator, given.minutes)
        for what, n in sorted(found["spent"].items(), key=lambda it: -it[1])[:15]:
            print(f"  {n:7.2f}/s  {' '.join(what)}")
        said = phases(api)
        print(*(f"  {n} jobs: {what}" for what, n in said.most_common()), sep="\n")
        deleted_s = delete(api)
        print(f"deleted in {deleted_s:.1f} s", flush=True)
        memory = found["memory"]
        growth = memory[-1] - memory[0]
        rows = [
            ("all children applied, observedGeneration set", converged_s, f"{converged_s:.1f} s", CONVERGED_S, "s"),
            ("of it until the API server had taken all jobs", None, f"{posted_s:.1f} s", None, ""),
            ("processor time of the operator until then", None, f"{cpu_s:.1f} s", None, ""),
            ("RSS of the operator before", None, f"{before_mib:.0f} MiB", None, ""),
            ("RSS of the operator, at most", operator.rss_mib("VmHWM"), f"{operator.rss_mib('VmHWM'):.0f} MiB", RSS_MIB, "MiB"),
            (f"RSS when idle, first and last of {given.minutes:g} min", growth, f"{memory[0]:.0f} MiB, {memory[-1]:.0f} MiB", GROWTH_MIB, "MiB more"),
            ("writes to the API server when idle, of everybody", found["writes"], f"{found['writes']:.2f} /s", WRITES_PER_S, "/s"),
            ("reads (GET, LIST) when idle, of everybody", None, f"{found['reads']:.2f} /s", None, ""),
            ("processor time of the operator when idle", None, f"{found['cpu'] * 100:.1f} % of one core", None, ""),
            ("all jobs deleted, with their checkpoints", None, f"{deleted_s:.1f} s", None, ""),
        ]  # fmt: skip
        return rows, said


def delete(api):
    """Seconds until all jobs are gone. Before controllers are back, which would make pods for them."""
    began = time.monotonic()
    for namespace in NAMESPACES:
        api.request("DELETE", f"/apis/streamforge.io/v1alpha1/namespaces/{namespace}/streamjobs")
    while api.jobs():
        if time.monotonic() > began + 5 * CONVERGED_S:
            raise SystemExit(f"not deleted within {5 * CONVERGED_S} s")
        time.sleep(1)
    return time.monotonic() - began


def clear():
    """Leaves the cluster as it was found: the next test needs it."""
    for namespace in NAMESPACES:
        kubectl("delete", "namespace", namespace, "--wait=false")
    for namespace in NAMESPACES:
        kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=300s")


def write(rows, said, given):
    today = datetime.date.today().isoformat()
    table = "\n".join(f"| {what} | {text} | {f'{aim} {unit}' if aim else ''} |" for what, _, text, aim, unit in rows)
    unreachable = f"; the stores of {given.unreachable} do not answer" if given.unreachable else ""
    text = f"""# {given.jobs:,} jobs in one operator, {today}

Kubernetes of `e2e/cluster`{"" if given.pods else ", controller manager and scheduler stopped: no pods"}{unreachable}; a real S3 server; `bench/jobs.py`. {report.machine()}, {report.commit()}.

| what | measured | aim |
|---|--:|--:|
{table}

Jobs at the end: {"; ".join(f"{n} {what}" for what, n in said.most_common())}.
"""
    path = ROOT / f"bench/results/{today}-jobs{'-unreachable' if given.unreachable else ''}.md"
    path.write_text(text)
    print(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--unreachable", type=int, default=0)
    parser.add_argument("--pods", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if "/local/" not in CLUSTER:
        return print("left out: only in the cluster of processes can controllers be stopped and memory be read")
    try:
        rows, said = measure(given)
    finally:
        clear()
    for what, _, text, _, _ in rows:
        print(f"{what}: {text}", flush=True)
    if not given.check:
        return write(rows, said, given)
    bad = [what for what, value, _, aim, _ in rows if aim is not None and value > aim]
    if bad:
        sys.exit("too much: " + "; ".join(bad))


if __name__ == "__main__":
    main()
