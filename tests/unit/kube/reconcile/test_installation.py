"""Reconciles of the installation: no needless writes, and one refusal does not stop the rest."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.kube.installation_configurations import configured

from onewriter_core.kubernetes.kinds import Key, Kind, key_of
from onewriter_core.kubernetes.objects import KubeObject
from onewriter_operator.events import Recorder
from onewriter_operator.kube import ApiRefused, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.actions import EmitEvent
from onewriter_operator.plan.broker_report import BrokerReport
from onewriter_operator.plan.facts import BucketFacts, FleetState
from onewriter_operator.reconcile.installation import (
    RETRY_SECONDS_MAX,
    ROLLOUT_WAIT_SECONDS_MAX,
    InstallationReconciler,
)
from onewriter_operator.reconcile.one_writer import OneWriterReconciler
from onewriter_operator.reconcile.repairs import AT_ONCE

Json = dict[str, Any]

OWNER: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "onewriter-config", "namespace": "onewriter", "uid": "owner-1"},
}


class Server:
    """An API server with the installation's namespace; a test sets its refusals.

    ``apply_rolls``: whether the StatefulSet controller begins to replace the pods of whatever is applied.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.refused: dict[Key, ApiRefused] = {}
        self.writes: list[Key] = []
        self.notation: dict[Key, Json] = {}
        self.apply_rolls = False
        self._version = 0
        self._watchers: dict[str, list[asyncio.Queue[str]]] = {}
        self.put(OWNER)

    def apply_as(self, key: Key, spec: Json) -> None:
        """Store this spec for whatever is applied to an object, and put it there now."""
        self.notation[key] = spec
        self.put(self.objects[key] | {"spec": spec})

    def report(self, kind: str) -> None:
        """Report a change of an object of this kind to its watch."""
        for watcher in self._watchers.get(kind, ()):
            watcher.put_nowait("MODIFIED")

    async def watch(
        self, kind: Kind, namespace: str, labels: str
    ) -> AsyncIterator[tuple[str, Json]]:
        events: asyncio.Queue[str] = asyncio.Queue()
        self._watchers.setdefault(kind.kind, []).append(events)
        yield "LISTED", {"items": []}
        while True:
            yield await events.get(), {}

    async def follow(self, kind: Kind, namespace: str, name: str) -> AsyncIterator[Json | None]:
        yield await self.get(kind, namespace, name)
        await asyncio.Event().wait()

    async def merge(self, kind: Kind, key: Key, change: Json) -> Json:
        spec = {name: without_null(each) for name, each in change["spec"].items()}
        if set(spec) == {"replicas", "template"}:
            spec = self.objects[key]["spec"] | spec
        return self.put(self.objects[key] | {"spec": spec})

    def put(self, document: Json) -> Json:
        self._version += 1
        found = copy.deepcopy(document)
        found["metadata"]["resourceVersion"] = str(self._version)
        found["metadata"].setdefault("uid", str(self._version))
        self.objects[key_of(found)] = found
        return copy.deepcopy(found)

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        return copy.deepcopy(self.objects.get(Key(kind.kind, namespace, name)))

    async def create(self, kind: Kind, document: Json) -> Json:
        self.writes.append(key_of(document))
        return self.put(document)

    async def apply(self, kind: Kind, document: Json) -> Json:
        self.writes.append(key_of(document))
        if key_of(document) in self.refused:
            raise self.refused[key_of(document)]
        spec = self.notation.get(key_of(document))
        if self.apply_rolls and document["kind"] == "StatefulSet":
            document = document | {"status": {"observedGeneration": 1, "updateRevision": "2"}}
        return self.put(document if spec is None else document | {"spec": spec})

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Json]:
        return [each for key, each in self.objects.items() if key.kind == kind.kind]

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        del self.objects[Key(kind.kind, namespace, name)]


def without_null(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: without_null(each) for name, each in value.items() if each is not None}


