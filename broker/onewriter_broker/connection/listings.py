"""The topics of namespaces, for GET_TOPICS_OF_NAMESPACE. Concurrent requests share one listing.

A request gets a listing that began after the request arrived, so it contains everything that
existed by then. Listings may be long, so they are built and encoded in steps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.ids import TopicName
from onewriter_core.wire.commands import command_frame
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

NAMES_PER_STEP: Final = 500
"""Names that are handled in one tick of the event loop."""

NAMESPACES_MAX: Final = 1_000
"""Namespaces with a listing under way. Listings of further ones are not shared."""


class Listings:
    """The lists of one broker."""

    def __init__(self, topics: Topics, *, names_per_step: int = NAMES_PER_STEP) -> None:
        self.names_per_step = names_per_step
        self._topics = topics
        self._next: dict[str, asyncio.Future[Sequence[str]]] = {}
        self._current: dict[str, asyncio.Lock] = {}

    async def logs_of(self, namespace: str) -> Sequence[str]:
        """The full names of all logs in ``tenant/namespace``, sorted. Raises Undecided."""
        shared = self._next.get(namespace)
        if shared is not None:
            return await asyncio.shield(shared)
        if len(self._current) >= NAMESPACES_MAX and namespace not in self._current:
            return await self._listed(namespace)
        shared = self._next[namespace] = asyncio.get_running_loop().create_future()
        try:
            async with self._current.setdefault(namespace, asyncio.Lock()):
                del self._next[namespace]  # later requests wait for the next listing
                found = await self._listed(namespace)
        except BaseException as error:
            if self._next.get(namespace) is shared:
                del self._next[namespace]
            if isinstance(error, Exception):
                shared.set_exception(error)
                shared.exception()  # perhaps no other request waits
            else:
                shared.cancel()
            raise
        finally:
            if namespace not in self._next:
                self._current.pop(namespace, None)
        shared.set_result(found)
        return found

    async def _listed(self, namespace: str) -> Sequence[str]:
        found = await self._topics.list(namespace)
        ticks = Ticks(self.names_per_step)
        parts: list[list[str]] = [[]]
        for text, entry in found.items():
            for name in entry.log_names(TopicName.parse(text)):
                if len(parts[-1]) >= self.names_per_step:
                    parts[-1].sort()
                    parts.append([])
                parts[-1].append(str(name))
                await ticks.step()
        parts[-1].sort()
        names: list[str] = []
        for name_text in heapq.merge(*parts):
            names.append(name_text)
            await ticks.step()
        return names


async def write_topics(
    request_id: int,
    names: Iterable[str],
    write: Callable[..., None],
    names_per_step: int = NAMES_PER_STEP,
) -> None:
    """Answer GET_TOPICS_OF_NAMESPACE."""
    response = pb.CommandGetTopicsOfNamespaceResponse
    pieces: list[bytes] = []
    part: list[str] = []
    for name in names:
        part.append(name)
        if len(part) >= names_per_step:
            # The concatenated encodings of parts of a message are the encoding of the whole
            # message.
            pieces.append(response(topics=part).SerializePartialToString())
            part = []
            await asyncio.sleep(0)
    rest = response(request_id=request_id, topics=part, filtered=False, changed=True)
    pieces.append(rest.SerializeToString())
    write(*command_frame(response, pieces))
