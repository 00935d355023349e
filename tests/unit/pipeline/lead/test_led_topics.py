"""The topics that a driver leads: shared by uses, released in time, lost for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

import pytest

from onewriter import Fenced, OnewriterError, Refused, ServerError, Unavailable
from onewriter_pipeline.brokers.connection import Access, AccessLimits
from onewriter_pipeline.errors import Away, Conflict, Invalid, NotAllowed, NotFound
from onewriter_pipeline.lead import topics as topics_module
from onewriter_pipeline.lead.requests import BEGIN, END, LEAD, Grant, LeaderRequest
from onewriter_pipeline.lead.topics import Topics

pytestmark = pytest.mark.looptime

ORDERS = "persistent://public/default/orders"
RETURNS = "persistent://public/default/returns"
ACCESS = Access("http://localhost:1")
IDLE_SECONDS = 60.0


class FakeLeadership:
    """A leadership of the SDK, as far as the leader process uses it."""

    def __init__(self, brokers: Brokers, topic: str, epoch: int) -> None:
        self.epoch = epoch
        self.partitions = (object(),) * brokers.partitions
        self.lost = self
        self.is_over = False
        self._brokers, self._topic = brokers, topic
        self._reported: list[Callable[[OnewriterError], object]] = []

    def call(self, callback: Callable[[OnewriterError], object]) -> None:
        self._reported.append(callback)

    def lose(self, *, tells: bool = True) -> None:
        """Another producer takes the topic; ``tells`` False: without a notification."""
        self._brokers.epoch += 1
        self._brokers.leaders[self._topic] = "somebody else"
        if tells:
            self.is_over = True
            for callback in self._reported:
                callback(Fenced("a takeover"))

    async def check(self) -> None:
        if self._brokers.leaders[self._topic] is not self:
            raise Fenced("the epoch is over")

    async def handover(self, *, timeout_seconds: float) -> None:
        del timeout_seconds
        self.is_over = True
        await asyncio.sleep(self._brokers.handover_seconds)
        if self._brokers.leaders.get(self._topic) is self:
            del self._brokers.leaders[self._topic]

    def capability(self, app: str, *, expires_seconds: float) -> str:
        return f"{app}.{expires_seconds:.0f}.{self.epoch}"


class FakeLead:
    def __init__(self, brokers: Brokers, topic: str, mode: str) -> None:
        self._brokers, self._topic, self._mode = brokers, topic, mode

    async def __aenter__(self) -> FakeLeadership:
        brokers = self._brokers
        if brokers.refusal is not None:
            raise brokers.refusal
        await asyncio.sleep(1.0)
        if self._topic in brokers.leaders and "FENCING" not in self._mode:
            raise Fenced("existing exclusive producer")
        brokers.epoch += 1
        led = FakeLeadership(brokers, self._topic, brokers.epoch)
        brokers.leaders[self._topic] = led
        return led


class Brokers:
    """The holders of topics. Also replaces a client of the SDK."""

    def __init__(self) -> None:
        self.leaders: dict[str, Any] = {}
        self.epoch = 0
        self.partitions = 0
        self.refusal: OnewriterError | None = None
        self.clients = 0
        self.handover_seconds = 0.0

    def __call__(self, access: Access, service_url: str) -> Any:
        del access, service_url
        return self

    async def __aenter__(self) -> Self:
        self.clients += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.clients -= 1

    def lead(self, topic: str, *, access_mode: Any, **_: Any) -> FakeLead:
        return FakeLead(self, topic, access_mode.name)

    async def partitions_of(self, topic: str) -> int:
        del topic
        return self.partitions


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def topics(brokers: Brokers) -> Topics:
    return Topics(brokers)


def request(what: str, use: str = "query", *names: str, **more: Any) -> LeaderRequest:
    wanted = more.pop("topics", dict.fromkeys(names or (ORDERS,), 0))
    return LeaderRequest(what, use, ACCESS, topics=wanted, idle_seconds=IDLE_SECONDS, **more)


def test_request_keeps_the_access_over_the_line() -> None:
    access = Access("http://a", limits=AccessLimits(pause_seconds=0.5))
    sent = LeaderRequest(BEGIN, "query", access)
    assert LeaderRequest.of(sent.line()) == sent


async def test_batch_write_leads_from_its_beginning_to_its_end(
    topics: Topics, brokers: Brokers
) -> None:
    begun = await topics.begin(request(BEGIN, app="job"))
    assert begun == {ORDERS: Grant(1, f"job.{topics_module.CAPABILITY_SECONDS:.0f}.1")}
    again = await topics.begin(request(BEGIN, app="job"))
    assert {name: grant.epoch for name, grant in again.items()} == {ORDERS: 1}
    led = await topics.lead(request(LEAD, topics={ORDERS: 1}, app="job"))
    assert led == begun
    await topics.end(request(END, is_over=True))
    assert (brokers.leaders, brokers.clients, topics.is_idle) == ({}, 0, True)


async def test_query_leads_between_batches_until_its_idle_time_ends(
    topics: Topics, brokers: Brokers
) -> None:
    for _ in range(3):
        assert (await topics.begin(request(BEGIN)))[ORDERS].epoch == 1
        await topics.end(request(END))
        await asyncio.sleep(IDLE_SECONDS - 1)
        await topics.sweep()
    await asyncio.sleep(2)
    await topics.sweep()
    assert (brokers.leaders, topics.is_idle) == ({}, True)
    assert (await topics.begin(request(BEGIN)))[ORDERS].epoch == 2


async def test_long_batch_is_not_idle_and_endless_batch_is_dropped(
    topics: Topics, brokers: Brokers
) -> None:
    await topics.begin(request(BEGIN))
    await asyncio.sleep(topics_module.BATCH_SECONDS_MAX - 10)
    await topics.sweep()
    assert ORDERS in brokers.leaders
    await asyncio.sleep(20)
    await topics.sweep()
    assert brokers.leaders == {}


async def test_write_that_begins_during_a_release_waits_for_it(
    topics: Topics, brokers: Brokers
) -> None:
    brokers.handover_seconds = 5.0
    await topics.begin(request(BEGIN, "first"))
    _, begun = await asyncio.gather(
        topics.end(request(END, "first", is_over=True)), topics.begin(request(BEGIN, "second"))
    )
    assert begun[ORDERS].epoch == 2


async def test_uses_of_one_driver_share_a_topic(topics: Topics, brokers: Brokers) -> None:
    first, second = await asyncio.gather(
        topics.begin(request(BEGIN, "first")), topics.begin(request(BEGIN, "second"))
    )
    assert first == second
    await topics.end(request(END, "first", is_over=True))
    assert ORDERS in brokers.leaders
    partition = f"{ORDERS}-partition-1"
    assert (await topics.begin(request(BEGIN, "third", partition)))[partition].epoch == 1
    await topics.end(request(END, "second", is_over=True))
    await topics.end(request(END, "third", is_over=True))
    assert brokers.leaders == {}


async def test_topic_with_another_leader_is_refused_or_fenced(
    topics: Topics, brokers: Brokers
) -> None:
    brokers.leaders[ORDERS] = "somebody else"
    with pytest.raises(Conflict, match="another producer holds"):
        await topics.begin(request(BEGIN))
    assert topics.is_idle, "nothing is left of a batch that did not begin"
    assert await topics.begin(request(BEGIN, mode="exclusive-with-fencing"))


@pytest.mark.parametrize("tells", [True, False])
async def test_loss_between_batches_fails_the_next_batch_once(
    topics: Topics, brokers: Brokers, *, tells: bool
) -> None:
    await topics.begin(request(BEGIN))
    await topics.end(request(END))
    brokers.leaders[ORDERS].lose(tells=tells)
    with pytest.raises(Conflict, match=r"does not lead .*orders any more: epoch 1 is over"):
        await topics.begin(request(BEGIN))
    with pytest.raises(Conflict, match="another producer holds"):
        await topics.begin(request(BEGIN))
    del brokers.leaders[ORDERS]
    assert (await topics.begin(request(BEGIN)))[ORDERS].epoch == 3


async def test_loss_during_a_batch_fails_its_commit(topics: Topics, brokers: Brokers) -> None:
    await topics.begin(request(BEGIN, mode="exclusive-with-fencing"))
    brokers.leaders[ORDERS].lose()
    again = await topics.begin(request(BEGIN, mode="exclusive-with-fencing"))
    assert again[ORDERS].epoch == 1, "its commit asks in another process"
    with pytest.raises(Conflict, match="nothing more is published"):
        await topics.lead(request(LEAD, topics={ORDERS: 1}, mode="exclusive-with-fencing"))
    await topics.end(request(END, is_over=True))
    assert await topics.begin(request(BEGIN, mode="exclusive-with-fencing"))


async def test_batch_is_not_published_under_a_later_epoch_of_its_driver(topics: Topics) -> None:
    await topics.begin(request(BEGIN, "one"))
    await topics.end(request(END, "one", is_over=True))
    await topics.begin(request(BEGIN, "one"))
    with pytest.raises(Conflict, match="began under epoch 1"):
        await topics.lead(request(LEAD, "one", topics={ORDERS: 1}))
    assert await topics.lead(request(LEAD, "one", topics={ORDERS: 2}))


async def test_topics_that_rows_name_are_led_on_demand(topics: Topics, brokers: Brokers) -> None:
    assert await topics.begin(request(BEGIN, topics={})) == {}
    led = await topics.lead(request(LEAD, "query", ORDERS, RETURNS, app="job"))
    assert [grant.epoch for grant in led.values()] == [1, 2]
    await topics.end(request(END, is_over=True))
    assert brokers.leaders == {}


async def test_added_partitions_are_led_from_the_next_batch_on(
    topics: Topics, brokers: Brokers
) -> None:
    brokers.partitions = 2
    assert (await topics.begin(request(BEGIN)))[ORDERS].epoch == 1
    brokers.partitions = 5
    assert (await topics.lead(request(LEAD, topics={ORDERS: 1})))[ORDERS].epoch == 1
    await topics.end(request(END))
    assert (await topics.begin(request(BEGIN)))[ORDERS].epoch == 2


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Refused(ServerError.AUTHORIZATION_ERROR, "no"), NotAllowed),
        (Refused(ServerError.TOPIC_NOT_FOUND, "no"), NotFound),
        (Refused(ServerError.TOPIC_TERMINATED_ERROR, "no"), Conflict),
        (Refused(ServerError.NOT_ALLOWED_ERROR, "no"), Invalid),
        (Unavailable("away"), Away),
    ],
    ids=str,
)
async def test_refusals_of_brokers_become_errors_of_the_pipeline(
    topics: Topics, brokers: Brokers, refusal: OnewriterError, error: type[Exception]
) -> None:
    brokers.refusal = refusal
    with pytest.raises(error, match="orders"):
        await topics.begin(request(BEGIN))
    assert topics.is_idle


@pytest.mark.parametrize("bounds", [{"uses_max": 1}, {"topics_max": 1}])
async def test_number_of_led_topics_and_uses_is_bounded(
    brokers: Brokers, bounds: dict[str, int]
) -> None:
    topics = Topics(brokers, **bounds)
    await topics.begin(request(BEGIN, "one"))
    with pytest.raises(Invalid, match="already"):
        await topics.begin(request(BEGIN, "two", RETURNS))


async def test_close_releases_everything(topics: Topics, brokers: Brokers) -> None:
    await topics.begin(request(BEGIN, "one", ORDERS, RETURNS))
    closing: Coroutine[Any, Any, None] = topics.close()
    await closing
    assert (brokers.leaders, brokers.clients) == ({}, 0)
