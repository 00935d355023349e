"""Shared state with calls that block.

Readers (``scan``, ``read``, the one of ``write``) run in the thread that calls, and may block. What is
run again on newer states (the functions of ``update``, ``write``'s generator, the builder's applier and
serialisers) runs in the client's thread: it must neither block nor call anything that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Self, TypeVar

from onewriter.state.checkpoints import Checkpoints
from onewriter.state.map_content import MapContent
from onewriter.state.map_operations import COMPACT, MapFormat, MapOperation
from onewriter.state.replica import Trouble
from onewriter.state.serializers import Serializer
from onewriter.state.shared_map import Change
from onewriter.state.shared_map import SharedMap as AsyncSharedMap
from onewriter.state.shared_state import SharedState as AsyncSharedState
from onewriter.state.shared_state import SharedStateBuilder
from onewriter.state.watch import Watch as AsyncWatch
from onewriter.state.writer import StateLimits
from onewriter.sync._client import Client
from onewriter.sync._contexts import Context, next_of
from onewriter.sync._facade import Facade, Held, Reading, blocking, parts
from onewriter.sync._thread import Thread

S = TypeVar("S")
Op = TypeVar("Op")
K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")
R = TypeVar("R")


class SharedState(Context[AsyncSharedState[S, Op]], Generic[S, Op]):
    """As ``onewriter.SharedState``, in a ``with`` statement inside its client's; for any thread.

    Of a ``SharedStateBuilder``, on a topic. What the builder was given, and what ``write`` generates
    with, runs in the client's thread: it must not block. Readers run in the thread that calls.
    """

    version: Reading[AsyncSharedState[Any, Any], int] = Reading(lambda it: it.version)
    grants: Reading[AsyncSharedState[Any, Any], int] = Reading(lambda it: it.grants)
    trouble: Reading[AsyncSharedState[Any, Any], Trouble | None] = Reading(lambda it: it.trouble)

    def __init__(self, builder: SharedStateBuilder[S, Op], client: Client, topic: str) -> None:
        host, thread = parts(client)
        super().__init__(builder.open(host, topic), thread)
        self._held = Held(self._inner, host.spawn)

    @classmethod
    def of(cls, inner: AsyncSharedState[S, Op], thread: Thread) -> Self:
        """One that is entered and left with what it belongs to."""
        self = cls.__new__(cls)
        Facade.__init__(self, inner, thread)
        return self

    def _enter(self) -> None:
        self._thread.call(self._held.enter())

    def _leave(self, _error: BaseException | None) -> None:
        self._thread.leave(self._held.leave())

    def read(
        self,
        reader: Callable[[S], R],
        *,
        latest: bool = False,
        timeout_seconds: float | None = None,
    ) -> R:
        """What ``reader`` makes of the state; see ``onewriter.SharedState.read``."""
        return reader(self.snapshot(latest=latest, timeout_seconds=timeout_seconds).state)

    def write(
        self,
        generate: Callable[[S], Iterable[Op]],
        reader: Callable[[S], R],
        *,
        if_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> R:
        """Append the operations that ``generate`` gives; see ``onewriter.SharedState.write``.

        ``generate`` runs in the client's thread, perhaps several times, and must not block.
        """
        behind = self._inner.write(
            generate, _itself, if_version=if_version, timeout_seconds=timeout_seconds
        )
        return reader(self._thread.call(behind))

    snapshot = blocking(AsyncSharedState[S, Op].snapshot)
    ready = blocking(AsyncSharedState[S, Op].ready)
    checkpoint = blocking(AsyncSharedState[S, Op].checkpoint)


class Watch(Context[AsyncWatch[Any, C]], Generic[C]):
    """``with`` it, then ``for`` each change. Made by ``SharedMap.watch``; one reader at a time."""

    def _enter(self) -> None:
        self._thread.call(self._inner.__aenter__())

    def _leave(self, _error: BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, in whatever thread it is. Idempotent."""
        self._thread.leave(self._inner.__aexit__(None, None, None))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        return next_of(self._thread, self._inner.__anext__())


class SharedMap(Context[AsyncSharedMap[K, V]], Generic[K, V]):
    """As ``onewriter.SharedMap``, in a ``with`` statement inside its client's; for any thread.

    The functions of ``update`` and ``update_multiple`` run in the client's thread, perhaps several
    times: they must neither block nor call anything that does. ``scan``'s runs where it is called.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        keys: type[K] | Serializer[K],
        values: type[V] | Serializer[V],
        *,
        format: MapFormat = COMPACT,  # noqa: A002 - the word for it
        limits: StateLimits | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        host, thread = parts(client)
        shared = AsyncSharedMap(
            host, topic, keys, values, format=format, limits=limits, checkpoints=checkpoints
        )
        super().__init__(shared, thread)
        self._held = Held(shared, host.spawn)

    def _enter(self) -> None:
        self._thread.call(self._held.enter())

    def _leave(self, _error: BaseException | None) -> None:
        self._thread.leave(self._held.leave())

    @property
    def state(self) -> SharedState[MapContent, MapOperation]:
        """The state beneath: its version, its trouble, checkpoints. It needs no ``with``."""
        return SharedState.of(self._inner.state, self._thread)

    get = blocking(AsyncSharedMap[K, V].get)
    get_or_default = blocking(AsyncSharedMap[K, V].get_or_default)
    list_keys = blocking(AsyncSharedMap[K, V].list_keys)
    size = blocking(AsyncSharedMap[K, V].size)
    put = blocking(AsyncSharedMap[K, V].put)
    put_if_absent = blocking(AsyncSharedMap[K, V].put_if_absent)
    replace = blocking(AsyncSharedMap[K, V].replace)
    delete = blocking(AsyncSharedMap[K, V].delete)
    clear = blocking(AsyncSharedMap[K, V].clear)
    update = blocking(AsyncSharedMap[K, V].update)
    update_multiple = blocking(AsyncSharedMap[K, V].update_multiple)

    def scan(
        self,
        reader: Callable[[Mapping[K, V]], R],
        *,
        latest: bool = False,
        timeout_seconds: float | None = None,
    ) -> R:
        """What ``reader`` makes of the whole map, which it may keep; it runs in this thread."""
        content = self._inner.scan(_itself, latest=latest, timeout_seconds=timeout_seconds)
        return reader(self._thread.call(content))

    def watch(self, *, initial: bool = False) -> Watch[Change[K, V]]:
        """Every change from now on, in order; see ``onewriter.SharedMap.watch``."""
        return Watch(self._inner.watch(initial=initial), self._thread)


def _itself(value: S) -> S:
    return value