class Reported:
    def __init__(self) -> None:
        self.events: list[EmitEvent] = []

    def emit(self, about: KubeObject, reported: EmitEvent) -> None:
        self.events.append(reported)


class Brokers:
    """A fleet without brokers."""

    def state(self) -> FleetState:
        return FleetState(expected=3, synced=0)

    def reports(self) -> dict[str, BrokerReport]:
        return {}

    def buckets(self) -> BucketFacts | None:
        return None


def world(
    now: Callable[[], float] = lambda: 0.0,
    more: Json | None = None,
    server: Server | None = None,
) -> tuple[Server, Reported, InstallationReconciler]:
    server, reported = server or Server(), Reported()
    configuration = configured(more, namespace="onewriter")
    recorder = cast("Recorder", reported)
    kube = cast("Kube", server)
    one_writer = OneWriterReconciler(kube, configuration, Brokers(), lambda: 1000.0)
    installation = InstallationReconciler(kube, configuration, recorder, Metrics(), one_writer, now)
    return server, reported, installation


def key(kind: str, name: str) -> Key:
    return Key(kind, "onewriter", name)


PLAIN: Json = {"store": {"shards": 3}}
ENCRYPTED: Json = {
    "store": {"shards": 3, "tls": {"secretName": "store"}},
    "valkey": {"image": "other"},
}
STORE = key("StatefulSet", "onewriter-valkey")
BROKERS = key("StatefulSet", "onewriter-broker")


async def test_an_unchanged_object_is_not_written_again() -> None:
    server, reported, installation = world()
    await installation.reconcile()
    assert {STORE, BROKERS} <= server.objects.keys()
    server.writes.clear()
    await installation.reconcile()
    assert server.writes == []
    assert reported.events == []


async def test_an_outside_change_is_repaired_and_reported() -> None:
    server, reported, installation = world()
    await installation.reconcile()
    changed = copy.deepcopy(server.objects[BROKERS])
    changed["spec"]["replicas"] = 9
    server.put(changed)
    await installation.reconcile()
    assert server.objects[BROKERS]["spec"]["replicas"] == 3
    assert [each.reason for each in reported.events] == ["DriftRepaired"]


