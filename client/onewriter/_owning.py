"""Asking brokers for ownerships: many resources at once, each at the broker that keeps it.

What lives here: one question, followed from broker to broker until every resource has its answer.
What does not: what an ownership is to the application, and how it is kept (_own.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onewriter._config import Address, Backoff, Limits
from onewriter._connection import Connection
from onewriter._errors import (
    RETRYABLE,
    Fenced,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._lookup import Directory
from onewriter_core.errors import ProtocolError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

RESOURCES_PER_REQUEST_MAX = 1_000
"""What a broker takes in one request."""

RELEASE_SECONDS = 5.0
"""For giving up what a broker does not answer for; it finds out by itself."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks: the same for all resources of one set."""

    group: str
    identity: str
    nonce: str
    serve_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Given:
    """A resource is owned, as the broker at the other end of ``connection`` said."""

    generation: int
    connection: Connection


Answers = dict[str, Given | OnewriterError]


class Owners:
    """Asks for one client."""

    def __init__(self, directory: Directory, limits: Limits) -> None:
        self._directory = directory
        self._limits = limits

    async def ask(
        self,
        asker: Asker,
        wanted: Mapping[str, int],
        *,
        at: Mapping[str, Address] | None = None,
        only_returns: bool = False,
        seconds: float | None = None,
    ) -> Answers:
        """The answer for each resource: Given, a definite Refused, or Unavailable after ``seconds``.

        ``at``: brokers to ask first.

        Asking again with the same nonce is harmless: what was given meanwhile is given again.
        """
        limit = self._limits.operation_timeout_seconds if seconds is None else seconds
        answers: Answers = {}
        pending = {resource: (at or {}).get(resource) for resource in wanted}
        troubles: dict[str, OnewriterError] = {}
        backoff = Backoff()
        try:
            async with asyncio.timeout(limit):
                while True:
                    was_moved = False
                    for address, resources in _batches(pending):
                        moved = await self._ask_once(
                            asker,
                            {each: wanted[each] for each in resources},
                            address,
                            answers,
                            troubles,
                            only_returns=only_returns,
                        )
                        was_moved = was_moved or bool(moved)
                        pending.update(moved)
                        for each in resources:
                            if each in answers:
                                del pending[each]
                            elif each not in moved:
                                pending[each] = None
                    if not pending:
                        return answers
                    if not was_moved:
                        await asyncio.sleep(backoff.seconds())
        except TimeoutError:
            for each in pending:
                trouble = troubles.get(each, "no answer")
                answers[each] = Unavailable(f"{each} not owned within {limit:g} s: {trouble}")
            return answers

    async def release(self, asker: Asker, owned: Iterable[tuple[str, Given]]) -> None:
        """Give up; who cannot be reached finds out by itself. Raises nothing but its cancellation."""
        by_connection: dict[Connection, list[tuple[str, int]]] = {}
        for resource, given in owned:
            if not given.connection.is_closed:
                found = by_connection.setdefault(given.connection, [])
                found.append((resource, given.generation))
        for connection, resources in by_connection.items():
            for start in range(0, len(resources), RESOURCES_PER_REQUEST_MAX):
                chunk = resources[start : start + RESOURCES_PER_REQUEST_MAX]
                command = pb.CommandDisown(
                    request_id=connection.next_request_id(),
                    group=asker.group or None,
                    resources=[pb.OwnedResource(name=name, generation=n) for name, n in chunk],
                )
                try:
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await connection.request(command)
                except (Unavailable, Refused, TimeoutError):
                    break

    async def _ask_once(
        self,
        asker: Asker,
        wanted: Mapping[str, int],
        address: Address | None,
        answers: Answers,
        troubles: dict[str, OnewriterError],
        *,
        only_returns: bool,
    ) -> dict[str, Address | None]:
        """Ask one broker; the resources that another one keeps, with its address."""
        try:
            connection = await self._connection(address)
            results = await _request(connection, asker, wanted, only_returns=only_returns)
        except (Unavailable, ProtocolError) as error:
            troubles.update(dict.fromkeys(wanted, error))
            return {}
        except OnewriterError as error:  # a definite no to all of it
            answers.update(dict.fromkeys(wanted, error))
            return {}
        elsewhere: dict[str, Address | None] = {}
        for resource, result in zip(wanted, results, strict=True):
            if result.HasField("generation"):
                answers[resource] = Given(result.generation, connection)
            elif result.broker_service_url:
                elsewhere[resource] = self._directory.address_of(
                    result.broker_service_url, result.broker_service_url_tls
                )
            else:
                denial = _error(result)
                if isinstance(denial, Unavailable):
                    troubles[resource] = denial
                else:
                    answers[resource] = denial
        return elsewhere

    async def _connection(self, address: Address | None) -> Connection:
        if address is None:
            connection = await self._directory.any_broker()
        else:
            connection = await self._directory.connection(address)
        if connection.extensions_version == 0:
            raise Refused(
                ServerError.UNSUPPORTED_VERSION_ERROR,
                f"the broker at {connection.address} is no onewriter: it knows no ownerships",
            )
        return connection


async def _request(
    connection: Connection, asker: Asker, wanted: Mapping[str, int], *, only_returns: bool
) -> list[pb.CommandOwnResponse.Result]:
    answer = await connection.request(
        pb.CommandOwn(
            request_id=connection.next_request_id(),
            group=asker.group or None,
            resources=[pb.OwnedResource(name=name, generation=n) for name, n in wanted.items()],
            identity=asker.identity or None,
            nonce=asker.nonce,
            only_returns=only_returns or None,
            serve_milliseconds=round(1000 * asker.serve_seconds) or None,
        )
    )
    if not isinstance(answer, pb.CommandOwnResponse) or len(answer.results) != len(wanted):
        raise ProtocolError(f"OWN was answered with {type(answer).__name__}")
    return list(answer.results)


def _error(result: pb.CommandOwnResponse.Result) -> OnewriterError:
    """What a denial means. ``Fenced.current_epoch`` is the generation that counts."""
    code, text = ServerError(result.error), result.message
    current = result.current_generation if result.HasField("current_generation") else None
    if code is ServerError.PRODUCER_FENCED:
        return Fenced(text, current_epoch=current)
    if code in RETRYABLE:
        return Unavailable(text)
    return Refused(code, text)


def _batches(pending: Mapping[str, Address | None]) -> list[tuple[Address | None, list[str]]]:
    """The resources by the broker to ask, in requests that it takes."""
    by_address: dict[Address | None, list[str]] = {}
    for resource, address in pending.items():
        by_address.setdefault(address, []).append(resource)
    size = RESOURCES_PER_REQUEST_MAX
    return [
        (address, resources[start : start + size])
        for address, resources in by_address.items()
        for start in range(0, len(resources), size)
    ]
