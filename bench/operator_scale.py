"""How many topics the operator looks after, how fast, and at what cost.

A real API server with its etcd, real brokers with their store, and one operator process share this
machine. Measured: from the first create to the last topic that is Ready in the API; what the
operator then writes while nothing happens; its memory and CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import process_usage
from tests.cluster.binaries import program
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import TOPIC
from onewriter_operator.kube import Kube, load_configuration
from onewriter_testing.processes import LocalBrokers, running_brokers

CRDS = sorted((Path(__file__).parent.parent / "crds").glob("*.yaml"))

CREATES_AT_ONCE = 20
READY_SECONDS_MAX = 300.0
EVENTS_SECONDS = 5.0
"""Kubernetes Events follow the statuses that they tell of; so long after a burst it is quiet."""

_READY = '{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\\n"}'

_REQUESTS = re.compile(
    r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+]+)$", re.MULTILINE
)
_CHANGING = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds until all topics were created, until half and until all were Ready; the operator's cost."""

    topics: int
    created_seconds: float
    half_seconds: float
    ready_seconds: float
    cpu_seconds: float
    resident_bytes: int
    status_writes: int


@dataclass(frozen=True, slots=True)
class Idle:
    """API writes while nothing happened, and the operator's cost."""

    topics: int
    seconds: float
    writes: int
    lease_writes: int
    cpu_seconds: float
    resident_bytes: int


def changing_requests(metrics: str) -> dict[str, int]:
    """Requests that changed something, by resource, out of an API server's metrics."""
    found: dict[str, int] = {}
    for match in _REQUESTS.finditer(metrics):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels.get("verb") in _CHANGING and not labels.get("dry_run"):
            name = f"{labels.get('resource')}/{labels.get('subresource')}".rstrip("/")
            found[name] = found.get(name, 0) + int(float(match["value"]))
    return found


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[int, int]:
    """How many writes there were beside Leases, and of Leases."""
    changed = {name: after[name] - before.get(name, 0) for name in after}
    leases = changed.pop("leases", 0)
    return sum(changed.values()), leases


class ScaleLab:
    """The parts, for as long as one measurement lasts."""

    def __init__(self, cluster: ControlPlane, brokers: LocalBrokers, directory: Path) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.directory = directory

    @contextlib.contextmanager
    def operator(self, label: str) -> Iterator[tuple[OperatorProcess, str]]:
        """An operator that leads and follows all brokers, and the new namespace that it looks after."""
        namespace = f"{label}-{uuid.uuid4().hex[:6]}"
        self.cluster.kubectl("create", "namespace", namespace)
        urls = dict(zip(self.brokers.names, self.brokers.http_urls, strict=True))
        # The Lease's defaults: a busy machine must not end the leadership.
        options: dict[str, Any] = {"lease": {}}
        operator = OperatorProcess(
            self.directory, self.cluster, namespace, urls, name=namespace, options=options
        )
        with running(operator):
            wait_until(lambda: operator.leads)
            followed = len(self.brokers.names)
            wait_until(lambda: operator.metric("onewriter_brokers_followed") == followed)
            yield operator, namespace

    def writes(self) -> dict[str, int]:
        """Requests that changed something so far, by resource."""
        return changing_requests(self.cluster.kubectl("get", "--raw", "/metrics").stdout)


@contextlib.contextmanager
def scale_lab(brokers: int) -> Iterator[ScaleLab]:
    """API server, etcd, brokers and store."""
    with (
        tempfile.TemporaryDirectory(prefix="onewriter-scale-") as folder,
        running_brokers(brokers=brokers) as running_ones,
    ):
        directory = Path(folder)
        (directory / "cluster").mkdir()
        with ControlPlane(directory / "cluster") as cluster:
            cluster.establish(*CRDS)
            yield ScaleLab(cluster, running_ones, directory)


async def _burst(lab: ScaleLab, namespace: str, topics: int) -> tuple[float, float, float]:
    """Create topics and wait until all are Ready: seconds to created, half, all."""
    gate = asyncio.Semaphore(CREATES_AT_ONCE)
    async with Kube(await load_configuration(lab.cluster.kubeconfig)) as kube:

        async def create(number: int) -> None:
            document: Json = {
                "apiVersion": TOPIC.api_version,
                "kind": TOPIC.kind,
                "metadata": {"name": f"topic-{number}", "namespace": namespace},
            }
            async with gate:
                await kube.create(TOPIC, document)

        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_ready_times(lab, namespace, topics))
            creating = [group.create_task(create(number)) for number in range(topics)]
            await asyncio.wait(creating)
            created = time.monotonic() - started
        half, everything = watching.result()
        return created, half - started, everything - started


async def _ready_times(lab: ScaleLab, namespace: str, topics: int) -> tuple[float, float]:
    """When half of them and when all were seen Ready, on the monotonic clock."""
    ready: set[str] = set()
    half = 0.0
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            async with contextlib.aclosing(_seen_ready(lab, namespace)) as names:
                async for name in names:
                    ready.add(name)
                    if len(ready) * 2 >= topics and not half:
                        half = time.monotonic()
                    if len(ready) == topics:
                        break
    except TimeoutError as error:
        raise TimeoutError(f"{len(ready)} of {topics} topics are Ready") from error
    return half, time.monotonic()


async def _seen_ready(lab: ScaleLab, namespace: str) -> AsyncGenerator[str, None]:
    """Names of topics that are Ready, some of them again and again, for ever."""
    command = (
        *(str(program("kubectl")), f"--kubeconfig={lab.cluster.kubeconfig}", "get", TOPIC.plural),
        *(f"--namespace={namespace}", "--watch", "--chunk-size=0", f"--output=jsonpath={_READY}"),
    )
    # The API server ends the watch of one that cannot keep up; the next one lists first.
    while True:
        watch = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert watch.stdout is not None
        try:
            async for line in watch.stdout:
                name, _, word = line.decode().strip().partition(" ")
                if word == "True":
                    yield name
            await watch.wait()
        finally:
            if watch.returncode is None:
                watch.kill()
                await watch.wait()


def measure_burst(lab: ScaleLab, topics: int) -> Burst:
    """Into a namespace of its own, with an operator that has nothing else to do."""
    with lab.operator(f"scale-{topics}") as (operator, namespace):
        before = lab.writes().get("exclusivetopics/status", 0)
        used = process_usage([operator.pid])
        created, half, everything = asyncio.run(_burst(lab, namespace, topics))
        usage = process_usage([operator.pid]).since(used)
        writes = lab.writes().get("exclusivetopics/status", 0) - before
        return Burst(
            topics, created, half, everything, usage.cpu_seconds, usage.resident_bytes, writes
        )


def measure_idle(lab: ScaleLab, topics: int, seconds: float) -> Idle:
    """What is written about topics that nobody uses."""
    with lab.operator("idle") as (operator, namespace):
        asyncio.run(_burst(lab, namespace, topics))
        time.sleep(EVENTS_SECONDS)
        before, used = lab.writes(), process_usage([operator.pid])
        time.sleep(seconds)
        usage = process_usage([operator.pid]).since(used)
        writes, leases = difference(before, lab.writes())
        return Idle(topics, seconds, writes, leases, usage.cpu_seconds, usage.resident_bytes)
