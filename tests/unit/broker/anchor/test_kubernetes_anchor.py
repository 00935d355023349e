"""The anchor in Kubernetes: which requests are made of reads and changes, and what goes wrong.

The API server is in memory here; tests/conformance and tests/cluster use a real one.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onewriter_broker.anchor import kubernetes
from onewriter_broker.anchor.api import Addresses, Record, Versioned
from onewriter_broker.anchor.kubernetes import KubernetesAnchor
from onewriter_broker.kubernetes_api import Answer, ApiServer, KubernetesApi
from onewriter_core.errors import ConfigurationError, Unavailable

PATH = "/apis/onewriter.dev/v1alpha1/namespaces/shop/bucketanchors"
RECORD = Record(generation=1, replid="a" * 40, owner="broker-0~1", ledger_high_water=64)


def status(code: int, message: str = "", **details: str) -> Answer:
    return Answer(code, {"kind": "Status", "message": message, "details": details})


class MemoryApi(KubernetesApi):
    """One object behind resourceVersions, as the API server keeps it.

    ``before`` may answer in its place, or fail; ``after`` may fail what was done.
    """

    def __init__(self) -> None:
        nowhere = ApiServer("http://nowhere", Path(), Path(), "shop")
        super().__init__(nowhere)
        self.object: dict[str, Any] | None = None
        self.requests: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.before: Callable[[str], Answer | None] = lambda method: None
        self.after: Callable[[str], None] = lambda method: None
        self._version = 0

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        self.requests.append(method)
        await self.gate.wait()
        early = self.before(method)
        answer = self._answer(method, path, body) if early is None else early
        self.after(method)
        return answer

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        assert path == (PATH if method == "POST" else f"{PATH}/shard-0")
        if method == "GET":
            if self.object is None:
                return status(404, "not there", name="shard-0")
            return Answer(200, copy.deepcopy(self.object))
        assert body is not None
        if method == "POST":
            return status(409, "exists") if self.object is not None else self.store(body)
        if self.object is None:
            return status(404, "not there", name="shard-0")
        request = body["metadata"]["resourceVersion"]
        if request != self.object["metadata"]["resourceVersion"]:
            return status(409, "changed")
        return self.store(body)

    def store(self, body: Mapping[str, Any]) -> Answer:
        self._version += 1
        self.object = copy.deepcopy(dict(body))
        self.object["metadata"]["resourceVersion"] = str(self._version)
        self.object["metadata"]["managedFields"] = [{"manager": "aiohttp"}]
        return Answer(200, copy.deepcopy(self.object))


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def anchor(api: MemoryApi) -> KubernetesAnchor:
    return KubernetesAnchor(api, "shard-0")


async def test_buckets_taken_together_are_one_write(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    versions = await asyncio.gather(
        *(anchor.compare_and_set(bucket, 0, RECORD) for bucket in range(64))
    )
    assert versions == [1] * 64
    assert api.requests == ["GET", "POST"]
    api.requests.clear()
    await asyncio.gather(
        *(anchor.compare_and_set(bucket, 1, replace(RECORD, owner="b~1")) for bucket in range(64))
    )
    assert api.requests == ["PUT"], "what the last answer showed is the base of the next write"
    assert api.object is not None
    assert api.object["summary"] == {"buckets": 64, "owners": 1, "generation": 1}


async def test_requests_during_a_write_share_the_next_one(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.requests.clear()
    api.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(anchor.compare_and_set(1, 0, RECORD))
        await until(lambda: api.requests == ["PUT"])
        others = [tasks.create_task(anchor.compare_and_set(n, 0, RECORD)) for n in range(2, 40)]
        await asyncio.sleep(0)
        api.gate.set()
    assert [other.result() for other in others] == [1] * 38
    assert api.requests == ["PUT", "PUT"]


async def test_readers_share_a_request_that_goes_out_after_they_asked(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.requests.clear()
    await asyncio.gather(*(anchor.read(bucket) for bucket in range(64)))
    assert api.requests == ["GET"]
    api.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        early = tasks.create_task(anchor.read(0))
        await until(lambda: api.requests == ["GET", "GET"])
        late = tasks.create_task(anchor.read(0))
        await asyncio.sleep(0)
        api.store({**(api.object or {}), "buckets": [{"bucket": 0, "version": 7}]})
        api.gate.set()
    assert late.result().version == 7
    assert early.result().version == 7, "the answer was made when the gate opened"
    assert api.requests == ["GET"] * 3, "who asks while a request is under way needs another one"


async def test_of_two_changes_of_one_record_in_one_write_one_succeeds(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    answers = await asyncio.gather(
        anchor.compare_and_set(3, 0, replace(RECORD, owner="a~1")),
        anchor.compare_and_set(3, 0, replace(RECORD, owner="b~1")),
    )
    assert tuple(answers) == (1, None)
    assert (await anchor.read(3)).record.owner == "a~1"


async def test_a_change_of_another_bucket_costs_only_another_request(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    other = KubernetesAnchor(api, "shard-0")
    await anchor.compare_and_set(0, 0, RECORD)
    await other.compare_and_set(1, 0, RECORD)
    api.requests.clear()
    assert await anchor.compare_and_set(0, 1, replace(RECORD, owner="c~1")) == 2
    assert api.requests == ["PUT", "GET", "PUT"]


async def test_a_change_of_the_same_record_loses(api: MemoryApi, anchor: KubernetesAnchor) -> None:
    other = KubernetesAnchor(api, "shard-0")
    await anchor.compare_and_set(0, 0, RECORD)
    assert await other.compare_and_set(0, 1, replace(RECORD, owner="b~1")) == 2
    answers = await asyncio.gather(
        anchor.compare_and_set(0, 1, replace(RECORD, owner="late~1")),
        anchor.compare_and_set(5, 0, RECORD),
    )
    assert tuple(answers) == (None, 1), "the one in the same write that can be made is made"
    assert (await anchor.read(0)).record.owner == "b~1"


async def test_a_write_without_an_answer_is_open_and_can_be_found_done(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    lost = Unavailable("cut")

    def cut(method: str) -> None:
        if method == "PUT":
            raise lost

    api.after = cut
    with pytest.raises(Unavailable, match="cut"):
        await anchor.compare_and_set(0, 1, replace(RECORD, owner="mine~1"))
    api.after = lambda method: None
    assert await anchor.read(0) == Versioned(2, replace(RECORD, owner="mine~1"))
    assert await anchor.compare_and_set(0, 2, RECORD) == 3


async def test_callers_that_share_a_request_share_its_failure(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    def away(method: str) -> Answer | None:
        raise Unavailable("away")

    api.before = away
    outcomes = await asyncio.gather(
        *(anchor.read(bucket) for bucket in range(64)), return_exceptions=True
    )
    assert [str(outcome) for outcome in outcomes] == ["away"] * 64
    assert api.requests == ["GET"], "64 readers do not wait for 64 time-outs"
    writes = await asyncio.gather(
        *(outcome(anchor.compare_and_set(bucket, 0, RECORD)) for bucket in range(64))
    )
    assert [str(each) for each in writes] == ["away"] * 64
    assert api.requests == ["GET", "GET"]


@pytest.mark.parametrize("code", [400, 422, 413])
async def test_a_refusal_has_the_message_of_the_server(
    api: MemoryApi, anchor: KubernetesAnchor, code: int
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.before = lambda method: status(code, "buckets[0].owner: too long")
    with pytest.raises(Unavailable, match=rf"{code}.*too long"):
        await anchor.compare_and_set(0, 1, RECORD)


async def test_a_kind_that_the_server_does_not_know_is_no_empty_anchor(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    api.before = lambda method: status(404, "the server could not find the requested resource")
    with pytest.raises(Unavailable, match="CustomResourceDefinitions"):
        await anchor.read(0)
    with pytest.raises(Unavailable, match="CustomResourceDefinitions"):
        await anchor.compare_and_set(0, 0, RECORD)


@pytest.mark.looptime
async def test_an_object_that_always_changes_is_given_up_with_the_last_answer(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    api.before = lambda method: status(409, "the object was modified") if method != "GET" else None
    began_at = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match=r"keeps changing: \d+ writes .* 409, the object was mod"):
        await anchor.compare_and_set(0, 0, RECORD)
    took = asyncio.get_running_loop().time() - began_at
    longest_pause = kubernetes.PAUSE_SECONDS_MAX
    assert kubernetes.WRITE_SECONDS_MAX - longest_pause <= took <= kubernetes.WRITE_SECONDS_MAX
    assert api.requests.count("POST") > kubernetes.WRITE_SECONDS_MAX / longest_pause


@pytest.mark.looptime
async def test_a_writer_that_another_one_overtakes_for_seconds_succeeds_afterwards(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    """Another process writes record after record without a pause, as ``adopt`` may."""
    await anchor.compare_and_set(0, 0, RECORD)
    now = asyncio.get_running_loop().time
    quiet_from = now() + kubernetes.WRITE_SECONDS_MAX - 2 * kubernetes.PAUSE_SECONDS_MAX

    def overtake(method: str) -> None:
        if method == "PUT" and now() < quiet_from:
            api.store(api.object or {})

    api.before = overtake
    assert await anchor.compare_and_set(0, 1, replace(RECORD, owner="b~1")) == 2
    assert now() >= quiet_from
    assert (await anchor.read(0)).record.owner == "b~1"


@pytest.mark.looptime
async def test_an_object_that_is_deleted_again_and_again_is_given_up_with_the_last_answer(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.before = lambda method: (
        status(404, "not there", name="shard-0") if method == "PUT" else None
    )
    with pytest.raises(Unavailable, match="the last with 404, not there"):
        await anchor.compare_and_set(0, 1, RECORD)


@pytest.mark.looptime
async def test_changes_that_arrive_while_a_write_is_repeated_share_the_repetition(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.requests.clear()
    refused = status(409, "changed")
    api.before = lambda method: refused if method == "PUT" and len(api.requests) < 9 else None
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(anchor.compare_and_set(1, 0, RECORD))
        await until(lambda: api.requests.count("PUT") == 2)
        others = [tasks.create_task(anchor.compare_and_set(n, 0, RECORD)) for n in range(2, 40)]
    assert [each.result() for each in (first, *others)] == [1] * 39
    assert api.requests == ["PUT", *["GET", "PUT"] * 4], "one write at the end for all of them"


@pytest.mark.looptime
async def test_a_change_that_is_cancelled_between_two_attempts_is_not_made(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    """Neither if its caller was the one that wrote, nor if another caller wrote for it."""
    await anchor.compare_and_set(0, 0, RECORD)
    refused = status(409, "changed")
    api.before = lambda method: refused if method == "PUT" else None
    async with asyncio.TaskGroup() as tasks:
        writer, stays, follower = (
            tasks.create_task(anchor.compare_and_set(bucket, 0, RECORD)) for bucket in (1, 2, 3)
        )
        await asyncio.sleep(1.0)  # a request takes no time here, so this is in a pause
        writer.cancel()
        follower.cancel()
        await asyncio.wait([writer, follower])
        api.before = lambda method: None
    assert stays.result() == 1, "nothing was under way when the writer was cancelled"
    assert [(await anchor.read(bucket)).version for bucket in (1, 2, 3)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("refusals", "attempt_seconds", "longest"),
    [
        (1, 1.0, 0.0),
        (2, 0.1, 0.05),
        (3, 0.1, 0.1),
        (4, 0.1, 0.2),
        (5, 0.1, 0.4),
        (6, 0.1, 0.5),
        (10_000, 0.001, 0.5),
        (2, 5.0, 0.5),
        (3, 0.0, 0.005),
    ],
)
def test_pauses_grow_with_the_refusals_and_with_the_time_of_a_write(
    refusals: int, attempt_seconds: float, longest: float
) -> None:
    randomness = random.Random(1)
    pauses = [kubernetes.pause_seconds(refusals, attempt_seconds, randomness) for _ in range(1_000)]
    assert max(pauses) == pytest.approx(longest, rel=0.02)
    assert min(pauses) == pytest.approx(0.0, abs=0.02 * longest)


async def test_a_change_that_was_given_up_is_never_made(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    """It waited behind another one's write when its asker was cancelled."""
    await anchor.compare_and_set(0, 0, RECORD)
    api.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(anchor.compare_and_set(1, 0, RECORD))
        await until(lambda: api.requests[-1] == "PUT")
        given_up = tasks.create_task(anchor.compare_and_set(2, 0, RECORD))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        api.gate.set()
    assert first.result() == 1
    await anchor.compare_and_set(3, 0, RECORD)
    assert (await anchor.read(2)).version == 0


