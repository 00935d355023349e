"""Shared state with calls that block.

Reader functions (of ``scan``, ``read`` and ``write``) run in the calling thread, and may block. Functions that may
run again on newer states (those of ``update``, the generator of ``write``, the builder's applier and serializers)
run in the client's thread: they must neither block nor call a method that blocks.
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
from onewriter.sync._facade import Facade, Held, Reading, blocking, inner_and_thread
from onewriter.sync._thread import Thread

S = TypeVar("S")
Op = TypeVar("Op")
K = TypeVar("K")
V = TypeVar("V")
C = TypeVar("C")
R = TypeVar("R")


class SharedState(Context[AsyncSharedState[S, Op]], Generic[S, Op]):
    """As ``onewriter.SharedState``, in a ``with`` statement inside its client's; for any thread.

    It opens the state of a ``SharedStateBuilder`` on a topic. The builder's functions and the generator of
    ``write`` run in the client's thread and must not block. Reader functions run in the calling thread.
    """

    version: Reading[AsyncSharedState[Any, Any], int] = Reading(lambda it: it.version)
    grants: Reading[AsyncSharedState[Any, Any], int] = Reading(lambda it: it.grants)
    trouble: Reading[AsyncSharedState[Any, Any], Trouble | None] = Reading(lambda it: it.trouble)

    def __init__(self, builder: SharedStateBuilder[S, Op], client: Client, topic: str) -> None:
        host, thread = inner_and_thread(client)
        super().__init__(builder.open(host, topic), thread)
        self._held = Held(self._inner, host.spawn)

    @classmethod
    def of(cls, inner: AsyncSharedState[S, Op], thread: Thread) -> Self:
        """Return a state that its map enters and leaves."""
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
        """Call ``reader`` with the state, and return its result; see ``onewriter.SharedState.read``."""
        return reader(self.snapshot(latest=latest, timeout_seconds=timeout_seconds).state)

    def write(
        self,
        generate: Callable[[S], Iterable[Op]],
        reader: Callable[[S], R],
        *,
        if_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> R:
        """Append the operations of ``generate``; see ``onewriter.SharedState.write``.

        ``generate`` runs in the client's thread, possibly several times, and must not block.
        """
        behind = self._inner.write(
            generate, _itself, if_version=if_version, timeout_seconds=timeout_seconds
        )
        return reader(self._thread.call(behind))

    snapshot = blocking(AsyncSharedState[S, Op].snapshot)
    ready = blocking(AsyncSharedState[S, Op].ready)
    checkpoint = blocking(AsyncSharedState[S, Op].checkpoint)


class Watch(Context[AsyncWatch[Any, C]], Generic[C]):
    """Enter it with ``with``, then iterate over the changes. Created by ``SharedMap.watch``; one reader at a time."""

    def _enter(self) -> None:
        self._thread.call(self._inner.__aenter__())

    def _leave(self, _error: BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, in any thread. Idempotent."""
        self._thread.leave(self._inner.__aexit__(None, None, None))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> C:
        return next_of(self._thread, self._inner.__anext__())


class SharedMap(Context[AsyncSharedMap[K, V]], Generic[K, V]):
    """As ``onewriter.SharedMap``, in a ``with`` statement inside its client's; for any thread.

    The functions of ``update`` and ``update_multiple`` run in the client's thread, possibly several times: they
    must neither block nor call a method that blocks. The function of ``scan`` runs in the calling thread.
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
        host, thread = inner_and_thread(client)
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
        """The underlying state: its version, its trouble, checkpoints. Do not enter it."""
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
        """Call ``reader`` with the whole map in this thread, and return its result. It may keep the map."""
        content = self._inner.scan(_itself, latest=latest, timeout_seconds=timeout_seconds)
        return reader(self._thread.call(content))

    def watch(self, *, initial: bool = False) -> Watch[Change[K, V]]:
        """Return a watch of every change from now on, in order; see ``onewriter.SharedMap.watch``."""
        return Watch(self._inner.watch(initial=initial), self._thread)


def _itself(value: S) -> S:
    return value
