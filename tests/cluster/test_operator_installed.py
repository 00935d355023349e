"""The operator as the chart installs it: only the chart's rights, and the objects that it installs."""

from __future__ import annotations

import base64
import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import commands
from tests.cluster.binaries import program
from tests.cluster.control_plane import COMMAND_SECONDS, ControlPlane
from tests.cluster.faulty_api import FaultyApi
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.cluster.pki import Authority
from tests.cluster.test_operator_eviction import QUICK_FENCING, fence, outcomes
from tests.cluster.test_operator_eviction import pod as ready_pod
from tests.cluster.worlds import World, leads_to
from tests.unit.kube.fake_broker import ThreadedBroker, producer_group, status

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "onewriter"
RELEASE = "onewriter"
NAMESPACE = "system"


RIGHTS = (
    ("create", "leases.coordination.k8s.io"),
    ("watch", "exclusivetopics.onewriter.dev"),
    ("get", "nodes"),
    ("create", "endpointslices.discovery.k8s.io"),
    ("delete", "pods"),
)
"""A right of each role that the chart gives the operator. The API server notices them some time after they are stored."""

OPT_INS = [f"--set=operator.{value}.enabled=true" for value in ("leaderServices", "podDeletion")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the chart in it. Its pods do not run, because there is no node."""
    with ControlPlane(tmp_path_factory.mktemp("installed"), workloads=True) as found:
        found.make_namespace(NAMESPACE)
        command = [str(program("helm")), f"--kubeconfig={found.kubeconfig}", f"-n={NAMESPACE}"]
        # Hooks are pods.
        done = commands.run(
            [*command, "upgrade", "--install", RELEASE, str(CHART), "--no-hooks", *OPT_INS],
            seconds=COMMAND_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        # The API server would call its own webhook in pods that do not run.
        found.kubectl("delete", "mutatingwebhookconfigurations", "--all")
        for kind in ("exclusivetopics", "producerclaims", "onewriters"):
            found.until_served("onewriter.dev", kind)
        user = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-operator"
        for verb, resource in RIGHTS:
            found.until_allowed(user, verb, resource, namespace=NAMESPACE)
        yield found


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as found:
        yield found


def account(cluster: ControlPlane, directory: Path) -> Path:
    """A kubeconfig of the operator's ServiceAccount."""
    name = f"{RELEASE}-operator"
    token = cluster.kubectl("create", "token", name, namespace=NAMESPACE).stdout.strip()
    file = directory / "operator.kubeconfig"
    context = {"cluster": "lab", "user": name}
    authority = str(cluster.authority.certificate)
    server = {"server": cluster.url, "certificate-authority": authority}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": server}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": context}],
    }
    file.write_text(yaml.safe_dump(document))
    return file


def configuration(cluster: ControlPlane) -> Json:
    found = cluster.get("configmap", f"{RELEASE}-config", namespace=NAMESPACE)
    document: Json = yaml.safe_load(found["data"]["configuration.yaml"])
    document["operator"].pop("brokerCaFile", None)
    return document


class Installed(World):
    """The operator with the rights that the chart gives it."""

    def installed(self, kind: str, name: str) -> Json:
        return self.cluster.get(kind, name, namespace=NAMESPACE)

    def installed_names(self, kind: str) -> list[str]:
        return sorted(self.cluster.names(kind, namespace=NAMESPACE))


@pytest.fixture
def world(cluster: ControlPlane, broker: ThreadedBroker, tmp_path: Path) -> Iterator[Installed]:
    namespace = cluster.make_namespace(f"shop-{time.time_ns()}")
    operator = OperatorProcess(
        tmp_path,
        cluster,
        namespace,
        {"broker-0": broker.url},
        kubeconfig=account(cluster, tmp_path),
        configuration=configuration(cluster),
        settings={"ONEWRITER_OPERATOR_INSTALLS": "true"},
        program=QUICK_FENCING,
    )
    with running(operator):
        yield Installed(cluster, namespace, broker, operator)