def certificate(content: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n"


AUTHORITY = key("ConfigMap", "onewriter-broker-ca")


async def test_the_brokers_authority_is_published_and_followed(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    server, _, installation = world(more={"operator": {"brokerCaFile": str(file)}})
    await installation.reconcile()
    assert AUTHORITY not in server.objects, "there is none yet"
    for content in ("b25l", "dHdv"):  # the second time it was renewed
        file.write_text(certificate(content))
        await installation.reconcile()
        assert server.objects[AUTHORITY]["data"] == {"ca.crt": certificate(content)}
        server.writes.clear()
        await installation.reconcile()
        assert server.writes == [], "nothing is written twice"
    file.unlink()
    await installation.reconcile()
    assert server.objects[AUTHORITY]["data"] == {"ca.crt": certificate("dHdv")}, "it stays"


def runs(server: Server, key: Key, *, rolls: bool) -> None:
    """The status that the StatefulSet controller writes."""
    found = copy.deepcopy(server.objects[key])
    revisions = {"currentRevision": "1", "updateRevision": "2" if rolls else "1"}
    found["status"] = {"observedGeneration": 1, **revisions}
    server.put(found)


def change(server: Server, key: Key) -> None:
    changed = copy.deepcopy(server.objects[key])
    changed["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    server.put(changed)
    server.writes.clear()


@pytest.mark.parametrize(("first", "second"), [(STORE, BROKERS), (BROKERS, STORE)])
async def test_store_and_brokers_are_replaced_one_after_the_other(first: Key, second: Key) -> None:
    """A broker that stops while the store is down cannot release its buckets: epochs would be lost."""
    now = 0.0
    server, _, installation = world(lambda: now)
    await installation.reconcile()
    runs(server, first, rolls=True)
    change(server, second)
    assert await installation.reconcile(), "it waits"
    now = ROLLOUT_WAIT_SECONDS_MAX - 1
    assert await installation.reconcile(), "it still does"
    assert server.writes == []
    runs(server, first, rolls=False)
    assert not await installation.reconcile()
    assert server.writes == [second]


async def test_a_change_that_the_controller_has_not_seen_counts_as_a_rollout() -> None:
    server, _, installation = world()
    await installation.reconcile()
    runs(server, STORE, rolls=False)
    server.objects[STORE]["metadata"]["generation"] = 2
    change(server, BROKERS)
    assert await installation.reconcile()


async def test_a_rollout_that_is_stuck_does_not_keep_the_other_back_for_ever() -> None:
    now = 0.0
    server, _, installation = world(lambda: now)
    await installation.reconcile()
    runs(server, STORE, rolls=True)
    change(server, BROKERS)
    assert await installation.reconcile()
    now = ROLLOUT_WAIT_SECONDS_MAX
    assert not await installation.reconcile()
    assert server.writes == [BROKERS]


async def test_a_rollout_that_continues_is_not_stuck() -> None:
    now = 0.0
    server, _, installation = world(lambda: now)
    await installation.reconcile()
    runs(server, BROKERS, rolls=True)
    change(server, STORE)
    for done in range(5):
        now = 0.75 * ROLLOUT_WAIT_SECONDS_MAX * done
        server.objects[BROKERS]["status"]["updatedReplicas"] = done
        assert await installation.reconcile(), f"{done} of 5 brokers are new"
    assert server.writes == []


async def test_a_wait_ends_with_its_rollout_although_something_else_is_refused() -> None:
    now = 0.0
    server, _, installation = world(lambda: now)
    await installation.reconcile()
    policy = next(each for each in server.objects if each.kind == "NetworkPolicy")
    server.put({**server.objects[policy], "spec": {}})
    server.refused[policy] = ApiRefused(403, "quota")
    for now in (0.0, 10.0 * ROLLOUT_WAIT_SECONDS_MAX):
        runs(server, STORE, rolls=True)
        change(server, BROKERS)
        with pytest.raises(ApiRefused):
            await installation.reconcile()
        assert BROKERS not in server.writes, f"it waits at {now}"
        runs(server, STORE, rolls=False)
        with pytest.raises(ApiRefused):
            await installation.reconcile()


async def test_an_object_that_is_refused_keeps_no_other_back() -> None:
    server, _, installation = world()
    server.refused[STORE] = ApiRefused(422, "volumeClaimTemplates cannot change")
    with pytest.raises(ApiRefused, match="StatefulSet/onewriter-valkey: volumeClaim"):
        await installation.reconcile()
    assert BROKERS in server.objects
    del server.refused[STORE]
    await installation.reconcile()
    assert STORE in server.objects


async def test_another_number_of_shards_is_refused_where_data_would_stay_behind() -> None:
    server, _, installation = world()
    await installation.reconcile()
    wider = world(more={"store": {"shards": 3}}, server=server)[2]
    with pytest.raises(ApiRefused, match="the StatefulSets onewriter-valkey have the store's data"):
        await wider.reconcile()
    assert key("StatefulSet", "onewriter-valkey-0") not in server.objects
    del server.objects[STORE]
    await wider.reconcile()
    with pytest.raises(
        ApiRefused, match="the StatefulSets onewriter-valkey-0, onewriter-valkey-1, "
    ):
        await installation.reconcile()
    with_replicas = world(more={"store": {"shards": 3, "replicas": 2}}, server=server)[2]
    await with_replicas.reconcile()


@pytest.mark.parametrize(("first", "second"), [(3, 5), (5, 3)])
async def test_another_number_of_shards_of_a_cluster_is_refused_and_can_be_set_back(
    first: int, second: int
) -> None:
    server, _, former = world(more={"store": {"shards": first}})
    await former.reconcile()
    sets = {each for each in server.objects if each.kind == "StatefulSet"}
    server.writes.clear()
    changed = world(more={"store": {"shards": second}}, server=server)[2]
    with pytest.raises(ApiRefused, match=f"is not store.shards {second}: an") as raised:
        await changed.reconcile()
    assert raised.value.status == 422
    assert server.writes == []
    assert {each for each in server.objects if each.kind == "StatefulSet"} == sets
    await former.reconcile()


def stores(server: Server) -> list[Json]:
    return [
        each
        for key, each in server.objects.items()
        if key.kind == "StatefulSet" and "valkey" in key.name
    ]


def see(server: Server, *, pods: int) -> None:
    """Let the StatefulSet controller see the store, and run this number of pods of each shard."""
    for each in stores(server):
        found = copy.deepcopy(each)
        revisions = {"currentRevision": "1", "updateRevision": "1"}
        found["metadata"]["generation"] = 1
        found["status"] = {"observedGeneration": 1, "replicas": pods, **revisions}
        server.put(found)


@pytest.mark.parametrize(("first", "second"), [(PLAIN, ENCRYPTED), (ENCRYPTED, PLAIN)])
async def test_all_pods_of_a_cluster_stop_before_one_starts_with_or_without_tls(
    first: Json, second: Json
) -> None:
    server, _, former = world(more=first)
    await former.reconcile()
    see(server, pods=2)
    changed = world(more=second, server=server)[2]
    for _ in range(2):
        server.writes.clear()
        assert await changed.reconcile(), "it waits"
        assert server.writes == [], "brokers do not move to a store that is not there"
        assert [each["spec"]["replicas"] for each in stores(server)] == [0, 0, 0]
        for each in stores(server):
            volumes = [volume["name"] for volume in each["spec"]["template"]["spec"]["volumes"]]
            assert ("tls" in volumes) == (second is ENCRYPTED), "only this Secret may be mounted"
    see(server, pods=0)
    stores(server)[0]["metadata"]["generation"] = 2
    assert await changed.reconcile()
    assert server.writes == [], "the controller has not seen the change"
    see(server, pods=0)
    server.apply_rolls = True
    await changed.reconcile()
    assert [each["spec"]["replicas"] for each in stores(server)] == [2, 2, 2]
    annotation = "onewriter.dev/store-tls"
    found = {each["metadata"]["annotations"].get(annotation) for each in stores(server)}
    assert found == {"true" if second is ENCRYPTED else None}
    assert BROKERS not in server.writes, "the store's pods start first"
    see(server, pods=2)
    await changed.reconcile()
    assert server.writes[-1] == BROKERS


async def test_a_cluster_without_volumes_is_not_stopped_for_tls() -> None:
    weak = {
        "valkey": {"image": "other", "storage": {"size": ""}},
        "brokers": {"settings": {"minimumDurability": "None"}},
    }
    server, _, former = world(more=PLAIN | weak)
    await former.reconcile()
    see(server, pods=2)
    with pytest.raises(ApiRefused, match="their data would be lost: set it back"):
        await world(more=ENCRYPTED | weak, server=server)[2].reconcile()
    assert [each["spec"]["replicas"] for each in stores(server)] == [2, 2, 2]


async def test_a_single_process_is_replaced_for_tls_like_for_any_change() -> None:
    server, _, former = world()
    await former.reconcile()
    see(server, pods=1)
    one = ENCRYPTED | {"store": {"tls": ENCRYPTED["store"]["tls"]}}
    await world(more=one, server=server)[2].reconcile()
    assert server.objects[STORE]["spec"]["replicas"] == 1
    assert server.objects[STORE]["metadata"]["annotations"]["onewriter.dev/store-tls"] == "true"


async def test_a_busy_server_is_called_again_at_its_retry_after() -> None:
    server, _, installation = world()
    server.refused[STORE] = ApiRefused(422, "no")
    server.refused[BROKERS] = ApiRefused(429, "busy", 17)
    with pytest.raises(ApiRefused) as raised:
        await installation.reconcile()
    assert raised.value.retry_after_seconds == 17


async def test_nothing_is_created_again_during_an_uninstallation() -> None:
    server, _, installation = world()
    await installation.reconcile()
    del server.objects[key("ConfigMap", "onewriter-config")]
    del server.objects[STORE]
    await installation.reconcile()
    assert STORE not in server.objects


async def test_objects_belong_to_the_owner_that_is_there_now() -> None:
    server, _, installation = world()
    await installation.reconcile()
    owner = copy.deepcopy(OWNER)
    owner["metadata"]["uid"] = "owner-2"
    server.put(owner)
    await installation.reconcile()
    assert server.objects[STORE]["metadata"]["ownerReferences"][0]["uid"] == "owner-2"


async def test_fields_that_other_managers_add_stay() -> None:
    server, reported, installation = world()
    await installation.reconcile()
    server.writes.clear()
    for found in list(server.objects.values()):
        found["metadata"].setdefault("labels", {})["team"] = "shop"
        found["metadata"].setdefault("annotations", {})["argocd.argoproj.io/tracking-id"] = "x"
        server.put(found)
    await installation.reconcile()
    assert server.writes == []
    assert reported.events == []


async def test_values_normalized_by_the_api_server_are_not_drift() -> None:
    server, reported, installation = world()
    await installation.reconcile()
    store = copy.deepcopy(server.objects[STORE])
    store["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "70"  # its notation
    server.apply_as(STORE, store["spec"])
    await installation.reconcile()
    server.writes.clear()
    reported.events.clear()
    labelled = copy.deepcopy(server.objects[STORE])
    labelled["metadata"].setdefault("annotations", {})["team"] = "shop"
    server.put(labelled)
    await installation.reconcile()
    assert server.writes == []
    assert reported.events == []


async def test_a_selector_key_that_others_add_to_the_brokers_service_is_removed() -> None:
    server, reported, installation = world()
    await installation.reconcile()
    service = copy.deepcopy(server.objects[key("Service", "onewriter-broker")])
    wanted = copy.deepcopy(service["spec"]["selector"])
    service["spec"]["selector"]["app"] = "x"
    server.put(service)
    await installation.reconcile()
    assert server.objects[key("Service", "onewriter-broker")]["spec"]["selector"] == wanted
    assert [each.reason for each in reported.events] == ["DriftRepaired"]


async def test_a_program_that_disagrees_for_ever_is_not_answered_for_ever() -> None:
    now = 0.0
    server, _, installation = world(lambda: now)
    await installation.reconcile()
    service = key("Service", "onewriter-broker")
    server.writes.clear()
    for _ in range(3 * AT_ONCE):
        changed = copy.deepcopy(server.objects[service])
        changed["spec"]["selector"]["app"] = "x"
        server.put(changed)
        delay = await installation.reconcile()
    assert server.writes == [service] * AT_ONCE
    assert delay is not None
    now += delay
    await installation.reconcile()
    assert server.writes == [service] * (AT_ONCE + 1)


@pytest.mark.looptime
async def test_a_change_that_a_watch_reports_is_repaired_without_waiting_for_the_timer() -> None:
    server, _, installation = world()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(installation.run())
        await asyncio.sleep(10.0)
        del server.objects[STORE]
        server.report(STORE.kind)
        await asyncio.sleep(2.0)
        assert STORE in server.objects
        server.writes.clear()
        await asyncio.sleep(600.0)
        assert server.writes == []
        task.cancel()


@pytest.mark.looptime
async def test_an_installation_that_is_refused_is_tried_less_and_less_often() -> None:
    server, _, installation = world()
    server.refused[STORE] = ApiRefused(422, "no")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(installation.run())
        await asyncio.sleep(600.0)
        tried = server.writes.count(STORE)
        assert 600 / RETRY_SECONDS_MAX <= tried <= 600 / RETRY_SECONDS_MAX + 6
        task.cancel()
