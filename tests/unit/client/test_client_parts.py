"""Parts of the SDK that need no broker: URLs, delays, the outbox, exports."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onewriter
from onewriter import (
    ConfigurationError,
    Fenced,
    MessageId,
    NotSent,
    OutcomeUnknown,
    Unavailable,
    requeue_delay_seconds,
    token_file,
)
from onewriter._config import (
    BACKOFF_MAX_SECONDS,
    REQUEUE_SECONDS_MAX,
    TOKEN_BYTES_MAX,
    Address,
    Backoff,
    parse_service_url,
)
from onewriter._errors import answer_of
from onewriter._produce.outbox import Outbox, Pending
from onewriter._produce.packer import Outgoing, Packed
from onewriter._transport.connection import Connection
from onewriter_core.errors import Refused, ServerError
from onewriter_core.wire.values import MessageId as WireId

# ---------------------------------------------------------------- what is public


def test_every_exported_name_exists_and_has_a_docstring() -> None:
    assert len(set(onewriter.__all__)) == len(onewriter.__all__)
    public = {name for name in vars(onewriter) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(onewriter, name), ModuleType)}
    assert public - modules == set(onewriter.__all__)
    for name in onewriter.__all__:
        exported = getattr(onewriter, name)
        assert name == "TokenSource" or exported.__doc__, f"{name} does not say what it is"


def test_importing_the_sdk_needs_nothing_of_the_sidecar_or_the_broker() -> None:
    program = (
        "import sys, onewriter; bad = {'aiohttp', 'structlog', 'onewriter_broker'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------- names and addresses


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("pulsar://a", [Address("a", 6650, is_tls=False)]),
        ("pulsar+ssl://a/", [Address("a", 6651, is_tls=True)]),
        ("pulsar://a:1,b:2", [Address("a", 1, is_tls=False), Address("b", 2, is_tls=False)]),
        ("pulsar://[::1]:7", [Address("::1", 7, is_tls=False)]),
        ("pulsar://[::1]", [Address("::1", 6650, is_tls=False)]),
    ],
)
def test_service_urls(url: str, found: list[Address]) -> None:
    assert list(parse_service_url(url)) == found
    for address in found:
        assert parse_service_url(str(address)) == (address,)


@pytest.mark.parametrize(
    "url", ["", "a:1", "http://a", "pulsar://", "pulsar://a:x", "pulsar://a:0", "pulsar://a,,b"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_service_url(url)


async def test_a_token_file_is_read_again_and_errors_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = token_file(path)
    with pytest.raises(Unavailable, match="cannot be read"):
        await source()
    path.write_text(" one\n")
    assert await source() == "one"
    path.write_text("two")
    assert await source() == "two"
    path.write_text("\n")
    with pytest.raises(Unavailable, match="is empty"):
        await source()
    path.write_bytes(b"x" * (TOKEN_BYTES_MAX + 1))
    with pytest.raises(Unavailable, match="more than"):
        await source()


# ---------------------------------------------------------------- delays


@given(st.integers(-(2**31), 2**31 - 1), st.floats(0, 1, exclude_max=True))
def test_the_requeue_delay_is_pip_440s(priority: int, drawn: float) -> None:
    delay = requeue_delay_seconds(priority, lambda: drawn)
    assert 0 <= delay <= REQUEUE_SECONDS_MAX
    assert (delay > 0) == (priority > 0)
    assert delay <= requeue_delay_seconds(max(priority, 0) + 1, lambda: drawn)


def test_the_requeue_delay_grows_is_jittered_and_capped() -> None:
    at_most = [requeue_delay_seconds(priority, lambda: 1.0) for priority in (0, 1, 10, 100, 1000)]
    assert at_most == [0.0, 0.01, 0.1, 1.0, 1.0]
    assert requeue_delay_seconds(10, lambda: 0.0) == pytest.approx(0.05)


def test_pauses_grow_to_a_limit_and_begin_again() -> None:
    backoff = Backoff()
    pauses = [backoff.seconds() for _ in range(20)]
    assert all(0 < pause <= BACKOFF_MAX_SECONDS for pause in pauses)
    assert pauses[-1] >= BACKOFF_MAX_SECONDS / 2
    backoff.reset()
    assert backoff.seconds() <= 0.05


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "current"),
    [
        ("Topic epoch has already moved. Current epoch: 12, Producer epoch: 7", 12),
        ("Topic epoch 9 was never granted, the current one is 8", 8),
        ("Fenced out", None),
    ],
)
def test_the_current_epoch_is_parsed_from_the_message_of_the_broker(
    text: str, current: int | None
) -> None:
    fenced = answer_of(ServerError.PRODUCER_FENCED, text, epoch=7)
    assert isinstance(fenced, Fenced)
    assert (fenced.epoch, fenced.current_epoch) == (7, current)


@pytest.mark.parametrize("code", ServerError)
def test_every_code_is_a_definite_no_or_a_not_now(code: ServerError) -> None:
    error = answer_of(code, "text")
    assert isinstance(error, Refused | Unavailable)
    assert isinstance(error, Fenced) == (code is ServerError.PRODUCER_FENCED)


def test_message_ids_order_and_print_as_pulsars_do() -> None:
    assert str(MessageId(7, 12)) == "7:12:-1"
    assert MessageId(7, 12) < MessageId(7, 13) < MessageId(8, 1)
    assert MessageId.of(WireId(2**64 - 1, 2**64 - 1)) == MessageId(-1, -1)


# ---------------------------------------------------------------- the outbox


def connection(*, is_closed: bool = False, is_onewriter: bool = True) -> Connection:
    stand_in: Any = SimpleNamespace(is_closed=is_closed, is_onewriter=is_onewriter)
    return cast("Connection", stand_in)


def pending(sequence_id: int, size: int = 10) -> Pending:
    loop = asyncio.get_running_loop()
    return Pending(sequence_id, b"", b"x" * size, (loop.create_future(),))


def endings(*messages: Pending) -> list[type[BaseException | None]]:
    return [type(message.receipts[0].exception()) for message in messages]


async def test_the_outbox_is_bounded_by_messages_and_bytes() -> None:
    outbox = Outbox(2, 100)
    assert outbox.has_space(1_000), "one message always goes"
    outbox.add(pending(0, 60))
    assert outbox.has_space(40)
    assert not outbox.has_space(41)
    outbox.add(pending(1, 10))
    assert not outbox.has_space(1)
    assert (len(outbox), outbox.bytes) == (2, 70)


async def test_answers_come_in_order_or_are_old() -> None:
    outbox = Outbox(10, 1000)
    first, second = pending(0), pending(1)
    outbox.add(first)
    outbox.add(second)
    with pytest.raises(LookupError):
        outbox.answered(0)  # never written
    link = connection()
    outbox.wrote(link, 0.0)
    outbox.wrote(link, 0.0)
    with pytest.raises(LookupError):
        outbox.answered(1)
    assert outbox.answered(0) is first
    assert outbox.answered(0) is None, "it was answered before"
    assert outbox.answered(1) is second
    assert outbox.answered(5) is None
    assert outbox.bytes == 0


def repacked(messages: Sequence[Outgoing]) -> Packed:
    return Packed(b"", b"".join(message.content for message in messages))


async def test_an_unwritten_message_can_be_withdrawn() -> None:
    outbox = Outbox(10, 1000)
    written, waiting = pending(0), pending(1)
    outbox.add(written)
    outbox.add(waiting)
    outbox.wrote(connection(), 0.0)
    assert not outbox.withdraw(written.receipts[0], repacked)
    assert outbox.withdraw(waiting.receipts[0], repacked)
    assert not outbox.withdraw(waiting.receipts[0], repacked)
    outbox.rewind()
    assert outbox.next_unwritten() is written
    assert not outbox.withdraw(written.receipts[0], repacked), (
        "it may be in the log since the first connection"
    )
    assert outbox.bytes == 10


@pytest.mark.parametrize(
    ("said_by", "expected"),
    [
        ("the same", Fenced),
        ("another", OutcomeUnknown),
        ("nobody", OutcomeUnknown),
        ("the same, closed", OutcomeUnknown),
        ("the same, of Pulsar", OutcomeUnknown),
    ],
)
async def test_only_the_connection_that_carried_a_message_can_prove_its_absence(
    said_by: str, expected: type[Exception]
) -> None:
    link = connection(is_closed="closed" in said_by, is_onewriter="Pulsar" not in said_by)
    outbox = Outbox(10, 1000)
    written, waiting = pending(0), pending(1)
    outbox.add(written)
    outbox.wrote(link, 0.0)
    outbox.add(waiting)
    judge = {"another": connection(), "nobody": None}.get(said_by, link)
    outbox.fail(judge, lambda: Fenced("no"), lambda: OutcomeUnknown("perhaps"))
    assert endings(written, waiting) == [expected, Fenced]
    assert len(outbox) == outbox.bytes == 0


async def test_a_message_that_was_written_twice_stays_unknown() -> None:
    outbox = Outbox(10, 1000)
    message = pending(0)
    outbox.add(message)
    outbox.wrote(connection(), 0.0)
    outbox.rewind()
    link = connection()
    outbox.wrote(link, 0.0)
    outbox.fail(link, lambda: NotSent("no"), lambda: OutcomeUnknown("perhaps"))
    assert endings(message) == [OutcomeUnknown]
