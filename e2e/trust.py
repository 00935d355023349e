"""``make trust``: injects faults, measures the outages at the writers, and compares them with what is reported.

    python -m e2e.trust [--faults NAME,NAME] [--minutes 60] [--list]

It needs what ``make e2e`` needs. Each fault hits three topics at once: one whose writers use the stock client, one whose
writers use it through the relay, one whose writers use the sidecar. The table in docs/failures.md has the newest measurement
of each fault. The command ends with an error if a report contradicts the writers, or another report. It is a
measurement: no time has a limit.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from e2e import images
from e2e.acknowledgements import Acknowledgements
from e2e.api import Api
from e2e.clusters import TestedCluster, tested_cluster, uses_existing
from e2e.faults import Faults
from e2e.injected import FAULTS, KINDS, Fault, Stage, losable
from e2e.installation import NAMESPACE, RELEASE, Installation
from e2e.log import Tally
from e2e.machines import NotPossible
from e2e.manifests import RELAYED, SIDECAR, STOCK
from e2e.outages import (
    HEAD,
    Measurement,
    Outage,
    Reports,
    Sample,
    Span,
    at_ms,
    parsed,
    rows,
    table,
    uncounted,
    unshifted,
    written,
)
from e2e.world import World
from e2e.writers import Writers, WritingPod, until
from tests.cluster import commands
from tests.cluster.control_plane import COMMAND_SECONDS, ClusterError

Json = dict[str, Any]

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "failures.md"
DETAILS: Final = Path(__file__).resolve().parents[1] / "build" / "trust"
"""For each fault a file with everything that was seen and reported in its newest measurement."""

INTERVAL_SECONDS: Final = "0.05"
SAMPLE_SECONDS: Final = 1.0
LINES: Final = 40
"""Acknowledgements before a fault, and after it."""

FIRST_MESSAGE_SECONDS: Final = 75.0
"""A transition gets its first message within a minute. A holder that resumed has none in the transition of its grant."""

SETTLE_SECONDS: Final = 10.0
"""Shortest time of a measurement: a gap that has not begun is no gap."""

TITLES: Final = {STOCK: "stock", RELAYED: "stock, relay", SIDECAR: "sidecar"}

PLUGIN: Final = """
import json, sys
from click.testing import CliRunner
from onewriter_kubectl.cli import onewriter
answers = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(onewriter, words, obj=None)
    answers.append(done.output if done.exit_code == 0 else "")
