"""``/map`` of a sidecar, on logs in memory: conditions, pages, events, bounds, errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, begin, until
from tests.unit.client.sidecar_world import Answer, SidecarWorld, running_sidecar
from yarl import URL

from onewriter.sidecar.limits import SidecarLimits
from onewriter.state import MemoryLog, SharedMap
from onewriter.state.log import LogMessage
from onewriter.state.memory import MemoryGrant

EVENTS = {"Accept": "text/event-stream"}
JSON = "application/json"
FULL = "persistent://public/default/"

PUBLISH_SECONDS = 5.0
"""Of the sidecar: how long a request waits for the map."""


class Logs(defaultdict[str, MemoryLog]):
    """A log per topic; ``opened`` counts how often a map of it was opened."""

    def __init__(self) -> None:
        super().__init__(MemoryLog)
        self.opened: defaultdict[str, int] = defaultdict(int)

    def open(
        self, _client: object, topic: str, keys: Any, values: Any, **options: Any
    ) -> SharedMap[Any, Any]:
        self.opened[topic] += 1
        return SharedMap.in_memory(keys, values, log=self[topic], **options)

    @contextlib.asynccontextmanager
    async def shared(self, topic: str) -> AsyncIterator[SharedMap[bytes, bytes]]:
        """Somebody else's map on the same log."""
        async with SharedMap.in_memory(bytes, bytes, log=self[FULL + topic]) as shared:
            yield shared


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    logs = Logs()
    monkeypatch.setattr("onewriter.sidecar.app.SharedMap", logs.open)
    return logs


@pytest.fixture
async def sidecar(
    broker: FakeBroker, logs: Logs, tmp_path: Path, limits: SidecarLimits
) -> AsyncIterator[SidecarWorld]:
    del logs
    async with running_sidecar(
        broker, tmp_path, limits=limits, publish_timeout_seconds=PUBLISH_SECONDS
    ) as world:
        yield world


async def put(sidecar: SidecarWorld, path: str, body: bytes, **headers: str) -> Answer:
    return await sidecar.call("PUT", f"/map/{path}", body, **headers)


async def get(sidecar: SidecarWorld, path: str, **headers: str) -> Answer:
    return await sidecar.call("GET", f"/map/{path}", **headers)


# ---------------------------------------------------------------- one key


async def test_a_key_is_put_got_and_deleted(sidecar: SidecarWorld) -> None:
    missing = await get(sidecar, "limits/requests")
    assert (missing.status, missing.body["error"]) == (404, "no-such-key")
    created = await put(sidecar, "limits/requests", b"100")
    assert (created.status, created.body["created"]) == (201, True)
    replaced = await put(sidecar, "limits/requests", b"200")
    assert (replaced.status, replaced.body["created"]) == (200, False)
    assert created.body["etag"] != replaced.body["etag"] == replaced.headers["ETag"]
    found = await get(sidecar, "limits/requests?latest=true")
    assert (found.status, found.body, found.headers["ETag"]) == (200, 200, replaced.body["etag"])
    assert found.headers["Content-Type"] == "application/octet-stream"
    deleted = await sidecar.call("DELETE", "/map/limits/requests")
    assert (deleted.status, deleted.body["stored"]) == (200, True)
    assert (await sidecar.call("DELETE", "/map/limits/requests")).status == 404


async def test_a_write_of_another_client_is_visible(sidecar: SidecarWorld, logs: Logs) -> None:
    async with logs.shared("limits") as shared:
        await put(sidecar, "limits/mine", b"\xff\x00")
        assert await shared.get(b"mine", latest=True) == b"\xff\x00"
        await shared.put(b"yours", b"2")
        assert (await get(sidecar, "limits/yours?latest=true")).body == 2


@pytest.mark.parametrize("key", ["a/b", "%C3%A9", "%2F", "a%20b%3Fc", "..."])
async def test_keys_are_any_text(sidecar: SidecarWorld, logs: Logs, key: str) -> None:
    url = URL(f"http://sidecar/map/shop%2Fdefault%2Flimits/{key}", encoded=True)
    async with sidecar.session.put(url, data=b"v") as answer:
        assert answer.status == 201
    async with sidecar.session.get(url) as answer:
        assert await answer.read() == b"v"
    assert list(logs) == ["persistent://shop/default/limits"]


