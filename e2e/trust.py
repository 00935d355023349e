"""``make trust``: injects faults, measures the outages at the writers, and compares them with what is reported.

It needs what ``make e2e`` needs. It writes the table into docs/failures.md, and ends with an error if a report
contradicts the writers. It is a measurement: no time has a limit.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from e2e import log
from e2e.api import Api
from e2e.clusters import tested_cluster
from e2e.faults import Faults
from e2e.installation import NAMESPACE, RELEASE, Installation
from e2e.log import Tally
from e2e.outages import Outage, Sample, table, written
from e2e.world import World
from e2e.writers import Writers, WritingPod, until

Json = dict[str, Any]
Inject = Callable[["Stage", WritingPod], None]

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "failures.md"
INTERVAL_SECONDS: Final = "0.02"
SAMPLE_SECONDS: Final = 0.5
LINES_BEFORE: Final = 20
LINES_AFTER: Final = 40


class Stage:
    """The installation, one topic with two writers, and the faults of one round."""

    def __init__(self, installation: Installation, writers: Writers, faults: Faults) -> None:
        self.installation = installation
        self.writers = writers
        self.faults = faults

    @property
    def broker(self) -> Json:
        """The pod of the broker that serves the topic."""
        return self.installation.pod(self.installation.owner(self.writers.topic))

    @property
    def store(self) -> Json:
        return self.installation.pod(f"{RELEASE}-valkey-0")


def _delete(stage: Stage, pod: Json) -> None:
    about = pod["metadata"]
    stage.installation.api.delete("pods", about["namespace"], about["name"])


FAULTS: Final[dict[str, Inject]] = {
    "kill -9 of the writer": lambda stage, former: stage.faults.kill(former.pod, "writer"),
    "SIGSTOP of the writer": lambda stage, former: stage.faults.freeze(former.pod),
    "the writer's pod is deleted": lambda stage, former: _delete(stage, former.pod),
    "the writer is cut off from the brokers": lambda stage, former: _cut_off(stage, former.pod),
    "kill -9 of the topic's broker": lambda stage, _: stage.faults.kill(stage.broker, "broker"),
    "the topic's broker pod is deleted": lambda stage, _: _delete(stage, stage.broker),
    "kill -9 of the store": lambda stage, _: stage.faults.kill(stage.store, "valkey"),
    "the store's pod is deleted": lambda stage, _: _delete(stage, stage.store),
}
"""The faults by name, in the order of the table."""


def _cut_off(stage: Stage, pod: Json) -> None:
    stage.faults.cut_off(pod)


def now_ms() -> int:
    """The wall clock. The lab's pods share the clock of this machine."""
    return time.time_ns() // 1_000_000


@contextmanager
def sampled(writers: Writers) -> Iterator[list[Sample]]:
    """Sample the topic's condition Ready during the context."""
    samples: list[Sample] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(SAMPLE_SECONDS):
            ready = writers.condition("Ready").partition("/")[0]
            samples.append(Sample(now_ms(), ready))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        is_over.set()
        sampler.join()


def acknowledged_ms(stage: Stage) -> set[int]:
    """When writers got their acknowledgements, as their logs say it."""
    writers, found = stage.writers, set[int]()
    for pod in stage.installation.api.list("pods", writers.namespace, app=writers.name):
        for previous in (False, True):
            name = pod["metadata"]["name"]
            printed = stage.installation.api.log(
                writers.namespace, name, "writer", previous=previous
            )
            found |= set(log.acknowledged_ms(printed))
    return found


def transition_after(stage: Stage, began_ms: int) -> Json | None:
    """The newest transition that a broker logged after the fault began, with the time of its first message."""
    found: list[tuple[str, Json]] = []
    for pod in stage.installation.pods("broker"):
        for previous in (False, True):
            printed = stage.installation.api.log(
                NAMESPACE, pod["metadata"]["name"], "broker", previous=previous
            )
            for line in printed.splitlines():
                if '"topic.transition"' in line or '"topic.first_message"' in line:
                    event = json.loads(line)
                    at = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000
                    if event["topic"] == stage.writers.topic and at >= began_ms:
                        found.append((event["timestamp"], event))
    transition: Json | None = None
    for _, event in sorted(found, key=lambda each: each[0]):
        if event["event"] == "topic.transition" and event["kind"] in {"grant", "resume"}:
            names = ("cause", "kind", "epoch", "detection_ms", "handover_ms", "outage_ms")
            transition = {_camel(name): event[name] for name in names}
        elif event["event"] == "topic.first_message" and transition is not None:
            transition["firstMessageMs"] = event["first_message_ms"]
    return transition


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def measure(
    installation: Installation, writers: Writers, faults: Faults, fault: str, inject: Inject
) -> Outage:
    """Inject one fault, wait until writing continues, and collect what was seen and reported."""
    until(
        lambda: installation.is_ready() and installation.has_its_nodes(), installation.diagnostics
    )
    stage = Stage(installation, writers, faults)
    former = writers.settled()
    writers.wrote(LINES_BEFORE)
    seen = acknowledged_ms(stage)
    with sampled(writers) as samples:
        began_ms = now_ms()
        inject(stage, former)

        def after() -> list[int]:
            seen.update(acknowledged_ms(stage))
            return [each for each in seen if each > began_ms]

        # A fault of the store or of a broker shows after a moment; a gap that has not begun is no gap.
        until(lambda: len(after()) >= LINES_AFTER and now_ms() - began_ms > 15_000)
    reported = transition_after(stage, began_ms)
    if reported is not None and reported["kind"] == "grant":
        shown = until(lambda: _shown(writers, reported["epoch"]), writers.status)
        reported |= {name: shown.get(name) for name in ("detectionMs", "handoverMs", "outageMs")}
    return Outage(fault, began_ms, sorted(seen), reported, samples)


def _shown(writers: Writers, epoch: int) -> Json | None:
    """The transition of an epoch in the object's status."""
    shown = writers.status().get("transitions", ())
    return next((dict(each) for each in shown if each["epoch"] == epoch), None)


def main() -> int:
    outages: list[Outage] = []
    with tested_cluster() as tested, Api(tested.cluster, tested.directory / "api.sock") as api:
        installation = Installation(tested, api)
        installation.install()
        with World(tested, installation, "e2e.test_trust", Tally()) as world:
            writers = world.writers(INTERVAL_SECONDS=INTERVAL_SECONDS)
            for fault, inject in FAULTS.items():
                with Faults(tested.machines) as faults:
                    outages.append(measure(installation, writers, faults, fault, inject))
                print(table(outages[-1:]).splitlines()[-1], flush=True)
    contradictions = [each for outage in outages for each in outage.contradictions()]
    text = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: a Deployment of two pods with the stock Python client, a message"
        f" each {INTERVAL_SECONDS} s.\n\n{table(outages)}"
    )
    PAGE.write_text(written(PAGE.read_text(), text))
    for each in contradictions:
        print(f"contradiction: {each}", file=sys.stderr)
    return 1 if contradictions else 0


if __name__ == "__main__":
    sys.exit(main())
