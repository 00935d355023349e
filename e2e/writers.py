"""One topic and its writer pods: their state in the API, and the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from e2e import log
from e2e.faults import Faults
from e2e.installation import Installation, is_ready
from tests.violation import require

Json = dict[str, Any]
Found = TypeVar("Found")

WAIT_SECONDS = 300.0
"""Time limit of every wait, on a busy machine with two cores."""

POLL_SECONDS = 0.2

SHOWN_MAX = 5
"""How many lines of a log an error names."""

SPREAD_ATTEMPTS_MAX = 5
"""How often a waiting pod is deleted so that the next one is scheduled on another node."""


def until(
    holds: Callable[[], Found | None],
    what: Callable[[], object] = lambda: "",
    seconds: float = WAIT_SECONDS,
) -> Found:
    """Wait until the result of ``holds`` is true, and return it; fails with ``what`` is found instead."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s; there is {what()}"
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class WritingPod:
    """A pod that writes, and the epoch that it was granted."""

    epoch: int
    pod: Json

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def node(self) -> str:
        return str(self.pod["spec"]["nodeName"])


class Writers:
    """Two pods of one workload, for one topic, under one claim and one name."""

    def __init__(self, installation: Installation, namespace: str, name: str) -> None:
        self.name = name
        self.namespace = namespace
        self.topic = f"persistent://{namespace}/default/{name}"
        self._installation = installation
        self._api = installation.api
        self._acknowledged: dict[str, set[log.Line]] = {}
        self._refused: dict[str, int] = {}
        self._turned_away: dict[str, int] = {}
        self._recorded: list[Json] = []
        self.is_checked = True
        """Whether the log is checked at the end; not if the topic's durability allows losses."""

    # ------------------------------------------------------------ the state in the API

    def status(self, kind: str = "exclusivetopics") -> Json:
        """Return the status of the topic, or of its claim (``producerclaims``)."""
        found = self._api.get(kind, self.namespace, self.name) or {}
        status: Json = found.get("status", {})
        return status

    def condition(self, of: str, kind: str = "exclusivetopics") -> str:
        """Return a condition as ``True/Held``."""
        for each in self.status(kind).get("conditions", ()):
            if each["type"] == of:
                return f"{each['status']}/{each['reason']}"
        return ""

    def changed_at(self, *conditions: str) -> dict[str, str]:
        """Return when these conditions of the topic last changed."""
        found = self.status().get("conditions", ())
        return {
            each["type"]: each["lastTransitionTime"] for each in found if each["type"] in conditions
        }

    def until_condition(self, of: str, expected: str, kind: str = "exclusivetopics") -> None:
        """Wait for a condition."""
        until(lambda: self.condition(of, kind) == expected, lambda: self.status(kind))

    def pods(self) -> list[Json]:
        """Return the workload's pods that are not being deleted."""
        found = self._api.list("pods", self.namespace, app=self.name)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def is_there(self, uid: str) -> bool:
        """Whether the pod of this uid still exists, even if it is being deleted."""
        found = self._api.list("pods", self.namespace, app=self.name)
        return any(pod["metadata"]["uid"] == uid for pod in found)

    def outcomes(self) -> dict[str, str]:
        """Return the outcomes of fenced pods, by their uid; of a pod that was fenced twice, the newest one."""
        listed = self.status().get("fencedPods", ())
        return {pod["podUID"]: pod["outcome"] for pod in reversed(listed)}

    def until_outcome(self, former: WritingPod, *expected: str) -> None:
        """Wait for one of these outcomes for the pod that was fenced."""
        until(lambda: self.outcomes().get(former.uid) in expected, self.status)

    def events(self, reason: str) -> list[str]:
        """Return the texts of Events with this reason about the topic or its claim."""
        found = self._api.list("events", self.namespace)
        own = [each for each in found if each.get("regarding", {}).get("name") == self.name]
        return [str(each.get("note", "")) for each in own if each["reason"] == reason]

    def evictions(self, former: WritingPod) -> int:
        """Return how often Events report that this pod was evicted, whichever component wrote them."""
        found = self._api.list("events", self.namespace)
        lines = [each for each in found if each["reason"] == "PodEvicted"]
        about = [each for each in lines if f"Pod {former.name} " in each.get("note", "")]
        return sum((each.get("series") or {}).get("count", 1) for each in about)

    def not_created(self) -> list[str]:
        """Return why pods of the workload could not be created, from its ReplicaSet."""
        found = self._api.list("events", self.namespace)
        own = [
            each
            for each in found
            if each.get("regarding", {}).get("name", "").startswith(f"{self.name}-")
        ]
        return [str(each.get("note", "")) for each in own if each["reason"] == "FailedCreate"]

    def until_event(self, reason: str) -> None:
        """Wait for an Event of this reason."""
        until(lambda: self.events(reason), self.status)

    def last_transition(self) -> Json:
        """Return the newest transition in the status."""
        return dict(self.status()["transitions"][0])

    def led_to(self) -> tuple[list[str], int]:
        """Return the uids that the leader's Service leads to, and the epoch of its slice."""
        labels = {"kubernetes.io/service-name": f"{self.name}-leader"}
        slices = self._api.list("endpointslices", self.namespace, **labels)
        uids = [each["targetRef"]["uid"] for part in slices for each in part.get("endpoints") or ()]
        epochs = [int(part["metadata"]["labels"]["onewriter.dev/epoch"]) for part in slices]
        return uids, max(epochs, default=-1)

    # ------------------------------------------------------------ the writing pod

    def writing_pod(self, *, after: int = 0) -> WritingPod | None:
        """Return the writing pod, under an epoch above ``after``; None if there is none or it is unknown."""
        status = self.status()
        holder = status.get("holder") or {}
        epoch = int(status.get("epoch", 0))
        if epoch <= after or not holder.get("podUID"):
            return None
        found = self._api.list("pods", self.namespace, app=self.name)
        own = [pod for pod in found if pod["metadata"]["uid"] == holder["podUID"]]
        return WritingPod(epoch, own[0]) if own else None

    def until_epoch(self, epoch: int) -> None:
        """Wait until the topic epoch has reached this number."""
        until(lambda: int(self.status().get("epoch", 0)) >= epoch, self.status)

    def settled(self) -> WritingPod:
        """Wait until one pod writes, the other waits, and both are ready and stay."""

        def found() -> WritingPod | None:
            pods = self.pods()
            if len(pods) != 2 or not all(map(is_ready, pods)) or self.status().get("waiting") != 1:
                return None
            writing_pod = self.writing_pod()
            uids = {pod["metadata"]["uid"] for pod in pods}
            return writing_pod if writing_pod is not None and writing_pod.uid in uids else None

        writing_pod = until(found, lambda: (self.status(), [_in_short(pod) for pod in self.pods()]))
        self.record_logs()
        return writing_pod

    def succeeded(self, former: WritingPod) -> WritingPod:
        """Wait until another pod writes, under a later epoch."""

        def found() -> WritingPod | None:
            writing_pod = self.writing_pod(after=former.epoch)
            return (
                writing_pod if writing_pod is not None and writing_pod.uid != former.uid else None
            )

        return until(found, self.status)

    def leads_on(self, node: str) -> WritingPod:
        """Let the pod on this node lead: another leader is deleted, and hands over.

        After the loss of a node both pods may run on the node that was left. Then the waiting pod is
        deleted, until its successor runs on the other node.
        """
        writing_pod = self.settled()
        for _ in range(SPREAD_ATTEMPTS_MAX):
            pods = self.pods()
            if any(pod["spec"]["nodeName"] == node for pod in pods):
                break
            for pod in pods:
                if pod["metadata"]["uid"] != writing_pod.uid:
                    self._api.delete("pods", self.namespace, pod["metadata"]["name"])
            writing_pod = self.settled()
        if writing_pod.node != node:
            self._api.delete("pods", self.namespace, writing_pod.name)
            self.succeeded(writing_pod)
            writing_pod = self.settled()
        assert writing_pod.node == node, "the pods are spread over the nodes"
        return writing_pod

    # ------------------------------------------------------------ the contents of the log

    def record_logs(self) -> None:
        """Record the lines that writers report as acknowledged, before their pods and logs are gone."""
        self._recorded = self._api.list("pods", self.namespace, app=self.name)
        for pod in self._recorded:
            name = pod["metadata"]["name"]
            for previous in (False, True):
                answer = self._api.log(self.namespace, name, "writer", previous=previous)
                self._note(pod, answer)
                times = log.refused(answer)
                who = f"{pod['metadata']['uid']} {previous}"
                self._refused[who] = max(times, self._refused.get(who, 0))
                times = log.turned_away(answer)
                self._turned_away[who] = max(times, self._turned_away.get(who, 0))

    def record_node_logs(self, faults: Faults) -> None:
        """Do the same without the API server, for the pods that ``record_logs`` found."""
        for pod in self._recorded:
            self._note(pod, faults.said(pod, "writer"))

    def _note(self, pod: Json, said: str) -> None:
        acknowledged = self._acknowledged.setdefault(str(pod["metadata"]["uid"]), set())
        acknowledged |= log.acknowledged(said)

    @property
    def acknowledged(self) -> frozenset[log.Line]:
        """The lines that writers reported as acknowledged."""
        return frozenset().union(*self._acknowledged.values())

    @property
    def refusals(self) -> int:
        """How often writers reported that they were refused."""
        return sum(self._refused.values())

    @property
    def turned_away(self) -> int:
        """How often writers reported that they could not even wait."""
        return sum(self._turned_away.values())

    def wrote(self, more: int = 3, *, faults: Faults | None = None) -> None:
        """Wait until this number of further lines is acknowledged; with ``faults``: by ``record_node_logs``."""
        self._until_acknowledged(more, faults)

    def taken_over(
        self, former: WritingPod, more: int = 3, *, faults: Faults | None = None
    ) -> None:
        """Do the same for pods other than the former leader's, whichever leader the status names."""
        self._until_acknowledged(more, faults, but=former.uid)

    def _until_acknowledged(self, more: int, faults: Faults | None, but: str = "") -> None:
        def count() -> int:
            self.record_logs() if faults is None else self.record_node_logs(faults)
            return sum(
                len(acknowledged) for uid, acknowledged in self._acknowledged.items() if uid != but
            )

        goal = count() + more
        until(lambda: count() >= goal, lambda: f"{count()} of {goal} lines")

    def refused(self, former: WritingPod) -> None:
        """Wait until the deposed pod reports that it was refused."""

        def is_refused() -> bool:
            self.record_logs()
            return any(times for who, times in self._refused.items() if former.uid in who)

        until(is_refused, self.status)

    def lines(self) -> int:
        """The number of lines in the log."""
        return len(self._installation.logs(self.topic)[self.topic].lines)

    def check(self, stored: log.Stored, tally: log.Tally) -> None:
        """Check that no line is stale, lost or duplicate, and that ``onewriter verify`` succeeds. Raises Violation."""
        lines, acknowledged = stored.lines, self.acknowledged
        stale = log.stale(lines)
        tally.topics += 1
        tally.epochs += len({line.epoch for line in lines})
        tally.lines += len(lines)
        tally.acknowledged += len(acknowledged)
        tally.refused += self.refusals
        tally.stale += len(stale)
        holes, lost = log.holes(lines), log.lost(lines, acknowledged)
        require(not stale, f"lines of deposed writers are in the log: {stale[:SHOWN_MAX]}")
        require(not holes, f"a line is missing, or in the log twice: {holes[:SHOWN_MAX]}")
        require(not lost, f"acknowledged lines are not in the log: {lost[:SHOWN_MAX]}")
        require(stored.verdict["holds"], f"onewriter verify: {stored.verdict}")


def _in_short(pod: Json) -> str:
    state = "ready" if is_ready(pod) else pod["status"]
    return f"{pod['metadata']['name']} on {pod['spec'].get('nodeName')}: {state}"