async def test_a_topic_may_lie_beside_another(sidecar: SidecarWorld, logs: Logs) -> None:
    url = URL("http://sidecar/map/%7Borders%7D-limits/requests", encoded=True)
    async with sidecar.session.put(url, data=b"v") as answer:
        assert answer.status == 201
    assert list(logs) == ["persistent://public/default/{orders}-limits"]


async def test_json_is_stored_as_the_sdk_writes_it(sidecar: SidecarWorld, logs: Logs) -> None:
    body = b'{"b": [1, 2],\n "a": "\\u00e9"}'
    assert (await put(sidecar, "limits/k", body, Content_Type=JSON)).status == 201
    async with logs.shared("limits") as shared:
        assert await shared.get(b"k") == '{"a":"é","b":[1,2]}'.encode()
    found = await get(sidecar, "limits/k", Accept=JSON)
    assert found.headers["Content-Type"].startswith(JSON)
    assert found.body == {"a": "é", "b": [1, 2]}
    assert (await put(sidecar, "limits/k", b"{", Content_Type=JSON)).status == 400
    assert (await put(sidecar, "limits/k", b"NaN", Content_Type=JSON)).status == 400
    await put(sidecar, "limits/text", b"no JSON")
    assert (await get(sidecar, "limits/text", Accept=JSON)).status == 406


# ---------------------------------------------------------------- conditions


async def test_put_if_absent(sidecar: SidecarWorld) -> None:
    first = await put(sidecar, "limits/k", b"1", If_None_Match="*")
    assert first.status == 201
    second = await put(sidecar, "limits/k", b"2", If_None_Match="*")
    assert (second.status, second.body["stored"]) == (412, False)
    assert second.body["etag"] == first.body["etag"]
    assert (await get(sidecar, "limits/k")).body == 1


async def test_replace_compares_values(sidecar: SidecarWorld) -> None:
    absent = await put(sidecar, "limits/k", b"1", If_Match="*")
    assert (absent.status, absent.body["etag"]) == (412, None)
    first = (await put(sidecar, "limits/k", b"1")).body["etag"]
    second = (await put(sidecar, "limits/k", b"2", If_Match=first)).body["etag"]
    assert (await put(sidecar, "limits/k", b"3", If_Match=first)).status == 412
    assert (await put(sidecar, "limits/k", b"3", If_Match=f"W/{second}")).status == 412
    assert (await put(sidecar, "limits/k", b"3", If_Match=f"{first}, {second}")).status == 200
    assert (await put(sidecar, "limits/k", b"2", If_Match="*")).status == 200
    call = sidecar.call("DELETE", "/map/limits/k", If_Match=first)
    assert (await call).status == 412
    assert (await sidecar.call("DELETE", "/map/limits/k", If_Match=second)).status == 200


async def test_only_one_of_many_concurrent_put_if_absent_succeeds(sidecar: SidecarWorld) -> None:
    answers = await asyncio.gather(
        *(put(sidecar, "limits/k", b"%d" % n, If_None_Match="*") for n in range(20))
    )
    assert sorted(each.status for each in answers) == [201, *[412] * 19]


