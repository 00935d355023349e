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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from e2e.acknowledgements import Acknowledgements
from e2e.api import Api
from e2e.clusters import STORE_NODE, TestedCluster, tested_cluster, uses_existing
from e2e.faults import API_PORTS, STORE_PORTS, Faults
from e2e.installation import NAMESPACE, RELEASE, Installation
from e2e.log import Tally
from e2e.machines import NotPossible
from e2e.manifests import RELAYED, SIDECAR, STOCK, budget
from e2e.outages import (
    Measurement,
    Outage,
    Reports,
    Sample,
    at_ms,
    parsed,
    table,
    uncounted,
    written,
)
from e2e.world import World
from e2e.writers import Writers, WritingPod, until
from tests.cluster import commands
from tests.cluster.control_plane import COMMAND_SECONDS, WAIT_SECONDS, ClusterError

Json = dict[str, Any]

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "failures.md"
DETAILS: Final = Path(__file__).resolve().parents[1] / "build" / "trust"
"""For each fault a file with everything that was seen and reported in its newest measurement."""

INTERVAL_SECONDS: Final = "0.05"
SAMPLE_SECONDS: Final = 1.0
LINES: Final = 40
"""Acknowledgements before a fault, and after it."""

SETTLE_SECONDS: Final = 10.0
"""Shortest time of a measurement: a gap that has not begun is no gap."""

BRIEFLY_SECONDS: Final = 6.0
CUT_SECONDS: Final = 15.0
AWAY_SECONDS: Final = 30.0
LOST_SECONDS: Final = 75.0
"""How long a node is lost: long enough for Kubernetes to mark it and for the operator to act on that."""

SIDECAR_CONTAINER: Final = "onewriter-sidecar"
KINDS: Final = (STOCK, RELAYED, SIDECAR)
TITLES: Final = {STOCK: "stock", RELAYED: "stock, relay", SIDECAR: "sidecar"}
PROCESSES: Final = {STOCK: "writer", RELAYED: "writer", SIDECAR: SIDECAR_CONTAINER}
"""The container whose process talks to the broker as the writer."""

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


class Stage:
    """The installation, the topics with their writers, and the faults of one round."""

    def __init__(
        self,
        tested: TestedCluster,
        world: World,
        casts: Mapping[str, Writers],
        faults: Faults,
        formers: Mapping[str, WritingPod],
    ) -> None:
        self.tested = tested
        self.world = world
        self.installation = world.installation
        self.api = world.api
        self.casts = casts
        self.faults = faults
        self.formers = formers

    @property
    def broker(self) -> Json:
        """The pod of the broker that serves the topics."""
        return self.installation.pod(self.installation.owner(self.casts[STOCK].topic))

    @property
    def store(self) -> Json:
        return self.installation.pod(f"{RELEASE}-valkey-0")

    def each(self, act: Callable[[WritingPod, str], object]) -> None:
        """Act upon the writing pod of each topic."""
        for kind, former in self.formers.items():
            act(former, kind)

    def delete(self, pod: Json) -> None:
        about = pod["metadata"]
        self.api.delete("pods", about["namespace"], about["name"])

    def annotate(self, kind: str, annotation: str, value: str) -> None:
        change = {"metadata": {"annotations": {annotation: value}}}
        self.api.patch("exclusivetopics", self.world.namespace, self.casts[kind].name, change)


# ------------------------------------------------------------ faults of writers


def kill_writers(stage: Stage) -> None:
    stage.each(lambda former, kind: stage.faults.kill(former.pod, PROCESSES[kind]))


def kill_application(stage: Stage) -> None:
    stage.each(lambda former, _: stage.faults.kill(former.pod, "writer"))


def kill_relay(stage: Stage) -> None:
    stage.each(lambda former, _: stage.faults.kill(former.pod, SIDECAR_CONTAINER))


