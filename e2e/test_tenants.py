"""Two teams: without rights of a cluster administrator, neither can access the other's topics."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from e2e import manifests
from e2e.installation import NAMESPACE, RELEASE, RESTRICTED, is_ready
from e2e.world import SERVICE_URL, World
from e2e.writers import until

Json = dict[str, Any]

PROGRAM = (manifests.PROGRAMS / "tenant.py").read_text()
POLICY = f"{RELEASE}-{NAMESPACE}-tenancy"
"""The name of the API server's policy and of its binding."""

NO_RIGHT = "is forbidden: User"
"""The API server's answer to a user without a role that gives the right."""

VERBS_SECONDS = 240.0
"""Time limit for all verbs of one run of the program, which gives each attempt 30 seconds."""

WRITTEN = ["WaitForExclusive", "ExclusiveWithFencing"]
"""The lines that the topic's own team has written to it."""


class Team:
    """A namespace, a user who may edit it, and a pod of its account."""

    def __init__(self, world: World, namespace: str) -> None:
        self.namespace = namespace
        self.person = f"editor-of-{namespace}"
        self._cluster = world.cluster
        binding = ("rolebinding", "editors", "--clusterrole=edit", f"--user={self.person}")
        self._cluster.kubectl("create", *binding, namespace=namespace)
        pod = manifests.pod("tenant", manifests.STOCK, SERVICE_URL, "")
        (container,) = pod["spec"]["containers"]
        container["command"] = ["python", "-c", "import signal; signal.pause()"]
        del container["readinessProbe"]
        self._cluster.apply(pod, namespace=namespace)
        until(lambda: is_ready(world.api.get("pods", namespace, "tenant") or {"status": {}}))
        self._cluster.until_allowed(
            self.person, "create", "exclusivetopics.onewriter.dev", namespace=namespace
        )

    def does(self, topic: str, *verbs: str) -> Json:
        """Return the brokers' answers to its pod, by verb: see programs/tenant.py."""
        where = ("exec", "--stdin", "tenant", "--container=writer", "--", "python", "-", topic)
        done = self._cluster.kubectl(
            *(*where, *verbs), stdin=PROGRAM, namespace=self.namespace, seconds=VERBS_SECONDS
        )
        output: Json = json.loads(done.stdout.splitlines()[-1])
        return output

    def asks(self, *command: str, of: str = "", document: Json | None = None) -> str:
        """Return the API server's refusal of the user's request; empty if it is accepted."""
        done = self._cluster.kubectl(
            f"--as={self.person}",
            *command,
            *(("--filename=-",) if document else ()),
            stdin=yaml.safe_dump(document) if document else "",
            check=False,
            namespace=of or self.namespace,
        )
        return "" if done.returncode == 0 else done.stderr


@pytest.fixture(scope="module")
def owner(world: World) -> Team:
    """The team whose topic ``ledger`` has two lines, and a subscription before them."""
    found = Team(world, world.namespace)
    world.apply(manifests.topic("ledger"), manifests.claim("ledger"))
    until_word(world, world.namespace, "ledger", "Ready")
    answer = found.does(topic_of(world), "write")
    assert answer["write"] == {"subscribed": "made", **dict.fromkeys(WRITTEN, "written")}
    return found


@pytest.fixture(scope="module")
def rival(world: World) -> Iterator[Team]:
    """The other team; its account has the same name."""
    namespace = f"rival-{uuid.uuid4().hex[:5]}"
    about = {"name": namespace, "labels": RESTRICTED}
    world.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
    programs = manifests.programs(world.installation.authority())
    world.cluster.apply(manifests.account(), programs, namespace=namespace)
    try:
        yield Team(world, namespace)
    finally:
        world.cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def topic_of(world: World) -> str:
    return f"persistent://{world.namespace}/default/ledger"


def recreated_topic(world: World) -> Json:
    """The other team's object for the topic. Deleting it would even delete the log."""
    return manifests.topic("heir", topic=topic_of(world), deletionPolicy="Delete")


