"""Asking brokers for ownerships: many resources at once, each at the broker that keeps it.

What lives here: one question, followed from broker to broker until every resource has its answer.
What does not: what an ownership is to the application, and how it is kept (_own/own.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onewriter._config import Address, Backoff, Limits
from onewriter._errors import (
    RETRYABLE,
    Closed,
    ConfigurationError,
    Fenced,
    OnewriterError,
    Refused,
    ServerError,
    Unavailable,
)
from onewriter._transport.connection import Connection, Spawn
from onewriter._transport.lookup import Directory
from onewriter_core.errors import ProtocolError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

RESOURCES_PER_REQUEST_MAX = 1_000
"""What a broker takes in one request."""

RELEASE_SECONDS = 5.0
"""For giving up what a broker does not answer for; it finds out by itself."""

RETURN_SECONDS = 60.0
"""For giving back what nobody waited for; a broker that is silent for so long is gone."""

RETURN_GENERATION = 1
"""Whoever owns a resource by its nonce goes on under any generation up to the granted one."""

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks: the same for all resources of one set."""

    group: str
    identity: str
    nonce: str
    serve_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GrantedOwnership:
    """A resource is owned, as the broker at the other end of ``connection`` said."""

    generation: int
    connection: Connection


Answers = dict[str, GrantedOwnership | OnewriterError]

Results = list[pb.CommandOwnResponse.Result]