def freeze_writers_briefly(stage: Stage) -> None:
    stage.each(lambda former, _: stage.faults.freeze(former.pod))
    time.sleep(BRIEFLY_SECONDS)
    stage.each(lambda former, _: stage.faults.thaw(former.pod))


def freeze_writers(stage: Stage) -> None:
    stage.each(lambda former, _: stage.faults.freeze(former.pod))
    stage.each(lambda former, kind: stage.casts[kind].until_outcome(former, "Evicted"))


def freeze_protected_writers(stage: Stage) -> None:
    names = [stage.casts[kind].name for kind in stage.formers]
    stage.world.apply(*(budget(name, available=2) for name in names))
    try:
        stage.each(lambda former, _: stage.faults.freeze(former.pod))
        stage.each(lambda former, kind: stage.casts[kind].until_outcome(former, "BlockedByPDB"))
    finally:
        for name in names:
            stage.api.delete("poddisruptionbudgets", stage.world.namespace, name)
    stage.each(lambda former, kind: stage.casts[kind].until_outcome(former, "Evicted"))


def delete_writers(stage: Stage) -> None:
    stage.each(lambda former, _: stage.delete(former.pod))


def roll_writers(stage: Stage) -> None:
    names = [f"deployment/{stage.casts[kind].name}" for kind in stage.formers]
    kubectl, namespace = stage.world.cluster.kubectl, stage.world.namespace
    kubectl("rollout", "restart", *names, namespace=namespace)
    for name in names:
        kubectl("rollout", "status", name, f"--timeout={WAIT_SECONDS}s", namespace=namespace)


def fence_writers(stage: Stage) -> None:
    stage.each(lambda former, kind: stage.annotate(kind, "onewriter.dev/fence", str(former.epoch)))


def hand_over(stage: Stage) -> None:
    stage.each(
        lambda former, kind: stage.annotate(kind, "onewriter.dev/handover", str(former.epoch))
    )


def cut_writers_off(stage: Stage) -> None:
    heals = [stage.faults.cut_off(former.pod) for former in stage.formers.values()]
    time.sleep(CUT_SECONDS)
    for heal in heals:
        heal()


# ------------------------------------------------------------ faults of brokers


def kill_broker(stage: Stage) -> None:
    stage.faults.kill(stage.broker, "broker")


def freeze_broker(stage: Stage) -> None:
    stage.faults.freeze_child(stage.broker, "broker")


def freeze_broker_pod(stage: Stage) -> None:
    stage.faults.freeze(stage.broker)


def delete_broker(stage: Stage) -> None:
    stage.delete(stage.broker)


def roll_brokers(stage: Stage) -> None:
    stage.installation.restart("broker")
    name = f"statefulset/{RELEASE}-broker"
    status = ("rollout", "status", name, f"--timeout={WAIT_SECONDS}s")
    stage.world.cluster.kubectl(*status, namespace=NAMESPACE)


def kill_all_brokers(stage: Stage) -> None:
    for pod in stage.installation.pods("broker"):
        stage.faults.kill(pod, "broker")


def cut_broker_from_store(stage: Stage) -> None:
    heal = stage.faults.cut_off(stage.broker, STORE_PORTS)
    time.sleep(CUT_SECONDS)
    heal()


def cut_broker_from_api(stage: Stage) -> None:
    heal = stage.faults.cut_off(stage.broker, API_PORTS)
    time.sleep(CUT_SECONDS / 3)
    kill_writers(stage)
    time.sleep(CUT_SECONDS)
    heal()


# ------------------------------------------------------------ faults of the store


def kill_store(stage: Stage) -> None:
    stage.faults.kill(stage.store, "valkey")


def freeze_store(stage: Stage) -> None:
    store = stage.store
    stage.faults.freeze(store)
    time.sleep(BRIEFLY_SECONDS)
    stage.faults.thaw(store)


def delete_store(stage: Stage) -> None:
    stage.delete(stage.store)