print(json.dumps(answers))
"""
"""Runs several commands of the plugin in one process; an answer is empty if a command fails."""

METRICS: Final = """
import os, urllib.request
asked = urllib.request.Request("http://127.0.0.1:8080/metrics", headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
print(urllib.request.urlopen(asked, timeout=10).read().decode())
"""


def now_ms() -> int:
    """The wall clock. The lab's pods share the clock of this machine."""
    return time.time_ns() // 1_000_000


@contextmanager
def sampled(casts: Mapping[str, Writers]) -> Iterator[dict[str, list[Sample]]]:
    """Sample the topics' conditions during the context."""
    samples: dict[str, list[Sample]] = {kind: [] for kind in casts}
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(SAMPLE_SECONDS):
            for kind, writers in casts.items():
                with suppress(ClusterError, OSError):
                    asked_ms = now_ms()
                    found = writers.status().get("conditions", ())
                    states = {each["type"]: each["status"] for each in found}
                    ready, active = states.get("Ready", ""), states.get("WriterActive", "")
                    samples[kind].append(Sample(asked_ms, ready, active))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        is_over.set()
        sampler.join()


def reports(stage: Stage, kinds: tuple[str, ...]) -> dict[str, Reports]:
    """What broker, status, history and plugin say about the topics."""
    cluster, namespace = stage.world.cluster, stage.world.namespace
    program = cluster.tool("kubectl")
    where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={namespace}"]
    requests = []
    for kind in kinds:
        name = stage.casts[kind].name
        requests.append(["status", name, "--live", "--output=json", *where])
        requests.append(["history", name, "--output=json", "--limit=300", *where])
        requests.append(["why", name, *where])
    inside = [*cluster.enter(), "env", f"ONEWRITER_KUBECTL={program}"]
    done = commands.run(
        [*inside, sys.executable, "-c", PLUGIN, json.dumps(requests)], seconds=COMMAND_SECONDS
    )
    if done.returncode != 0:
        raise ClusterError(f"kubectl onewriter: {done.stderr}")
    answers = iter(json.loads(done.stdout))
    found = {}
    for kind in kinds:
        live, history, why = (next(answers) for _ in range(3))
        found[kind] = Reports(
            transitions=json.loads(live or "{}").get("transitions", ()),
            shown=stage.casts[kind].status().get("transitions", ()),
            history=json.loads(history or "{}").get("records", ()),
            why=why,
        )
    return found


def counted(stage: Stage) -> tuple[str, dict[str, int]]:
    """The process of the leading operator, and the sum of the outages that its metric counts, by cause, in milliseconds."""
    name = until(stage.installation.leading_operator)
    pod = stage.installation.pod(name)
    secret = stage.api.get("secrets", NAMESPACE, f"{RELEASE}-metrics") or {}
    token = base64.b64decode(secret["data"]["token"]).decode()
    where = ("exec", name, "--container=operator", "--", "env", f"TOKEN={token}")
    done = stage.world.cluster.kubectl(*where, "python", "-c", METRICS, namespace=NAMESPACE)
    sums: dict[str, int] = {}
    for line in done.stdout.splitlines():
        if line.startswith("onewriter_topic_outage_seconds_sum{"):
            cause = line.partition('cause="')[2].partition('"')[0]
            sums[cause] = round(float(line.rpartition(" ")[2]) * 1000)
    process = pod["status"]["containerStatuses"][0].get("containerID", "")
    return f"{name} {process}", sums


def grown(
    before: tuple[str, dict[str, int]], after: tuple[str, dict[str, int]]
) -> dict[str, int] | None:
    """By how much the sums grew; None if another process leads."""
    if before[0] != after[0]:
        return None
    return {cause: total - before[1].get(cause, 0) for cause, total in after[1].items()}


def until_healthy(stage_installation: Installation) -> None:
    """Wait until every part is ready and every bucket is where it belongs."""
    until(
        lambda: (
            stage_installation.is_ready()
            and stage_installation.has_its_nodes()
            and stage_installation.is_placed()
        ),
        stage_installation.diagnostics,
    )


class Run:
    """The measurement of one fault after the other."""

    def __init__(
        self,
        tested: TestedCluster,
        world: World,
        heard: Acknowledgements,
        casts: dict[str, Writers],
    ) -> None:
        self.tested = tested
        self.world = world
        self.heard = heard
        self.casts = casts
        self.contradictions: list[str] = []
        self.measured: list[str] = []
        """The names of the faults that were measured."""

    def measure(self, name: str) -> None:
        """Measure one fault. A fault that does not end well is a contradiction, too."""
        fault, began, known = FAULTS[name], time.monotonic(), len(self.contradictions)
        try:
            found = self._measured(fault)
        except NotPossible as reason:
            self.contradictions.append(f"{fault.title}: not possible here: {reason}")
            found = []
        except (AssertionError, ClusterError, OSError, commands.CommandHangs) as error:
            self.contradictions.append(f"{fault.title}: the measurement failed: {error}")
            found = []
        load = os.getloadavg()[0]
        if found:
            DETAILS.mkdir(parents=True, exist_ok=True)
            measurement = Measurement(f"{datetime.now(UTC):%Y-%m-%d}", load, found)
            (DETAILS / f"{name}.json").write_text(measurement.text())
            self.measured.append(name)
        lines = [f"contradiction: {each}" for each in self.contradictions[known:]]
        rows = table(found).splitlines()[2:]
        about = f"{name}: {time.monotonic() - began:.0f} s, load {load:.1f}"
        print("\n".join([about, *rows, *lines]), flush=True)

    def _measured(self, fault: Fault) -> list[Outage]:
        casts = {kind: self.casts[kind] for kind in fault.kinds}
        with Faults(self.tested.machines) as faults:
            stage = Stage(self.tested, self.world, self.casts, faults, {})
            until_healthy(stage.installation)
            self._place_broker(stage, fault)
            stage.formers = self._formers(stage, fault)
            self._wrote(casts, now_ms())
            before = counted(stage)
            with sampled(casts) as samples:
                began_ms, began = now_ms(), time.monotonic()
                fault.inject(stage)
                self._wrote(casts, began_ms)
                until_healthy(stage.installation)
                settled = {kind: writers.settled() for kind, writers in casts.items()}
                self._wrote(casts, now_ms())
                time.sleep(max(0.0, SETTLE_SECONDS - (time.monotonic() - began)))
            self.heard.catch_up(round(time.monotonic() - began) + 10)
            epochs = {kind: settled[kind].epoch for kind in casts}
            late = time.monotonic() + FIRST_MESSAGE_SECONDS
            until(
                lambda: (
                    time.monotonic() > late
                    or all(self._shown(casts[kind], epochs[kind]) for kind in casts)
                )
            )
            answer = reports(stage, fault.kinds)
            for each in fault.kinds:
                shift_ms = fault.broker_clock_seconds * 1000
                answer[each] = replace(
                    answer[each],
                    transitions=unshifted(answer[each].transitions, began_ms, shift_ms),
                    shown=unshifted(answer[each].shown, began_ms, shift_ms),
                )
            found = [
                Outage(
                    fault.title,
                    TITLES[kind],
                    began_ms,
                    self.heard.of(casts[kind].name, since_ms=began_ms - 10_000),
                    answer[kind],
                    samples[kind] if fault.has_operator else (),
                    fault.is_served,
                    self._outcome(casts[kind], stage.formers[kind], began_ms),
                )
                for kind in fault.kinds
            ]
            growth = grown(before, counted(stage))
        self.contradictions += [answer for each in found for answer in each.contradictions()]
        self.contradictions += [f"{fault.title}: {each}" for each in uncounted(growth, found)]
        return found

    def _wrote(self, casts: Mapping[str, Writers], since_ms: int) -> None:
        """Wait until each topic has further acknowledgements."""

        def counts() -> dict[str, int]:
            return {
                kind: len(self.heard.of(writers.name, since_ms=since_ms + 1))
                for kind, writers in casts.items()
            }

        until(lambda: min(counts().values()) >= LINES, counts)

    @staticmethod
    def _shown(writers: Writers, epoch: int) -> bool:
        """Whether the status shows an epoch, with its first message if it has one."""
        shown = writers.status().get("transitions", ())
        found = next((each for each in shown if each["epoch"] == epoch), None)
        return found is not None and (
            found.get("outageMs") is None or found.get("firstMessageMs") is not None
        )

    @staticmethod
    def _outcome(writers: Writers, former: WritingPod, began_ms: int) -> list[str]:
        """The outcomes of the pod for fences after the fault began."""
        return [
            str(each["outcome"])
            for each in writers.status().get("fencedPods", ())
            if each["podUID"] == former.uid and at_ms(each) >= began_ms
        ]

    def _formers(self, stage: Stage, fault: Fault) -> dict[str, WritingPod]:
        if fault.writer is None:
            return {kind: self.casts[kind].settled() for kind in fault.kinds}
        lost = losable(stage)
        nodes = set(self.world.cluster.names("nodes"))
        node = lost if fault.writer else next(iter(nodes - {lost}))
        return {kind: self.casts[kind].leads_on(node) for kind in fault.kinds}

    def _place_broker(self, stage: Stage, fault: Fault) -> None:
        """Bring the broker of the topics to the node that the fault needs."""
        if fault.broker is None:
            return
        lost = losable(stage)
        others = sorted(set(self.world.cluster.names("nodes")) - {lost})
        broker = stage.broker["metadata"]["name"]
        stage.installation.place_broker(broker, lost if fault.broker else others[0])
        until_healthy(stage.installation)


def started(world: World) -> dict[str, Writers]:
    """A topic for each kind of writers, all of them at one broker."""
    until_healthy(world.installation)
    broker = world.installation.pods("broker")[0]["metadata"]["name"]
    casts = {
        kind: world.writers(
            kind, world.name_served_by(broker, kind), INTERVAL_SECONDS=INTERVAL_SECONDS
        )
        for kind in KINDS
    }
    for writers in casts.values():
        writers.settled()
    return casts


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.trust", description=__doc__)
    parser.add_argument("--faults", default="", help="only these, by name, separated by commas")
    parser.add_argument("--minutes", type=float, default=60, help="begin no fault after this time")
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    return parser.parse_args()


def main() -> int:
    request = arguments()
    if request.list:
        print("\n".join(f"{name}: {fault.title}" for name, fault in FAULTS.items()))
        return 0
    names = [each for each in request.faults.split(",") if each] or list(FAULTS)
    unknown = sorted(set(names) - set(FAULTS))
    if unknown:
        print(f"--faults: there is no {', '.join(unknown)}; --list prints all", file=sys.stderr)
        return 2
    with (
        tested_cluster(notices_lost_nodes_early=False, nodes=2) as tested,
        Api(tested.cluster, tested.directory / "api.sock") as api,
    ):
        installation = Installation(tested, api)
        repository, tag = images.TAG.rsplit(":", 1)
        # In this image a pod's clock can be shifted. It is the product's image with one more layer.
        installation.values["image"] |= {"repository": repository, "tag": tag}
        installation.install()
        try:
            run = measured(tested, installation, names, request.minutes)
        finally:
            if uses_existing():
                installation.uninstall()
    write_table(run.measured)
    print(f"{len(names)} faults, {len(run.contradictions)} contradictions", flush=True)
    return 1 if run.contradictions else 0


def write_table(measured_now: Iterable[str]) -> None:
    """Write these measurements into the page. Other faults keep their rows."""
    found = [parsed((DETAILS / f"{name}.json").read_text()) for name in measured_now]
    if not found:
        return
    page = PAGE.read_text()
    span = Span.of(page).wider((each.measured_at, each.load) for each in found)
    measured_rows = rows(table(outage for each in found for outage in each.outages))
    known = rows(page) | measured_rows
    text = (
        f"Measured on {span.days} on a machine with {os.cpu_count()} cores and a load of {span.loads}: Deployments of two"
        f" pods, a message each {INTERVAL_SECONDS} s, two brokers, Kubernetes' default times for lost nodes."
    )
    missing = [name for name, fault in FAULTS.items() if fault.title not in known]
    text += f" Not measured: {', '.join(missing)}." if missing else ""
    lines = [line for fault in FAULTS.values() for line in known.get(fault.title, ())]
    PAGE.write_text(written(page, "\n".join([text, "", *HEAD, *lines])))


def measured(
    tested: TestedCluster, installation: Installation, names: list[str], minutes: float
) -> Run:
    """Measure these faults, in the order of the table."""
    deadline = time.monotonic() + minutes * 60
    with (
        World(tested, installation, "e2e.test_trust", Tally()) as world,
        Acknowledgements(installation.api, world.namespace) as heard,
    ):
        run = Run(tested, world, heard, started(world))
        for name in [each for each in FAULTS if each in names]:
            if time.monotonic() < deadline:
                run.measure(name)
            else:
                run.contradictions.append(f"{name}: not measured within {minutes:g} minutes")
    return run


if __name__ == "__main__":
    sys.exit(main())
