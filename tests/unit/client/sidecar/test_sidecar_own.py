"""``/own`` of a sidecar with a scripted broker: single requests, immediate notification, release."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin
from tests.unit.client.sidecar_world import SidecarWorld, running_sidecar

from onewriter.sidecar.limits import SidecarLimits
from onewriter_core.errors import ServerError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.replies import wire_code

EVENTS = {"Accept": "text/event-stream"}


class Table:
    """Gives everything that is asked for, unless it is among the ``denied``."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.denied: set[str] = set()
        self.released: list[str] = []
        self._link: FakeLink | None = None
        broker.answers[pb.CommandOwn] = self._own
        broker.answers[pb.CommandDisown] = self._disown

    def _own(self, link: FakeLink, command: pb.CommandOwn) -> None:
        self._link = link
        results = []
        for each in command.resources:
            result = pb.CommandOwnResponse.Result(name=each.name)
            if each.name in self.denied:
                result.error = wire_code(ServerError.PRODUCER_FENCED)
                result.message = "somebody owns it"
                result.current_generation = 9
            else:
                result.generation = each.generation
            results.append(result)
        link.say(pb.CommandOwnResponse(request_id=command.request_id, results=results))

    def _disown(self, link: FakeLink, command: pb.CommandDisown) -> None:
        self.released += [each.name for each in command.resources]
        link.say(pb.CommandSuccess(request_id=command.request_id))

    def depose(self, group: str, name: str, generation: int = 1) -> None:
        """Somebody with a higher generation takes it."""
        assert self._link is not None
        self._link.say(
            pb.CommandOwnershipLost(
                group=group,
                resource=pb.OwnedResource(name=name, generation=generation),
                message="taken over",
                current_generation=generation + 1,
            )
        )


@pytest.fixture
def table(broker: FakeBroker) -> Table:
    return Table(broker)


async def own(sidecar: SidecarWorld, *resources: Any, group: str = "g") -> list[Any]:
    body = json.dumps({"group": group, "resources": resources})
    answer = await sidecar.call("POST", "/own", body)
    assert answer.status == 200, answer.body
    return list(answer.body["ownerships"])


async def next_event(response: Any) -> dict[str, Any]:
    while True:
        line = (await response.content.readline()).decode()
        assert line, "the stream ended"
        if line.startswith("data: "):
            found: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return found


async def test_an_owned_resource_is_not_requested_again(
    broker: FakeBroker, table: Table, sidecar: SidecarWorld
) -> None:
    del table
    body = {"name": "b", "generation": 3}
    first, second = await own(sidecar, "a", body)
    assert (first["generation"], second["generation"], second["owned"]) == (1, 3, True)
    assert await own(sidecar, body, "a") == [second, first]
    assert len(broker.all(pb.CommandOwn)) == 1
    (higher,) = await own(sidecar, {"name": "a", "generation": 2})
    assert higher["generation"] == 2


async def test_two_concurrent_requests_cause_one_call(
    broker: FakeBroker, table: Table, sidecar: SidecarWorld
) -> None:
    """The second one would depose the first."""
    del table
    answers = await asyncio.gather(*(own(sidecar, "a") for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert len(broker.all(pb.CommandOwn)) == 1


async def test_the_event_stream_reports_owned_lost_and_released_resources(
    table: Table, sidecar: SidecarWorld
) -> None:
    await own(sidecar, "a")
    url = "http://sidecar/own?group=g"
    async with sidecar.session.get(url, headers=EVENTS) as response:
        assert response.content_type == "text/event-stream"
        present = await next_event(response)
        assert (present["resource"], present["owned"], present["generation"]) == ("a", True, 1)
        await own(sidecar, "not told", group="another")
        await own(sidecar, "b")
        assert (await next_event(response))["resource"] == "b"
        table.depose("g", "a")
        lost = await next_event(response)
        assert (lost["resource"], lost["owned"], lost["currentGeneration"]) == ("a", False, 2)
        body = json.dumps({"group": "g", "resources": ["b", "unheard of"]})
        released = await sidecar.call("DELETE", "/own", body)
        assert released.body == {"released": ["b"]}
        reported = await next_event(response)
        assert (reported["resource"], reported["owned"], reported["error"]) == (
            "b",
            False,
            "released",
        )
        assert table.released == ["b"]
        sidecar.stopping.set()
        while await response.content.readline() != b"":
            pass


async def test_waiting_for_a_loss(table: Table, sidecar: SidecarWorld) -> None:
    await own(sidecar, "a", "b")
    path = "/own?group=g&until=lost&timeoutSeconds="
    early = await sidecar.call("GET", path + "0.01")
    assert [each["owned"] for each in early.body["ownerships"]] == [True, True]
    waiting = begin(sidecar.call("GET", path + "30"))
    await asyncio.sleep(0)
    table.depose("g", "b")
    reported = await waiting
    assert [each["owned"] for each in reported.body["ownerships"]] == [True, False]


async def test_a_denied_resource_is_reported(table: Table, sidecar: SidecarWorld) -> None:
    table.denied.add("a")
    denied, given = await own(sidecar, "a", "b")
    assert (denied["owned"], denied["currentGeneration"]) == (False, 9)
    assert given["owned"]
    table.denied.clear()
    (now,) = await own(sidecar, "a")
    assert now["owned"], "it may be asked for again"


async def test_verified_asks_the_brokers(
    broker: FakeBroker, table: Table, sidecar: SidecarWorld, limits: SidecarLimits
) -> None:
    await own(sidecar, "a", "b")
    requests = len(broker.all(pb.CommandOwn))
    sure = await sidecar.call("GET", "/own?verified=true")
    assert sure.body["verified"] is True
    assert len(broker.all(pb.CommandOwn)) == requests + 1, "all of one request in one question"
    table.denied.add("b")
    over = await sidecar.call("GET", "/own?verified=true")
    assert [each["owned"] for each in over.body["ownerships"]] == [True, False]
    broker.answers[pb.CommandOwn] = None
    requests = len(broker.all(pb.CommandOwn))
    asking = begin(sidecar.call("GET", "/own?verified=true"))
    await broker.received_of(pb.CommandOwn, requests + 1)
    skip(limits.own_check_seconds)
    unsure = await asking
    assert unsure.body["verified"] is False


@pytest.mark.parametrize("limits", [SidecarLimits(ownerships_max=2)])
async def test_the_number_of_ownerships_is_bounded(table: Table, sidecar: SidecarWorld) -> None:
    del table
    await own(sidecar, "a", "b")
    body = json.dumps({"group": "g", "resources": ["b", "c"]})
    answer = await sidecar.call("POST", "/own", body)
    assert (answer.status, answer.body["error"]) == (429, "too-many")
    await sidecar.call("DELETE", "/own", json.dumps({"group": "g", "resources": ["a"]}))
    assert (await sidecar.call("POST", "/own", body)).status == 200
    assert "onewriter_sidecar_ownerships 2.0" in str((await sidecar.call("GET", "/metrics")).body)


async def test_an_end_gives_everything_back(broker: FakeBroker, tmp_path: Path) -> None:
    table = Table(broker)
    async with running_sidecar(broker, tmp_path) as sidecar:
        await own(sidecar, "a")
        await own(sidecar, "b")
    assert sorted(table.released) == ["a", "b"]