def lose_volume(stage: Stage) -> None:
    """Empty the store's volume, wait until the topics say so, and adopt the empty store as an administrator does."""
    if not stage.tested.volumes:
        raise NotPossible("the volume of the store is out of reach")
    stage.world.check_logs()
    stage.world.checks_at_end = False  # what was acknowledged until now is lost
    folder = stage.tested.directory / f"data-{RELEASE}-valkey-0"
    stage.tested.machines.shell(STORE_NODE, f"rm -rf {folder}/*")
    stage.faults.kill(stage.store, "valkey")
    for kind in stage.formers:
        stage.casts[kind].until_condition("Serving", "False/BucketWaiting")
    pod = stage.installation.pods("broker")[0]["metadata"]["name"]
    adopt = ("onewriter", "adopt", "--all", "--force", "--reason", "the volume is lost")
    where = ("exec", pod, "--container=broker", "--")
    stage.world.cluster.kubectl(*where, *adopt, namespace=NAMESPACE, seconds=WAIT_SECONDS)


# ------------------------------------------------------------ the control plane and nodes


def lose_api_server(stage: Stage) -> None:
    with stage.faults.api_server_away():
        time.sleep(AWAY_SECONDS / 3)
        kill_writers(stage)
        time.sleep(AWAY_SECONDS * 2 / 3)


def lose_operator(stage: Stage) -> None:
    with stage.installation.without_operator():
        kill_writers(stage)
        time.sleep(CUT_SECONDS)


def stop_kubelet(stage: Stage) -> None:
    node = losable(stage)
    stage.faults.stop_kubelet(node)
    time.sleep(AWAY_SECONDS)
    stage.faults.start_kubelet(node)


def lose_node(stage: Stage) -> None:
    node = losable(stage)
    stage.faults.lose(node)
    time.sleep(LOST_SECONDS)
    stage.faults.find_again(node)


def drain_node(stage: Stage) -> None:
    node, kubectl = losable(stage), stage.world.cluster.kubectl
    options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={WAIT_SECONDS}s")
    try:
        kubectl("drain", node, *options, seconds=WAIT_SECONDS)
    finally:
        kubectl("uncordon", node)


def losable(stage: Stage) -> str:
    """A node that can be lost and does not run the store."""
    others = sorted(set(stage.world.cluster.names("nodes")) - {stage.store["spec"]["nodeName"]})
    return stage.faults.losable(others)


class Fault:
    """One fault: its title in the table, and what it needs.

    ``kinds``: the topics that it concerns. ``writer``, ``broker``: whether the writers, and the broker of the topics, must
    run on the node that can be lost (True), on another one (False), or anywhere (None). ``is_served``: see Outage.
    """

    def __init__(
        self,
        title: str,
        inject: Callable[[Stage], None],
        kinds: tuple[str, ...] = KINDS,
        *,
        writer: bool | None = None,
        broker: bool | None = None,
        is_served: bool = False,
    ) -> None:
        self.title = title
        self.inject = inject
        self.kinds = kinds
        self.writer = writer
        self.broker = broker
        self.is_served = is_served


