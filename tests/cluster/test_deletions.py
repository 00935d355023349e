"""Deletions in the wrong order: the rows of the table in docs/install.md, "If something was deleted in another order".

Each test deletes something under a running installation, checks what a user sees, and restores service with the command
that the table names. A control plane without nodes runs the chart; the operator is a process, which a test starts again
as a kubelet would. tests/cluster/test_brokers_in_kubernetes.py has the rows of the BucketAnchor, which need real brokers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import commands
from tests.cluster.binaries import program
from tests.cluster.control_plane import COMMAND_SECONDS, ControlPlane
from tests.cluster.operators import LEASE, OperatorProcess, running, wait_until
from tests.cluster.test_chart_installed import ANCHOR, NAMESPACE, ROOT, Installation
from tests.cluster.test_operator_installed import account, configuration
from tests.cluster.worlds import World
from tests.unit.kube.fake_broker import ThreadedBroker

Json = dict[str, Any]

VOLUME = "data-onewriter-valkey-0"
TABLE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("in another order")[2]
DEFINITIONS = ("exclusivetopics", "producerclaims", "onewriters")

ROLLBACK = "helm rollback onewriter REVISION"

FREQUENT = """
from onewriter_operator.app import OperatorLimits
from onewriter_operator.cli import serve
serve(OperatorLimits(installation_seconds=1.0))
"""
"""An operator that compares the installed objects each second."""


class Installed(World):
    """The operator with the rights that the chart gives it. ``installation`` is the chart's release."""

    def __init__(
        self, installation: Installation, namespace: str, broker: ThreadedBroker, directory: Path
    ) -> None:
        self.installation = installation
        self.directory = directory
        super().__init__(installation.cluster, namespace, broker, self.new_operator(broker))

    def new_operator(self, broker: ThreadedBroker) -> OperatorProcess:
        """The process of an operator pod with the present configuration and the present ServiceAccount."""
        cluster = self.installation.cluster
        document = configuration(cluster)
        document["operator"]["lease"] = LEASE
        return OperatorProcess(
            self.directory,
            cluster,
            NAMESPACE,
            {"broker-0": broker.url},
            kubeconfig=account(cluster, self.directory),
            configuration=document,
            settings={"ONEWRITER_OPERATOR_INSTALLS": "true"},
            program=FREQUENT,
        )

    def restarts(self, holds: Callable[[], Any]) -> None:
        """Wait until it holds. A kubelet starts an operator that has ended again."""

        def now() -> bool:
            if not self.operator.is_running:
                self.operator.start()
            return bool(holds())

        wait_until(now, explain=self.operator.log)

    def settled(self, name: str = "orders") -> None:
        """Wait until the topic is Ready."""
        self.restarts(lambda: self.condition("Ready", name=name) == "True/Ready")

    def finalizers(self, name: str) -> list[str]:
        found: list[str] = self.get("xt", name)["metadata"].get("finalizers", [])
        return found

    def removes_finalizers(self) -> None:
        """Run the documented command."""
        text = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
        (command,) = (
            block
            for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
            if "finalizers" in block
        )
        tool = f"{program('kubectl')} --kubeconfig={self.cluster.kubeconfig}"
        script = f'kubectl() {{ {tool} "$@"; }}\n{command}'
        done = commands.run(["bash", "-c", script], seconds=COMMAND_SECONDS)
        assert done.returncode == 0, done.stderr

    def kubectl(self, command: str) -> None:
        """Run a command of the table, in this installation's namespace."""
        assert f"`{command}`" in TABLE, "it is documented"
        words = command.replace(" -n onewriter", f" -n {NAMESPACE}").split()
        self.cluster.kubectl(*words[1:])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("deletions"), workloads=True) as found:
        yield found


