"""Ownership of resources (topics, partitions or any text): a resource has at most one owner per group.

::

    async with client.own("capture", [("persistent://shop/default/orders", 1)]) as (orders,):
        async with await orders.subscribe() as consumer:    # the group's single reader
            ...
        await orders.guarded("audit").send(b"...")          # and its single writer
        await orders.lost                                   # returns at once when it is over
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, overload

from onewriter._config import Address, Backoff
from onewriter._consume.consumer import Consumer, ConsumerOptions
from onewriter._errors import (
    Closed,
    ConfigurationError,
    Fenced,
    OnewriterError,
    Unavailable,
)
from onewriter._lead.deadline import ServingDeadline
from onewriter._lead.leadership import Loss
from onewriter._own.requests import GrantedOwnership, OwnershipRequests, Requester
from onewriter._produce.guarded import Guarded, GuardedBy, GuardedTopics, Opener, over
from onewriter._produce.tenure import ProducerOptions
from onewriter._signal import Signal
from onewriter_core.own.names import TOPIC_PREFIX
from onewriter_core.property_names import GENERATION_PROPERTY, NONCE_PROPERTY
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

GENERATION_FIRST = 1
"""The default generation of a request. It never takes a resource from its owner."""

NONCE_BYTES = 16

Resources = Iterable[str | tuple[str, int]]


class OwnerHost(Opener, Protocol):
    """The client's methods that ownerships use."""

    async def subscribe(
        self, topic: str, subscription: str, options: ConsumerOptions | None = None
    ) -> Consumer:
        """Create a connected consumer."""
        ...


class Ownership:
    """One resource, owned until ``lost``: taken over by another owner, released, or denied at once.

    It survives lost connections and failures and moves of brokers, unless another owner takes the resource
    meanwhile. Writes that are ``guarded`` by it are not appended once it is over.
    """

    def __init__(self, owned: Ownerships, host: OwnerHost, resource: str) -> None:
        self.resource = resource
        self.end: OnewriterError | None = None
        """The reason of the end; None while the resource is owned."""
        self._owned = owned
        self._host = host
        self.given: GrantedOwnership | None = None
        """The grant and its connection; None while no broker has confirmed the ownership."""
        self.known_generation = 0
        """The latest known generation; 0: the resource was never granted."""
        self._enders: list[Callable[[OnewriterError], None]] = []
        self.lost = Loss(self)
        """Set at once when it is over: Fenced with the newer generation, Closed, or a Refused."""
        self._guarded = GuardedTopics(self, host)
        self.lost.call(self._guarded.over)

    def __repr__(self) -> str:
        state = "over" if self.end is not None else f"generation {self.known_generation}"
        return f"<Ownership of {self.resource}, {state}>"

    # ------------------------------------------------------------ what it is

    @property
    def group(self) -> str:
        """The group of the ownership; empty: none."""
        return self._owned.requester.group

    @property
    def is_owned(self) -> bool:
        """Whether the ownership is not known to be over."""
        return self.end is None

    @property
    def is_attached(self) -> bool:
        """Whether a broker has confirmed the ownership on the current connection."""
        return self.given is not None

    @property
    def generation(self) -> int:
        """The generation, above that of every earlier owner. Raises the reason if it was denied."""
        if self.known_generation == 0 and self.end is not None:
            raise self.end
        return self.known_generation

    # ------------------------------------------------------------ proof

    @property
    def guard(self) -> GuardedBy:
        """The guard for writes that depend on this ownership; see GuardedBy.properties."""
        return GuardedBy(self.resource, self.generation, self.group)

    def check_held(self) -> None:
        """Raise Fenced, Closed or the refusal if it is known to be over. Sends no request."""
        over(self.end, self.generation)

    async def check(self) -> None:
        """Let the broker prove against the store that the ownership was current after the call.

        Raises Fenced or Refused if it is over, Closed after ``release``, Unavailable if no broker answered in
        time.
        """
        self.check_held()
        await self._owned.confirm([self])
        self.check_held()

    @property
    def serve_until(self) -> float:
        """The time until which ``may_serve`` is True, by ``time.monotonic``; minus infinity: it is False."""
        is_ours = self.is_owned and self.is_attached
        return self._owned.serving_until if is_ours else -math.inf

    def may_serve(self) -> bool:
        """Whether the application may act as the owner, or answer reads, now. Sends no request.

        It requires ``serve_seconds``; without that option it is always False, and ``check`` has to be used. No
        successor is granted the resource before the value has become False.
        """
        return time.monotonic() < self.serve_until

    def guarded(self, topic: str, options: ProducerOptions | None = None) -> Guarded:
        """Return a producer whose writes succeed only while this ownership lasts; see ``Leadership.guarded``."""
        return self._guarded.to(topic, options)

    # ------------------------------------------------------------ reading

    def consumer_options(self, options: ConsumerOptions | None = None) -> ConsumerOptions:
        """Return the options of a subscription with the group's name, as the group's single reader.

        Raises ConfigurationError if the resource is not a full topic name.
        """
        if not self.resource.startswith(TOPIC_PREFIX):
            text = f"{self.resource!r} is owned as a text: to read a topic, own it by its full name"
            raise ConfigurationError(f"{text}, {TOPIC_PREFIX}...")
        options = options or ConsumerOptions()
        properties = {
            **options.properties,
            GENERATION_PROPERTY: str(self.generation),
            NONCE_PROPERTY: self._owned.requester.nonce,
        }
        return replace(options, properties=properties)

    async def subscribe(self, options: ConsumerOptions | None = None) -> Consumer:
        """Consume the owned topic as the group's only reader. Raises as ``Client.subscribe``.

        When the ownership is over, the consumer ends: the broker delivers nothing more to it, and rejects its
        acknowledgements.
        """
        self.check_held()
        return await self._host.subscribe(self.resource, self.group, self.consumer_options(options))

    async def release(self) -> None:
        """Release the resource, so that the next owner need not depose this one. Idempotent."""
        await self._owned.release([self])

    # ------------------------------------------------------------ inside

    @property
    def address(self) -> Address | None:
        """The address of the broker that has confirmed the ownership."""
        return None if self.given is None else self.given.connection.address

    def when_ended(self, callback: Callable[[OnewriterError], None]) -> None:
        """Call ``callback`` with the reason when the ownership is over."""
        self._enders.append(callback)

    def give(self, given: GrantedOwnership) -> None:
        """Record that a broker has granted or confirmed the ownership."""
        self._detach()
        self.known_generation = given.generation
        self.given = given
        key = (self.group, self.resource, given.generation)
        given.connection.owners.attach(key, self)

    def _detach(self) -> GrantedOwnership | None:
        given, self.given = self.given, None
        if given is not None:
            given.connection.owners.detach((self.group, self.resource, given.generation))
        return given

    def stop(self, reason: OnewriterError) -> None:
        """End the ownership for this reason, and call the callbacks once."""
        if self.end is None:
            self.end = reason
            self._detach()
            for callback in self._enders:
                callback(reason)
            self._owned.changed()

    def on_ownership_lost(self, command: pb.CommandOwnershipLost) -> None:
        """The broker reports that the ownership is over, or continues at another broker."""
        if command.is_moving:
            self._detach()
            self._owned.detached(self)
            return
        current = command.current_generation if command.HasField("current_generation") else None
        generation = self.known_generation
        self.stop(Fenced(command.message, epoch=generation, current_epoch=current))

    def on_owner_detached(self) -> None:
        """The connection is lost."""
        self.given = None
        if self.end is None:
            self._owned.detached(self)