FAULTS: Final[dict[str, Fault]] = {
    "writer-killed": Fault("`kill -9` of the writer (its sidecar)", kill_writers),
    "application-killed": Fault(
        "`kill -9` of the application beside the sidecar", kill_application, (SIDECAR,)
    ),
    "relay-killed": Fault("`kill -9` of the relay", kill_relay, (RELAYED,)),
    "writer-frozen-briefly": Fault("writer frozen for 6 s", freeze_writers_briefly),
    "writer-frozen": Fault("writer frozen", freeze_writers),
    "writer-protected": Fault(
        "writer frozen, a budget forbids its eviction", freeze_protected_writers, (STOCK,)
    ),
    "writer-deleted": Fault("writer's pod deleted", delete_writers),
    "writers-rolled": Fault("rolling update of the writers", roll_writers),
    "writer-fenced": Fault("writer fenced by annotation", fence_writers),
    "handed-over": Fault("handover by annotation", hand_over),
    "writer-cut": Fault("writer cut off from the brokers for 15 s", cut_writers_off),
    "broker-killed": Fault("`kill -9` of the topic's broker", kill_broker),
    "broker-frozen": Fault("topic's broker frozen", freeze_broker),
    "broker-pod-frozen": Fault(
        "topic's broker frozen with its supervisor", freeze_broker_pod, is_served=True
    ),
    "broker-deleted": Fault("pod of the topic's broker deleted", delete_broker),
    "brokers-rolled": Fault("rolling update of the brokers", roll_brokers),
    "brokers-killed": Fault("`kill -9` of all brokers", kill_all_brokers),
    "broker-without-store": Fault(
        "topic's broker cut off from the store for 15 s", cut_broker_from_store
    ),
    "broker-without-api": Fault(
        "topic's broker cut off from the API server, writer killed", cut_broker_from_api
    ),
    "store-killed": Fault("`kill -9` of the store", kill_store),
    "store-frozen": Fault("store frozen for 6 s", freeze_store),
    "store-deleted": Fault("pod of the store deleted", delete_store),
    "api-server-frozen": Fault("API server frozen for 30 s, writer killed", lose_api_server),
    "operator-gone": Fault("no operator, writer killed", lose_operator),
    "kubelet-stopped": Fault("kubelet stopped for 30 s", stop_kubelet, writer=True),
    "node-of-writer": Fault(
        "node of the writer lost for 75 s", lose_node, writer=True, broker=False
    ),
    "node-of-broker": Fault(
        "node of the topic's broker lost for 75 s",
        lose_node,
        writer=False,
        broker=True,
        is_served=True,
    ),
    "node-of-both": Fault(
        "node of writer and broker lost for 75 s",
        lose_node,
        writer=True,
        broker=True,
        is_served=True,
    ),
    "node-drained": Fault(
        "node of writer and broker drained", drain_node, writer=True, broker=True
    ),
    "volume-lost": Fault("volume of the store lost, then adopted", lose_volume, is_served=True),
}
"""The faults by name, in the order of the table. The loss of the volume is the last one: it loses all messages."""


# ------------------------------------------------------------ measuring


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
            until(lambda: all(self._shown(casts[kind], settled[kind].epoch) for kind in casts))
            answer = reports(stage, fault.kinds)
            found = [
                Outage(
                    fault.title,
                    TITLES[kind],
                    began_ms,
                    self.heard.of(casts[kind].name, since_ms=began_ms - 10_000),
                    answer[kind],
                    samples[kind],
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
        installation.install()
        try:
            run = measured(tested, installation, names, request.minutes)
        finally:
            if uses_existing():
                installation.uninstall()
    write_table()
    print(f"{len(names)} faults, {len(run.contradictions)} contradictions", flush=True)
    return 1 if run.contradictions else 0


def write_table() -> None:
    """Write the newest measurement of each fault into the page."""
    files = [DETAILS / f"{name}.json" for name in FAULTS]
    found = [parsed(file.read_text()) for file in files if file.exists()]
    if not found:
        return
    dates = sorted({each.measured_at for each in found})
    loads = [each.load for each in found]
    text = (
        f"Measured on {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on a machine with"
        f" {os.cpu_count()} cores and a load of {min(loads):.0f} to {max(loads):.0f}: Deployments of two pods, a"
        f" message each {INTERVAL_SECONDS} s, two brokers, Kubernetes' default times for lost nodes."
    )
    missing = [file.stem for file in files if not file.exists()]
    text += f" Not measured: {', '.join(missing)}." if missing else ""
    rows = table(outage for each in found for outage in each.outages)
    PAGE.write_text(written(PAGE.read_text(), f"{text}\n\n{rows}"))


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
