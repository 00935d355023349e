"""The audit names who publishes under an epoch before anything of it is published."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace

import pytest
from tests.contents import stored_in
from tests.stamps import stamp_anew
from tests.unit.broker.topic.fence_path_world import BUCKET, ORDERS, Gates, World, serving
from tests.unit.broker.topic.publish.publish_world import Calls
from tests.unit.broker.topic.publish.test_publish_epochs import (
    APP,
    DUPLICATE,
    PublishSetup,
    held,
    setup_of,
)

from onewriter_broker.log.store.api import Outcome
from onewriter_broker.topic.publish.atomic_publishes import AtomicPublishes
from onewriter_broker.topic.publish.publisher_records import PublisherLimits
from onewriter_broker.topic.publish.requests import PublishRequest, PublishResult, PublishRight
from onewriter_broker.verify.reader import verify
from onewriter_core.audit.findings import Finding
from onewriter_core.errors import OnewriterError, Refused, Unavailable, Undecided
from onewriter_core.ids import Identity
from onewriter_core.publishers import CAPABILITY, EVERY_POD, HELD, PUBLISHER
from onewriter_core.topic.model import WHOLE

BEARER = Identity("spark", "uid-1", "driver-0", "node-a")


def records(world: World) -> list[dict[str, str]]:
    """The publishers that the audit names."""
    kept = stored_in(world.server.primary).audits.get(BUCKET, ())
    return [dict(fields) for _, fields in kept if fields["kind"] == PUBLISHER]


async def published(
    setup: PublishSetup, epoch: int, version: int = 1, *, by: Identity | None = None, app: str = APP
) -> PublishResult:
    """Publish as the holder, or as a bearer of its capability."""
    right = PublishRight(epoch, Identity(), is_passed_on=by is not None)
    parts = await setup.staged(version)
    request = PublishRequest(app, version, epoch, parts, by or Identity(), right)
    return await setup.publishing.publish(ORDERS, setup.topic, request, 1_234)


async def violations(world: World) -> list[Finding]:
    (report,) = await verify(world.store, [ORDERS], 64, lambda _log, _entries: None)
    return report.findings.violations


async def test_the_first_publish_of_each_is_recorded() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        for version in (1, 2):
            assert (await published(setup, epoch, version)).where is not None
        for version in (3, 4):
            assert (await published(setup, epoch, version, by=BEARER)).where is not None
        assert (await published(setup, epoch, 1, by=BEARER, app="other")).where is not None
        common = {
            "topic": str(ORDERS),
            "broker": "broker-0~one",
            "t": "1000",
            "kind": PUBLISHER,
            "log": str(ORDERS),
            "epoch": str(epoch),
            "app": APP,
            "holder": "anonymous",
        }
        bearer = {"subject": "spark", "podUID": "uid-1", "pod": "driver-0", "node": "node-a"}
        passed_on = common | bearer | {"right": CAPABILITY}
        assert records(world) == [
            common | {"right": HELD},
            passed_on,
            passed_on | {"app": "other"},
        ]
        assert await violations(world) == []


async def test_each_epoch_has_records_of_its_own() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epochs = [await held(setup)]
        await published(setup, epochs[0], 1)
        epochs.append(await held(setup, "next"))
        await published(setup, epochs[1], 2)
        assert [int(each["epoch"]) for each in records(world)] == epochs
        assert await violations(world) == []


async def test_nothing_is_published_before_the_record_is_stored() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        gates = Gates(world.store, "write_audit")
        asking = asyncio.get_running_loop().create_task(published(setup, epoch))
        await gates.reached("write_audit")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not asking.done()
        assert await setup.entries() == 0
        gates.open("write_audit")
        assert (await asking).where is not None
        assert len(records(world)) == 1


async def refused(asking: Awaitable[PublishResult]) -> OnewriterError:
    with pytest.raises(Unavailable) as channel:
        await asking
    return channel.value


@pytest.mark.parametrize("outcome", [Outcome.FENCED, Outcome.REFENCE, Outcome.LOST])
async def test_where_the_store_refuses_the_record_nothing_is_published(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)

        async def refuse(*_: object) -> Outcome:
            return outcome

        with monkeypatch.context() as context:
            context.setattr(world.store, "write_audit", refuse)
            await refused(published(setup, epoch))
        assert await setup.entries() == 0
        assert (await published(setup, epoch)).where is not None
        assert len(records(world)) == 1


async def test_a_record_with_an_unknown_result_is_written_again() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        parts = await setup.staged()

        def vanish() -> None:
            raise Undecided("the connection is gone")

        Calls(world, 1, vanish, "after", call="write_audit")
        right = PublishRight(epoch, Identity())
        request = PublishRequest(APP, 1, epoch, parts, Identity(), right)
        await refused(setup.publishing.publish(ORDERS, setup.topic, request, 1_234))
        assert await setup.entries() == 0
        answer = await setup.publishing.publish(ORDERS, setup.topic, request, 1_234)
        assert answer.where is not None
        assert len(records(world)) == 2
        assert await violations(world) == []


async def test_a_damaged_audit_publishes_nothing() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        keyspace = world.server.primary.keyspace
        audit = f"ow:{{b{BUCKET}}}:audit".encode()
        kept = keyspace.get(audit)
        assert kept is not None
        keyspace.delete(audit)
        keyspace.put(audit, {b"not": b"a stream"})
        await refused(published(setup, epoch))
        assert await setup.entries() == 0
        keyspace.put(audit, kept)
        assert (await published(setup, epoch)).where is not None


async def test_a_version_published_already_needs_no_record() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        await published(setup, epoch)
        assert await published(setup, epoch, by=BEARER) == DUPLICATE
        assert len(records(world)) == 1


async def test_a_broker_that_is_started_again_records_who_publishes_again() -> None:
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        await published(setup, epoch, 1)
        setup.publishing = AtomicPublishes(world.store, world.appender, setup.staging)
        for version in (2, 3):
            await published(setup, epoch, version)
        assert len(records(world)) == 2
        assert await violations(world) == []


async def test_under_another_binding_the_record_is_written_again() -> None:
    """A failover may have lost the record, so a block after the failover needs another one."""
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        await published(setup, epoch, 1)
        log = setup.runner.logs[WHOLE]
        assert log.binding is not None
        kept = log.binding
        gates = Gates(world.store, "write_audit")
        asking = asyncio.get_running_loop().create_task(published(setup, epoch, 2, by=BEARER))
        await gates.reached("write_audit")
        log._binding = replace(kept, version=kept.version + 1)
        gates.open("write_audit")
        assert "has changed" in str(await refused(asking))
        assert await setup.entries() == 2, "of the first publish alone"
        assert await stamp_anew(world.store, log.binding) is Outcome.DONE
        for version in (2, 3):
            assert (await published(setup, epoch, version, by=BEARER)).where is not None
        assert (await published(setup, epoch, 4)).where is not None
        subjects = [each.get("subject") for each in records(world)]
        assert subjects == [None, "spark", "spark", None]
        assert await violations(world) == []


async def test_records_of_one_epoch_are_bounded() -> None:
    limits = PublisherLimits(publishers_per_epoch_max=3, records_per_epoch_max=5)
    async with serving() as world:
        setup = await setup_of(world)
        setup.publishing = AtomicPublishes(
            world.store, world.appender, setup.staging, publisher_limits=limits
        )
        epoch = await held(setup)
        version = 0

        async def by(subject: str, pod: int) -> PublishResult:
            nonlocal version
            version += 1
            return await published(setup, epoch, version, by=Identity(subject, f"uid-{pod}"))

        for pod in range(10):
            assert (await by("spark", pod)).where is not None
        pods = [each["podUID"] for each in records(world)]
        assert pods == ["uid-0", "uid-1", "uid-2", EVERY_POD]
        assert (await by("flink", 1)).where is not None
        assert [each["podUID"] for each in records(world)] == [*pods, EVERY_POD]
        with pytest.raises(Refused, match="by 5 publishers and apps under epoch"):
            await by("beam", 1)
        assert (await by("spark", 99)).where is not None
        assert len(records(world)) == 5
        assert await violations(world) == []
        epoch = await held(setup, "next")
        assert (await by("beam", 1)).where is not None


async def test_a_block_and_its_record_name_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of both finds a broker that wrote one of them differently."""
    async with serving() as world:
        setup = await setup_of(world)
        epoch = await held(setup)
        monkeypatch.setattr(
            PublishRequest,
            "by",
            property(lambda _: json.dumps({"subject": "mallory"}, separators=(",", ":"))),
        )
        await published(setup, epoch)
        (violation,) = await violations(world)
        assert "is by mallory" in violation.sentence