class Ownerships(Sequence[Ownership]):
    """The ownerships of one call of ``Client.own``, in its order. Leaving the block releases them."""

    def __init__(
        self,
        owners: OwnershipRequests,
        host: OwnerHost,
        requester: Requester,
        wanted: Mapping[str, int],
    ) -> None:
        self.requester = requester
        self._owners = owners
        self._wanted = wanted
        self._all = [Ownership(self, host, resource) for resource in wanted]
        self._detached: dict[Ownership, None] = {}
        self._news = Signal()
        self._deadline: ServingDeadline | None = None

    @overload
    def __getitem__(self, index: int) -> Ownership: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Ownership]: ...

    def __getitem__(self, index: int | slice) -> Ownership | Sequence[Ownership]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Ownership]:
        return iter(self._all)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def ask(self, timeout_seconds: float | None) -> None:
        """Request all resources once."""
        answers = await self._owners.ask(self.requester, self._wanted, seconds=timeout_seconds)
        for each in self._all:
            answer = answers[each.resource]
            if isinstance(answer, GrantedOwnership):
                each.give(answer)
            else:
                each.stop(answer)

    async def confirm(self, these: Sequence[Ownership]) -> None:
        """Let brokers confirm these ownerships; end those that are over. Raises Unavailable."""
        wanted = {each.resource: each.known_generation for each in these if each.end is None}
        if not wanted:
            return
        at = {each.resource: each.address for each in these if each.address is not None}
        answers = await self._owners.ask(self.requester, wanted, at=at, only_returns=True)
        trouble: Unavailable | None = None
        for each in these:
            if each.end is not None or each.resource not in answers:
                continue
            answer = answers[each.resource]
            if isinstance(answer, GrantedOwnership):
                self._detached.pop(each, None)
                if each.given is None or each.given.connection is not answer.connection:
                    each.give(answer)
            elif isinstance(answer, Unavailable):
                trouble = answer
            else:
                each.stop(_with_generation(answer, each.known_generation))
        if trouble is not None:
            raise trouble

    async def release(self, these: Sequence[Ownership] | None = None) -> None:
        """Release these ownerships (default: all). Idempotent.

        A broker that cannot be reached releases them when it detects the loss of the connection.
        """
        given = []
        for each in self._all if these is None else these:
            owned = each.given
            if each.end is None:
                each.stop(Closed("released by this program"))
                if owned is not None:
                    given.append((each.resource, owned))
        await self._owners.release(self.requester, given)

    def detached(self, ownership: Ownership) -> None:
        """The ownership's broker is lost, or no longer keeps it."""
        self._detached[ownership] = None
        self._news.notify()

    def changed(self) -> None:
        """One of these ownerships is over."""
        self._news.notify()

    def abandon(self) -> None:
        """End all ownerships, because the client closes."""
        for each in self._all:
            each.stop(Closed("the client was closed"))

    @property
    def is_over(self) -> bool:
        """Whether all these ownerships are over."""
        return all(each.end is not None for each in self._all)

    @property
    def serving_until(self) -> float:
        """The common serving deadline of all ownerships; minus infinity: none."""
        return -math.inf if self._deadline is None else self._deadline.until

    async def serve(self) -> None:
        """Renew the serving deadline until all are over; without ``serve_seconds``, do nothing."""
        if self.requester.serve_seconds:
            self._deadline = ServingDeadline(
                self.requester.serve_seconds,
                lambda: self.confirm(self._all),
                lambda: not self.is_over,
            )
            await self._deadline.run()

    async def keep(self) -> None:
        """Let brokers confirm detached ownerships again, until all are over."""
        backoff = Backoff()
        while not self.is_over:
            await self._news.until(lambda: bool(self._detached) or self.is_over)
            these = [each for each in self._detached if each.end is None]
            self._detached.clear()
            try:
                await self.confirm(these)
                backoff.reset()
            except Unavailable:
                self._detached.update(
                    dict.fromkeys(each for each in these if each.end is None and not each.given)
                )
                await asyncio.sleep(backoff.seconds())