async def test_a_failed_condition_is_reported_after_the_write_that_it_saw(
    sidecar: SidecarWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the value for which it is refused may never come to be in the log."""
    await put(sidecar, "limits/other", b"0")
    append = MemoryGrant.append
    under_way: list[tuple[MemoryGrant, Any, asyncio.Future[object]]] = []

    async def held(grant: MemoryGrant, messages: Any) -> asyncio.Future[object]:
        receipt: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        under_way.append((grant, messages, receipt))
        return receipt

    async def is_under_way() -> bool:
        return bool(under_way)

    monkeypatch.setattr(MemoryGrant, "append", held)
    first = begin(put(sidecar, "limits/k", b"1", If_None_Match="*"))
    await until(is_under_way)
    second = begin(put(sidecar, "limits/k", b"2", If_None_Match="*"))
    assert (await get(sidecar, "limits/k")).status == 404
    await asyncio.wait([second], timeout=0.1)
    assert [each.done() for each in (first, second)] == [False, False]
    ((grant, messages, receipt),) = under_way
    receipt.set_result(await (await append(grant, messages)))
    assert ((await first).status, (await second).status) == (201, 412)


async def test_lost_answers_are_found_in_the_log(sidecar: SidecarWorld, logs: Logs) -> None:
    await put(sidecar, "limits/other", b"0")
    for loses_entries in (True, False):
        logs[FULL + "limits"].lose_answers(loses_entries=loses_entries)
        path = f"limits/{loses_entries}"
        answers = await asyncio.gather(
            *(put(sidecar, path, b"%d" % n, If_None_Match="*") for n in range(5))
        )
        won = [n for n, each in enumerate(answers) if each.status == 201]
        assert (len(won), {each.status for each in answers}) == (1, {201, 412})
        assert (await get(sidecar, f"{path}?latest=true")).body == won[0]


async def test_an_unchanged_value_is_not_sent_again(sidecar: SidecarWorld) -> None:
    etag = (await put(sidecar, "limits/k", b"1")).body["etag"]
    same = await get(sidecar, "limits/k", If_None_Match=etag)
    assert (same.status, same.headers["ETag"]) == (304, etag)
    await put(sidecar, "limits/k", b"2")
    assert (await get(sidecar, "limits/k", If_None_Match=etag)).status == 200
    assert (await get(sidecar, "limits/k", If_Match=etag)).status == 412


@pytest.mark.parametrize("name", ["If_Match", "If_None_Match"])
@pytest.mark.parametrize("condition", ["", "abc", '"', "*, *", '"a", b', '"a" "b"'])
async def test_a_condition_that_is_none_writes_nothing(
    sidecar: SidecarWorld, name: str, condition: str
) -> None:
    answer = await put(sidecar, "limits/k", b"1", **{name: condition})
    assert (answer.status, answer.body["error"]) == (400, "bad-condition")
    assert (await get(sidecar, "limits/k")).status == 404


# ---------------------------------------------------------------- all keys


@pytest.mark.parametrize("limits", [SidecarLimits(page_bytes_max=4)])
async def test_pages_of_keys_in_their_order(sidecar: SidecarWorld, logs: Logs) -> None:
    async with logs.shared("limits") as shared:
        for key in (b"c", b"a", b"b"):
            await shared.put(key, key * 3)
        await shared.put(b"\xff", b"\xfe")
    first = (await get(sidecar, "limits?latest=true&limit=2")).body
    assert first["entries"] == [{"key": "a"}, {"key": "b"}]
    assert (first["size"], first["version"], first["next"]) == (4, 4, "b")
    second = (await get(sidecar, "limits?after=b&values=true")).body
    assert second["next"] is None
    assert [each | {"etag": ""} for each in second["entries"]] == [
        {"key": "c", "content": "ccc", "etag": ""},
        {"keyBase64": "/w==", "contentBase64": "/g==", "etag": ""},
    ]
    third = (await get(sidecar, "limits?after=b&limit=1")).body
    assert third["next"] == "c"
    cut = (await get(sidecar, "limits?values=true")).body
    assert ([each["key"] for each in cut["entries"]], cut["next"]) == (["a"], "a")


async def test_pages_continue_after_keys_that_are_not_text(
    sidecar: SidecarWorld, logs: Logs
) -> None:
    keys = [b"a&=+ ", "\u00e9".encode(), b"\xfe", b"\xff"]
    async with logs.shared("limits") as shared:
        for key in keys:
            await shared.put(key, b"v")
    seen = 0
    after: str | None = ""
    for _ in keys:
        url = URL(f"http://sidecar/map/limits?latest=true&limit=1&after={after}", encoded=True)
        async with sidecar.session.get(url) as answer:
            page = await answer.json()
        seen += len(page["entries"])
        after = page["next"]
    assert (seen, after) == (len(keys), None)


# ---------------------------------------------------------------- events


async def next_event(response: Any) -> tuple[str, dict[str, Any]]:
    """The next event's name and data."""
    name = ""
    while True:
        line = (await response.content.readline()).decode()
        assert line, "the stream ended"
        if line.startswith("event: "):
            name = line.removeprefix("event: ").strip()
        if line.startswith("data: "):
            return name, json.loads(line.removeprefix("data: "))


async def test_changes_are_reported_in_order(sidecar: SidecarWorld) -> None:
    await put(sidecar, "limits/k", b"1")
    url = "http://sidecar/map/limits"
    async with (
        sidecar.session.get(f"{url}?initial=true", headers=EVENTS) as everything,
        sidecar.session.get(f"{url}/k", headers=EVENTS) as only_k,
    ):
        name, present = await next_event(everything)
        assert (name, present["key"], present["content"]) == ("change", "k", "1")
        await put(sidecar, "limits/other", b"\xff")
        await put(sidecar, "limits/k", b"2")
        await sidecar.call("DELETE", "/map/limits/k")
        reported = [(await next_event(everything))[1] for _ in range(3)]
        assert [each["key"] for each in reported] == ["other", "k", "k"]
        assert (reported[0]["contentBase64"], reported[2]["deleted"]) == ("/w==", True)
        assert [each["version"] for each in reported] == [2, 3, 4]
        assert [(await next_event(only_k))[1] for _ in range(2)] == reported[1:]
        sidecar.stopping.set()
        while await everything.content.readline() != b"":
            pass


@pytest.mark.parametrize("limits", [SidecarLimits(ping_seconds=0.05)])
async def test_readers_of_changes_receive_the_error_of_an_unreadable_log(
    sidecar: SidecarWorld, logs: Logs
) -> None:
    await put(sidecar, "limits/k", b"1")
    async with sidecar.session.get("http://sidecar/map/limits", headers=EVENTS) as events:
        await spoil(logs[FULL + "limits"])
        name, why = await next_event(events)
        assert name == "trouble"
        assert "cannot be read" in why["reason"]


# ---------------------------------------------------------------- what goes wrong


async def spoil(log: MemoryLog) -> None:
    """Somebody writes what is no operation of a map."""
    grant = await log.acquire(lambda: None)
    await grant.append([LogMessage(b"no operation")])
    await grant.hand_over()


async def test_an_unreadable_log_reports_the_position_and_stays_readable_up_to_it(
    sidecar: SidecarWorld, logs: Logs, limits: SidecarLimits
) -> None:
    await put(sidecar, "limits/k", b"1")
    await spoil(logs[FULL + "limits"])
    latest = await get(sidecar, "limits/k?latest=true")
    assert (latest.status, latest.body["error"]) == (502, "unreadable-entry")
    assert latest.body["position"] == str(logs[FULL + "limits"].entries[-1].position)
    assert (await put(sidecar, "limits/k", b"2")).status == 502
    assert (await get(sidecar, "limits/k")).body == 1
    assert logs.opened[FULL + "limits"] == 1
    skip(limits.troubled_seconds)
    assert (await get(sidecar, "limits/k")).body == 1
    assert logs.opened[FULL + "limits"] == 2, "perhaps somebody repaired it"


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("orders/k", 400, "bad-topic"),
        ("orders-partition-1/k", 400, "bad-topic"),
        ("a%2Fb/k", 400, "bad-topic"),
        ("limits/k?latest=yes", 400, "bad-query"),
        ("limits?limit=0", 400, "bad-query"),
        ("limits?limit=x", 400, "bad-query"),
        (f"limits/{'k' * 5_000}", 400, "bad-key"),
        ("limits/", 404, "http"),
    ],
)
async def test_invalid_map_requests_are_refused(
    sidecar: SidecarWorld, path: str, status: int, error: str
) -> None:
    answer = await get(sidecar, path)
    assert (answer.status, answer.body["error"]) == (status, error)


