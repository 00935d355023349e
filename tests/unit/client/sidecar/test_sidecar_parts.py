"""The sidecar's settings, command line and idempotency keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.client.fake_broker import begin

from onewriter import ConfigurationError, MessageId, Unavailable
from onewriter.sidecar.cli import sidecar
from onewriter.sidecar.errors import Failure
from onewriter.sidecar.idempotency import IdempotencyKeys
from onewriter.sidecar.settings import Endpoint, Settings

STORED = MessageId(7, 1)


# ---------------------------------------------------------------- settings


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEWRITER_SIDECAR_TOPIC", "orders")
    monkeypatch.setenv("ONEWRITER_SIDECAR_PRIORITY", "-5")
    monkeypatch.setenv("ONEWRITER_SIDECAR_SOCKET", "/run/onewriter/sidecar.sock")
    settings = Settings()
    assert (settings.topic, settings.priority) == ("orders", -5)
    assert Endpoint().socket == settings.socket


def test_the_producer_name_identifies_the_process() -> None:
    settings = Settings(topic="orders", identity="writer-0")
    assert settings.name.startswith("writer-0-")
    assert settings.name == Settings(topic="orders", identity="writer-0").name
    assert Settings(topic="orders", producer_name="fixed").name == "fixed"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "example.com"])
def test_the_api_is_never_offered_to_the_network(host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        Settings(topic="orders", host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_in_every_form(host: str) -> None:
    assert Settings(topic="orders", host=host).host == host


def test_a_sidecar_without_an_address_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a port nor a socket"):
        Settings(topic="orders", port=0)


# ---------------------------------------------------------------- the command


def test_wrong_settings_are_named_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEWRITER_SIDECAR_PRIORITY", "high")
    result = CliRunner().invoke(sidecar, ["--host", "0.0.0.0"])
    assert isinstance(result.exception, ConfigurationError)
    lines = str(result.exception).splitlines()
    names = {line.partition(":")[0] for line in lines}
    assert names == {
        "ONEWRITER_SIDECAR_TOPIC",
        "ONEWRITER_SIDECAR_PRIORITY",
        "ONEWRITER_SIDECAR_HOST",
    }


@pytest.mark.parametrize("verb", ["release", "status"])
def test_sidecar_commands_without_a_sidecar_report_that(tmp_path: Path, verb: str) -> None:
    result = CliRunner().invoke(sidecar, ["--socket", str(tmp_path / "none.sock"), verb])
    assert isinstance(result.exception, Unavailable)
    assert "no sidecar answers" in str(result.exception)


def test_the_command_reports_a_release_key_that_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "none.key"
    words = ["--port", "1", "--release-key-file", str(path), "release"]
    result = CliRunner().invoke(sidecar, words)
    assert isinstance(result.exception, Unavailable)
    assert "cannot read the release key" in str(result.exception)
    assert str(path) in str(result.exception)


# ---------------------------------------------------------------- keys


class Publisher:
    """Publishes as it is told to, and counts."""

    def __init__(self) -> None:
        self.attempts = 0
        self.failure: Failure | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self) -> MessageId:
        self.attempts += 1
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure
        return STORED


async def test_a_second_attempt_waits_for_the_first() -> None:
    remembered, publish = IdempotencyKeys(), Publisher()
    publish.may_end.clear()
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(remembered.once("s", "k", 1, publish)) for _ in range(2)]
        await asyncio.sleep(0)
        publish.may_end.set()
    assert [each.result() for each in both] == [STORED, STORED]
    assert publish.attempts == 1


async def test_a_definite_failure_may_be_retried_with_the_same_key() -> None:
    remembered, publish = IdempotencyKeys(), Publisher()
    publish.failure = Failure(503, "not-sent", "no")
    for _ in range(2):
        with pytest.raises(Failure):
            await remembered.once("s", "k", 1, publish)
    assert publish.attempts == 2
    publish.failure = Failure(504, "unknown", "perhaps", stored=None)
    for _ in range(2):
        with pytest.raises(Failure):
            await remembered.once("s", "k", 1, publish)
    assert publish.attempts == 3, "what may be stored is not sent again"


async def test_an_interrupted_attempt_is_unknown() -> None:
    remembered, publish = IdempotencyKeys(), Publisher()
    publish.may_end.clear()
    first = begin(remembered.once("s", "k", 1, publish))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(Failure) as found:
        await remembered.once("s", "k", 1, publish)
    assert (found.value.status, found.value.stored) == (504, None)


async def test_keys_are_bounded_and_the_oldest_finished_one_goes() -> None:
    remembered, publish = IdempotencyKeys(keys_max=2), Publisher()
    for key in ("a", "b", "c"):
        await remembered.once("s", key, 1, publish)
    assert len(remembered) == 2
    await remembered.once("s", "b", 1, publish)
    assert publish.attempts == 3
    await remembered.once("s", "a", 1, publish)
    assert publish.attempts == 4, "it was forgotten"


async def test_keys_being_worked_on_are_never_forgotten() -> None:
    remembered, publish = IdempotencyKeys(keys_max=1), Publisher()
    publish.may_end.clear()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(remembered.once("s", "a", 1, publish))
        await asyncio.sleep(0)
        with pytest.raises(Failure) as found:
            await remembered.once("s", "b", 1, publish)
        assert found.value.status == 429
        publish.may_end.set()
    assert first.result() == STORED
