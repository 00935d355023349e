"""The faults that ``make trust`` injects, each into the topics of one stage."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from e2e.certificates import expired
from e2e.clusters import STORE_NODE, TestedCluster
from e2e.faults import API_PORTS, STORE_PORTS, WEBHOOK_PORTS, Faults
from e2e.installation import NAMESPACE, RELEASE
from e2e.machines import NotPossible
from e2e.manifests import RELAYED, SIDECAR, STOCK, budget
from e2e.world import World
from e2e.writers import Writers, WritingPod, until
from tests.cluster.control_plane import WAIT_SECONDS

Json = dict[str, Any]

BRIEFLY_SECONDS: Final = 6.0
CUT_SECONDS: Final = 15.0
AWAY_SECONDS: Final = 30.0
LOST_SECONDS: Final = 75.0
"""How long a node is lost: long enough for Kubernetes to mark it and for the operator to act on that."""

LATE_SECONDS: Final = 1.5
"""How long a late part does nothing, again and again."""

PROGRESS_SECONDS: Final = 5
"""``spec.detection.progressDeadlineSeconds`` for the fault of an application that hangs."""

DAY_SECONDS: Final = 86_400
"""By how much a clock is shifted: more than any token's lifetime."""

SIDECAR_CONTAINER: Final = "onewriter-sidecar"
KINDS: Final = (STOCK, RELAYED, SIDECAR)
INJECTED: Final = (RELAYED, SIDECAR)
"""The writers whose pods go through the webhook."""

PROCESSES: Final = {STOCK: "writer", RELAYED: "writer", SIDECAR: SIDECAR_CONTAINER}
"""The container whose process talks to the broker as the writer."""


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


def hang_application(stage: Stage) -> None:
    """Stop the application while its sidecar answers pings."""
    deadline = {"spec": {"detection": {"progressDeadlineSeconds": PROGRESS_SECONDS}}}
    usual = {"spec": {"detection": {"progressDeadlineSeconds": None}}}
    where = ("exclusivetopics", stage.world.namespace, stage.casts[SIDECAR].name)
    stage.api.patch(*where, deadline)
    try:
        former = stage.formers[SIDECAR]
        stage.faults.freeze_container(former.pod, "writer")
        stage.casts[SIDECAR].succeeded(former)
    finally:
        stage.api.patch(*where, usual)
    stage.faults.thaw(former.pod)


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


def scale_brokers(stage: Stage) -> None:
    """One broker more, and back, by ``helm upgrade``."""
    brokers = stage.installation.values["brokers"]
    usual = brokers["replicas"]
    try:
        for replicas in (usual + 1, usual):
            brokers["replicas"] = replicas
            stage.installation.upgrade()
            until(lambda: stage.installation.is_ready() and stage.installation.is_placed())
    finally:
        brokers["replicas"] = usual


# ------------------------------------------------------------ faults of the store


def kill_store(stage: Stage) -> None:
    stage.faults.kill(stage.store, "valkey")


def freeze_store(stage: Stage) -> None:
    store = stage.store
    stage.faults.freeze(store)
    time.sleep(BRIEFLY_SECONDS)
    stage.faults.thaw(store)


def lose_store(stage: Stage) -> None:
    """Freeze the store until the topics say so."""
    store = stage.store
    stage.faults.freeze(store)
    time.sleep(AWAY_SECONDS)
    for kind in stage.formers:
        assert stage.casts[kind].condition("Ready") == "False/StoreUnreachable"
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


# ------------------------------------------------------------ names, admission, certificates


def lose_dns(stage: Stage) -> None:
    with stage.faults.dns_away():
        _with_lost_writers(stage)


def misname(stage: Stage) -> None:
    with stage.faults.dns_wrong():
        _with_lost_writers(stage)


def lose_dns_and_broker(stage: Stage) -> None:
    with stage.faults.dns_away():
        _with_lost_broker(stage)


def misname_and_lose_broker(stage: Stage) -> None:
    with stage.faults.dns_wrong():
        _with_lost_broker(stage)