async def test_a_write_that_never_leaves_the_queue_is_definitely_not_stored(
    sidecar: SidecarWorld, logs: Logs
) -> None:
    others_wait = asyncio.Event()
    grant = await logs[FULL + "limits"].acquire(others_wait.set)
    putting = begin(put(sidecar, "limits/k", b"1"))
    await others_wait.wait()
    skip(PUBLISH_SECONDS)
    answer = await putting
    assert (answer.status, answer.body["stored"]) == (503, False)
    assert answer.headers["Retry-After"] == "1"
    await grant.hand_over()
    assert (await put(sidecar, "limits/k", b"1", If_None_Match="*")).status == 201


async def test_values_are_bounded(broker: FakeBroker, logs: Logs, tmp_path: Path) -> None:
    del logs
    async with running_sidecar(broker, tmp_path, message_bytes_max=100) as sidecar:
        assert (await put(sidecar, "limits/k", b"x" * 101)).status == 413
        assert (await put(sidecar, "limits/k", b"x" * 100)).status == 201


# ---------------------------------------------------------------- many maps


async def test_the_map_unused_longest_makes_place(
    broker: FakeBroker, logs: Logs, tmp_path: Path
) -> None:
    async with running_sidecar(broker, tmp_path, maps_max=2) as sidecar:
        for name in ("a", "b", "a", "c", "a", "b"):
            assert (await put(sidecar, f"{name}/k", b"v")).status in {200, 201}
        assert {name.removeprefix(FULL): n for name, n in logs.opened.items()} == {
            "a": 1,
            "b": 2,
            "c": 1,
        }
        metrics = str((await sidecar.call("GET", "/metrics")).body)
        assert "onewriter_sidecar_maps_open 2.0" in metrics
        done = 'onewriter_sidecar_map_requests_total{operation="put",outcome="done"} 6.0'
        assert done in metrics


