"""Expiry of incomplete chunked messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from onewriter import MessageId
from onewriter._consume.chunk_expiry import ChunkExpiry, ChunkLimits
from onewriter._transport.connection import STALL_SECONDS
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

pytestmark = pytest.mark.looptime

SECONDS = 0.02
PERIODS = 10 * SECONDS


class Half:
    """A message of which the first chunk has come."""

    def __init__(self, seconds: float = SECONDS, stall_seconds: float = STALL_SECONDS) -> None:
        self.begun: list[MessageId] = []
        self.given_up: list[MessageId] = []
        self.is_caught_up = True
        limits = ChunkLimits(10, seconds, stall_seconds=stall_seconds)
        self.expiry = ChunkExpiry("orders", self, limits, lambda: self.is_caught_up)
        answer = pb.MessageMetadata(uuid="half", chunk_id=0, num_chunks_from_msg=2)
        self.expiry.assembler.add(answer, MessageId(7, 1), memoryview(b"part"))

    def chunk_begun(self, first: MessageId) -> None:
        self.begun.append(first)

    def chunks_given_up(self, chunk_ids: Sequence[MessageId]) -> None:
        self.given_up += chunk_ids


async def test_an_incomplete_message_expires() -> None:
    half = Half()
    assert half.begun == [MessageId(7, 1)]
    await asyncio.sleep(PERIODS)
    assert half.given_up == [MessageId(7, 1)]


async def test_no_message_expires_while_chunks_may_be_unread() -> None:
    half = Half()
    half.is_caught_up = False
    await asyncio.sleep(PERIODS)
    assert half.given_up == []
    half.is_caught_up = True
    await asyncio.sleep(PERIODS)
    assert half.given_up == [MessageId(7, 1)]


async def test_no_message_expires_after_the_process_stood_still() -> None:
    half = Half(stall_seconds=-1.0)  # every time is too late
    await asyncio.sleep(PERIODS)
    assert half.given_up == []
    half.expiry.stop()


@pytest.mark.parametrize("is_stopped", [False, True], ids=["never", "stopped"])
async def test_no_message_expires_after_stop_or_without_a_limit(*, is_stopped: bool) -> None:
    half = Half(SECONDS if is_stopped else 0)
    if is_stopped:
        half.expiry.stop()
    await asyncio.sleep(PERIODS)
    assert half.given_up == []