def test_the_charts_rights_are_enough_for_all_that_it_does(world: Installed) -> None:
    world.topic(
        deletionPolicy="Delete",
        fencing={"minIntervalSeconds": 0},
        leaderService={"name": "leader", "ports": [{"port": 80}]},
    )
    world.claim(podSelector={"matchLabels": {"app": "writer"}})
    world.until("Ready", "True/Ready")
    world.until("Ready", "True/Ready", "pclaim", "primary")
    uid = ready_pod(world, "writer-1")
    writer = producer_group("w1", "primary", "writer-1", epoch=1) | {"podUID": uid}
    world.broker.serve(world.name("orders"), status(1, holders=[writer]))
    leads_to(world, ["10.1.0.9"], 1)
    fence(world, "writer-1", uid, epoch=1)
    wait_until(lambda: outcomes(world) == {"writer-1": "Evicted"})
    world.topic(
        deletionPolicy="Delete",
        fencing={"podPolicy": "Delete", "minIntervalSeconds": 0},
    )
    fence(world, "writer-2", ready_pod(world, "writer-2"), epoch=2)
    wait_until(lambda: outcomes(world).get("writer-2") == "Evicted")
    wait_until(lambda: "leader" not in world.names("service"))
    wait_until(lambda: world.events("PodEvicted"))
    world.delete("xt")
    assert "orbidden" not in world.operator.log()
    assert '"reconcile.failed"' not in world.operator.log()


