"""The operator as a process with a fake broker, for one test or for many."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import WAIT_SECONDS, ControlPlane
from tests.cluster.operators import PROGRAM, OperatorProcess, running, wait_until
from tests.cluster.reading import Reader
from tests.unit.kube.fake_broker import ThreadedBroker, producer_group, status, transition

Json = dict[str, Any]

API = "onewriter.dev/v1alpha1"

DECLARED = "exclusivetopics,producerclaims"
DEPENDENT = (
    "pods,services,endpointslices.discovery.k8s.io,poddisruptionbudgets,events.events.k8s.io"
)


def topic_document(
    name: str = "orders", annotations: Mapping[str, str] | None = None, **spec: Any
) -> Json:
    """Return an ExclusiveTopic."""
    about = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": API, "kind": "ExclusiveTopic", "metadata": about, "spec": spec}


def claim_document(name: str = "primary", topic: str = "orders", **subject: Any) -> Json:
    """Return a ProducerClaim; without a subject it is for the ServiceAccount ``writer``."""
    subject = subject or {"serviceAccountName": "writer"}
    spec = {"topicRef": {"name": topic}, "subject": subject}
    return {"apiVersion": API, "kind": "ProducerClaim", "metadata": {"name": name}, "spec": spec}


class World:
    """An operator with its own namespace and one broker."""

    def __init__(
        self,
        cluster: ControlPlane,
        namespace: str,
        broker: ThreadedBroker,
        operator: OperatorProcess,
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.broker = broker
        self.operator = operator
        self._reader = Reader(cluster)
        self._generations = 0

    def name(self, topic: str) -> str:
        return f"persistent://{self.namespace}/default/{topic}"

    def apply(self, *documents: Json) -> str:
        return self.cluster.apply(*documents, namespace=self.namespace)

    def topic(
        self, name: str = "orders", annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        self.apply(topic_document(name, annotations, **spec))

    def claim(self, name: str = "primary", topic: str = "orders", **subject: Any) -> None:
        self.apply(claim_document(name, topic, **subject))

    def get(self, kind: str, name: str = "orders") -> Json:
        found = self._reader.get(kind, self.namespace, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    def all(self, kind: str) -> list[Json]:
        return self._reader.list(kind, self.namespace)

    def names(self, kind: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.all(kind)]

    def status(self, kind: str = "xt", name: str = "orders") -> Json:
        found: Json = (self._reader.get(kind, self.namespace, name) or {}).get("status", {})
        return found

    def condition(self, of: str, kind: str = "xt", name: str = "orders") -> str:
        for each in self.status(kind, name).get("conditions", ()):
            if each["type"] == of:
                return f"{each['status']}/{each['reason']}"
        return ""

    def until(self, of: str, expected: str, kind: str = "xt", name: str = "orders") -> None:
        wait_until(
            lambda: self.condition(of, kind, name) == expected,
            explain=lambda: self.status(kind, name),
        )

    def events(self, reason: str) -> list[Json]:
        return [each for each in self.all("event") if each["reason"] == reason]

    def annotate(self, *annotations: str, kind: str = "xt", name: str = "orders") -> None:
        self.cluster.kubectl(
            "annotate", "--overwrite", kind, name, *annotations, namespace=self.namespace
        )

    def noticed(self, name: str = "orders", **annotations: str | None) -> None:
        """Annotate a topic (None: remove the annotation), and wait until the operator has processed it.

        The same write changes its spec, so that it gets another generation, which the status then contains.
        """
        self._generations += 1
        change = {
            "metadata": {"annotations": {f"onewriter.dev/{k}": v for k, v in annotations.items()}},
            "spec": {"retention": {"maxEntries": 1_000_000 + self._generations}},
        }
        done = self.cluster.kubectl(
            "patch", "xt", name, "--type=merge", "-o", "json", "-p", json.dumps(change),
            namespace=self.namespace,
        )  # fmt: skip
        generation = json.loads(done.stdout)["metadata"]["generation"]
        wait_until(
            lambda: self.status(name=name).get("observedGeneration", 0) >= generation,
            explain=lambda: self.status(name=name),
        )

    def delete(self, kind: str, name: str = "orders") -> None:
        """Delete an object, and wait until it is gone."""
        gone = ("delete", kind, name, f"--timeout={WAIT_SECONDS}s")
        self.cluster.kubectl(*gone, namespace=self.namespace)

    def writes(self, topic: str = "orders", *, claim: str = "primary", **more: Any) -> None:
        """Let the broker serve a topic with a writer under a claim."""
        epoch = more.pop("epoch", 1)
        writer = producer_group(f"w{epoch}", claim, f"writer-{epoch}", epoch=epoch)
        found = status(
            epoch,
            holders=[writer],
            transitions=[transition(epoch, "Initial", writer, None)],
            **more,
        )
        self.broker.serve(self.name(topic), found)

    def clear(self) -> None:
        """Remove all objects and the broker's state for the next test."""
        self.broker.do(self.broker.fake.reset)
        self._delete_all(DECLARED)
        wait_until(
            lambda: self.names("xt") == self.names("pclaim") == [], explain=self.operator.log
        )
        wait_until(lambda: self.broker.fake.topics() == self.broker.fake.claims() == [])
        self._delete_all(DEPENDENT)
        self.broker.do(self.broker.fake.forget)

    def _delete_all(self, kinds: str) -> None:
        self.cluster.kubectl(
            "delete", kinds, "--all", "--wait=false", "--force", "--grace-period=0",
            namespace=self.namespace,
        )  # fmt: skip


