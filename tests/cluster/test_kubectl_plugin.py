"""``kubectl onewriter`` as users call it: a real API server with its rights, a real operator, and brokers that
require tokens. There are no nodes, so the plugin reaches brokers by their addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import commands
from tests.cluster.accounts import (
    broker_account,
    make_pod,
    pod_token,
    rbac,
    reference,
    service_account,
)
from tests.cluster.binaries import program
from tests.cluster.control_plane import COMMAND_SECONDS, WAIT_SECONDS, ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.integration.http_calls import Http
from tests.integration.raw import EXCLUSIVE, RawClient
from tests.servers import running_server
from tests.unit.charts.rendering import of_kind, rendered

from onewriter_core.broker_http import topic_path
from onewriter_core.command import EXIT_REFUSED, EXIT_UNKNOWN, EXIT_USAGE
from onewriter_testing.processes import LocalBrokers

Json = dict[str, Any]

API = "onewriter.dev/v1alpha1"
PLUGIN = "from onewriter_kubectl.cli import main; main()"
OPERATOR = "onewriter-operator"

ROLES = {"viewer": ("view",), "editor": ("view", "edit")}
"""Users of the namespace, and their roles. Rules that a cluster aggregates into ``view`` and ``edit`` come from
its own roles of these names and from the chart's."""


IN_TIME = ("--timeout-seconds", str(WAIT_SECONDS))
"""The plugin waits for the operator as long as the tests wait for anything."""


class Output:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