def test_store_and_brokers_are_installed_and_kept_as_they_are_to_be(world: Installed) -> None:
    wait_until(lambda: len(world.installed_names("statefulset")) == 2)
    assert world.installed_names("statefulset") == ["onewriter-broker", "onewriter-valkey"]
    wait_until(lambda: "onewriter-valkey-password" in world.installed_names("secret"))
    wait_until(lambda: "onewriter-broker-pods" in world.installed_names("service"))
    brokers = world.installed("statefulset", "onewriter-broker")
    owner = brokers["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("ConfigMap", "onewriter-config")
    assert "installation.incomplete" not in world.operator.log()


def wrote_nothing(cluster: ControlPlane, proxy: FaultyApi) -> bool:
    """Whether one whole reconcile of the installation causes no write.

    An annotation of another manager on an installed object causes it: the watch reports that change.
    """

    def begun() -> int:
        return proxy.reads[f"/api/v1/namespaces/{NAMESPACE}/configmaps/{RELEASE}-config"]

    proxy.counted()
    visits = begun()
    for number in range(2):
        mark = f"example.com/mark={visits}-{number}"
        annotate = ("annotate", "--overwrite", "service", "onewriter-broker", mark)
        cluster.kubectl(*annotate, namespace=NAMESPACE)
        wait_until(lambda: begun() > visits + number)  # noqa: B023 - called in this round
    return not proxy.counted()


VISITS_MAX = 50
QUIET_VISITS = 3

WATCHED_ONLY = QUICK_FENCING.replace(
    "OperatorLimits(plan=plan", "OperatorLimits(installation_seconds=86_400.0, plan=plan"
)
"""An operator that looks at the installed objects only when a watch reports a change."""

KEPT = (
    "service/onewriter-broker",
    "service/onewriter-broker-pods",
    "service/onewriter-valkey",
    "configmap/onewriter-valkey",
    "statefulset/onewriter-broker",
    "statefulset/onewriter-valkey",
    "poddisruptionbudget/onewriter-broker",
    "poddisruptionbudget/onewriter-valkey",
    "networkpolicy/onewriter-broker",
    "networkpolicy/onewriter-valkey",
    "secret/onewriter-metrics",
)
"""Objects that the operator installs and restores."""

EDITS: dict[str, Json] = {
    "service/onewriter-broker": {"spec": {"selector": {"app": "intruder"}}},
    "service/onewriter-valkey": {"spec": {"externalIPs": ["192.0.2.1"]}},
    "configmap/onewriter-valkey": {"data": {"valkey.conf": "port 1"}},
    "statefulset/onewriter-broker": {"spec": {"replicas": 7}},
    "poddisruptionbudget/onewriter-broker": {"spec": {"maxUnavailable": 3}},
    "networkpolicy/onewriter-valkey": {"spec": {"ingress": [{}]}},
}
"""Changes that the operator takes back."""


@pytest.fixture
def watching(
    cluster: ControlPlane, broker: ThreadedBroker, tmp_path: Path
) -> Iterator[tuple[Installed, FaultyApi]]:
    """An operator behind a proxy, with all objects installed and settled."""
    with FaultyApi(cluster, tmp_path) as proxy:
        operator = OperatorProcess(
            tmp_path,
            cluster,
            NAMESPACE,
            {"broker-0": broker.url},
            kubeconfig=proxy.kubeconfig,
            configuration=configuration(cluster),
            settings={"ONEWRITER_OPERATOR_INSTALLS": "true"},
            program=WATCHED_ONLY,
        )
        with running(operator):
            world = Installed(cluster, NAMESPACE, broker, operator)
            for each in KEPT:
                kind, _, name = each.partition("/")
                wait_until(lambda: name in world.installed_names(kind))  # noqa: B023 - called now
            assert any(wrote_nothing(cluster, proxy) for _ in range(VISITS_MAX))
            yield world, proxy


def test_a_settled_installation_is_not_written(watching: tuple[Installed, FaultyApi]) -> None:
    world, proxy = watching
    for _ in range(QUIET_VISITS):
        assert wrote_nothing(world.cluster, proxy)


def test_deleted_objects_are_restored_when_a_watch_reports_it(
    watching: tuple[Installed, FaultyApi],
) -> None:
    world, _ = watching
    password = world.installed("secret", "onewriter-valkey-password")["data"]
    before = {each: world.installed(*each.split("/"))["metadata"]["uid"] for each in KEPT}
    for each in KEPT:
        world.cluster.kubectl("delete", each, "--cascade=orphan", namespace=NAMESPACE)

    def missing() -> list[str]:
        found = world.cluster.kubectl(
            "get", *KEPT, "--ignore-not-found", "-o=json", namespace=NAMESPACE
        ).stdout
        uids = {each["metadata"]["uid"] for each in json.loads(found)["items"]}
        return [] if len(uids) == len(KEPT) and not uids & set(before.values()) else sorted(uids)

    wait_until(lambda: not missing(), explain=world.operator.log)
    assert world.installed("secret", "onewriter-valkey-password")["data"] == password
    wait_until(lambda: world.operator.metric("onewriter_drift_repaired_total"))


def test_changed_objects_are_restored_when_a_watch_reports_it(
    watching: tuple[Installed, FaultyApi],
) -> None:
    world, _ = watching
    before = {each: world.installed(*each.split("/")) for each in EDITS}
    for each, change in EDITS.items():
        patch = ("patch", each, "--type=merge", "-p", json.dumps(change))
        world.cluster.kubectl(*patch, namespace=NAMESPACE)

    def is_back(each: str) -> bool:
        found = world.installed(*each.split("/"))
        return all(found.get(part) == before[each].get(part) for part in ("spec", "data"))

    for each in EDITS:
        wait_until(lambda: is_back(each), explain=world.operator.log)  # noqa: B023 - called now


def test_list_items_of_another_field_manager_are_removed_and_its_marks_stay(
    watching: tuple[Installed, FaultyApi],
) -> None:
    """Such a container would run beside the broker, and such a port would lead to it."""
    world, _ = watching
    marks = {"example.com/team": "shop"}
    about = {"name": "onewriter-broker", "labels": marks, "annotations": marks}
    beside = {"template": {"spec": {"containers": [{"name": "debug", "image": "debug"}]}}}
    additions = {
        "statefulset": {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": beside},
        "service": {
            "apiVersion": "v1",
            "kind": "Service",
            "spec": {"ports": [{"name": "extra", "port": 1, "protocol": "TCP"}]},
        },
    }
    before = {kind: world.installed(kind, "onewriter-broker")["spec"] for kind in additions}
    for addition in additions.values():
        world.cluster.kubectl(
            *("apply", "--server-side", "--field-manager=auditor", "-f", "-"),
            stdin=json.dumps(addition | {"metadata": about}),
            namespace=NAMESPACE,
        )
    for kind, spec in before.items():
        wait_until(
            lambda: world.installed(kind, "onewriter-broker")["spec"] == spec,  # noqa: B023 - called now
            explain=world.operator.log,
        )
        found = world.installed(kind, "onewriter-broker")["metadata"]
        assert found["labels"]["example.com/team"] == "shop"
        assert found["annotations"]["example.com/team"] == "shop"


def test_a_selector_of_a_leader_service_is_removed_with_the_slice_of_kubernetes(
    world: Installed,
) -> None:
    world.topic(leaderService={"name": "leader", "ports": [{"port": 80}]})
    world.until("Ready", "True/Ready")
    ready_pod(world, "stock-1")
    world.cluster.kubectl("label", "pod", "stock-1", "role=stock", namespace=world.namespace)
    patch = ("patch", "service", "leader", "--type=merge", "-p")
    selector = '{"spec":{"selector":{"role":"stock"}}}'
    world.cluster.kubectl(*patch, selector, namespace=world.namespace)
    wait_until(lambda: "selector" not in world.get("service", "leader")["spec"])
    wait_until(lambda: world.names("endpointslice") == ["leader-leader-ipv4"])
    world.until("Drifted", "True/Repaired")
    # The chart's policy lets the operator delete only its own objects: it reports a slice made by hand.
    made = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "by-hand", "labels": {"kubernetes.io/service-name": "leader"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.99"]}],
    }
    world.apply(made)
    world.until("Stalled", "True/ServiceRefused")
    world.cluster.kubectl("delete", "endpointslice", "by-hand", namespace=world.namespace)
    world.until("Ready", "True/Ready")


# ------------------------------------------------------------ the installation's object


def report(world: Installed) -> None:
    """Let the broker report its store and its buckets."""
    fake = world.broker.fake
    world.broker.do(lambda: fake.report_broker(memoryBytesUsed=512 * 1024**2))
    world.broker.do(lambda: fake.report_buckets(list(range(64)), {}))


def shown(world: Installed) -> Json:
    """The status of the OneWriter; empty while there is none."""
    get = ("get", "ow", RELEASE, "--ignore-not-found", "-o=json")
    found = world.cluster.kubectl(*get, namespace=NAMESPACE, check=False).stdout
    status: Json = (json.loads(found) if found.strip() else {}).get("status", {})
    return status


def is_shown(world: Installed) -> bool:
    return bool(shown(world).get("store", {}).get("state") == "Reachable")


def test_the_installation_has_an_object_that_shows_it(world: Installed) -> None:
    report(world)
    wait_until(lambda: is_shown(world), explain=world.operator.log)
    lines = world.cluster.kubectl("get", "ow", namespace=NAMESPACE).stdout.splitlines()
    assert lines[0].split() == [
        *("NAME", "READY", "BROKERS", "STORE", "WAITING", "MEMORY", "AGE"),
    ]
    # There are no nodes, so no pod is ready.
    assert lines[1].split()[:-1] == [RELEASE, "False", "0/3", "Reachable", "0", "50%"]
    wide = world.cluster.kubectl("get", "ow", "-o=wide", namespace=NAMESPACE).stdout
    assert "2126-01-01T00:00:00Z" in wide
    assert "0 of 3 brokers are ready" in wide
    found = world.installed("ow", RELEASE)
    assert "spec" not in found
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ConfigMap", f"{RELEASE}-config")
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]


def end_container(world: Installed, pod: str, message: str) -> None:
    """Report that the pod's container has ended, as a kubelet does."""
    terminated = {"exitCode": 2, "reason": "Error", "message": message}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    container = {
        "name": "broker",
        "image": "localhost/onewriter:dev",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 3,
        "state": {"waiting": waiting},
        "lastState": {"terminated": terminated},
    }
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
    ]
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}
    change = json.dumps({"status": status})
    words = ("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", change)
    world.cluster.kubectl(*words, namespace=NAMESPACE)