@contextmanager
def without_policy(world: World) -> Iterator[None]:
    """Remove the policy, so that the API server accepts objects for topics of foreign tenants."""
    kind = "validatingadmissionpolicybinding"
    binding = world.cluster.get(kind, POLICY)
    kept = {key: binding["metadata"].get(key) for key in ("name", "labels", "annotations")}
    world.cluster.kubectl("delete", kind, POLICY)
    try:
        yield
    finally:
        world.cluster.apply(binding | {"metadata": kept})


def until_word(world: World, namespace: str, name: str, word: str) -> None:
    """Wait for the reason of an object's condition Ready."""

    def found() -> str:
        status = (world.api.get("exclusivetopics", namespace, name) or {}).get("status", {})
        return next(
            (each["reason"] for each in status.get("conditions", ()) if each["type"] == "Ready"), ""
        )

    until(lambda: found() == word, found)


def is_shut_out(rival: Team, topic: str) -> None:
    """Check that the team's pod can access nothing of the topic."""
    reported = rival.does(topic, "write", "read", "move", "administer")
    assert sorted(reported) == ["administer", "move", "read", "write"]
    for verb, result in reported.items():
        wire = {what: answer for what, answer in result.items() if not isinstance(answer, int)}
        assert set(wire.values()) <= {"AuthorizationError"}, (verb, wire)
        rest = {what: answer for what, answer in result.items() if what not in wire}
        assert rest == dict.fromkeys(rest, 403), verb


def is_as_written(owner: Team, topic: str) -> None:
    """Check that its own team reads it, and that the subscription is where it was."""
    answer = owner.does(topic, "read")["read"]
    assert answer.pop("consumer") == answer.pop("reader") == WRITTEN
    assert answer == dict.fromkeys(answer, 200)


def test_a_pod_of_another_team_neither_reads_nor_changes_it(
    world: World, owner: Team, rival: Team
) -> None:
    is_shut_out(rival, topic_of(world))
    is_as_written(owner, topic_of(world))


def test_an_editor_of_another_namespace_declares_and_changes_nothing_here(
    world: World, owner: Team, rival: Team
) -> None:
    answer = rival.asks("create", document=recreated_topic(world))
    assert f"does not belong to namespace {rival.namespace}" in answer
    assert NO_RIGHT in rival.asks("create", of=owner.namespace, document=manifests.claim("theirs"))
    for command in (
        ("get", "xt", "ledger"),
        ("delete", "xt", "ledger"),
        ("annotate", "xt", "ledger", "onewriter.dev/fence=1"),
        ("delete", "pclaim", "ledger"),
        ("create", "token", manifests.ACCOUNT, "--audience=onewriter"),
        ("exec", "tenant", "--", "true"),
    ):
        assert NO_RIGHT in rival.asks(*command, of=owner.namespace), command
    for there in (("get", "secrets"), ("get", "pods"), ("delete", "bucketanchors", "shard-0")):
        assert NO_RIGHT in rival.asks(*there, of=NAMESPACE), there


def test_an_object_that_got_past_the_policy_adopts_and_deletes_nothing(
    world: World, owner: Team, rival: Team
) -> None:
    """Like an object that is older than the policy: while the owner's object exists, and after its deletion."""
    with without_policy(world):
        until(lambda: rival.asks("create", document=recreated_topic(world)) == "")
    assert rival.asks("create", document=manifests.claim("heir")) == ""
    until_word(world, rival.namespace, "heir", "NotThisTenant")
    assert owner.asks("delete", "xt,pclaim", "ledger") == ""
    until_word(world, rival.namespace, "heir", "NotThisTenant")
    is_shut_out(rival, topic_of(world))
    assert rival.asks("delete", "xt", "heir") == ""
    until(lambda: "does not belong" in rival.asks("create", document=recreated_topic(world)))
    assert owner.asks("create", document=manifests.topic("ledger")) == ""
    assert owner.asks("create", document=manifests.claim("ledger")) == ""
    until_word(world, owner.namespace, "ledger", "Ready")
    is_as_written(owner, topic_of(world))
    answer = owner.does(topic_of(world), "administer", "move")
    assert set(answer["administer"].values()) == {403}, "that is the operator's"
    assert max(answer["move"].values()) < 300, "so it was right that 403 kept the rival from it"