@pytest.fixture
def world(cluster: ControlPlane, tmp_path: Path) -> Iterator[Installed]:
    """The chart, installed over everything that the test before has left, with a running operator."""
    cluster.make_namespace(NAMESPACE)
    cluster.make_namespace("shop")
    installation = Installation(cluster)
    installation.install()
    with ThreadedBroker() as broker:
        found = Installed(installation, "shop", broker, tmp_path)
        with running(found.operator):
            wait_until(lambda: found.operator.leads, explain=found.operator.log)
            yield found
        if found.operator.is_running:
            found.operator.stop()
    cluster.kubectl("delete", "xt,pclaim", "-A", "--all", "--wait=false", check=False)
    if not is_gone(found, "crd", "exclusivetopics.onewriter.dev"):
        found.removes_finalizers()


def delete(world: Installed, *what: str, namespace: str = "") -> None:
    """Delete, without waiting for the end."""
    world.cluster.kubectl("delete", *what, "--wait=false", namespace=namespace)


def is_gone(world: Installed, *what: str, namespace: str = "") -> bool:
    get = ("get", *what, "--ignore-not-found", "-o=name")
    return not world.cluster.kubectl(*get, namespace=namespace, check=False).stdout.strip()


# ------------------------------------------------------------ the operator first, then topics


def test_topics_that_are_deleted_without_an_operator_wait_for_it(world: Installed) -> None:
    for name, policy in (("orders", "Delete"), ("kept", "Retain")):
        world.topic(name, deletionPolicy=policy)
        world.settled(name)
    wait_until(lambda: world.finalizers("orders"))
    world.operator.stop()
    delete(world, "deployment", "onewriter-operator", namespace=NAMESPACE)
    world.delete("xt", "kept")  # no finalizer: nothing waits
    delete(world, "xt", "orders", namespace="shop")
    assert "deletionTimestamp" in world.get("xt", "orders")["metadata"]
    assert world.broker.fake.deletions == []
    world.installation.install()
    assert "onewriter-operator" in world.installation.names("deployment")
    world.operator.start()
    wait_until(lambda: is_gone(world, "xt", "orders", namespace="shop"), explain=world.operator.log)
    assert world.broker.fake.deletions == [(world.name("orders"), True)], "as its policy says"


def test_the_documented_command_ends_the_deletion_of_topics_without_an_operator(
    world: Installed,
) -> None:
    world.topic(deletionPolicy="Delete")
    world.settled()
    wait_until(lambda: world.finalizers("orders"))
    world.operator.stop()
    delete(world, "xt", "orders", namespace="shop")
    assert not is_gone(world, "xt", "orders", namespace="shop")
    world.removes_finalizers()
    wait_until(lambda: is_gone(world, "xt", "orders", namespace="shop"))
    assert world.broker.fake.deletions == [], "the log stays"


# ------------------------------------------------------------ the definitions, in any order


@pytest.mark.parametrize(
    "order",
    [DEFINITIONS, DEFINITIONS[::-1], ("producerclaims", "exclusivetopics", "bucketanchors")],
    ids=" ".join,
)
def test_definitions_that_are_deleted_come_back_with_an_upgrade(
    world: Installed, order: tuple[str, ...]
) -> None:
    world.topic("kept")
    world.topic("going", deletionPolicy="Delete")
    world.claim(topic="kept")
    world.settled("kept")
    wait_until(lambda: world.finalizers("going"))
    for plural in order:
        delete(world, "crd", f"{plural}.onewriter.dev")

    def topics_are_gone() -> bool:
        return is_gone(world, "crd", "exclusivetopics.onewriter.dev")

    def waits_for_claims() -> bool:
        return "the CRD producerclaims is missing" in world.operator.log()

    # An operator that is started without the definition of claims waits, and processes no finalizer.
    world.restarts(lambda: topics_are_gone() or waits_for_claims())
    if not topics_are_gone():
        world.removes_finalizers()
    for plural in order:
        world.restarts(lambda: is_gone(world, "crd", f"{plural}.onewriter.dev"))  # noqa: B023 - called now
    world.restarts(lambda: " is missing: run helm upgrade" in world.operator.log())
    if "onewriters" not in order:
        wait_until(lambda: "is missing: run helm upgrade" in installed_message(world))
    # The store and the brokers are maintained meanwhile.
    delete(world, "service", "onewriter-broker", namespace=NAMESPACE)
    world.restarts(lambda: "onewriter-broker" in world.installation.names("service"))
    assert world.operator.log().count('"list.failed"') <= 2 * len(order), "each reason once"

    world.installation.install()
    for plural in order:
        world.cluster.until_served("onewriter.dev", plural)
    world.topic("kept")
    world.claim(topic="kept")
    world.settled("kept")
    world.restarts(lambda: world.condition("Ready", "pclaim", "primary") == "True/Ready")
    assert world.broker.fake.topics() == [world.name("kept")]
    wait_until(lambda: "is missing" not in installed_message(world))
    world.delete("pclaim", "primary")
    world.delete("xt", "kept")