def test_the_object_names_why_a_broker_cannot_start(world: Installed) -> None:
    report(world)
    wait_until(lambda: is_shown(world), explain=world.operator.log)
    broken = "onewriter-broker-1"
    wait_until(lambda: broken in world.installed_names("pod"))
    end_container(world, broken, "the store does not answer: connection refused")

    def message() -> str:
        get = ("get", "ow", "-o=wide", "--no-headers")
        return world.cluster.kubectl(*get, namespace=NAMESPACE).stdout

    cause = f"{broken}: the store does not answer: connection refused"
    wait_until(lambda: cause in message(), explain=world.operator.log)
    conditions = {each["type"]: each for each in shown(world)["conditions"]}
    assert conditions["Ready"]["reason"] == "BrokersNotReady"
    assert conditions["BrokersReady"]["message"] == conditions["Ready"]["message"]


def workloads(world: Installed) -> list[str]:
    return [
        world.installed(*each.split("/"))["metadata"]["uid"]
        for each in KEPT
        if not each.startswith("secret/")
    ]


def test_a_deleted_object_comes_back_and_deletes_nothing(world: Installed) -> None:
    report(world)
    wait_until(lambda: is_shown(world), explain=world.operator.log)
    wait_until(lambda: len(world.installed_names("statefulset")) == 2)
    before, uid = workloads(world), world.installed("ow", RELEASE)["metadata"]["uid"]
    world.cluster.kubectl("delete", "ow", RELEASE, namespace=NAMESPACE)
    wait_until(lambda: is_shown(world), explain=world.operator.log)
    assert world.installed("ow", RELEASE)["metadata"]["uid"] != uid
    assert workloads(world) == before


