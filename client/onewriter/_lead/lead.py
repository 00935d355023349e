"""``async with client.lead(topic) as leadership``: wait for the grant, lead, hand over."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from onewriter._config import Backoff
from onewriter._errors import (
    ConfigurationError,
    Fenced,
    OnewriterError,
    OutcomeUnknown,
    Partitioned,
    Unavailable,
)
from onewriter._lead.announcement import LeaderInfo, host_name
from onewriter._lead.leadership import ANNOUNCE_SECONDS, LeaderHost, Leadership
from onewriter._produce.producer import Producer
from onewriter._produce.tenure import AccessMode, ProducerOptions
from onewriter_core.property_names import IDENTITY_PROPERTY

GROUP_NAME_BYTES = 4
"""Random bytes in the common name of a partitioned topic's producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadOptions:
    """The parameters of ``Client.lead``."""

    producer: ProducerOptions
    access_mode: AccessMode
    identity: str
    announce: bool
    read_predecessor: bool
    metadata: Any
    timeout_seconds: float | None
    handover_timeout_seconds: float | None
    on_lost: Callable[[OnewriterError], None] | None


class Lead:
    """The context manager that ``Client.lead`` returns; enter it once."""

    def __init__(self, host: LeaderHost, topic: str, options: LeadOptions) -> None:
        identity = options.identity or host_name()
        if options.announce:  # invalid metadata raises here, before the wait
            LeaderInfo(
                topic=topic, epoch=0, identity=identity, metadata=options.metadata
            ).announcement()
        self._host = host
        self._topic = topic
        self._options = options
        self._identity = identity
        self._producer_options = replace(
            options.producer,
            access_mode=options.access_mode,
            properties={IDENTITY_PROPERTY: identity, **options.producer.properties},
        )
        self._asking: list[Producer] = []
        self._leadership: Leadership | None = None

    async def __aenter__(self) -> Leadership:
        seconds = self._options.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                leadership = await self._win()
        except TimeoutError as error:
            trouble = next((each.trouble for each in self._asking if each.trouble), None)
            self._withdraw()
            raise Unavailable(
                f"not the leader of {self._topic} within {seconds:g} s: "
                f"{trouble or 'it is still queued'}"
            ) from error
        except BaseException:
            self._withdraw()
            raise
        self._leadership = leadership
        if self._options.on_lost is not None:
            leadership.lost.call(self._options.on_lost)
        return leadership

    async def __aexit__(self, *_: object) -> None:
        if self._leadership is not None:
            await self._leadership.handover(timeout_seconds=self._options.handover_timeout_seconds)

    # ------------------------------------------------------------ inside

    async def _win(self) -> Leadership:
        """Queue until the topic is granted and the announcement published. Raises Refused, ConfigurationError."""
        backoff = Backoff()
        while True:
            try:
                await self._ask()
            except Fenced:
                options = self._producer_options
                if options.if_epoch is not None or not _queues(options):
                    raise  # ``if_epoch`` cannot become true again, or the access mode does not wait
                await self._requeue(backoff)
                continue
            leadership = self._leadership_of(self._asking)
            try:
                await self._begin(leadership)
            except (Fenced, Unavailable, OutcomeUnknown):
                # The application does not know of the grant yet: release the topic and queue again.
                await self._requeue(backoff)
                continue
            return leadership

    async def _ask(self) -> None:
        """Acquire the topic, or all its partitions under one epoch. Raises the reason of a failure."""
        options = self._producer_options
        producer = self._host.start_producer(self._topic, options)
        self._asking = [producer]
        try:
            await producer.ready()
        except Partitioned as error:
            self._check_partitioned()
            options = replace(options, is_grouped=True, name=options.name or self._group_name())
            self._asking = [
                self._host.start_producer(f"{self._topic}-partition-{number}", options)
                for number in range(error.partitions)
            ]
            for producer in self._asking:
                await producer.ready()

    def _leadership_of(self, producers: list[Producer]) -> Leadership:
        partitions = producers if producers[0].options.is_grouped else ()
        return Leadership(producers[0], self._host, identity=self._identity, partitions=partitions)

    def _group_name(self) -> str:
        """Return the common name of one attempt's producers; each attempt has another one."""
        return f"{self._identity}-{secrets.token_hex(GROUP_NAME_BYTES)}"

    def _check_partitioned(self) -> None:
        """Raise ConfigurationError for options that a partitioned topic does not support."""
        options = self._options
        if options.read_predecessor or options.metadata is not None:
            raise ConfigurationError(
                f"{self._topic} has partitions, so no leader is announced there: leave out"
                " metadata and read_predecessor"
            )

    async def _begin(self, leadership: Leadership) -> None:
        """Read the predecessor and publish the announcement, after the grant and before the block."""
        metadata = self._options.metadata
        if self._options.read_predecessor:
            found = await self._newest_leader(leadership)
            leadership.follow(found)
            if metadata is None and found is not None:
                metadata = (
                    found.metadata
                )  # not lost if this leader ends before it announces its own
        if self._options.announce and not leadership.partitions:
            await leadership.announce(metadata, timeout_seconds=ANNOUNCE_SECONDS)

    async def _newest_leader(self, leadership: Leadership) -> LeaderInfo | None:
        """Read the latest announcement; no other producer can write meanwhile. Raises an earlier loss."""
        found: LeaderInfo | OnewriterError | None = None

        async def read() -> None:
            nonlocal found
            try:
                found = await self._host.leader(self._topic, timeout_seconds=math.inf)
            except OnewriterError as error:
                found = error

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            leadership.lost.call(lambda _reason: reading.cancel())
        end = leadership.lost.reason or found
        if isinstance(end, OnewriterError):
            raise end
        return end

    async def _requeue(self, backoff: Backoff) -> None:
        self._withdraw()
        await asyncio.sleep(max(backoff.seconds(), self._producer_options.requeue_seconds()))

    def _withdraw(self) -> None:
        for producer in self._asking:
            producer.abandon()
        self._asking = []


def _queues(options: ProducerOptions) -> bool:
    """Whether the access mode waits for a topic that another producer holds."""
    return options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
