"""The rights to publish under a leader's epoch: its registration, and capabilities for others."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator

import pytest
from tests.unit.client.fake_broker import FakeBroker, client_of

from onewriter import Client, ConfigurationError, Unavailable, sync
from onewriter._lead.leadership import CAPABILITY_SECONDS_MAX
from onewriter_core.publish_rights import is_capability_of, parse_capability
from onewriter_core.wire import replies

REGISTRATION = "5ec7e7" * 10


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[Client]:
    broker.registration = REGISTRATION
    async with client_of(broker) as opened:
        yield opened


async def test_a_capability_is_made_from_the_registration(client: Client) -> None:
    async with client.lead("orders") as leadership:
        assert leadership.registration == leadership.producer.registration == REGISTRATION
        found = parse_capability(leadership.capability("app"))
        assert found is not None
        assert found.app == "app"
        assert is_capability_of(found, REGISTRATION)
        other = parse_capability(leadership.capability("app", expires_seconds=86_400))
        assert other is not None
        assert other.expires - found.expires > 86_400 / 2


async def test_a_resume_brings_it_again_or_leaves_it(broker: FakeBroker, client: Client) -> None:
    async with client.lead("orders") as leadership:
        for given, then in [("new", "new"), (None, "new")]:
            broker.registration = given
            resumed = len(broker.links)
            broker.links[-1].cut()
            await broker.eventually(lambda before=resumed: len(broker.links) > before)  # type: ignore[misc]
            await leadership.producer.verify()
            assert leadership.registration == then


@pytest.mark.parametrize(
    "wrong",
    [
        ("a/b", 1.0),
        ("", 1.0),
        ("app", 0.0),
        ("app", -1.0),
        ("app", math.nan),
        ("app", CAPABILITY_SECONDS_MAX + 1),
    ],
)
async def test_invalid_apps_and_times_of_a_capability_are_refused(
    client: Client, wrong: tuple[str, float]
) -> None:
    app, seconds = wrong
    async with client.lead("orders") as leadership:
        with pytest.raises(ConfigurationError):
            leadership.capability(app, expires_seconds=seconds)


async def test_a_broker_without_registrations_has_no_capabilities(
    broker: FakeBroker, client: Client
) -> None:
    broker.registration = None
    async with client.lead("orders") as leadership:
        assert leadership.registration is None
        with pytest.raises(Unavailable, match="no registration"):
            leadership.capability("app")


async def test_the_secrets_are_in_no_log_and_no_repr(
    broker: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with client.lead("orders") as leadership:
        shown = [repr(leadership), repr(leadership.producer), str(leadership.info())]
        shown += [str(leadership.announcement()), repr(leadership.guard)]
        link = broker.links[-1]
        stray = replies.producer_success(99, "x", topic_epoch=1, registration=REGISTRATION)
        link.write(stray)
        await leadership.send(b"behind it")
    assert REGISTRATION not in "".join([*shown, caplog.text])


def test_the_blocking_sibling_has_both() -> None:
    assert isinstance(sync.Leadership.registration, property)
    assert sync.Leadership.capability.__doc__
