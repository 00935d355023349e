"""``SharedMap``: a dictionary that all its users share, on PIP-137's log of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from onewriter._client import Client
from onewriter.state.checkpoints import Checkpoints, CheckpointStore
from onewriter.state.errors import WrongType
from onewriter.state.map_content import MapContent
from onewriter.state.map_operations import (
    COMPACT,
    Kind,
    MapFormat,
    MapOperation,
    MapSnapshots,
    apply,
)
from onewriter.state.memory import MemoryLog
from onewriter.state.serializers import Serializer, serializer_for
from onewriter.state.shared_state import SharedState, SharedStateBuilder
from onewriter.state.watch import Watch
from onewriter.state.writer import StateLimits

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
R = TypeVar("R")


class MapView(Mapping[K, V]):
    """The map at one version; it never changes. Keys and values are decoded on demand."""

    __slots__ = ("_content", "_keys", "_values")

    def __init__(self, content: MapContent, keys: Serializer[K], values: Serializer[V]) -> None:
        self._content = content
        self._keys = keys
        self._values = values

    def __getitem__(self, key: K) -> V:
        found = self._content.get(self._keys.dump(key))
        if found is None:
            raise KeyError(key)
        return self._values.load(found)

    def __contains__(self, key: object) -> bool:
        try:
            return self._keys.dump(key) in self._content  # type: ignore[arg-type]
        except WrongType:
            return False

    def __iter__(self) -> Iterator[K]:
        return map(self._keys.load, self._content.keys())

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return f"MapView({dict(self)!r})"


class Change(NamedTuple, Generic[K, V]):
    """The change of one key by one write. ``value`` is None if the key was removed."""

    key: K
    value: V | None
    previous: V | None
    version: int


class SharedMap(Generic[K, V]):
    """A shared map on a topic. Enter it (``async with``) in one task; any task of that loop may use it.

    ``keys`` and ``values`` are types (``str``, ``int``, ``bytes``, ``dict``, ``object`` for any JSON, a pydantic
    model) or Serializers. ``format=SAMPLE`` selects the format of PIP-137's sample. All methods that write raise
    WrongType for an invalid key or value, NotSent, Refused or Closed (nothing was written), or OutcomeUnknown;
    see SharedState.
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
        self._begin(keys, values, limits)
        self._state = self._builder(format, limits, checkpoints).open(client, topic)

    @classmethod
    def in_memory(
        cls,
        keys: type[K] | Serializer[K],
        values: type[V] | Serializer[V],
        *,
        log: MemoryLog | None = None,
        checkpoint_store: CheckpointStore | None = None,
        format: MapFormat = COMPACT,  # noqa: A002
        limits: StateLimits | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Self:
        """Create a map on a log in memory, for tests. Maps on the same ``log`` share their content."""
        self = cls.__new__(cls)
        self._begin(keys, values, limits)
        builder = self._builder(format, limits, checkpoints)
        self._state = builder.in_memory(log, checkpoint_store)
        return self

    def _begin(
        self,
        keys: type[K] | Serializer[K],
        values: type[V] | Serializer[V],
        limits: StateLimits | None,
    ) -> None:
        self._keys = keys if isinstance(keys, Serializer) else serializer_for(keys)
        self._values = values if isinstance(values, Serializer) else serializer_for(values)
        self._limits = limits or StateLimits()

    @staticmethod
    def _builder(
        format: MapFormat,  # noqa: A002
        limits: StateLimits | None,
        checkpoints: Checkpoints | None,
    ) -> SharedStateBuilder[MapContent, MapOperation]:
        return SharedStateBuilder(
            initial=MapContent,
            apply=apply,
            serialize=format.dump,
            deserialize=format.load,
            immutable=True,
            framing=format.framing(),
            limits=limits or StateLimits(),
            snapshots=MapSnapshots(),
            checkpoints=checkpoints or Checkpoints(),
        )

    async def __aenter__(self) -> Self:
        await self._state.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._state.__aexit__(kind, error, traceback)

    @property
    def state(self) -> SharedState[MapContent, MapOperation]:
        """The underlying state: its version, its trouble, checkpoints."""
        return self._state

    # ------------------------------------------------------------ reading

    async def get(
        self, key: K, *, latest: bool = False, timeout_seconds: float | None = None
    ) -> V | None:
        """Return a key's value, or None. ``latest``: see SharedState.read."""
        return await self.get_or_default(key, None, latest=latest, timeout_seconds=timeout_seconds)

    async def get_or_default(
        self,
        key: K,
        default: D,
        *,
        latest: bool = False,
        timeout_seconds: float | None = None,
    ) -> V | D:
        """Return a key's value, or ``default``."""
        encoded = self._keys.dump(key)
        content = await self._content(latest=latest, timeout_seconds=timeout_seconds)
        found = content.get(encoded)
        return default if found is None else self._values.load(found)

    async def scan(
        self,
        reader: Callable[[Mapping[K, V]], R],
        *,
        latest: bool = False,
        timeout_seconds: float | None = None,
    ) -> R:
        """Call ``reader`` with the whole map, and return its result.

        It must not block. It may keep the map, which never changes.
        """
        return reader(
            self._view(await self._content(latest=latest, timeout_seconds=timeout_seconds))
        )

    async def list_keys(
        self, *, latest: bool = False, timeout_seconds: float | None = None
    ) -> list[K]:
        """Return all keys in an unspecified order."""
        return list(self._view(await self._content(latest=latest, timeout_seconds=timeout_seconds)))

    async def size(self, *, latest: bool = False) -> int:
        """Return the number of keys."""
        return len(await self._content(latest=latest))

    async def _content(self, *, latest: bool, timeout_seconds: float | None = None) -> MapContent:
        return (await self._state.snapshot(latest=latest, timeout_seconds=timeout_seconds)).state

    def _view(self, content: MapContent) -> MapView[K, V]:
        return MapView(content, self._keys, self._values)

    # ------------------------------------------------------------ writing

    async def put(self, key: K, value: V, *, timeout_seconds: float | None = None) -> V | None:
        """Set a key, and return its previous value. Nothing is written if it has this value already."""
        return await self._change(key, lambda _old: self._values.dump(value), timeout_seconds)

    async def put_if_absent(
        self, key: K, value: V, *, timeout_seconds: float | None = None
    ) -> V | None:
        """Set a key that does not exist, and return None; return the value of a key that exists."""
        encoded = self._values.dump(value)
        return await self._change(key, lambda old: encoded if old is None else old, timeout_seconds)

    async def replace(
        self, key: K, expected: V, value: V, *, timeout_seconds: float | None = None
    ) -> bool:
        """Set a key if its value equals ``expected``; return whether it was set."""
        self._values.dump(expected)
        encoded, new = self._keys.dump(key), self._values.dump(value)
        was_equal = False

        def generate(content: MapContent) -> Iterable[MapOperation]:
            nonlocal was_equal
            old = content.get(encoded)
            was_equal = old is not None and self._values.load(old) == expected
            return self._put(content, encoded, new) if was_equal else ()

        await self._state.write(generate, _nothing, timeout_seconds=timeout_seconds)
        return was_equal

    async def delete(self, key: K, *, timeout_seconds: float | None = None) -> V | None:
        """Remove a key, and return its value; None if it did not exist and nothing was written."""
        return await self._change(key, lambda _old: None, timeout_seconds)

    async def clear(self, *, timeout_seconds: float | None = None) -> None:
        """Remove all keys; nothing is written for an empty map."""
        clear = (MapOperation(Kind.CLEAR),)
        await self._state.write(
            lambda content: clear if content else (), _nothing, timeout_seconds=timeout_seconds
        )

    async def update(
        self,
        key: K,
        function: Callable[[V | None], V | None],
        *,
        timeout_seconds: float | None = None,
    ) -> V | None:
        """Set a key to the result of ``function`` for its value, and return the new value.

        None means that the key does not exist, or is removed. ``function`` may run several times, each time
        on a newer value, and must have no side effects.
        """
        encoded = self._keys.dump(key)

        def generate(content: MapContent) -> Iterable[MapOperation]:
            old = content.get(encoded)
            new = function(None if old is None else self._values.load(old))
            if new is None:
                return self._remove(content, encoded)
            return self._put(content, encoded, self._values.dump(new))

        def reader(content: MapContent) -> V | None:
            found = content.get(encoded)
            return None if found is None else self._values.load(found)

        return await self._state.write(generate, reader, timeout_seconds=timeout_seconds)

    async def update_multiple(
        self,
        function: Callable[[Mapping[K, V]], Mapping[K, V | None]],
        *,
        if_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Mapping[K, V]:
        """Change several keys together, all or none. ``function`` returns new values; None removes a key.

        It receives the whole map, may run several times, and must have no side effects. Returns the map
        directly after the change. Raises VersionConflict if the map's version is not ``if_version``.
        """

        def generate(content: MapContent) -> Iterable[MapOperation]:
            operations: list[MapOperation] = []
            for key, value in function(self._view(content)).items():
                encoded = self._keys.dump(key)
                if value is None:
                    operations += self._remove(content, encoded)
                else:
                    operations += self._put(content, encoded, self._values.dump(value))
            return operations

        return await self._state.write(
            generate, self._view, if_version=if_version, timeout_seconds=timeout_seconds
        )

    async def _change(
        self,
        key: K,
        new_of: Callable[[bytes | None], bytes | None],
        timeout_seconds: float | None,
    ) -> V | None:
        """Set or remove one key, and return its previous value."""
        encoded = self._keys.dump(key)
        new_of(None)  # an invalid value raises before anything is queued
        old: bytes | None = None

        def generate(content: MapContent) -> Iterable[MapOperation]:
            nonlocal old
            old = content.get(encoded)
            new = new_of(old)
            if new is None:
                return self._remove(content, encoded)
            return self._put(content, encoded, new)

        await self._state.write(generate, _nothing, timeout_seconds=timeout_seconds)
        return None if old is None else self._values.load(old)

    @staticmethod
    def _put(content: MapContent, key: bytes, value: bytes) -> tuple[MapOperation, ...]:
        return () if content.get(key) == value else (MapOperation(Kind.PUT, key, value),)

    @staticmethod
    def _remove(content: MapContent, key: bytes) -> tuple[MapOperation, ...]:
        return (MapOperation(Kind.DELETE, key),) if key in content else ()

    # ------------------------------------------------------------ watching

    def watch(self, *, initial: bool = False) -> Watch[_RawChange, Change[K, V]]:
        """Return a watch of every change from now on, in order: ``async with`` it, then ``async for``.

        With ``initial`` it first reports the present content, as if it had been put just now. It raises
        WatchOverflow when more than ``StateLimits.watched_changes_max`` changes wait: start another watch with
        ``initial``.
        """
        return Watch(
            self._state,
            _changes_of,
            _present if initial else None,
            self._decode,
            self._limits.watched_changes_max,
        )

    def _decode(self, change: _RawChange) -> Change[K, V]:
        key, value, previous, version = change
        return Change(
            self._keys.load(key),
            None if value is None else self._values.load(value),
            None if previous is None else self._values.load(previous),
            version,
        )


_RawChange = tuple[bytes, bytes | None, bytes | None, int]
"""An undecoded change: key, value, previous value, version."""


def _present(content: MapContent, version: int) -> Iterable[_RawChange]:
    return ((key, value, None, version) for key, value in content.items())


def _changes_of(
    before: MapContent, after: MapContent, operations: tuple[MapOperation, ...], version: int
) -> Iterable[_RawChange]:
    """Return the changes of a write: of the keys that it names, or of all keys for CLEAR or unknown operations."""
    named: Iterable[bytes]
    if not operations or any(operation.kind is Kind.CLEAR for operation in operations):
        named = {**dict.fromkeys(before.keys()), **dict.fromkeys(after.keys())}
    else:
        named = dict.fromkeys(operation.key for operation in operations)
    for key in named:
        old, new = before.get(key), after.get(key)
        if old != new:
            yield key, new, old, version


def _nothing(_state: object) -> None:
    return None