class _Request:
    """What one question has asked for, and where it may be granted without anybody knowing."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.unsettled: dict[Connection, set[str]] = {}
        self.under_way: asyncio.Task[None] | None = None
        """The request that was not answered yet when nobody waited for it any more."""

    def sent(self, connection: Connection, resources: Iterable[str]) -> None:
        """From now on they may be granted there."""
        self.unsettled.setdefault(connection, set()).update(resources)

    def settled(self, connection: Connection, resource: str) -> None:
        """The broker said what became of it."""
        self.unsettled.get(connection, set()).discard(resource)

    def unwanted(self) -> dict[Connection, list[str]]:
        """What is to be given back where nobody takes the answers that are not here yet."""
        return {
            connection: [
                each
                for each in sorted(resources)
                if not isinstance(self.answers.get(each), GrantedOwnership)
            ]
            for connection, resources in self.unsettled.items()
        }

    def dropped(self) -> dict[Connection, list[str]]:
        """What is to be given back where nobody takes any answer."""
        unwanted = {connection: set(found) for connection, found in self.unsettled.items()}
        for resource, answer in self.answers.items():
            if isinstance(answer, GrantedOwnership):
                unwanted.setdefault(answer.connection, set()).add(resource)
        return {connection: sorted(found) for connection, found in unwanted.items()}


class OwnershipRequests:
    """Asks for one client."""

    def __init__(self, directory: Directory, limits: Limits, spawn: Spawn) -> None:
        self._directory = directory
        self._limits = limits
        self._spawn = spawn
        self._returning: dict[asyncio.Task[None], tuple[str, frozenset[str]]] = {}
        """What is being given back, each with its group and resources."""

    async def ask(
        self,
        requester: Requester,
        wanted: Mapping[str, int],
        *,
        at: Mapping[str, Address] | None = None,
        only_returns: bool = False,
        seconds: float | None = None,
    ) -> Answers:
        """The answer for each resource: Given, a definite Refused, or Unavailable after ``seconds``.

        ``at``: brokers to ask first.

        Asking again with the same nonce is harmless: what was given meanwhile is given again. What
        nobody takes, because the time was over or the caller was cancelled, is given back behind
        the caller's back; with ``only_returns`` it stays whose it is.
        """
        asked = _Request()
        unwanted: dict[Connection, list[str]] = {}
        try:
            answers = await self._ask(
                requester, wanted, asked, at=at, only_returns=only_returns, seconds=seconds
            )
            unwanted = asked.unwanted()
        except BaseException:
            unwanted = asked.dropped()
            raise
        finally:
            if not only_returns:
                self._return_soon(requester, unwanted, asked.under_way)
        return answers

    async def _ask(
        self,
        requester: Requester,
        wanted: Mapping[str, int],
        asked: _Request,
        *,
        at: Mapping[str, Address] | None,
        only_returns: bool,
        seconds: float | None,
    ) -> Answers:
        limit = self._limits.operation_timeout_seconds if seconds is None else seconds
        answers = asked.answers
        pending = {resource: (at or {}).get(resource) for resource in wanted}
        troubles: dict[str, OnewriterError] = {}
        backoff = Backoff()
        try:
            async with asyncio.timeout(limit):
                if not only_returns:
                    await self._returned(requester.group, wanted)
                while True:
                    was_moved = False
                    for address, resources in _batches(pending):
                        moved = await self._ask_once(
                            requester,
                            {each: wanted[each] for each in resources},
                            address,
                            asked,
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

    async def release(
        self, requester: Requester, owned: Iterable[tuple[str, GrantedOwnership]]
    ) -> None:
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
                    group=requester.group or None,
                    resources=[pb.OwnedResource(name=name, generation=n) for name, n in chunk],
                )
                try:
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await connection.request(command)
                except (Unavailable, Refused, TimeoutError):
                    break

    async def _ask_once(
        self,
        requester: Requester,
        wanted: Mapping[str, int],
        address: Address | None,
        asked: _Request,
        troubles: dict[str, OnewriterError],
        *,
        only_returns: bool,
    ) -> dict[str, Address | None]:
        """Ask one broker; the resources that another one keeps, with its address."""
        answers = asked.answers
        try:
            connection = await self._connection(address)
            if only_returns:
                results = await _request(connection, requester, wanted, only_returns=True)
            else:
                results = await self._question(connection, requester, wanted, asked)
        except OnewriterError as error:
            # An owner outlives what is wrong here for a while, as files that are being replaced.
            is_passing = only_returns and isinstance(error, ConfigurationError)
            if is_passing or isinstance(error, Unavailable | ProtocolError):
                troubles.update(dict.fromkeys(wanted, error))
            else:  # a definite no to all of it
                answers.update(dict.fromkeys(wanted, error))
            return {}
        elsewhere: dict[str, Address | None] = {}
        for resource, result in zip(wanted, results, strict=True):
            if result.HasField("generation"):
                answers[resource] = GrantedOwnership(result.generation, connection)
                asked.settled(connection, resource)
            elif result.broker_service_url or result.broker_service_url_tls:
                asked.settled(connection, resource)
                elsewhere[resource] = self._directory.address_of(
                    result.broker_service_url, result.broker_service_url_tls
                )
            else:
                denial = _error(result)
                if isinstance(denial, Unavailable):
                    troubles[resource] = denial
                else:
                    answers[resource] = denial
                    asked.settled(connection, resource)
        return elsewhere

    async def _question(
        self,
        connection: Connection,
        requester: Requester,
        wanted: Mapping[str, int],
        asked: _Request,
    ) -> Results:
        """Ask in a task of its own: whoever gives up waiting has to know when it was answered."""
        answer: asyncio.Future[Results] = asyncio.get_running_loop().create_future()

        async def ask() -> None:
            try:
                results = await _request(connection, requester, wanted, only_returns=False)
            except OnewriterError as error:
                _end(answer, error)
            else:
                if not answer.done():
                    answer.set_result(results)

        asked.sent(connection, wanted)
        task = asked.under_way = self._spawn(ask())
        task.add_done_callback(lambda _task: _end(answer, Closed("the client was closed")))
        return await answer

    # ------------------------------------------------------------ giving back

    def _return_soon(
        self,
        requester: Requester,
        unwanted: Mapping[Connection, list[str]],
        under_way: asyncio.Task[None] | None,
    ) -> None:
        for connection, resources in unwanted.items():
            if not resources or connection.is_closed:
                continue  # what a lost connection owned nobody owns
            try:
                task = self._spawn(self._return(connection, requester, resources, under_way))
            except Closed:  # the client has ended, and its connections with it
                return
            self._returning[task] = (requester.group, frozenset(resources))
            task.add_done_callback(lambda done: self._returning.pop(done, None))

    async def _return(
        self,
        connection: Connection,
        requester: Requester,
        resources: list[str],
        under_way: asyncio.Task[None] | None,
    ) -> None:
        """Find out what was granted, behind the answer that nobody waited for, and give it up."""
        backoff = Backoff()
        try:
            async with asyncio.timeout(RETURN_SECONDS):
                if under_way is not None:
                    await asyncio.wait([under_way])
                while resources and not connection.is_closed:
                    resources = await self._return_once(connection, requester, resources)
                    if resources:
                        await asyncio.sleep(backoff.seconds())
        except TimeoutError:
            log.warning("%s did not answer: %s may be owned", connection.address, resources[:10])

    async def _return_once(
        self, connection: Connection, requester: Requester, resources: list[str]
    ) -> list[str]:
        """Give back what is known to be granted; what the broker did not answer for."""
        granted: list[tuple[str, GrantedOwnership]] = []
        unanswered: list[str] = []
        for start in range(0, len(resources), RESOURCES_PER_REQUEST_MAX):
            chunk = resources[start : start + RESOURCES_PER_REQUEST_MAX]
            wanted = dict.fromkeys(chunk, RETURN_GENERATION)
            try:
                results = await _request(connection, requester, wanted, only_returns=True)
            except Refused:
                continue  # who may not own has nothing to give back
            except OnewriterError:
                unanswered += chunk
                continue
            for resource, result in zip(chunk, results, strict=True):
                if result.HasField("generation"):
                    granted.append((resource, GrantedOwnership(result.generation, connection)))
                elif not (
                    result.broker_service_url or result.broker_service_url_tls
                ) and isinstance(_error(result), Unavailable):
                    unanswered.append(resource)
        await self.release(requester, granted)
        return unanswered

    async def _returned(self, group: str, wanted: Mapping[str, int]) -> None:
        """Wait for what an earlier call of this client is giving back."""
        tasks = [
            task
            for task, (its_group, resources) in self._returning.items()
            if its_group == group and not resources.isdisjoint(wanted)
        ]
        if tasks:
            await asyncio.wait(tasks)

    async def _connection(self, address: Address | None) -> Connection:
        if address is None:
            connection = await self._directory.any_broker()
        else:
            connection = await self._directory.connection(address)
        if connection.extensions_version == 0:
            raise Refused(
                ServerError.UNSUPPORTED_VERSION_ERROR,
                f"the broker at {connection.address} is not a onewriter broker: it does not support ownership of resources",
            )
        return connection


def _end(answer: asyncio.Future[Results], error: OnewriterError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # whoever asked may have gone


async def _request(
    connection: Connection, requester: Requester, wanted: Mapping[str, int], *, only_returns: bool
) -> Results:
    answer = await connection.request(
        pb.CommandOwn(
            request_id=connection.next_request_id(),
            group=requester.group or None,
            resources=[pb.OwnedResource(name=name, generation=n) for name, n in wanted.items()],
            identity=requester.identity or None,
            nonce=requester.nonce,
            only_returns=only_returns or None,
            serve_milliseconds=round(1000 * requester.serve_seconds) or None,
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