def installed_message(world: Installed) -> str:
    """The message of the OneWriter's condition Installed; empty if there is none."""
    path = "{.status.conditions[?(@.type=='Installed')].message}"
    get = ("get", "ow", "onewriter", "--ignore-not-found", f"-o=jsonpath={path}")
    return world.cluster.kubectl(*get, namespace=NAMESPACE, check=False).stdout


# ------------------------------------------------------------ the configuration, or the release without its hooks


def is_installed(world: Installed) -> bool:
    return len(world.installation.names("statefulset")) == 2


def test_without_the_configuration_the_operator_does_not_create_what_kubernetes_deletes(
    world: Installed,
) -> None:
    world.cluster.apply(ANCHOR)
    wait_until(lambda: is_installed(world), explain=world.operator.log)
    wait_until(lambda: VOLUME in world.installation.names("pvc"))
    delete(world, "configmap", "onewriter-config", namespace=NAMESPACE)
    wait_until(lambda: "installation.rests" in world.operator.log())
    wait_until(lambda: world.installation.names("statefulset") == [])
    assert world.operator.log().count("installation.rests") == 1
    assert "installation.drifted" not in world.operator.log()
    assert VOLUME in world.installation.names("pvc")
    assert "shard-0" in world.installation.names("bucketanchor")
    world.installation.install()
    wait_until(lambda: is_installed(world), explain=world.operator.log)


def test_a_release_that_is_removed_without_its_hooks_is_installed_again(world: Installed) -> None:
    world.cluster.apply(ANCHOR)
    world.topic(deletionPolicy="Delete")
    world.settled()
    wait_until(lambda: is_installed(world) and VOLUME in world.installation.names("pvc"))
    uid = world.get("xt")["metadata"]["uid"]
    world.installation.helm("uninstall", "onewriter", "--no-hooks")
    world.operator.stop()  # its Deployment is gone
    wait_until(lambda: world.installation.names("statefulset") == [])
    assert VOLUME in world.installation.names("pvc")
    assert "shard-0" in world.installation.names("bucketanchor")
    world.installation.install()
    world.operator = world.new_operator(world.broker)  # with the new ServiceAccount
    with running(world.operator):
        wait_until(lambda: is_installed(world), explain=world.operator.log)
        world.noticed()
        world.settled()
        assert world.get("xt")["metadata"]["uid"] == uid
        world.delete("xt")
        assert world.broker.fake.deletions == [(world.name("orders"), True)]


def test_a_definition_that_stays_terminating_is_released_by_the_documented_command(
    world: Installed,
) -> None:
    """``crds.keep=false`` without the hooks, and without an operator: the object keeps its definition."""
    world.topic(deletionPolicy="Delete")
    world.settled()
    wait_until(lambda: world.finalizers("orders"))
    world.operator.stop()
    world.installation.install("crds.keep=false")
    world.installation.helm("uninstall", "onewriter", "--no-hooks")
    assert (
        "deletionTimestamp" in world.cluster.get("crd", "exclusivetopics.onewriter.dev")["metadata"]
    )
    world.removes_finalizers()
    wait_until(lambda: is_gone(world, "crd", "exclusivetopics.onewriter.dev"))
    world.installation.install()
    world.cluster.until_served("onewriter.dev", "exclusivetopics")


