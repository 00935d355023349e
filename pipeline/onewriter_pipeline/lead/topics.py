"""The topics that a driver leads: for which of its writes, and for how long. Uses no processes and no sockets.

A *use* is one query or one batch write. The uses of a driver share the leadership of a topic, because the driver
leads it. A topic is released when its last use has ended: a batch write ends with its commit or abort; a query ends
when it fails, or after its idle time without a batch.

A batch keeps the epochs under which it began. If one of them is lost, the batch fails. If the loss was not reported
to any batch, the next batch of the use fails, so a superseded query stops. Later uses lead again if their access
mode permits it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from onewriter import (
    AccessMode,
    Client,
    ConfigurationError,
    Fenced,
    Leadership,
    OnewriterError,
    ProducerOptions,
    Refused,
    ServerError,
    Tls,
    Unavailable,
)
from onewriter_core.ids import TopicName
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Away, Conflict, Invalid, NotAllowed, NotFound, PipelineError
from onewriter_pipeline.lead.requests import (
    BEGIN,
    EXCLUSIVE,
    EXCLUSIVE_WITH_FENCING,
    WAIT_FOR_EXCLUSIVE,
    Grant,
    LeaderRequest,
)

USES_MAX: Final = 1_000
"""Concurrent queries and batch writes of one driver."""

LED_TOPICS_MAX: Final = 1_000
"""Topics that one driver leads at the same time."""

BATCH_SECONDS_MAX: Final = 6 * 3600.0
"""A batch that runs longer counts as ended, because what it staged has expired."""

CAPABILITY_SECONDS: Final = BATCH_SECONDS_MAX
"""How long executors may stage with a capability."""

NAME_DEFAULT: Final = "spark"
NAME_CHARACTERS: Final = 100
NAME_BYTES: Final = 4
"""The producer name is the beginning of the app's name and random bytes."""

RELEASE_SECONDS: Final = 10.0
"""Time limit for releasing a topic."""

_MODES: Final = {
    EXCLUSIVE: AccessMode.EXCLUSIVE,
    EXCLUSIVE_WITH_FENCING: AccessMode.EXCLUSIVE_WITH_FENCING,
    WAIT_FOR_EXCLUSIVE: AccessMode.WAIT_FOR_EXCLUSIVE,
}

log = logging.getLogger("onewriter")


class Opening(Protocol):
    """Creates a client of the SDK for the brokers that a request names."""

    def __call__(self, access: Access, service_url: str) -> Client:
        """A client that is not open yet. Raises ConfigurationError."""
        ...


def client_of(access: Access, service_url: str) -> Client:
    """A client with the credentials of the connector. Raises ConfigurationError."""
    token: str | Path | None = Path(access.token_file) if access.token_file else access.token
    tls = Tls(
        ca_file=_path(access.ca_file),
        certificate_file=_path(access.certificate_file),
        key_file=_path(access.key_file),
        check_host_name=access.verify,
        verify=access.verify,
    )
    return Client(service_url, token=token or None, tls=tls, version="onewriter-spark")


def _path(text: str) -> Path | None:
    return Path(text) if text else None


@dataclass(slots=True)
class _Use:
    """A query or a batch write."""

    key: str
    idle_seconds: float
    is_in_batch: bool = True
    grants: dict[str, int] = field(default_factory=dict)
    """The epoch of each of its topics."""
    lost: dict[str, str] = field(default_factory=dict)
    """Topics that were lost, and why."""
    ends_at: float = 0.0
    """When it counts as ended, by the event loop's clock."""


class _Led:
    """A topic that is led."""

    def __init__(self, name: str, place: tuple[Access, str], leadership: Leadership) -> None:
        self.name = name
        self.place = place
        self.leadership = leadership
        self.uses: set[str] = set()


class _OpenClient:
    """A client for one kind of access, which is open while its topics are led. It runs in its own task."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.users = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def client(self) -> Client:
        """The open client."""
        return await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Close it, and wait until it is closed."""
        self._stop.set()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            async with self._client:
                self._opened.set_result(self._client)
                await self._stop.wait()
        except Exception as error:
            log.exception("a client of the leader process failed")
            if not self._opened.done():
                self._opened.set_exception(error)


