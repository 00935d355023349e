"""Requests for ownerships: many resources at once, each at the broker that keeps it.

This module follows one request from broker to broker until every resource has an answer. The ownership as the
application sees it is in _own/own.py.
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
"""Largest number of resources in one request."""

RELEASE_SECONDS = 5.0
"""Time limit of a release. A broker that does not answer detects the lost connection later."""

RELEASE_UNWANTED_SECONDS = 60.0
"""Time limit for releasing grants of a cancelled request; a broker that is silent for longer is lost."""

LOWEST_GENERATION = 1
"""An owner with the right nonce may resume under any generation up to the granted one."""

log = logging.getLogger("onewriter")


@dataclass(frozen=True, slots=True)
class Requester:
    """The requester: group, identity and nonce, the same for all resources of one set."""

    group: str
    identity: str
    nonce: str
    serve_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GrantedOwnership:
    """The grant of a resource by the broker of ``connection``."""

    generation: int
    connection: Connection


Answers = dict[str, GrantedOwnership | OnewriterError]

Results = list[pb.CommandOwnResponse.Result]


class _Request:
    """One request: its answers so far, and the resources that may be granted without an answer yet."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.unsettled: dict[Connection, set[str]] = {}
        self.under_way: asyncio.Task[None] | None = None
        """The command that had no answer yet when the caller stopped waiting."""

    def sent(self, connection: Connection, resources: Iterable[str]) -> None:
        """Record that a command for these resources was sent: they may be granted from now on."""
        self.unsettled.setdefault(connection, set()).update(resources)

    def settled(self, connection: Connection, resource: str) -> None:
        """Record the broker's answer for a resource."""
        self.unsettled.get(connection, set()).discard(resource)

    def unwanted(self) -> dict[Connection, list[str]]:
        """Return the resources to release if the caller does not wait for the missing answers."""
        return {
            connection: [
                each
                for each in sorted(resources)
                if not isinstance(self.answers.get(each), GrantedOwnership)
            ]
            for connection, resources in self.unsettled.items()
        }

    def dropped(self) -> dict[Connection, list[str]]:
        """Return the resources to release if the caller takes no answer."""
        unwanted = {connection: set(found) for connection, found in self.unsettled.items()}
        for resource, answer in self.answers.items():
            if isinstance(answer, GrantedOwnership):
                unwanted.setdefault(answer.connection, set()).add(resource)
        return {connection: sorted(found) for connection, found in unwanted.items()}