async def test_maps_in_use_keep_their_places(
    broker: FakeBroker, logs: Logs, tmp_path: Path
) -> None:
    del logs
    async with running_sidecar(broker, tmp_path, maps_max=1) as sidecar:
        async with sidecar.session.get("http://sidecar/map/a", headers=EVENTS):
            assert (await put(sidecar, "a/k", b"v")).status == 201
            busy = await put(sidecar, "b/k", b"v")
            assert (busy.status, busy.body["error"]) == (429, "too-many")

        async def is_free() -> bool:
            return (await put(sidecar, "b/k", b"v")).status == 201

        await until(is_free)


async def test_concurrent_requests_open_a_map_once(sidecar: SidecarWorld, logs: Logs) -> None:
    answers = await asyncio.gather(*(get(sidecar, "limits/k") for _ in range(10)))
    assert {each.status for each in answers} == {404}
    assert logs.opened == {FULL + "limits": 1}


async def test_a_map_that_does_not_open_in_time_makes_place_and_does_not_hold_up_the_end(
    broker: FakeBroker, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = SharedMap.__aenter__

    async def slow(shared: SharedMap[Any, Any]) -> SharedMap[Any, Any]:
        if shared in never:
            await opening_slowly.put(shared)
            await asyncio.Event().wait()
        return await enter(shared)

    async def is_not_opened_in_time(sidecar: SidecarWorld) -> None:
        asking = begin(get(sidecar, "slow/k"))
        await opening_slowly.get()
        skip(PUBLISH_SECONDS)
        answer = await asking
        assert (answer.status, answer.body["stored"]) == (503, False)

    never: list[object] = []
    opening_slowly: asyncio.Queue[object] = asyncio.Queue()
    opening = logs.open

    def opened(client: object, topic: str, *kinds: Any, **options: Any) -> SharedMap[Any, Any]:
        shared = opening(client, topic, *kinds, **options)
        if topic.endswith("slow"):
            never.append(shared)
        return shared

    monkeypatch.setattr(SharedMap, "__aenter__", slow)
    monkeypatch.setattr("onewriter.sidecar.app.SharedMap", opened)
    chosen: dict[str, Any] = {
        "maps_max": 1,
        "publish_timeout_seconds": PUBLISH_SECONDS,
        "stop_seconds": 60.0,
    }
    async with running_sidecar(broker, tmp_path, **chosen) as sidecar:
        await is_not_opened_in_time(sidecar)
        assert (await put(sidecar, "fast/k", b"v")).status == 201
        await is_not_opened_in_time(sidecar)
