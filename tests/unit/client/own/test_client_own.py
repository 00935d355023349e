"""``client.own``: grants without a receiver are released, and requests are validated first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.clock import skip
from tests.unit.client.fake_broker import FakeBroker, FakeLink, begin, client_of

from onewriter import Client, Closed, ConfigurationError, Unavailable
from onewriter_core.errors import ServerError
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

FENCED: Any = ServerError.PRODUCER_FENCED
BUSY: Any = ServerError.PRODUCER_BUSY


class Owning:
    """The scripted broker's ownerships: who owns what by which nonce; OWN may be held back."""

    def __init__(self, broker: FakeBroker) -> None:
        self.owners: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.is_held = False
        self.held: list[tuple[FakeLink, pb.CommandOwn]] = []
        self.lost_answers = 0
        broker.answers[pb.CommandOwn] = self.own
        broker.answers[pb.CommandDisown] = self.disown

    def own(self, link: FakeLink, command: pb.CommandOwn) -> None:
        if self.is_held and not command.only_returns:
            self.held.append((link, command))
            return
        results = [self._result(each.name, command) for each in command.resources]
        if self.lost_answers and not command.only_returns:
            self.lost_answers -= 1
            return
        link.say(pb.CommandOwnResponse(request_id=command.request_id, results=results))

    def _result(self, name: str, command: pb.CommandOwn) -> pb.CommandOwnResponse.Result:
        result = pb.CommandOwnResponse.Result(name=name)
        owner = self.owners.get(name)
        if owner == command.nonce or (owner is None and not command.only_returns):
            self.generations[name] = self.generations.get(name, 0) + (owner is None)
            self.owners[name] = command.nonce
            result.generation = self.generations[name]
        elif command.only_returns:
            result.error = FENCED
            result.message = "over"
        else:
            result.error = BUSY
            result.message = "another identity owns it"
        return result

    def disown(self, link: FakeLink, command: pb.CommandDisown) -> None:
        for each in command.resources:
            assert each.generation == self.generations[each.name]
            self.owners.pop(each.name, None)
        link.write(replies.success(command.request_id))

    def let_go(self) -> None:
        self.is_held = False
        held, self.held = self.held, []
        for link, command in held:
            self.own(link, command)


@pytest.fixture
def owning(broker: FakeBroker) -> Owning:
    return Owning(broker)


async def test_a_cancelled_own_gives_back_what_is_granted_later(
    broker: FakeBroker, client: Client, owning: Owning
) -> None:
    owning.is_held = True
    asking = begin(client.own("group", ["a", "b"]).__aenter__())
    await broker.eventually(lambda: bool(owning.held))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    owning.let_go()
    await broker.received_of(pb.CommandDisown)
    assert owning.owners == {}
    async with client.own("group", ["a"]) as (again,):
        assert again.end is None


async def test_the_next_own_of_the_client_waits_for_what_a_cancelled_one_gives_back(
    broker: FakeBroker, client: Client, owning: Owning
) -> None:
    owning.is_held = True
    asking = begin(client.own("group", ["a"]).__aenter__())
    await broker.eventually(lambda: bool(owning.held))
    asking.cancel()
    next_one = begin(client.own("group", ["a"]).__aenter__())
    await asyncio.sleep(0.01)
    owning.let_go()
    (owned,) = await next_one
    assert owned.end is None
    assert owned.generation == 2


async def test_an_own_that_ran_out_of_time_is_given_back(
    broker: FakeBroker, client: Client, owning: Owning
) -> None:
    await client.own("group", ["warm"])
    owning.is_held = True
    asking = begin(client.own("group", ["a"], timeout_seconds=60).__aenter__())
    await broker.eventually(lambda: bool(owning.held))
    skip(60)
    (late,) = await asking
    assert isinstance(late.end, Unavailable)
    owning.let_go()
    await broker.received_of(pb.CommandDisown)
    assert "a" not in owning.owners
    assert "warm" in owning.owners


async def test_an_own_whose_answer_was_lost_is_given_back(
    broker: FakeBroker, client: Client, owning: Owning
) -> None:
    owning.lost_answers = 1
    asking = begin(client.own("group", ["a"], timeout_seconds=60).__aenter__())
    await broker.received_of(pb.CommandOwn)
    skip(60)
    (late,) = await asking
    assert isinstance(late.end, Unavailable)
    assert "a" in owning.owners
    await broker.received_of(pb.CommandDisown)
    assert owning.owners == {}


async def test_a_cancelled_check_gives_nothing_back(
    broker: FakeBroker, client: Client, owning: Owning
) -> None:
    (owned,) = await client.own("group", ["a"])
    broker.answers[pb.CommandOwn] = None
    checking = begin(owned.check())
    await broker.received_of(pb.CommandOwn, 2)
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    broker.answers[pb.CommandOwn] = owning.own
    await owned.check()
    assert owned.is_owned
    assert not broker.all(pb.CommandDisown)


async def test_release_without_a_name_releases_everything(client: Client, owning: Owning) -> None:
    owned = await client.own("group", ["a", "b"])
    await owned.release()
    assert owning.owners == {}
    assert all(isinstance(each.end, Closed) for each in owned)


@pytest.mark.parametrize(
    "resources", [[("a", "x")], 5, [5], [("a",)], [("a", 1, 2)], [("a", True)], [None]]
)
async def test_invalid_resources_are_a_configuration_error(client: Client, resources: Any) -> None:
    with pytest.raises(ConfigurationError):
        client.own("group", resources)


async def test_an_own_that_the_end_of_the_client_overtakes_is_closed(
    broker: FakeBroker, owning: Owning
) -> None:
    owning.is_held = True
    async with client_of(broker) as client:
        asking = begin(client.own("group", ["a"]).__aenter__())
        await broker.eventually(lambda: bool(owning.held))
    (owned,) = await asking
    assert isinstance(owned.end, Closed)