# ------------------------------------------------------------ an uninstallation that stopped


def replicas(world: Installed, kind: str, name: str) -> int:
    return int(world.installation.get(kind, name)["spec"]["replicas"])


def begin_to_uninstall(world: Installed) -> None:
    """Let ``helm uninstall`` stop after the clean-up has stopped operator and brokers.

    No pod runs here, so the hook's Job never ends. What its pod does is done here.
    """
    helm = [str(program("helm")), f"--kubeconfig={world.cluster.kubeconfig}"]
    command = [*helm, "uninstall", "onewriter", f"--namespace={NAMESPACE}", "--timeout=5s"]
    done = commands.run(command, seconds=COMMAND_SECONDS)
    assert done.returncode != 0, done.stdout
    assert "uninstalling" in world.installation.helm("history", "onewriter")
    for kind, name in (("deployment", "onewriter-operator"), ("statefulset", "onewriter-broker")):
        world.cluster.kubectl("scale", kind, name, "--replicas=0", namespace=NAMESPACE)
    world.operator.stop()


def test_an_uninstallation_that_stopped_is_given_up(world: Installed) -> None:
    wait_until(lambda: is_installed(world))
    world.topic()
    world.settled()
    begin_to_uninstall(world)
    world.kubectl("kubectl scale deployment onewriter-operator --replicas=2 -n onewriter")
    world.operator.start()
    wait_until(lambda: replicas(world, "statefulset", "onewriter-broker") == 3)
    world.noticed()
    world.settled()
    # Helm refuses an upgrade of a release that it began to uninstall, until a rollback has deployed it again.
    assert f"`{ROLLBACK} -n onewriter`" in TABLE
    history = world.installation.helm("history", "onewriter", "--output=json")
    revision = max(int(each["revision"]) for each in json.loads(history))
    words = ROLLBACK.replace("REVISION", str(revision)).split()
    world.installation.helm(*words[1:], "--no-hooks")
    world.installation.install("brokers.replicas=2")
    assert world.installation.configuration.brokers.replicas == 2


def test_an_uninstallation_that_stopped_is_repeated(world: Installed) -> None:
    wait_until(lambda: is_installed(world))
    begin_to_uninstall(world)
    world.installation.helm("uninstall", "onewriter", "--no-hooks")
    wait_until(lambda: world.installation.names("statefulset") == [])
    world.installation.install()
    assert replicas(world, "deployment", "onewriter-operator") == 2


# ------------------------------------------------------------ the namespace of the installation


def test_without_the_namespace_of_the_installation_topics_elsewhere_are_released_and_served_again(
    world: Installed,
) -> None:
    wait_until(lambda: is_installed(world))
    world.topic("orders", deletionPolicy="Delete")
    world.topic("kept")
    world.settled("orders")
    world.settled("kept")
    wait_until(lambda: world.finalizers("orders"))
    delete(world, "namespace", NAMESPACE)
    # Nothing in it waits for the operator, whose rights and Lease go with it.
    wait_until(lambda: is_gone(world, "namespace", NAMESPACE))
    world.operator.stop()  # its pod goes, too
    assert not is_gone(world, "xt", "kept", namespace="shop")
    delete(world, "xt", "orders", namespace="shop")
    assert not is_gone(world, "xt", "orders", namespace="shop")
    world.removes_finalizers()
    wait_until(lambda: is_gone(world, "xt", "orders", namespace="shop"))

    world.cluster.make_namespace(NAMESPACE)
    world.installation.install()  # over the cluster-wide objects of the former release
    world.operator = world.new_operator(world.broker)
    with running(world.operator):
        wait_until(lambda: is_installed(world), explain=world.operator.log)
        world.noticed("kept")
        world.settled("kept")