class Own:
    """The result of ``Client.own``: await it, or enter it with ``async with``."""

    def __init__(
        self,
        owned: Ownerships,
        start: Callable[[Ownerships], None],
        timeout_seconds: float | None,
    ) -> None:
        self._owned = owned
        self._start = start
        self._timeout_seconds = timeout_seconds

    def __await__(self) -> Generator[Any, None, Ownerships]:
        return self._ask().__await__()

    async def __aenter__(self) -> Ownerships:
        return await self._ask()

    async def __aexit__(self, *_: object) -> None:
        await self._owned.release()

    async def _ask(self) -> Ownerships:
        try:
            await self._owned.ask(self._timeout_seconds)
        except BaseException:
            await self._owned.release()
            raise
        self._start(self._owned)
        return self._owned


def wanted_of(resources: Resources) -> dict[str, int]:
    """Return the requested generation of each resource. Raises ConfigurationError."""
    wanted: dict[str, int] = {}
    if not isinstance(resources, Iterable):
        raise ConfigurationError(f"own needs a list of resources, not {resources!r}")
    for each in resources:
        name, generation = _named(each)
        if not name:
            raise ConfigurationError("a resource has no name")
        if name in wanted:
            raise ConfigurationError(f"{name} is named twice")
        if not -(2**63) <= generation < 2**63:
            raise ConfigurationError(f"generation {generation} of {name} does not fit into 64 bits")
        wanted[name] = generation
    if not wanted:
        raise ConfigurationError("own needs at least one resource")
    return wanted


def _named(each: object) -> tuple[str, int]:
    match each:
        case str(name):
            return name, GENERATION_FIRST
        case (str(name), int(generation)) if not isinstance(generation, bool):
            return name, generation
        case _:
            text = "a resource is its name, or (name, generation)"
            raise ConfigurationError(f"{text}, not {each!r}")


def new_nonce() -> str:
    """Return a random text that identifies one set of ownerships."""
    return secrets.token_hex(NONCE_BYTES)


def _with_generation(error: OnewriterError, generation: int) -> OnewriterError:
    if isinstance(error, Fenced):
        return Fenced(error.message, epoch=generation, current_epoch=error.current_epoch)
    return error