@contextlib.contextmanager
def one_world(cluster: ControlPlane, directory: Path, program: str = PROGRAM) -> Iterator[World]:
    """An operator and a broker that many tests use in turn. Each test clears them."""
    namespace = cluster.make_namespace(f"test-{uuid.uuid4().hex[:10]}")
    with ThreadedBroker() as broker:
        brokers = {"broker-0": broker.url}
        operator = OperatorProcess(directory, cluster, namespace, brokers, program=program)
        with running(operator):
            wait_until(lambda: operator.leads, explain=operator.log)
            yield World(cluster, namespace, broker, operator)


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    """A broker for one test."""
    with ThreadedBroker() as found:
        yield found


@pytest.fixture
def world(
    api_server: ControlPlane, namespace: str, broker: ThreadedBroker, tmp_path: Path
) -> Iterator[World]:
    """An operator for one test, which the test may end."""
    operator = OperatorProcess(tmp_path, api_server, namespace, {"broker-0": broker.url})
    with running(operator):
        yield World(api_server, namespace, broker, operator)


def pod(world: World, name: str, address: str = "", labels: Json | None = None) -> Json:
    """Create a pod with an address, as if a kubelet ran it."""
    number = int(name.rpartition("-")[2])
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels or {"onewriter.dev/claim": "primary"}},
            "spec": {"containers": [{"name": "app", "image": "app"}]},
        }
    )
    ip = address or f"10.1.0.{number}"
    found = {"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}
    world.cluster.kubectl(
        "patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(found),
        namespace=world.namespace,
    )  # fmt: skip
    return world.get("pod", name)


def leads_to(world: World, addresses: list[str], epoch: int) -> None:
    """Wait until the Service leads to these addresses, and Service and slice show it."""

    def labelled(kind: str, name: str) -> bool:
        found = [each["metadata"] for each in world.all(kind) if each["metadata"]["name"] == name]
        labels = [each.get("labels") or {} for each in found]
        return [each.get("onewriter.dev/epoch") for each in labels] == [str(epoch)]

    wait_until(lambda: endpoints(world) == addresses, explain=lambda: endpoints(world))
    wait_until(lambda: labelled("endpointslice", "leader-leader-ipv4"))
    wait_until(lambda: labelled("service", "leader"))


def epoch_is(world: World, epoch: int) -> None:
    """Wait until the status shows an epoch."""
    wait_until(lambda: world.status().get("epoch") == epoch, explain=world.status)


def endpoints(world: World) -> list[str]:
    if "leader-leader-ipv4" not in world.names("endpointslice"):
        return ["none yet"]
    found = world.get("endpointslice", "leader-leader-ipv4")
    return [address for each in found.get("endpoints") or () for address in each["addresses"]]
