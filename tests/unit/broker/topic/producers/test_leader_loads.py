"""The topics that hosts lead, as one broker counts them, and the choice of the Balanced policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.broker.topic.fence_path_world import FakeChannel, World, serving, until

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.ownership.heartbeats import (
    HOST_LENGTH_MAX,
    HOSTS_MAX,
    VALUE_LENGTH_MAX,
    Beat,
)
from onewriter_broker.ownership.member_observer import DEAD_SECONDS, MemberObserver
from onewriter_broker.topic.producers.leader_loads import LeaderLoads, may_promote
from onewriter_broker.topic.producers.producer import Producer
from onewriter_broker.topic.runner import TopicRunner
from onewriter_core.ids import Identity
from onewriter_core.topic.events import PolicyChanged, ProducerGone, ProducerRequested
from onewriter_core.topic.machine import step
from onewriter_core.topic.model import (
    WHOLE,
    AccessMode,
    PromotionPolicy,
    Request,
    Topic,
    TransitionCause,
    partitioned,
)

WAITING = AccessMode.WAIT_FOR_EXCLUSIVE
EXCLUSIVE = AccessMode.EXCLUSIVE
BALANCED = PromotionPolicy.BALANCED
ADDRESSES = Addresses("pulsar://b:6650", "http://b:8080")
ME, OTHER, THIRD = "broker-0~a", "broker-1~b", "broker-2~c"


def asked(name: str, host: str, mode: AccessMode = WAITING) -> ProducerRequested:
    request = Request(name, name, name, mode, WHOLE, alone=True, identity=Identity(name), host=host)
    return ProducerRequested(request, 0.0)


def claimed(host: str) -> Topic:
    """A topic that is about to be granted to a producer on this host."""
    return step(Topic(partitioned(0), BALANCED), asked("writer", host))[0]


def test_pending_leaders_count_and_former_ones_do_not() -> None:
    loads = LeaderLoads(lambda: {"two": 5})
    loads.note("a", claimed("one"))
    loads.note("b", claimed("one"))
    assert loads.elsewhere("c", ["one", "two", "three"]) == (("one", 2), ("two", 5))
    assert loads.elsewhere("a", ["one"]) == (("one", 1),), "its own topic does not count"
    loads.note("b", claimed("three"))
    loads.note("a", Topic(partitioned(0)))
    assert loads.elsewhere("c", ["one", "three"]) == (("three", 1),)


def test_other_brokers_receive_a_limited_number_of_loads_only_while_a_policy_needs_them() -> None:
    loads = LeaderLoads()
    for number in range(HOSTS_MAX + 5):
        loads.note(f"t{number}", claimed(f"host-{number}"))
    loads.note("one more", claimed("host-3"))
    assert loads.for_brokers() == {}
    loads.is_wanted = True
    counts = loads.for_brokers()
    assert len(counts) == HOSTS_MAX
    assert counts["host-3"] == 2


def test_a_heartbeat_carries_what_hosts_lead() -> None:
    beat = Beat(1, ADDRESSES, leads={"one": 2, "two": 1})
    assert Beat.decode(beat.encode()) == beat
    assert '"leads"' not in Beat(1, ADDRESSES).encode(), "brokers without such topics say nothing"
    full = Beat(1, ADDRESSES, leads={f"{n:03}".ljust(HOST_LENGTH_MAX, "h"): 9 for n in range(999)})
    assert len(full.encode()) <= VALUE_LENGTH_MAX
    assert Beat.decode(Beat(1, ADDRESSES, leads={"x" * 300: 1}).encode()) == Beat(1, ADDRESSES)


def test_a_heartbeat_leaves_out_the_hosts_that_lead_least_and_stays_readable_for_older_brokers() -> (
    None
):
    assert VALUE_LENGTH_MAX == 1024, "brokers of the first versions take longer ones for silence"
    leads = {f"node-{number:02}.example.org": 1 + number // 2 for number in range(HOSTS_MAX)}
    text = Beat(10**6, ADDRESSES, at_ms=10**12, leads=leads).encode()
    assert VALUE_LENGTH_MAX - len(max(leads)) - 8 < len(text) <= VALUE_LENGTH_MAX
    decoded = Beat.decode(text)
    assert decoded is not None
    ranked = sorted(leads.items(), key=lambda each: (-each[1], each[0]))
    assert list(decoded.leads.items()) == ranked[: len(decoded.leads)]
    backwards = dict(reversed(leads.items()))
    assert Beat(10**6, ADDRESSES, at_ms=10**12, leads=backwards).encode() == text
    short = Beat(1, ADDRESSES, leads={f"h{number}": 1 for number in range(999)})
    assert len(short.encode()) <= VALUE_LENGTH_MAX
    quoted = Beat(1, ADDRESSES, leads={"\x00" * 200: 9, "one": 1})
    assert Beat.decode(quoted.encode()) == Beat(1, ADDRESSES, leads={"one": 1})


@pytest.mark.parametrize("leads", ["[]", "7", '"x"'])
def test_a_heartbeat_with_nonsense_is_not_one_of_ours(leads: str) -> None:
    text = Beat(1, ADDRESSES, leads={"one": 1}).encode().replace('{"one": 1}', leads)
    assert Beat.decode(text) is None


def test_counts_that_are_none_are_left_out() -> None:
    text = Beat(1, ADDRESSES, leads={"one": 1}).encode().replace('"one": 1', '"one": 1, "two": "x"')
    decoded = Beat.decode(text)
    assert decoded is not None
    assert decoded.leads == {"one": 1}


def test_the_reports_of_running_brokers_are_added() -> None:
    observer = MemberObserver(ME)

    def feed(now: float, counter: int) -> None:
        observer.feed(
            now,
            {
                ME: Beat(counter, ADDRESSES, leads={"one": 9}).encode(),
                OTHER: Beat(counter, ADDRESSES, leads={"one": 2, "two": 1}).encode(),
                THIRD: Beat(1, ADDRESSES, leads={"two": 4}).encode(),
            },
        )

    feed(0.0, 1)
    assert observer.leads == {"one": 2, "two": 5}
    for turn in range(1, 6):
        feed(turn * DEAD_SECONDS / 4, turn + 1)
    assert observer.leads == {"one": 2, "two": 1}, "the dead lead nothing"


def test_a_request_that_joins_the_queue_behind_a_holder_needs_no_loads() -> None:
    topic = step(Topic(partitioned(0), BALANCED), asked("a", "one"))[0]
    assert not may_promote(topic, asked("b", "two")), "nobody waits yet"
    topic = step(topic, asked("b", "two"))[0]
    assert may_promote(topic, ProducerGone("a", TransitionCause.CLOSED, 0.0))
    assert may_promote(topic, asked("c", "two")), "nobody leads yet"
    fifo = step(topic, PolicyChanged(PromotionPolicy.FIFO, 0.0))[0]
    assert not may_promote(fifo, ProducerGone("a", TransitionCause.CLOSED, 0.0))


async def led_by_the_first_of(
    world: World, hosts: list[str]
) -> tuple[TopicRunner, Producer, dict[str, FakeChannel]]:
    """A Balanced topic with a holder on the first host, and one waiter on each of the others."""
    runner = await world.load()
    runner.post(PolicyChanged(BALANCED, 0.0))
    producer, _ = await world.granted(runner, EXCLUSIVE, host=hosts[0])
    return runner, producer, {host: world.ask(runner, WAITING, host=host)[1] for host in hosts[1:]}


async def test_the_waiter_whose_host_leads_least_is_promoted_and_the_audit_records_why() -> None:
    async with serving() as world:
        others = {"b": 2, "c": 1, "d": 1}
        world.dependencies = replace(world.dependencies, loads=LeaderLoads(lambda: others))
        runner, holder, waiting = await led_by_the_first_of(world, ["a", "b", "c", "d"])
        runner.gone(holder, TransitionCause.CLOSED)
        await until(lambda: any(channel.ready for channel in waiting.values()))
        assert [host for host, channel in waiting.items() if channel.ready] == ["c"]
        records = [record for _, record in await world.store.read_audit(runner.bucket, count=10)]
        grant = [record for record in records if record["kind"] == "grant"][-1]
        assert (grant["policy"], grant["host"], grant["load"]) == ("Balanced", "c", "1")
        assert '"host": "d", "load": 1' in grant["nextWaiter"]
        assert world.dependencies.loads.elsewhere("another", ["c"]) == (("c", 2),)
        runner.unload("moves")
        assert world.dependencies.loads.elsewhere("another", ["c"]) == (("c", 1),)