class Topics:
    """All topics that one driver leads, for one event loop; ``close`` releases them."""

    def __init__(
        self,
        opening: Opening = client_of,
        *,
        uses_max: int = USES_MAX,
        topics_max: int = LED_TOPICS_MAX,
    ) -> None:
        self._opening = opening
        self._uses_max = uses_max
        self._topics_max = topics_max
        self._uses: dict[str, _Use] = {}
        self._led: dict[tuple[Access, str], _Led] = {}
        self._clients: dict[tuple[Access, str], _OpenClient] = {}
        self._locks: dict[tuple[Access, str], asyncio.Lock] = {}

    @property
    def is_idle(self) -> bool:
        """Whether it leads no topic and has no use."""
        return not self._uses and not self._led

    def status(self) -> dict[str, Any]:
        """The topics that are led, and the uses."""
        return {
            "topics": {led.name: led.leadership.epoch for led in self._led.values()},
            "uses": {use.key: use.is_in_batch for use in self._uses.values()},
        }

    async def begin(self, request: LeaderRequest) -> dict[str, Grant]:
        """A batch begins: lead its topics, and return their grants. Raises PipelineError."""
        use = self._uses.get(request.use)
        if use is None:
            if len(self._uses) >= self._uses_max:
                raise Invalid(
                    f"this driver has {self._uses_max} queries and batch writes at once already"
                )
            use = self._uses[request.use] = _Use(request.use, request.idle_seconds)
        elif not use.is_in_batch:
            for led in [each for each in self._led.values() if use.key in each.uses]:
                await self._prove(led)
            if use.lost:
                await self._drop(use)
                raise Conflict("; ".join(use.lost.values()))
        is_new = not use.is_in_batch or not use.grants
        use.is_in_batch, use.ends_at = True, self._now() + BATCH_SECONDS_MAX
        if is_new:
            try:
                return await self._lead_all(use, request)
            except BaseException:
                await self._drop(use)
                raise
        # The same batch asks again, for its commit in another process.
        return {topic: Grant(epoch) for topic, epoch in use.grants.items()}

    async def lead(self, request: LeaderRequest) -> dict[str, Grant]:
        """Lead more topics of a batch. The epochs under which it began must still lead.

        Raises PipelineError: Conflict if they do not.
        """
        use = self._uses.get(request.use)
        if use is None:
            use = self._uses[request.use] = _Use(request.use, request.idle_seconds)
            use.ends_at = self._now() + BATCH_SECONDS_MAX
        for topic, epoch in request.topics.items():
            if topic in use.lost:
                raise Conflict(use.lost[topic])
            if epoch and use.grants.get(topic) != epoch:
                raise Conflict(
                    f"this batch began under epoch {epoch} of {topic}, which its driver has given up"
                    " since; nothing was published"
                )
        return await self._lead_all(use, request)

    async def end(self, request: LeaderRequest) -> None:
        """A batch has ended; ``is_over``: its use has ended, too."""
        use = self._uses.get(request.use)
        if use is None:
            return
        if request.is_over:
            await self._drop(use)
        else:
            use.is_in_batch, use.ends_at = False, self._now() + use.idle_seconds

    async def sweep(self) -> None:
        """Release topics that no use needs any more. Call it regularly."""
        now = self._now()
        if len(self._locks) > self._topics_max:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
        for use in [each for each in self._uses.values() if each.ends_at <= now]:
            log.info("use %s has ended: no batch began within its idle time", use.key)
            await self._drop(use)

    async def close(self) -> None:
        """Release everything."""
        for use in list(self._uses.values()):
            await self._drop(use)
        for opened in list(self._clients.values()):
            await opened.close()
        self._clients.clear()

    # ------------------------------------------------------------ inside

    async def _lead_all(self, use: _Use, request: LeaderRequest) -> dict[str, Grant]:
        if request.access is None:
            raise Invalid("the request names no broker")
        grants: dict[str, Grant] = {}
        for topic in request.topics:
            led = await self._leading(use, topic, request, request.access)
            if led.leadership.epoch != (request.topics[topic] or led.leadership.epoch):
                raise Conflict(f"this driver has released {topic} since the batch began")
            led.uses.add(use.key)
            use.grants[topic] = led.leadership.epoch
            grants[topic] = Grant(led.leadership.epoch, _capability(led.leadership, request.app))
        return grants

    async def _leading(self, use: _Use, topic: str, request: LeaderRequest, access: Access) -> _Led:
        """A topic that is led, newly if necessary. Raises PipelineError."""
        name = TopicName.parse(topic)
        async with self._lock(access, topic):
            for each in dict.fromkeys((topic, str(name.base))):
                led = self._led.get((access, each))
                if led is not None and await self._goes_on(led, use, is_new=request.what == BEGIN):
                    return led
            if len(self._led) >= self._topics_max:
                raise Invalid(f"this driver leads {self._topics_max} topics already")
            return await self._win(topic, request, access)

    async def _goes_on(self, led: _Led, use: _Use, *, is_new: bool) -> bool:
        """Whether a leadership covers a request; otherwise it is released.

        Partitions that were added later belong to the leader under other epochs. If no other use needs the topic,
        it is led again, with all partitions under one epoch.
        """
        leadership = led.leadership
        if is_new:
            await self._prove(led)
        if leadership.is_over or not self._is_led(led):
            return False
        if not is_new or led.uses - {use.key} or not leadership.partitions:
            return True
        opened = self._clients[led.place]
        with contextlib.suppress(OnewriterError):
            count = await (await opened.client()).partitions_of(led.name)
            if count > len(leadership.partitions):
                await self._release(led)
                return False
        return True

    async def _prove(self, led: _Led) -> None:
        """Ask the broker whether an epoch still leads, because the notification may be under way. An unreachable
        broker proves nothing.
        """
        try:
            await led.leadership.check()
        except Fenced as error:
            self._lost(led, error)
        except OnewriterError:
            log.info("epoch %d of %s could not be checked", led.leadership.epoch, led.name)

    def _is_led(self, led: _Led) -> bool:
        return self._led.get((led.place[0], led.name)) is led

    async def _win(self, topic: str, request: LeaderRequest, access: Access) -> _Led:
        place = access, request.service_url
        async with self._client(place) as client:
            lead = client.lead(
                topic,
                access_mode=_MODES[request.mode],
                announce=False,
                timeout_seconds=request.wait_seconds or None,
                options=ProducerOptions(name=_name(request.app)),
            )
            with _understood(topic):
                leadership = await lead.__aenter__()
            self._clients[place].users += 1
        led = self._led[access, topic] = _Led(topic, place, leadership)
        leadership.lost.call(lambda reason: self._lost(led, reason))
        return led

    @contextlib.asynccontextmanager
    async def _client(self, place: tuple[Access, str]) -> AsyncIterator[Client]:
        opened = self._clients.get(place)
        if opened is None:
            with _understood("the brokers"):
                opened = self._clients[place] = _OpenClient(self._opening(*place))
        opened.users += 1
        try:
            yield await opened.client()
        finally:
            await self._leave(place)

    async def _leave(self, place: tuple[Access, str]) -> None:
        opened = self._clients[place]
        opened.users -= 1
        if opened.users == 0:
            del self._clients[place]
            await opened.close()

    def _lost(self, led: _Led, reason: OnewriterError) -> None:
        """A leadership has ended; called in the tick of the event loop that received the notification."""
        if not self._is_led(led):
            return  # it was released
        del self._led[led.place[0], led.name]
        epoch = led.leadership.epoch
        log.warning("epoch %d of %s is over: %s", epoch, led.name, reason)
        text = (
            f"this driver does not lead {led.name} any more: epoch {epoch} is over ({reason});"
            " nothing more is published under it"
        )
        for use in [self._uses[key] for key in led.uses if key in self._uses]:
            for topic in use.grants:
                if led.name in {topic, str(TopicName.parse(topic).base)}:
                    use.lost[topic] = text
        asyncio.get_running_loop().create_task(self._leave(led.place)).add_done_callback(_note)

    async def _drop(self, use: _Use) -> None:
        """End a use: release its topics, unless other uses need them."""
        if self._uses.get(use.key) is use:
            del self._uses[use.key]
        for led in list(self._led.values()):
            if use.key in led.uses:
                led.uses.discard(use.key)
                # A write that begins meanwhile waits, because this driver is the holder until the release.
                async with self._lock(led.place[0], led.name):
                    if not led.uses:
                        await self._release(led)

    def _lock(self, access: Access, topic: str) -> asyncio.Lock:
        """The lock for acquiring or releasing a topic or its partitions."""
        return self._locks.setdefault((access, str(TopicName.parse(topic).base)), asyncio.Lock())

    async def _release(self, led: _Led) -> None:
        if not self._is_led(led):
            return
        del self._led[led.place[0], led.name]
        with contextlib.suppress(OnewriterError):
            await led.leadership.handover(timeout_seconds=RELEASE_SECONDS)
        await self._leave(led.place)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _name(app: str) -> str:
    """The producer name of one attempt to lead; status and history show it."""
    return f"{(app or NAME_DEFAULT)[:NAME_CHARACTERS]}-{secrets.token_hex(NAME_BYTES)}"