def _with_lost_writers(stage: Stage) -> None:
    time.sleep(CUT_SECONDS / 3)
    kill_writers(stage)
    time.sleep(CUT_SECONDS)


def _with_lost_broker(stage: Stage) -> None:
    time.sleep(CUT_SECONDS / 3)
    kill_broker(stage)
    time.sleep(CUT_SECONDS)


def lose_webhook(stage: Stage) -> None:
    """No operator serves the webhook; pods come meanwhile."""
    with stage.installation.without_operator():
        delete_writers(stage)
        _until_not_created(stage, "failed calling webhook")
    until(stage.installation.is_ready)
    _create_again(stage)


def cut_webhook_off(stage: Stage) -> None:
    """The webhook answers nothing; pods come meanwhile."""
    pods = stage.installation.pods("operator")
    heals = [stage.faults.cut_off(pod, WEBHOOK_PORTS, is_server=True) for pod in pods]
    delete_writers(stage)
    _until_not_created(stage, "deadline exceeded")
    for heal in heals:
        heal()
    _create_again(stage)


def slow_webhook(stage: Stage) -> None:
    """Every answer of the webhook takes seconds; pods come meanwhile."""
    pods = stage.installation.pods("operator")
    delete_writers(stage)
    end = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < end:
        for pod in pods:
            stage.faults.freeze(pod)
        time.sleep(LATE_SECONDS)
        for pod in pods:
            stage.faults.thaw(pod)
        time.sleep(LATE_SECONDS / 10)


def expire_webhook(stage: Stage) -> None:
    """The webhook's certificate has expired; pods come meanwhile.

    The API server checks the certificates of new connections only, so the operators restart, too.
    """
    with _expired(stage, f"{RELEASE}-webhook-tls", "operator"):
        for pod in stage.installation.pods("operator"):
            stage.faults.kill(pod, "operator")
        delete_writers(stage)
        _until_not_created(stage, "certificate has expired")
    _create_again(stage)


def expire_brokers(stage: Stage) -> None:
    """The brokers' certificate has expired, and the writers lose their connections."""
    with _expired(stage, f"{RELEASE}-broker-tls", "broker"):
        kill_writers(stage)
        time.sleep(CUT_SECONDS)


def _create_again(stage: Stage) -> None:
    """Let each ReplicaSet create its pods now: after failures it waits for minutes, and after a change not at all."""
    for kind in stage.formers:
        which = ("replicasets", f"--selector=app={stage.casts[kind].name}", "--overwrite")
        changed = f"e2e.onewriter.dev/changed={time.time_ns()}"
        stage.world.cluster.kubectl("annotate", *which, changed, namespace=stage.world.namespace)


def _until_not_created(stage: Stage, words: str) -> None:
    """Wait until the ReplicaSet of each topic's writers reports these words."""
    for kind in stage.formers:
        _until_reported(stage.casts[kind], words)


def _until_reported(writers: Writers, words: str) -> None:
    until(
        lambda: any(words in each for each in writers.not_created()),
        writers.not_created,
    )


@contextmanager
def _expired(stage: Stage, secret: str, component: str) -> Iterator[None]:
    """Let this Secret have an expired certificate during the context, until its processes have loaded the usual one again.

    The installation's object must report both.
    """
    found = stage.api.get("secrets", NAMESPACE, secret) or {}
    authority = stage.api.get("secrets", NAMESPACE, f"{RELEASE}-ca") or {}
    usual = found["data"]["tls.crt"]
    signing = [base64.b64decode(authority["data"][name]) for name in ("ca.crt", "ca.key")]
    try:
        changed = base64.b64encode(expired(base64.b64decode(usual), *signing)).decode()
        _serve(stage, secret, component, changed, "False/CertificateExpired")
        yield
    finally:
        _serve(stage, secret, component, usual, "True/Valid")