def test_without_the_definition_everything_else_works(world: Installed) -> None:
    report(world)
    wait_until(lambda: is_shown(world), explain=world.operator.log)
    before = workloads(world)
    world.cluster.kubectl("delete", "crd", "onewriters.onewriter.dev")
    try:
        wait_until(lambda: "installation.object_unavailable" in world.operator.log())
        world.topic()
        world.until("Ready", "True/Ready")
        world.cluster.kubectl("delete", "service", "onewriter-broker", namespace=NAMESPACE)
        wait_until(lambda: "onewriter-broker" in world.installed_names("service"))
    finally:
        world.cluster.establish(ROOT / "crds" / "onewriters.yaml")
    wait_until(lambda: is_shown(world), explain=world.operator.log)
    after = workloads(world)
    assert after[1:] == before[1:], "only the Service that was deleted is new"


# ------------------------------------------------------------ the webhook


@pytest.fixture
def injecting(
    cluster: ControlPlane, broker: ThreadedBroker, tmp_path: Path
) -> Iterator[tuple[Installed, OperatorProcess]]:
    """Two replicas that serve the webhook. The API server is configured with the second one, which does not lead."""
    authority = Authority(tmp_path / "webhook-pki")
    authority.server("webhook", ["localhost", "127.0.0.1"])
    files = {
        "ONEWRITER_OPERATOR_WEBHOOK_CERT_FILE": str(authority.directory / "webhook.crt"),
        "ONEWRITER_OPERATOR_WEBHOOK_KEY_FILE": str(authority.directory / "webhook.key"),
    }
    namespace = cluster.make_namespace(f"shop-{time.time_ns()}")
    first, second = (
        OperatorProcess(
            tmp_path,
            cluster,
            namespace,
            {"broker-0": broker.url},
            name=f"operator-{number}",
            configuration=configuration(cluster),
            settings=files,
        )
        for number in (0, 1)
    )
    with running(first), running(second):
        wait_until(lambda: first.leads)
        wait_until(lambda: second.get("/readyz"))
        template = ("template", RELEASE, str(CHART), f"-n={NAMESPACE}", "--kube-version=1.36.3")
        text = commands.run([program("helm"), *template], seconds=COMMAND_SECONDS).stdout
        documents = [each for each in yaml.safe_load_all(text) if each]
        (hook,) = [each for each in documents if each["kind"] == "MutatingWebhookConfiguration"]
        path = hook["webhooks"][0]["clientConfig"]["service"]["path"]
        hook["webhooks"][0]["clientConfig"] = {
            "url": f"https://127.0.0.1:{second.http_port + 1}{path}",
            "caBundle": base64.b64encode(authority.certificate.read_bytes()).decode(),
        }
        cluster.apply(hook)
        world = Installed(cluster, namespace, broker, first)
        try:
            wait_until(lambda: tried(world))
            yield world, second
        finally:
            cluster.kubectl("delete", "mutatingwebhookconfigurations", "--all")


