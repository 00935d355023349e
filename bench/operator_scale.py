"""How many topics the operator looks after, how fast, and at what cost.

A real API server with its etcd, real brokers with their store, and one operator process share this
machine. Measured: from the first create to the last topic that is Ready in the API; what the
operator then writes while nothing happens; its memory.

By hand: ``python -m bench.operator_scale [--topics 10,100,500,1000] [--idle-seconds 600]
[--output FILE]``.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import describe_machine
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until

from onewriter_broker.testing import LocalBrokers, running_brokers
from onewriter_operator.conditions import condition
from onewriter_operator.documents import TOPIC, Json
from onewriter_operator.kube import Kube, load_configuration

CRDS = sorted((Path(__file__).parent.parent / "crds").glob("*.yaml"))
OUTPUT = Path(__file__).parent.parent / "docs" / "benchmarks.md"

CREATES_AT_ONCE = 20
READY_SECONDS_MAX = 300.0
POLL_SECONDS = 0.1

GOAL_SECONDS = 10.0
GOAL_TOPICS = 1_000
GOAL_RESIDENT_BYTES = 200_000_000

SECTION = "The operator"
_WRITES = re.compile(
    r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+]+)$", re.MULTILINE
)
_CHANGING = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}


@dataclass(frozen=True, slots=True)
class Round:
    """One burst: seconds until all were created, until half and until all were Ready."""

    topics: int
    created_seconds: float
    half_seconds: float
    ready_seconds: float
    resident_bytes: int
    status_writes: int


@dataclass(frozen=True, slots=True)
class Idle:
    """API writes of the operator while nothing happened."""

    topics: int
    seconds: float
    writes: int
    lease_writes: int
    resident_bytes: int


class Lab:
    """The parts, for as long as one measurement lasts."""

    def __init__(self, cluster: ControlPlane, brokers: LocalBrokers, directory: Path) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.directory = directory

    def operator(self, namespace: str) -> OperatorProcess:
        urls = dict(zip(self.brokers.names, self.brokers.http_urls, strict=True))
        name = f"operator-{namespace}"
        # The Lease's defaults: a busy machine must not end the leadership.
        options: dict[str, Any] = {"lease": {}}
        return OperatorProcess(
            self.directory, self.cluster, namespace, urls, name=name, options=options
        )

    def writes(self) -> dict[str, int]:
        """Requests that changed something, by resource, as the API server counts them."""
        text = self.cluster.kubectl("get", "--raw", "/metrics").stdout
        found: dict[str, int] = {}
        for match in _WRITES.finditer(text):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
            if labels.get("verb") in _CHANGING:
                name = f"{labels.get('resource')}/{labels.get('subresource')}".rstrip("/")
                found[name] = found.get(name, 0) + int(float(match["value"]))
        return found


async def burst(lab: Lab, namespace: str, topics: int) -> tuple[float, float, float]:
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
            tasks = [group.create_task(create(number)) for number in range(topics)]
            watching = group.create_task(_ready_times(kube, namespace, topics, started))
            await asyncio.wait(tasks)
            created = time.monotonic() - started
        half, everything = watching.result()
        return created, half, everything


async def _ready_times(
    kube: Kube, namespace: str, topics: int, started: float
) -> tuple[float, float]:
    """When half of them and when all are Ready, by listing them again and again."""
    half = 0.0
    async with asyncio.timeout(READY_SECONDS_MAX):
        while True:
            listed = await kube.list(TOPIC, namespace)
            ready = sum(
                condition(each.get("status") or {}, "Ready").get("status") == "True"
                for each in listed
            )
            now = time.monotonic() - started
            if ready * 2 >= topics and not half:
                half = now
            if ready == topics:
                return half, now
            await asyncio.sleep(max(POLL_SECONDS, topics / 2000))


def measure(lab: Lab, topics: int) -> Round:
    """One burst into a namespace of its own, with an operator that has nothing else to do."""
    namespace = f"scale-{topics}-{uuid.uuid4().hex[:6]}"
    lab.cluster.kubectl("create", "namespace", namespace)
    operator = lab.operator(namespace)
    with running(operator):
        wait_until(lambda: operator.leads)
        wait_until(lambda: operator.metric("onewriter_brokers_followed") == len(lab.brokers.names))
        before = lab.writes().get("exclusivetopics/status", 0)
        created, half, everything = asyncio.run(burst(lab, namespace, topics))
        writes = lab.writes().get("exclusivetopics/status", 0) - before
        return Round(topics, created, half, everything, operator.resident_bytes(), writes)


def idle(lab: Lab, topics: int, seconds: float) -> Idle:
    """What the operator writes about topics that nobody uses."""
    namespace = f"idle-{uuid.uuid4().hex[:6]}"
    lab.cluster.kubectl("create", "namespace", namespace)
    operator = lab.operator(namespace)
    with running(operator):
        wait_until(lambda: operator.leads)
        asyncio.run(burst(lab, namespace, topics))
        time.sleep(5)  # Events follow their statuses
        before = lab.writes()
        time.sleep(seconds)
        after = lab.writes()
        changed = {name: after[name] - before.get(name, 0) for name in after}
        leases = changed.pop("leases", 0)
        return Idle(topics, seconds, sum(changed.values()), leases, operator.resident_bytes())


def section(rounds: Sequence[Sequence[Round]], quiet: Idle | None, brokers: int) -> str:
    """The page's section: tables, and the goals with their verdicts."""
    lines = [
        f"## {SECTION}",
        "",
        (
            "Written by `make bench-operator`. A real API server, its etcd, "
            f"{brokers} brokers, their store and the operator share the machine: {describe_machine()}."
        ),
        (
            "From the first create (20 in flight) to the last topic whose status says Ready; "
            f"medians of {len(rounds[0])}."
        ),
        "",
        "| topics | created | half Ready | all Ready | status writes | operator's memory |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {same[0].topics:,} | {_median(same, 'created_seconds'):.2f} s"
        f" | {_median(same, 'half_seconds'):.2f} s | {_median(same, 'ready_seconds'):.2f} s"
        f" | {_median(same, 'status_writes'):.0f}"
        f" | {_median(same, 'resident_bytes') / 1e6:.0f} MB |"
        for same in rounds
    ]
    lines += ["", "Strimzi's own scalability suite: 250 topics in 74.6 s, 125 in 42.4 s.", ""]
    goals = [_goal(same) for same in rounds if same[0].topics == GOAL_TOPICS]
    if quiet is not None:
        lines += [
            (
                f"In {quiet.seconds / 60:.0f} minutes with {quiet.topics:,} idle topics the API server "
                f"counted {quiet.writes} writes beside {quiet.lease_writes} of Leases (the operator's "
                "one and the API server's own)."
            ),
            "",
        ]
        goals.append(f"no write while idle: {_verdict(quiet.writes == 0)}")
        fits = quiet.resident_bytes < GOAL_RESIDENT_BYTES
        memory = f"{quiet.resident_bytes / 1e6:.0f} MB"
        goals.append(f"below 200 MB at {quiet.topics:,} topics: {memory}, {_verdict(fits)}")
    return "\n".join([*lines, *(f"- {goal}" for goal in goals)]) + "\n"