def _serve(stage: Stage, secret: str, component: str, certificate: str, expected: str) -> None:
    """Replace a certificate, and wait until the installation's object reports it."""
    stage.api.patch("secrets", NAMESPACE, secret, {"data": {"tls.crt": certificate}})
    for pod in stage.installation.pods(component):
        # A kubelet looks at the Secret of a changed pod at once, and of others within a minute or two.
        annotations = {"e2e.onewriter.dev/changed": datetime.now(UTC).isoformat()}
        name = pod["metadata"]["name"]
        stage.api.patch("pods", NAMESPACE, name, {"metadata": {"annotations": annotations}})
    conditions = stage.installation.conditions
    until(lambda: conditions().get("CertificatesValid") == expected, conditions)


# ------------------------------------------------------------ clocks


def shift_writers(stage: Stage, seconds: int) -> None:
    """Shift the clocks of the writers' pods, then kill the writers."""
    stage.each(lambda former, _: stage.faults.shift_clock(former.pod, seconds))
    time.sleep(CUT_SECONDS / 3)
    kill_writers(stage)
    time.sleep(CUT_SECONDS)
    stage.each(lambda former, _: stage.faults.shift_clock(former.pod, 0))


def shift_broker(stage: Stage, seconds: int) -> None:
    """Shift the clock of the topics' broker."""
    broker = stage.broker
    stage.faults.shift_clock(broker, seconds)
    time.sleep(AWAY_SECONDS)
    stage.faults.shift_clock(broker, 0)


def shift_and_kill_broker(stage: Stage, seconds: int) -> None:
    """Shift the clock of the topics' broker, then kill the broker."""
    broker = stage.broker
    stage.faults.shift_clock(broker, seconds)
    time.sleep(CUT_SECONDS / 3)
    stage.faults.kill(broker, "broker")
    time.sleep(CUT_SECONDS / 3)
    stage.faults.shift_clock(broker, 0)


def shift_store(stage: Stage, seconds: int) -> None:
    """Shift the store's clock, and kill the writers meanwhile."""
    store = stage.store
    stage.faults.shift_clock(store, seconds)
    time.sleep(CUT_SECONDS)
    kill_writers(stage)
    time.sleep(CUT_SECONDS)
    stage.faults.shift_clock(store, 0)


def shift_operator(stage: Stage, seconds: int) -> None:
    """Shift the clocks of all operators, and freeze the writers meanwhile, which the operator must evict."""
    pods = stage.installation.pods("operator")
    for pod in pods:
        stage.faults.shift_clock(pod, seconds)
    freeze_writers(stage)
    for pod in pods:
        stage.faults.shift_clock(pod, 0)


def ahead(shift: Callable[[Stage, int], None]) -> Callable[[Stage], None]:
    """The fault with a clock that is a day ahead."""
    return lambda stage: shift(stage, DAY_SECONDS)


def behind(shift: Callable[[Stage, int], None]) -> Callable[[Stage], None]:
    """The fault with a clock that is a day behind."""
    return lambda stage: shift(stage, -DAY_SECONDS)


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


def kill_leading_operator(stage: Stage) -> None:
    leading = stage.installation.pod(until(stage.installation.leading_operator))
    stage.faults.kill(leading, "operator")
    kill_writers(stage)


def reinstall(stage: Stage) -> None:
    """Uninstall, and install again; volumes, anchors and objects stay."""
    stage.installation.helm("uninstall", RELEASE)
    time.sleep(CUT_SECONDS)
    stage.installation.upgrade()


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
    ``has_operator``: False if none is there that could report the outage in the conditions.
    ``broker_clock_seconds``: by how much the clock of the topics' broker is shifted, and with it the times that it reports.
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
        has_operator: bool = True,
        broker_clock_seconds: int = 0,
    ) -> None:
        self.title = title
        self.inject = inject
        self.kinds = kinds
        self.writer = writer
        self.broker = broker
        self.is_served = is_served
        self.has_operator = has_operator
        self.broker_clock_seconds = broker_clock_seconds