def pod(name: str, **annotations: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"onewriter.dev/inject": "true"},
            "annotations": {f"onewriter.dev/{key}": value for key, value in annotations.items()},
        },
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    }


def tried(world: Installed) -> list[Json]:
    """Return the sidecars of a pod in a dry run. The API server takes a moment to know the webhook."""
    made = ("create", "--dry-run=server", "--filename=-", "--output=json")
    done = world.cluster.kubectl(
        *made,
        stdin=json.dumps(pod("tried", topic="orders")),
        namespace=world.namespace,
        check=False,
    )
    if done.returncode:
        return []
    return list(json.loads(done.stdout)["spec"].get("initContainers", ()))


def test_a_replica_that_waits_injects_sidecars(
    injecting: tuple[Installed, OperatorProcess],
) -> None:
    world, second = injecting
    assert not second.leads

    def is_made() -> bool:
        answer = world.cluster.apply(
            pod("writer", topic="orders"), namespace=world.namespace, check=False
        )
        return "created" in answer or "unchanged" in answer

    wait_until(is_made)  # a call of the webhook may time out
    found = world.get("pod", "writer")
    (sidecar,) = found["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("onewriter-sidecar", "Always")
    assert found["metadata"]["labels"]["onewriter.dev/claim"] == "injected"


def test_a_pod_without_a_topic_is_refused_with_a_message(
    injecting: tuple[Installed, OperatorProcess],
) -> None:
    world, _ = injecting

    def said() -> str:
        return world.cluster.apply(pod("nobody"), namespace=world.namespace, check=False)

    wait_until(lambda: "annotation onewriter.dev/topic is missing" in said(), explain=said)


def test_with_the_webhook_down_only_labelled_pods_wait(
    injecting: tuple[Installed, OperatorProcess],
) -> None:
    world, second = injecting
    second.stop()
    plain = pod("plain", topic="orders")
    plain["metadata"]["labels"] = {}
    world.apply(plain)

    def said() -> str:
        return world.cluster.apply(pod("asks", topic="a"), namespace=world.namespace, check=False)

    wait_until(lambda: "inject.onewriter.dev" in said(), explain=said)
    assert "asks" not in world.names("pod")


def edited(world: Installed, kind: str, name: str, change: str) -> str:
    """Edit an object as ``kubectl edit`` does, with a change of sed; return kubectl's output."""
    done = commands.run(
        [
            *(program("kubectl"), f"--kubeconfig={world.cluster.kubeconfig}"),
            *(f"--namespace={world.namespace}", "edit", kind, name),
        ],
        seconds=COMMAND_SECONDS,
        environment={**os.environ, "KUBE_EDITOR": f"sed -i {shlex.quote(change)}"},
    )
    return done.stdout + done.stderr


def test_with_the_webhook_down_objects_are_edited(
    injecting: tuple[Installed, OperatorProcess],
) -> None:
    """The API server calls the webhook only for new pods."""
    world, second = injecting
    world.topic(retention={"maxEntries": 7})
    world.until("Ready", "True/Ready")

    def is_made() -> bool:
        writer = pod("writer", topic="orders")
        answer = world.cluster.apply(writer, namespace=world.namespace, check=False)
        return "created" in answer or "unchanged" in answer

    wait_until(is_made)
    second.stop()
    assert "edited" in edited(world, "pod", "writer", "s/topic: orders/topic: orders-2/")
    assert "edited" in edited(world, "xt", "orders", "s/maxEntries: 7/maxEntries: 8/")

    def kept() -> int:
        """The setting of the topic that the brokers have."""
        topics = world.broker.fake.bodies[-1]["topics"]
        (found,) = [each for each in topics if each["metadata"]["namespace"] == world.namespace]
        return int(found["spec"]["retention"]["maxEntries"])

    wait_until(lambda: kept() == 8)
    world.until("PolicyApplied", "True/Applied")
    refused = edited(world, "xt", "orders", "s/partitions: 0/partitions: -1/")
    assert "is invalid" in refused, refused  # kubectl shows the reason in the editor
    assert world.get("xt")["spec"]["partitions"] == 0