def _goal(same: Sequence[Round]) -> str:
    seconds = _median(same, "ready_seconds")
    verdict = _verdict(seconds < GOAL_SECONDS)
    return f"{GOAL_TOPICS:,} topics Ready in less than 10 s: {seconds:.2f} s, {verdict}"


def _verdict(holds: bool) -> str:
    return "holds" if holds else "**missed**"


def _median(same: Sequence[Round], name: str) -> float:
    return statistics.median(float(getattr(each, name)) for each in same)


def put_section(page: Path, text: str) -> None:
    """Replace this section of a page, or add it at its end."""
    before = page.read_text() if page.exists() else "# Benchmarks\n"
    kept = re.sub(rf"\n## {re.escape(SECTION)}\n.*?(?=\n## |\Z)", "", before, flags=re.DOTALL)
    page.write_text(f"{kept.rstrip()}\n\n{text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", default="10,100,500,1000")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--idle-seconds", type=float, default=600.0)
    parser.add_argument("--idle-topics", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="onewriter-scale-") as folder,
        running_brokers(brokers=given.brokers) as brokers,
    ):
        directory = Path(folder)
        (directory / "cluster").mkdir()
        with ControlPlane(directory / "cluster") as cluster:
            cluster.establish(*CRDS)
            lab = Lab(cluster, brokers, directory)
            rounds = []
            for topics in (int(each) for each in given.topics.split(",")):
                rounds.append([measure(lab, topics) for _ in range(given.repetitions)])
                print(*rounds[-1], sep="\n", flush=True)
            quiet = None
            if given.idle_seconds > 0:
                quiet = idle(lab, given.idle_topics, given.idle_seconds)
                print(quiet, flush=True)
    text = section(rounds, quiet, given.brokers)
    put_section(given.output, text)
    print(text)


if __name__ == "__main__":
    main()
