"""Results of publishes with an Idempotency-Key, so that a retry does not store a message twice."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from onewriter._message import MessageId
from onewriter.sidecar.errors import Failure

KEYS_MAX = 4_096
"""Largest number of remembered keys; the oldest key with a known result is forgotten first."""

KEY_LENGTH_MAX = 256


@dataclass(slots=True)
class _Attempt:
    fingerprint: int
    outcome: asyncio.Future[MessageId | Failure]


class IdempotencyKeys:
    """The keys of one sidecar. A key belongs to the session of its first use."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._attempts: OrderedDict[tuple[str, str], _Attempt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    async def once(
        self,
        session: str,
        key: str,
        fingerprint: int,
        publish: Callable[[], Awaitable[MessageId]],
    ) -> MessageId:
        """Publish, or return the result of the first attempt with this key. Raises Failure.

        An attempt that definitely stored nothing is forgotten: its retry is a first attempt.
        """
        if not 0 < len(key) <= KEY_LENGTH_MAX:
            raise Failure(
                400,
                "bad-key",
                f"an Idempotency-Key has 1 to {KEY_LENGTH_MAX} characters, not {len(key)}",
            )
        present = self._attempts.get((session, key))
        if present is not None:
            if present.fingerprint != fingerprint:
                raise Failure(
                    422,
                    "key-reused",
                    "this Idempotency-Key was used for another message; use a new one",
                )
            return _result(await asyncio.shield(present.outcome))
        self._make_space()
        outcome: asyncio.Future[MessageId | Failure] = asyncio.get_running_loop().create_future()
        self._attempts[session, key] = _Attempt(fingerprint, outcome)
        ending: MessageId | Failure = Failure(
            504, "unknown", "the first attempt was interrupted", stored=None
        )
        try:
            ending = await publish()
        except Failure as failure:
            ending = failure
        finally:
            outcome.set_result(ending)
            if isinstance(ending, Failure) and ending.stored is False:
                del self._attempts[session, key]
        return _result(ending)

    def _make_space(self) -> None:
        while len(self._attempts) >= self._keys_max:
            oldest = next((k for k, each in self._attempts.items() if each.outcome.done()), None)
            if oldest is None:
                text = f"{self._keys_max} requests with an Idempotency-Key are in progress; retry later"
                raise Failure(429, "too-many-keys", text)
            del self._attempts[oldest]


def _result(ending: MessageId | Failure) -> MessageId:
    if isinstance(ending, Failure):
        raise ending
    return ending