def _capability(leadership: Leadership, app: str) -> str:
    """The capability with which executors and the committing process stage and publish as an app; empty: not known
    yet.
    """
    if not app:
        return ""
    try:
        return leadership.capability(app, expires_seconds=CAPABILITY_SECONDS)
    except Unavailable:  # a broker of an earlier release requires none
        return ""


def _note(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a client could not be closed", exc_info=task.exception())


@contextlib.contextmanager
def _understood(topic: str) -> Iterator[None]:
    """Convert errors of the SDK to errors of the pipeline."""
    try:
        yield
    except Fenced as error:
        raise Conflict(f"another producer holds {topic}: {error}") from error
    except Refused as error:
        raise _refusal(topic, error) from error
    except Unavailable as error:
        raise Away(f"{topic} cannot be led: {error}") from error
    except ConfigurationError as error:
        raise Invalid(str(error)) from error
    except OnewriterError as error:
        raise Away(f"{topic} cannot be led: {error}") from error


def _refusal(topic: str, error: Refused) -> PipelineError:
    match error.code:
        case ServerError.AUTHORIZATION_ERROR | ServerError.AUTHENTICATION_ERROR:
            return NotAllowed(f"{topic} may not be led with this token: {error}")
        case ServerError.TOPIC_NOT_FOUND:
            return NotFound(f"{topic}: {error}")
        case (
            ServerError.TOPIC_TERMINATED_ERROR
            | ServerError.PRODUCER_BUSY
            | ServerError.PRODUCER_FENCED
        ):
            return Conflict(f"{topic}: {error}")
        case _:
            return Invalid(f"{topic} cannot be led: {error}")