class OwnershipRequests:
    """The requests of one client."""

    def __init__(self, directory: Directory, limits: Limits, spawn: Spawn) -> None:
        self._directory = directory
        self._limits = limits
        self._spawn = spawn
        self._releases: dict[asyncio.Task[None], tuple[str, frozenset[str]]] = {}
        """The tasks that release resources, each with its group and resources."""

    async def ask(
        self,
        requester: Requester,
        wanted: Mapping[str, int],
        *,
        at: Mapping[str, Address] | None = None,
        only_returns: bool = False,
        seconds: float | None = None,
    ) -> Answers:
        """Return an answer for each resource: a grant, a definite Refused, or Unavailable after ``seconds``.

        ``at`` are the brokers to ask first. A repeated request with the same nonce is harmless: a resource that
        was granted meanwhile is granted again. If the time limit passes or the caller is cancelled, grants that
        arrive later are released in the background; with ``only_returns`` nothing is released.
        """
        requested = _Request()
        unwanted: dict[Connection, list[str]] = {}
        try:
            answers = await self._ask(
                requester, wanted, requested, at=at, only_returns=only_returns, seconds=seconds
            )
            unwanted = requested.unwanted()
        except BaseException:
            unwanted = requested.dropped()
            raise
        finally:
            if not only_returns:
                self._release_in_background(requester, unwanted, requested.under_way)
        return answers

    async def _ask(
        self,
        requester: Requester,
        wanted: Mapping[str, int],
        requested: _Request,
        *,
        at: Mapping[str, Address] | None,
        only_returns: bool,
        seconds: float | None,
    ) -> Answers:
        limit = self._limits.operation_timeout_seconds if seconds is None else seconds
        answers = requested.answers
        pending = {resource: (at or {}).get(resource) for resource in wanted}
        last_errors: dict[str, OnewriterError] = {}
        backoff = Backoff()
        try:
            async with asyncio.timeout(limit):
                if not only_returns:
                    await self._wait_for_earlier_releases(requester.group, wanted)
                while True:
                    was_moved = False
                    for address, resources in _batches(pending):
                        moved = await self._ask_once(
                            requester,
                            {each: wanted[each] for each in resources},
                            address,
                            requested,
                            last_errors,
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
                reason = last_errors.get(each, "no answer")
                answers[each] = Unavailable(f"{each} not owned within {limit:g} s: {reason}")
            return answers

    async def release(
        self, requester: Requester, owned: Iterable[tuple[str, GrantedOwnership]]
    ) -> None:
        """Release resources. Errors are ignored: a broker detects the lost connection by itself."""
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
        requested: _Request,
        last_errors: dict[str, OnewriterError],
        *,
        only_returns: bool,
    ) -> dict[str, Address | None]:
        """Ask one broker; return the resources that another broker keeps, with its address."""
        answers = requested.answers
        try:
            connection = await self._connection(address)
            if only_returns:
                results = await _request(connection, requester, wanted, only_returns=True)
            else:
                results = await self._request_in_task(connection, requester, wanted, requested)
        except OnewriterError as error:
            # An owner tolerates a temporary configuration error, such as files that are being replaced.
            is_passing = only_returns and isinstance(error, ConfigurationError)
            if is_passing or isinstance(error, Unavailable | ProtocolError):
                last_errors.update(dict.fromkeys(wanted, error))
            else:  # a permanent refusal of all resources
                answers.update(dict.fromkeys(wanted, error))
            return {}
        elsewhere: dict[str, Address | None] = {}
        for resource, result in zip(wanted, results, strict=True):
            if result.HasField("generation"):
                answers[resource] = GrantedOwnership(result.generation, connection)
                requested.settled(connection, resource)
            elif result.broker_service_url or result.broker_service_url_tls:
                requested.settled(connection, resource)
                elsewhere[resource] = self._directory.address_of(
                    result.broker_service_url, result.broker_service_url_tls
                )
            else:
                denial = _error(result)
                if isinstance(denial, Unavailable):
                    last_errors[resource] = denial
                else:
                    answers[resource] = denial
                    requested.settled(connection, resource)
        return elsewhere

    async def _request_in_task(
        self,
        connection: Connection,
        requester: Requester,
        wanted: Mapping[str, int],
        requested: _Request,
    ) -> Results:
        """Send the command in a task of its own, so that a cancelled caller can await its answer."""
        answer: asyncio.Future[Results] = asyncio.get_running_loop().create_future()

        async def ask() -> None:
            try:
                results = await _request(connection, requester, wanted, only_returns=False)
            except OnewriterError as error:
                _end(answer, error)
            else:
                if not answer.done():
                    answer.set_result(results)

        requested.sent(connection, wanted)
        task = requested.under_way = self._spawn(ask())
        task.add_done_callback(lambda _task: _end(answer, Closed("the client was closed")))
        return await answer

    # ------------------------------------------------------------ release in the background

    def _release_in_background(
        self,
        requester: Requester,
        unwanted: Mapping[Connection, list[str]],
        under_way: asyncio.Task[None] | None,
    ) -> None:
        for connection, resources in unwanted.items():
            if not resources or connection.is_closed:
                continue  # the broker releases the resources of a lost connection
            try:
                task = self._spawn(
                    self._release_unwanted(connection, requester, resources, under_way)
                )
            except Closed:  # the client has closed its connections
                return
            self._releases[task] = (requester.group, frozenset(resources))
            task.add_done_callback(lambda done: self._releases.pop(done, None))

    async def _release_unwanted(
        self,
        connection: Connection,
        requester: Requester,
        resources: list[str],
        under_way: asyncio.Task[None] | None,
    ) -> None:
        """Await the answer of a cancelled request, and release what it granted."""
        backoff = Backoff()
        try:
            async with asyncio.timeout(RELEASE_UNWANTED_SECONDS):
                if under_way is not None:
                    await asyncio.wait([under_way])
                while resources and not connection.is_closed:
                    resources = await self._release_granted(connection, requester, resources)
                    if resources:
                        await asyncio.sleep(backoff.seconds())
        except TimeoutError:
            log.warning("%s did not answer: %s may be owned", connection.address, resources[:10])

    async def _release_granted(
        self, connection: Connection, requester: Requester, resources: list[str]
    ) -> list[str]:
        """Release granted resources; return those for which the broker did not answer."""
        granted: list[tuple[str, GrantedOwnership]] = []
        unanswered: list[str] = []
        for start in range(0, len(resources), RESOURCES_PER_REQUEST_MAX):
            chunk = resources[start : start + RESOURCES_PER_REQUEST_MAX]
            wanted = dict.fromkeys(chunk, LOWEST_GENERATION)
            try:
                results = await _request(connection, requester, wanted, only_returns=True)
            except Refused:
                continue  # a requester without the permission owns nothing
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

    async def _wait_for_earlier_releases(self, group: str, wanted: Mapping[str, int]) -> None:
        """Wait until earlier calls of this client have released these resources."""
        tasks = [
            task
            for task, (its_group, resources) in self._releases.items()
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
        answer.exception()  # mark it as retrieved: the caller may have been cancelled


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
    """Return the error for a denial. ``Fenced.current_epoch`` is the current generation."""
    code, text = ServerError(result.error), result.message
    current = result.current_generation if result.HasField("current_generation") else None
    if code is ServerError.PRODUCER_FENCED:
        return Fenced(text, current_epoch=current)
    if code in RETRYABLE:
        return Unavailable(text)
    return Refused(code, text)


def _batches(pending: Mapping[str, Address | None]) -> list[tuple[Address | None, list[str]]]:
    """Split the resources into requests: by broker, and by the limit per request."""
    by_address: dict[Address | None, list[str]] = {}
    for resource, address in pending.items():
        by_address.setdefault(address, []).append(resource)
    size = RESOURCES_PER_REQUEST_MAX
    return [
        (address, resources[start : start + size])
        for address, resources in by_address.items()
        for start in range(0, len(resources), size)
    ]