async def test_other_writers_continue_when_the_caller_that_wrote_for_them_is_cancelled(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(anchor.compare_and_set(1, 0, RECORD))
        shares = tasks.create_task(outcome(anchor.compare_and_set(2, 0, RECORD)))
        await until(lambda: api.requests[-1] == "PUT")
        comes_later = tasks.create_task(anchor.compare_and_set(3, 0, RECORD))
        await asyncio.sleep(0)
        writer.cancel()
        await asyncio.sleep(0)
        api.gate.set()
    assert isinstance(shares.result(), Unavailable), "its change was in the request broken off"
    assert comes_later.result() == 1


async def test_a_crowd_of_changes_is_bounded(api: MemoryApi) -> None:
    anchor = KubernetesAnchor(api, "shard-0", changes_max=8)
    outcomes = await asyncio.gather(
        *(outcome(anchor.compare_and_set(bucket, 0, RECORD)) for bucket in range(20))
    )
    assert outcomes[:8] == [1] * 8
    assert all(isinstance(each, Unavailable) for each in outcomes[8:])


async def test_foreign_fields_of_the_object_stay(api: MemoryApi, anchor: KubernetesAnchor) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    assert api.object is not None
    api.object["metadata"] |= {"labels": {"team": "a"}, "finalizers": ["example.com/keep"]}
    api.store(api.object)
    await anchor.compare_and_set(1, 0, RECORD)
    assert api.object["metadata"]["labels"] == {"team": "a"}
    assert api.object["metadata"]["finalizers"] == ["example.com/keep"]


async def test_a_deleted_object_is_made_again_by_who_saw_that_it_is_gone(
    api: MemoryApi, anchor: KubernetesAnchor
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.object = None
    assert await anchor.compare_and_set(0, 1, RECORD) is None
    assert await anchor.read(0) == Versioned(0, Record())
    assert await anchor.compare_and_set(0, 0, RECORD) == 1


BAD_OBJECTS: dict[str, dict[str, Any]] = {
    "a text for a number": {"buckets": [{"bucket": "0", "version": 1}]},
    "a negative number": {"buckets": [{"bucket": 0, "version": -1}]},
    "an unknown field": {"buckets": [{"bucket": 0, "version": 1, "surprise": 1}]},
    "no list": {"buckets": 7},
    "a number too large": {"buckets": [{"bucket": 0, "version": 1, "lastLedger": 2**60}]},
}


@pytest.mark.parametrize("content", BAD_OBJECTS.values(), ids=BAD_OBJECTS)
async def test_an_object_that_is_no_record_is_named(
    api: MemoryApi, anchor: KubernetesAnchor, content: dict[str, Any]
) -> None:
    await anchor.compare_and_set(0, 0, RECORD)
    api.store({**(api.object or {}), **content})
    with pytest.raises(ConfigurationError, match="anchor"):
        await anchor.read(0)


@pytest.mark.parametrize(
    ("bucket", "record"),
    [
        (1024, RECORD),
        (0, replace(RECORD, owner="x" * 301)),
        (0, replace(RECORD, addresses=Addresses("pulsar://" + "x" * 1100))),
    ],
)
async def test_change_that_is_too_large_for_the_object_is_rejected_before_it_is_sent(
    api: MemoryApi, anchor: KubernetesAnchor, bucket: int, record: Record
) -> None:
    with pytest.raises(ConfigurationError, match=f"bucket {bucket}"):
        await anchor.compare_and_set(bucket, 0, record)
    assert api.requests == []


async def outcome(work: Awaitable[int | None]) -> int | Exception | None:
    try:
        return await work
    except Unavailable as error:
        return error


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what it waits for is told by no event
            await asyncio.sleep(0)