FAULTS: Final[dict[str, Fault]] = {
    "writer-killed": Fault("`kill -9` of the writer (its sidecar)", kill_writers),
    "application-killed": Fault(
        "`kill -9` of the application beside the sidecar", kill_application, (SIDECAR,)
    ),
    "application-hangs": Fault(
        "application hangs beside its sidecar, deadline of 5 s", hang_application, (SIDECAR,)
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
    "brokers-scaled": Fault("a broker more and back, by `helm upgrade`", scale_brokers),
    "broker-without-store": Fault(
        "topic's broker cut off from the store for 15 s", cut_broker_from_store
    ),
    "broker-without-api": Fault(
        "topic's broker cut off from the API server, writer killed", cut_broker_from_api
    ),
    "store-killed": Fault("`kill -9` of the store", kill_store),
    "store-frozen": Fault("store frozen for 6 s", freeze_store),
    "store-away": Fault("store frozen for 30 s", lose_store),
    "store-deleted": Fault("pod of the store deleted", delete_store),
    "api-server-frozen": Fault("API server frozen for 30 s, writer killed", lose_api_server),
    "operator-gone": Fault("no operator, writer killed", lose_operator),
    "operator-killed": Fault("leading operator and writer killed", kill_leading_operator),
    "dns-silent": Fault("DNS answers nothing, writer killed", lose_dns),
    "dns-wrong": Fault("DNS gives wrong addresses, writer killed", misname),
    "dns-silent-broker": Fault(
        "DNS answers nothing for 15 s, topic's broker killed", lose_dns_and_broker, is_served=True
    ),
    "dns-wrong-broker": Fault(
        "DNS gives wrong addresses for 15 s, topic's broker killed",
        misname_and_lose_broker,
        is_served=True,
    ),
    "webhook-gone": Fault("webhook gone, writer's pod deleted", lose_webhook, INJECTED),
    "webhook-silent": Fault(
        "webhook answers nothing, writer's pod deleted", cut_webhook_off, INJECTED
    ),
    "webhook-late": Fault("webhook answers late, writer's pod deleted", slow_webhook, INJECTED),
    "webhook-expired": Fault(
        "webhook's certificate expired, operators restarted, writer's pod deleted",
        expire_webhook,
        INJECTED,
    ),
    "brokers-expired": Fault("brokers' certificate expired, writer killed", expire_brokers),
    "writer-ahead": Fault("clock of the writer a day ahead, writer killed", ahead(shift_writers)),
    "writer-behind": Fault(
        "clock of the writer a day behind, writer killed", behind(shift_writers)
    ),
    "broker-ahead": Fault(
        "clock of the topic's broker a day ahead for 30 s",
        ahead(shift_broker),
        broker_clock_seconds=DAY_SECONDS,
    ),
    "broker-behind": Fault(
        "clock of the topic's broker a day behind for 30 s",
        behind(shift_broker),
        broker_clock_seconds=-DAY_SECONDS,
    ),
    "broker-ahead-killed": Fault(
        "clock of the topic's broker a day ahead, broker killed",
        ahead(shift_and_kill_broker),
        broker_clock_seconds=DAY_SECONDS,
    ),
    "broker-behind-killed": Fault(
        "clock of the topic's broker a day behind, broker killed",
        behind(shift_and_kill_broker),
        broker_clock_seconds=-DAY_SECONDS,
    ),
    "store-ahead": Fault("clock of the store a day ahead, writer killed", ahead(shift_store)),
    "store-behind": Fault("clock of the store a day behind, writer killed", behind(shift_store)),
    "operator-ahead": Fault(
        "clocks of the operators a day ahead, writer frozen", ahead(shift_operator)
    ),
    "operator-behind": Fault(
        "clocks of the operators a day behind, writer frozen", behind(shift_operator)
    ),
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
    "reinstalled": Fault(
        "`helm uninstall`, and `helm install` after 15 s", reinstall, has_operator=False
    ),
    "volume-lost": Fault("volume of the store lost, then adopted", lose_volume, is_served=True),
}
"""The faults by name, in the order of the table. The loss of the volume is the last one: it loses all messages."""
