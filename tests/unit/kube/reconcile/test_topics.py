"""Reconciles of ExclusiveTopics: requests, writes, and failures that do not stop the rest."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, cast

import pytest
from tests.clock import skip
from tests.unit.kube.fake_broker import producer_group, status, transition

from onewriter_core.kubernetes.kinds import CLAIM, POD, SERVICE, SLICE, TOPIC, Key, Kind, key_of
from onewriter_core.kubernetes.objects import KubeObject
from onewriter_core.topic_view import TopicView, parse_view
from onewriter_operator.brokers.client import BrokerRefused, BrokerUnreachable
from onewriter_operator.brokers.fleet import Fleet
from onewriter_operator.brokers.views import View
from onewriter_operator.declarations import Declarations
from onewriter_operator.events import Recorder
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.actions import EmitEvent
from onewriter_operator.plan.facts import (
    AHEAD_SECONDS,
    Applied,
    FleetState,
    PlanLimits,
    StoredTopic,
)
from onewriter_operator.reconcile import topics
from onewriter_operator.reconcile.context import ReconcileContext
from onewriter_operator.reconcile.followed_pods import FollowedPods
from onewriter_operator.reconcile.repairs import AT_ONCE, DELAY_SECONDS_MAX
from onewriter_operator.reconcile.topics import TopicReconciler
from onewriter_operator.store import ObjectCopy
from onewriter_operator.workqueue import GONE, RetryLater

Json = dict[str, Any]

ORDERS = Key(TOPIC.kind, "shop", "orders")
NAME = "persistent://shop/default/orders"
LEADER = {"leaderService": {"name": "leader", "ports": [{"port": 80}]}}


class Server:
    """An API server with a few objects; ``failures`` maps calls to the exceptions that they raise."""

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.failures: dict[str, Exception] = {}
        self.calls: list[str] = []
        self._version = 100

    def seen(self, verb: str, key: Key) -> None:
        call = f"{verb} {key.kind}/{key.name}"
        self.calls.append(call)
        if call in self.failures:
            raise self.failures[call]

    def put(self, document: Json) -> Json:
        self._version += 1
        found = copy.deepcopy(document)
        found["metadata"] |= {"resourceVersion": str(self._version)}
        found["metadata"].setdefault("uid", f"uid-{found['kind']}-{found['metadata']['name']}")
        self.objects[key_of(found)] = found
        return copy.deepcopy(found)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        key = Key(kind.kind, namespace, name)
        self.seen("get", key)
        return copy.deepcopy(self.objects.get(key))

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Json]:
        name, _, value = labels.partition("=")
        return [
            copy.deepcopy(each)
            for key, each in self.objects.items()
            if key.kind == kind.kind and each["metadata"].get("labels", {}).get(name) == value
        ]

    async def apply(self, kind: Kind, document: Json) -> Json:
        self.seen("apply", key_of(document))
        return self.put(document)

    async def apply_status(self, kind: Kind, document: Json) -> Json:
        self.seen("status", key_of(document))
        return self.put(self.objects[key_of(document)] | {"status": document["status"]})

    async def set_finalizers(self, kind: Kind, document: Json, finalizers: tuple[str, ...]) -> Json:
        self.seen("finalizers", key_of(document))
        found = self.objects[key_of(document)]
        found["metadata"]["finalizers"] = list(finalizers)
        return self.put(found)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.seen("delete", Key(kind.kind, namespace, name))
        self.objects.pop(Key(kind.kind, namespace, name), None)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        self.seen("evict", Key(POD.kind, namespace, name))


class OneBroker:
    """A fleet of one broker whose answers a test sets."""

    def __init__(self) -> None:
        self.status: Json | None = None
        self.answer: Json | Exception | None = None
        self.fence_answer: Exception | None = None
        self.fences: list[int] = []
        self.is_undivided = False

    def view(self, topic: str) -> View | None:
        return None if self.status is None else View("broker-0", parse_view(self.status), 0.0)

    def applied(self, key: Key, piece: str) -> Applied:
        return Applied(1, is_everywhere=bool(piece))

    def state(self) -> FleetState:
        return FleetState()

    def why_waiting(self, topic: str) -> str:
        return ""

    def why_not_durable(self, topic: str, durability: str) -> str:
        return ""

    def store_away(self) -> str:
        return ""

    def store_fault(self) -> str:
        return ""

    def store_full(self) -> str:
        return ""

    def quota(self, topic: str) -> None:
        return None

    def is_lost(self, topic: str) -> bool:
        return False

    def age_seconds(self, topic: str) -> float:
        return 3600.0

    def declare(self) -> None:
        return

    async def stored(self, topic: str) -> StoredTopic:
        return StoredTopic(exists=self.is_undivided, is_undivided=self.is_undivided)

    async def confirm(self, topic: str) -> TopicView | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        found = self.status if self.answer is None else self.answer
        return None if found is None else parse_view(found)

    async def fence(self, topic: str, epoch: int) -> None:
        self.fences.append(epoch)
        if self.fence_answer is not None:
            raise self.fence_answer


class Reported:
    """A recorder that keeps the Events."""

    def __init__(self) -> None:
        self.events: list[EmitEvent] = []

    def emit(self, about: KubeObject, reported: EmitEvent) -> None:
        self.events.append(reported)

    def reasons(self) -> list[str]:
        return [each.reason for each in self.events]


class World:
    """One topic with its reconciler."""

    def __init__(
        self,
        spec: Json | None = None,
        annotations: Json | None = None,
        failing_seconds: float = topics.FAILING_SECONDS,
    ) -> None:
        self.server, self.brokers, self.reported = Server(), OneBroker(), Reported()
        self.store = ObjectCopy()
        self.declarations = Declarations(self.store)
        self.followed = FollowedPods(cast("Kube", self.server), lambda _: None)
        self.reconciler = TopicReconciler(
            ReconcileContext(
                cast("Kube", self.server),
                self.store,
                self.declarations,
                cast("Fleet", self.brokers),
                cast("Recorder", self.reported),
                Metrics(),
                self.followed,
                lambda: 1_000.0,
                plan_limits=PlanLimits(grace_seconds=0.0),
            ),
            failing_seconds=failing_seconds,
        )
        about = {"name": "orders", "namespace": "shop", "uid": "t1", "generation": 1}
        self.put(
            {
                "apiVersion": TOPIC.api_version,
                "kind": TOPIC.kind,
                "metadata": about | {"annotations": annotations or {}},
                "spec": spec or {},
                "status": {"observedGeneration": -1},
            }
        )

    def put(self, document: Json) -> None:
        """Put an object into the API server and the store."""
        self.store.put(self.server.put(document))

    def fenced(self, **more: Any) -> None:
        """Fence the silent writer of epoch 2 in pod writer-0."""
        former = producer_group("w0", "primary", "writer-0", epoch=2)
        now = producer_group("w1", "primary", "writer-1", epoch=3)
        transitions = [transition(3, "Silent", now, former)]
        self.brokers.status = status(3, holders=[now], transitions=transitions, **more)
        self.pod("writer-0")

    def pod(self, name: str) -> None:
        about = {"name": name, "namespace": "shop", "uid": f"uid-{name}"}
        self.put({"kind": POD.kind, "metadata": about, "status": {"podIP": "10.0.0.1"}})

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile(ORDERS)

    @property
    def status(self) -> Json:
        found: Json = self.server.objects[ORDERS]["status"]
        return found

    def condition(self, of: str) -> str:
        return next(
            f"{each['status']}/{each['reason']}"
            for each in self.status.get("conditions", ())
            if each["type"] == of
        )

    def outcome(self) -> str:
        return str(self.status["fencedPods"][0]["outcome"])

    def calls(self, verb: str) -> list[str]:
        return [call for call in self.server.calls if call.startswith(verb)]


# ------------------------------------------------------------ edits of the status


async def test_an_edit_that_the_watch_delivers_before_the_answer_is_reported() -> None:
    world = World()
    server = world.server
    write = server.apply_status

    async def write_before_an_edit(kind: Kind, document: Json) -> Json:
        """Write the status; another client changes it, and the watch delivers that before the answer."""
        written = await write(kind, document)
        edited = copy.deepcopy(written)
        edited["status"]["holder"] = {"producerName": "me"}
        edited["metadata"]["managedFields"] = [
            {
                "manager": "kubectl-patch",
                "subresource": "status",
                "time": "2026-01-01T00:00:00Z",
                "fieldsV1": {"f:status": {"f:holder": {}}},
            }
        ]
        world.put(edited)
        return written

    server.apply_status = write_before_an_edit  # type: ignore[method-assign]  # one write only
    await world.reconcile()
    server.apply_status = write  # type: ignore[method-assign]  # as before
    await world.reconcile()
    assert "holder" not in world.status
    assert world.condition("Drifted") == "True/Repaired"


async def test_drift_during_the_write_of_a_status_is_shown_by_the_next() -> None:
    world = World()
    write = world.server.apply_status

    async def write_during_a_repair(kind: Kind, document: Json) -> Json:
        world.reconciler.drifted(ORDERS, "Service/leader was changed")
        return await write(kind, document)

    world.server.apply_status = write_during_a_repair  # type: ignore[method-assign]  # one write only
    await world.reconcile()
    world.server.apply_status = write  # type: ignore[method-assign]  # as before
    await world.reconcile()
    assert world.condition("Drifted") == "True/Repaired"


# ------------------------------------------------------------ what belongs to a topic


async def test_a_refused_service_is_reported_and_delays_nothing_else() -> None:
    world = World(LEADER)
    world.server.failures["apply Service/leader"] = ApiRefused(403, "exceeded quota")
    after = await world.reconcile()
    assert world.condition("Stalled") == "True/ServiceRefused"
    assert world.condition("Serving") == "True/Idle"
    assert "apply EndpointSlice/leader-leader-ipv4" in world.server.calls
    assert after is not None
    assert after <= topics.REFUSED_SECONDS
    await world.reconcile()
    assert len(world.calls("apply Service")) == 1  # not before its time


async def test_an_administrator_can_request_an_immediate_retry() -> None:
    world = World(LEADER)
    world.server.failures["apply Service/leader"] = ApiRefused(500, "a webhook is away")
    await world.reconcile()
    assert world.condition("PolicyApplied") == "False/ServiceRefused"
    world.server.failures.clear()
    requests = copy.deepcopy(world.server.objects[ORDERS])
    requests["metadata"]["annotations"] = {"onewriter.dev/reconcile-at": "now"}
    world.put(requests)
    await world.reconcile()
    assert world.condition("PolicyApplied") == "True/Applied"


async def test_a_topic_that_can_have_no_partitions_is_looked_up_again_until_it_can() -> None:
    world = World({"partitions": 3})
    world.brokers.is_undivided = True
    assert await world.reconcile() == topics.REFUSED_SECONDS
    assert world.condition("PolicyApplied") == "False/Undivided"
    world.brokers.is_undivided = False  # it was deleted
    assert await world.reconcile() is None
    assert world.condition("PolicyApplied") == "True/Applied"


async def test_a_repeated_failure_does_not_extend_a_reconcile() -> None:
    world = World(LEADER, failing_seconds=-1.0)
    world.server.failures["apply Service/leader"] = ApiRefused(500, "a webhook is away")
    await world.reconcile()
    assert len(world.calls("apply Service")) == 1 + topics.REPLANS_MAX
    assert world.condition("Serving") == "True/Idle"


async def test_the_status_is_written_though_a_service_has_to_wait() -> None:
    world = World(LEADER)
    world.server.failures["apply Service/leader"] = ApiUnreachable("timed out")
    with pytest.raises(RetryLater):
        await world.reconcile()
    assert world.condition("Ready") == "True/Ready"


async def test_a_busy_server_is_not_called_before_its_retry_after() -> None:
    world = World()
    world.server.failures["status ExclusiveTopic/orders"] = ApiRefused(429, "busy", 0)
    with pytest.raises(RetryLater) as raised:
        await world.reconcile()
    assert raised.value.is_firm
    assert raised.value.after_seconds == 1.0


async def test_a_name_of_a_foreign_object_is_tried_again_later() -> None:
    world = World(LEADER)
    world.server.put({"kind": SERVICE.kind, "metadata": {"name": "leader", "namespace": "shop"}})
    after = await world.reconcile()
    assert world.condition("Stalled") == "True/ServiceTaken"
    assert after is not None
    assert after <= topics.REFUSED_SECONDS
    assert world.calls("apply") == []


async def test_other_objects_that_a_topic_owns_are_left_alone() -> None:
    world = World(LEADER)
    owner = {"kind": TOPIC.kind, "name": "orders", "uid": "t1"}
    about = {"name": "primary", "namespace": "shop", "uid": "c1", "ownerReferences": [owner]}
    spec = {"topicRef": {"name": "orders"}, "subject": {"serviceAccountName": "writer"}}
    world.put(
        {
            "apiVersion": CLAIM.api_version,
            "kind": CLAIM.kind,
            "metadata": about,
            "spec": spec,
        }
    )
    await world.reconcile()
    assert world.condition("Ready") == "True/Ready"
    assert world.calls("delete") == []


async def test_a_label_with_an_unknown_epoch_is_repaired_in_the_end() -> None:
    world = World(LEADER)
    await world.reconcile()
    key = Key(SLICE.kind, "shop", "leader-leader-ipv4")
    forged = copy.deepcopy(world.server.objects[key])
    forged["metadata"]["labels"]["onewriter.dev/epoch"] = "999"
    world.put(forged)
    await world.reconcile()
    assert world.server.objects[key]["metadata"]["labels"]["onewriter.dev/epoch"] == "999"
    skip(AHEAD_SECONDS)
    await world.reconcile()
    assert world.server.objects[key]["metadata"]["labels"]["onewriter.dev/epoch"] == "0"
    assert world.condition("Drifted") == "True/Repaired"


# ------------------------------------------------------------ fenced pods


async def test_a_stale_pod_is_evicted_after_its_broker_was_asked() -> None:
    world = World()
    world.fenced()
    await world.reconcile()
    assert world.calls("evict") == ["evict Pod/writer-0"]
    assert world.outcome() == "Evicted"
    assert "PodEvicted" in world.reported.reasons()
    await world.reconcile()
    assert len(world.calls("evict")) == 1


async def test_a_pod_that_registered_again_is_not_removed_even_if_the_stream_lags() -> None:
    world = World()
    world.fenced()
    assert world.brokers.status is not None
    back = producer_group("w0", "primary", "writer-0", place=1)
    world.brokers.answer = world.brokers.status | {"waiters": [back]}
    await world.reconcile()
    assert world.calls("evict") == []
    assert world.outcome() == "CameBack"


@pytest.mark.parametrize("error", [BrokerUnreachable("gone"), BrokerRefused(400, ["no"])])
async def test_no_pod_is_removed_while_no_broker_can_answer(error: Exception) -> None:
    world = World()
    world.fenced()
    world.brokers.answer = error
    after = await world.reconcile()
    assert world.calls("evict") == []
    assert world.outcome() == "Pending"
    assert after is not None
    assert after <= 5.0
    assert world.condition("WriterActive") == "True/Held"


async def test_an_eviction_without_an_answer_stops_nothing_else() -> None:
    world = World()
    world.fenced()
    world.server.failures["evict Pod/writer-0"] = ApiUnreachable("timed out")
    await world.reconcile()
    assert world.outcome() == "EvictionFailed"
    assert world.condition("WriterActive") == "True/Held"


async def test_a_missing_right_to_read_pods_is_reported() -> None:
    world = World(LEADER)
    world.fenced()
    world.store.remove(world.server.objects.pop(Key(POD.kind, "shop", "writer-0")))
    for name in ("writer-0", "writer-1"):
        world.server.failures[f"get Pod/{name}"] = ApiRefused(403, "forbidden")
    world.server.failures["evict Pod/writer-0"] = ApiRefused(403, "forbidden")
    await world.reconcile()
    assert world.outcome() == "EvictionFailed"
    assert world.condition("WriterActive") == "True/Held"


# ------------------------------------------------------------ orders of a person


async def test_a_fence_without_an_answer_is_requested_again() -> None:
    world = World(annotations={"onewriter.dev/fence": "3"})
    world.brokers.status = status(3, holders=[producer_group("w1", epoch=3)])
    world.brokers.fence_answer = BrokerUnreachable("403: no right")
    assert await world.reconcile() == 5.0
    assert world.condition("WriterActive") == "True/Held"
    assert "403: no right" in next(
        e.note for e in world.reported.events if e.reason == "FencedByOrder"
    )
    world.brokers.fence_answer = None
    await world.reconcile()
    await world.reconcile()
    assert world.brokers.fences == [3, 3]
    assert [each.note for each in world.reported.events][-1].endswith("done")


# ------------------------------------------------------------ its end


async def test_an_object_that_is_gone_is_forgotten() -> None:
    world = World(LEADER)
    await world.reconcile()
    world.store.remove(world.server.objects[ORDERS])
    assert await world.reconcile() == GONE
    assert world.reconciler._caches == {}


# ------------------------------------------------------------ changes by others


@pytest.mark.looptime
async def test_a_service_that_is_refused_is_tried_less_and_less_often() -> None:
    world = World(LEADER)
    world.server.failures["apply Service/leader"] = ApiRefused(422, "two ports of one number")
    delays = []
    for _ in range(8):
        after = await world.reconcile()
        assert after is not None
        delays.append(round(after))
        await asyncio.sleep(after + 0.1)
    assert delays == [5, 10, 20, 40, 80, 160, 300, 300]
    assert len(world.calls("apply Service")) == 8
    changed = copy.deepcopy(world.server.objects[ORDERS])
    changed["metadata"]["generation"] = 2
    changed["spec"]["leaderService"]["ports"] = [{"port": 81}]
    del world.server.failures["apply Service/leader"]
    world.put(changed)
    await world.reconcile()
    assert world.condition("PolicyApplied") == "True/Applied", "a changed spec is tried at once"


def select(world: World) -> None:
    """Give the leader Service a selector; Kubernetes makes a slice for it."""
    service = copy.deepcopy(world.server.objects[Key(SERVICE.kind, "shop", "leader")])
    service["spec"]["selector"] = {"app": "stock"}
    world.put(service)
    about = {
        "name": "leader-abcde",
        "namespace": "shop",
        "labels": {"kubernetes.io/service-name": "leader"},
    }
    world.server.put({"kind": SLICE.kind, "metadata": about})


SELECTED = Key(SLICE.kind, "shop", "leader-abcde")


@pytest.mark.looptime
async def test_a_selector_is_removed_and_with_it_the_slice_of_kubernetes() -> None:
    world = World(LEADER)
    await world.reconcile()
    select(world)
    assert await world.reconcile() == topics.FOREIGN_POLL_SECONDS
    service = world.server.objects[Key(SERVICE.kind, "shop", "leader")]
    assert not service["spec"].get("selector")
    assert world.condition("Drifted") == "True/Repaired"
    await world.reconcile()
    assert SELECTED not in world.server.objects
    assert Key(SLICE.kind, "shop", "leader-leader-ipv4") in world.server.objects
    await asyncio.sleep(topics.FOREIGN_SECONDS)
    after = await world.reconcile()
    assert after is not None
    assert after > topics.FOREIGN_POLL_SECONDS, "it searches no longer"


@pytest.mark.looptime
async def test_a_program_that_disagrees_for_ever_is_not_answered_for_ever() -> None:
    world = World(LEADER)
    await world.reconcile()
    before = len(world.calls("apply Service"))
    delays = []
    for _ in range(20):
        select(world)
        try:
            await world.reconcile()
        except RetryLater as later:
            delays.append(later.after_seconds)
    assert len(world.calls("apply Service")) == before + AT_ONCE
    assert delays
    assert max(each or 0.0 for each in delays) <= DELAY_SECONDS_MAX