class Stage:
    """A namespace with an installation: an operator and two brokers that are not in pods."""

    def __init__(self, cluster: ControlPlane, namespace: str, directory: Path, store: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.directory = directory
        self.kubeconfig = str(cluster.kubeconfig)
        account = broker_account(cluster, namespace, directory / "account")
        cluster.apply(service_account(OPERATOR), _broker_service(), namespace=namespace)
        self._token = directory / "operator.token"
        self._token.write_text(
            cluster.kubectl(
                *("create", "token", OPERATOR, "--audience=onewriter", "--duration=3600s"),
                namespace=namespace,
            ).stdout
        )
        self.brokers = LocalBrokers(
            directory / "brokers",
            brokers=2,
            redis_url=store,
            supervised=False,
            settings={
                "anchor": "kubernetes",
                "kubernetes_url": account.url,
                "kubernetes_ca_file": account.ca_file,
                "kubernetes_token_file": account.token_file,
                "kubernetes_namespace": namespace,
                "token_review": True,
                "authentication_required": True,
                "require_declared": True,
                "admin_subjects": f"system:serviceaccount:{namespace}:{OPERATOR}",
            },
        )
        urls = dict(zip(self.brokers.names, self.brokers.http_urls, strict=True))
        self.operator = OperatorProcess(
            directory,
            cluster,
            namespace,
            urls,
            settings={"ONEWRITER_OPERATOR_TOKEN_FILE": str(self._token)},
        )

    def __call__(self, *arguments: str, user: str = "", stdin: str = "") -> Output:
        """Run the plugin as kubectl does. ``user`` is one of ROLES, otherwise the administrator."""
        words = [*arguments, f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"]
        words += [f"--as={user}"] if user else []
        done = commands.run(
            [sys.executable, "-c", PLUGIN, *words],
            environment=os.environ | {"ONEWRITER_KUBECTL": str(program("kubectl"))},
            stdin=stdin,
            seconds=COMMAND_SECONDS,
        )
        return Output(done)

    def status(self, name: str) -> Json:
        found: Json = self.cluster.get("xt", name, namespace=self.namespace).get("status") or {}
        return found

    def is_served_by_its_broker(self, topic: str) -> bool:
        """Whether buckets are at their final broker: at first, the first broker has all of them."""
        url = self.brokers.http_urls[self.brokers.target_of(topic)]
        code, _ = Http(url, self._token.read_text())("GET", topic_path(topic))
        return code == 200

    def has_writer(self, name: str, producer: str) -> bool:
        return bool((self.status(name).get("holder") or {}).get("producerName") == producer)


def _broker_service() -> Json:
    labels = {
        "app.kubernetes.io/name": "onewriter",
        "app.kubernetes.io/instance": "onewriter",
        "app.kubernetes.io/component": "broker",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "onewriter-broker", "labels": labels},
        "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 8080}]},
    }


def _people(cluster: ControlPlane, namespace: str) -> None:
    """Create the users of ROLES, with the rules that the chart adds to the cluster's roles."""
    added = [
        each
        for each in of_kind(rendered(), "ClusterRole")
        if any("aggregate-to" in label for label in each["metadata"]["labels"])
    ]
    cluster.apply(*added)
    for user, roles in ROLES.items():
        names = [f"system:aggregate-to-{role}" for role in roles]
        names += [
            each["metadata"]["name"]
            for each in added
            if any(
                f"rbac.authorization.k8s.io/aggregate-to-{r}" in each["metadata"]["labels"]
                for r in roles
            )
        ]
        subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
        cluster.apply(
            *(
                rbac(
                    "RoleBinding",
                    f"{user}-{number}",
                    roleRef=reference("ClusterRole", name),
                    subjects=[subject],
                )
                for number, name in enumerate(names)
            ),
            namespace=namespace,
        )


@pytest.fixture(scope="module")
def stage(api_server: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    namespace = f"plugin-{uuid.uuid4().hex[:8]}"
    api_server.make_namespace(namespace)
    _people(api_server, namespace)
    for user, verb in (("viewer", "get"), ("editor", "patch")):
        api_server.until_allowed(user, verb, "exclusivetopics.onewriter.dev", namespace=namespace)
    with running_server() as store, contextlib.ExitStack() as stack:
        found = Stage(api_server, namespace, tmp_path_factory.mktemp("plugin"), store.url)
        stack.callback(found.brokers.stop)
        found.brokers.start()
        stack.enter_context(running(found.operator))
        yield found


class Play:
    """A topic with two pods that may write to it."""

    def __init__(self, stage: Stage, name: str, clients: contextlib.ExitStack) -> None:
        self.stage = stage
        self.name = name
        self.topic = f"persistent://{stage.namespace}/default/{name}"
        self._clients = clients
        # Clients that get no processor time for a while keep their topics: no test here is about that.
        spec = {"detection": {"pingIntervalSeconds": 20}}
        claim = {"topicRef": {"name": name}, "subject": {"serviceAccountName": "writer"}}
        stage.cluster.apply(
            {"apiVersion": API, "kind": "ExclusiveTopic", "metadata": {"name": name}, "spec": spec},
            {"apiVersion": API, "kind": "ProducerClaim", "metadata": {"name": name}, "spec": claim},
            namespace=stage.namespace,
        )
        stage.cluster.kubectl(
            *(
                "wait",
                "--for=condition=Ready",
                f"xt/{name}",
                f"pclaim/{name}",
                f"--timeout={WAIT_SECONDS}s",
            ),
            namespace=stage.namespace,
        )
        wait_until(lambda: stage.is_served_by_its_broker(self.topic))
        first, second = (make_pod(stage.cluster, stage.namespace) for _ in range(2))
        self.pods = {"one": first, "two": second}
        self.holder = self._client("one").producer(self.topic, EXCLUSIVE, name="one")
        self.waiter = self._client("two").waiter(self.topic, name="two")
        wait_until(
            lambda: stage.has_writer(name, "one") and stage.status(name).get("waiting") == 1,
            explain=lambda: stage.status(name),
        )
        stage.cluster.kubectl(
            *("wait", "--for=condition=Granted", f"pclaim/{name}", f"--timeout={WAIT_SECONDS}s"),
            namespace=stage.namespace,
        )
        wait_until(lambda: "EpochAdvanced" in self._events())  # Events are written after the status

    def _events(self) -> set[str]:
        """Return the reasons of the Events about the topic."""
        reasons = ("-o", f'jsonpath={{.items[?(@.regarding.name=="{self.name}")].reason}}')
        events = ("get", "events.events.k8s.io", *reasons)
        return set(
            self.stage.cluster.kubectl(*events, namespace=self.stage.namespace).stdout.split()
        )

    def _client(self, name: str) -> RawClient:
        token = pod_token(self.stage.cluster, self.stage.namespace, self.pods[name])
        owner = self.stage.brokers.target_of(self.topic)
        client = RawClient(self.stage.brokers.address(owner), token=token)
        self._clients.enter_context(client)
        client.lookup(self.topic)
        return client

    @property
    def not_its_broker(self) -> tuple[str, str]:
        """Return another broker than the topic's: any broker must redirect the request."""
        owner = self.stage.brokers.target_of(self.topic)
        return "--http-url", self.stage.brokers.http_urls[1 - owner]


@pytest.fixture
def play(stage: Stage) -> Iterator[Play]:
    with contextlib.ExitStack() as clients:
        yield Play(stage, f"t-{uuid.uuid4().hex[:6]}", clients)


# ------------------------------------------------------------ queries


def test_the_verbs_who_status_and_why_need_only_the_role_view(stage: Stage, play: Play) -> None:
    pod = play.pods["one"].name
    output = stage("who", play.name, user="viewer")
    assert output.code == 0, output.err
    assert output.out.startswith(f"{stage.namespace}/{play.name}: {pod} (producer one), claim ")
    assert output.out.endswith(", 1 waiting\n")
    listed = stage("status", user="viewer")
    assert any(play.name in line and pod in line for line in listed.out.splitlines())
    shown = stage("status", play.name, user="viewer")
    for word in ("WriterActive", "PolicyApplied", "transitions:", "EpochAdvanced", "Waiting"):
        assert word in shown.out, shown.out
    why = stage("why", play.name, user="viewer")
    assert f"is written by {pod} (producer one), claim {play.name}" in why.out
    assert f"  1. {play.pods['two'].name} (producer two), claim {play.name}" in why.out
    assert "Nothing needs attention." in why.out
    objects = json.loads(stage("status", play.name, "-o", "json", user="viewer").out)
    assert objects["topic"]["metadata"]["name"] == play.name
    assert [each["metadata"]["name"] for each in objects["claims"]] == [play.name]


def test_kubectl_finds_the_plugin(stage: Stage, play: Play, tmp_path: Path) -> None:
    script = tmp_path / "kubectl-onewriter"
    script.write_text(f"#!{sys.executable}\n{PLUGIN}\n")
    script.chmod(0o755)
    kubectl = program("kubectl")
    path = os.pathsep.join((str(tmp_path), str(kubectl.parent), os.environ["PATH"]))
    done = commands.run(
        [kubectl, "onewriter", "who", play.name, "-n", stage.namespace],
        environment=os.environ | {"PATH": path, "KUBECONFIG": stage.kubeconfig},
        seconds=COMMAND_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{stage.namespace}/{play.name}: ")


def test_the_option_live_shows_the_report_of_the_broker(stage: Stage, play: Play) -> None:
    live = stage("status", play.name, "--live", *play.not_its_broker)
    assert live.code == 0, live.err
    assert "waiters:" in live.out
    why = stage("why", play.name, "--live", *play.not_its_broker)
    assert f"  1. {play.pods['two'].name} (producer two), claim {play.name}, for " in why.out
    reported = stage("history", play.name, "-o", "json", *play.not_its_broker)
    assert "grant" in {each["kind"] for each in json.loads(reported.out)["records"]}


def test_a_caller_without_the_right_to_a_token_gets_the_reason(stage: Stage, play: Play) -> None:
    no = stage("history", play.name, *play.not_its_broker, user="viewer")
    assert no.code == EXIT_REFUSED
    assert "no token was obtained" in no.err
    assert no.err.count("\n") == 1


def test_a_failed_request_ends_with_its_exit_code(stage: Stage) -> None:
    missing = stage("who", "never-made", user="viewer")
    assert (missing.code, missing.out) == (EXIT_REFUSED, "")
    assert missing.err == (
        'kubectl onewriter: exclusivetopics.onewriter.dev "never-made" not found\n'
    )
    unauthorized = stage("who", "never-made", user="stranger")
    assert unauthorized.code == EXIT_REFUSED
    assert 'User "stranger" cannot get' in unauthorized.err
    assert stage("who", "pod/x").code == EXIT_USAGE
    assert stage("who", "x", "--context=nowhere").code == EXIT_USAGE
    text = Path(stage.kubeconfig).read_text().replace(stage.cluster.url, "https://127.0.0.1:1")
    nowhere = stage.directory / "nowhere"
    nowhere.write_text(text)
    away = commands.run(
        [sys.executable, "-c", PLUGIN, "who", "x", f"--kubeconfig={nowhere}"],
        environment=os.environ | {"ONEWRITER_KUBECTL": str(program("kubectl"))},
        seconds=COMMAND_SECONDS,
    )
    assert away.returncode == EXIT_UNKNOWN, away.stderr
    assert away.stderr.count("\n") == 1, away.stderr


# ------------------------------------------------------------ commands


def test_an_editor_fences_and_a_viewer_does_not(stage: Stage, play: Play) -> None:
    epoch = stage.status(play.name)["epoch"]
    no = stage("fence", play.name, "--yes", user="viewer")
    assert no.code == EXIT_REFUSED
    assert "cannot patch" in no.err
    request = stage("fence", play.name, user="editor", stdin="n\n")
    assert request.code == 1
    assert f"Fence {play.pods['one'].name} (producer one), epoch {epoch}" in request.err
    assert stage.has_writer(play.name, "one")
    over = stage("fence", play.name, "--yes", "--if-epoch", str(epoch + 1), user="editor")
    assert over.code == EXIT_REFUSED
    done = stage("fence", play.name, "--yes", *IN_TIME, user="editor")
    assert done.code == 0, done.err
    assert done.out.startswith(f"done: epoch {epoch} of {stage.namespace}/{play.name} has ended")
    play.holder.closed_by_broker()
    wait_until(lambda: stage.has_writer(play.name, "two"), explain=lambda: stage.status(play.name))
    about = stage.cluster.get("xt", play.name, namespace=stage.namespace)["metadata"]
    assert "onewriter.dev/fence" not in (about.get("annotations") or {})
    why = stage("why", play.name, user="viewer").out
    assert f"a person fenced {play.pods['one'].name}" in why


def test_an_editor_hands_over(stage: Stage, play: Play) -> None:
    epoch = stage.status(play.name)["epoch"]
    refused = stage("handover", play.name, "--yes", "--to", "three", *IN_TIME, user="editor")
    assert refused.code == EXIT_REFUSED
    assert "no producer 'three' is waiting" in refused.err
    done = stage("handover", play.name, "--yes", "--to", "two", *IN_TIME, user="editor")
    assert done.code == 0, done.err
    assert f"{play.pods['two'].name} (producer two) writes, epoch" in done.out
    assert stage.status(play.name)["epoch"] > epoch
    why = stage("why", play.name, user="viewer").out
    assert "handed the topic over on request (Handover)" in why
    # A handover takes less than a millisecond, but not on every machine.
    assert "no gap between the two writers" in why or "No producer could write for" in why


def test_an_order_can_go_to_a_broker_directly(stage: Stage, play: Play) -> None:
    done = stage("handover", play.name, "--yes", "--direct", *play.not_its_broker)
    assert done.code == 0, done.err
    assert f"{play.pods['two'].name} (producer two) writes" in done.out
    wait_until(lambda: stage.has_writer(play.name, "two"))
    fenced = stage("fence", play.name, "--yes", "--direct", *play.not_its_broker)
    assert fenced.code == 0, fenced.err
    reader = ("--direct", *play.not_its_broker, "--service-account", "writer")
    wait_until(lambda: not stage.status(play.name).get("holder"))
    refused = stage("fence", play.name, "--yes", *reader)
    assert refused.code == EXIT_REFUSED
    assert "has no writer to fence" in refused.err


def test_a_caller_without_administrator_rights_cannot_order_a_broker(
    stage: Stage, play: Play
) -> None:
    as_writer = f"{stage.namespace}/writer"
    no = stage(
        "fence", play.name, "-y", "--direct", "--service-account", as_writer, *play.not_its_broker
    )
    assert no.code == EXIT_REFUSED
    assert "lacks the right administer_topic" in no.err
    assert stage.has_writer(play.name, "one")


# ------------------------------------------------------------ support data; no operator


def test_a_report_contains_all_available_parts(stage: Stage, play: Play) -> None:
    path = stage.directory / f"{play.name}.tar.gz"
    done = stage("report", "-f", str(path))
    assert (done.code, done.err) == (0, "")
    with tarfile.open(path) as archive:
        texts = {}
        for each in archive.getmembers():
            file = archive.extractfile(each)
            assert file is not None
            texts[each.name.partition("/")[2]] = file.read().decode()
    assert f"name: {play.name}" in texts["topics/exclusivetopics.onewriter.dev.yaml"]
    assert "EpochAdvanced" in texts["topics/events-ExclusiveTopic.yaml"]
    assert "kind: BucketAnchor" in texts["installation/bucketanchors.onewriter.dev.yaml"]
    assert "onewriter-broker" in texts["installation/services.yaml"]
    assert "gitVersion: v1.36" in texts["kubernetes-version.yaml"]
    assert "managedFields" not in "".join(texts.values())
    assert "errors.txt" not in texts, texts["errors.txt"]


def test_without_an_operator_an_order_waits_and_why_reports_it(stage: Stage, play: Play) -> None:
    stage.operator.stop()
    try:
        late = stage("fence", play.name, "-y", "--timeout-seconds", "2", user="editor")
        assert late.code == EXIT_UNKNOWN
        assert "result unknown after 2 s" in late.err
        why = stage("why", play.name)
        assert "is ordered to be fenced (annotation) and has not been." in why.out
        assert "This may be outdated: no operator leads just now." in why.out
    finally:
        stage.operator.start()
    wait_until(lambda: stage.has_writer(play.name, "two"), explain=lambda: stage.status(play.name))
