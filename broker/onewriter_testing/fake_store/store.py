"""``FakeLogStore``: the production store over fake nodes, with faults between the two on request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

from onewriter_broker.log.store.api import Append, BrokenKey, Outcome
from onewriter_broker.log.store.keys import BUCKETS_DEFAULT
from onewriter_broker.log.store.redis.channel import PrimaryChannel
from onewriter_broker.log.store.redis.connection import RedisConnection
from onewriter_broker.log.store.redis.primary import Endpoint, Primary, RedisSettings, handshake
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided
from onewriter_testing.fake_store.server import FakeConnection, FakeNode

Moment = Literal["before", "after"]
Hook = Callable[[str, Moment], Awaitable[None]]
"""Awaited with the method's name before a call is executed and before it is answered."""

_Result = TypeVar("_Result")


async def _no_delay(_call: str, _moment: Moment) -> None:
    return


@dataclass(slots=True)
class Faults:
    """Faults between a store and its servers.

    ``fail_before``, ``fail_after``: that many of the next calls end Undecided without, or after being executed.
    ``hook`` may wait (latency), change the world, or raise Undecided itself. ``is_cut_off``: no server can be reached.
    """

    fail_before: int = 0
    fail_after: int = 0
    hook: Hook = _no_delay
    is_cut_off: bool = False


WRITES = (
    *("observe", "write_birthmark", "note_replid", "replicate", "stamp", "fence"),
    "append_together",
    *("check", "own"),
    *("set_state", "swap_state", "trim", "write_audit", "set_catalog"),
)
"""Methods that use the connection of the guarded writes."""

READS = (
    *("read_state", "read_owned", "read_catalog", "read_blocks", "read_audit"),
    *("beat", "members", "forget_member", "read_settings", "set_settings", "settle_setting"),
)
"""Methods that use the other connection."""

COMPACTED = {
    **{name: f"compact_{name}" for name in ("begin", "write", "finish", "drop")},
    **dict.fromkeys(("read", "places", "named", "extent"), "read_compacted"),
}
STAGED = {
    name: f"staged_{name}" for name in ("check_rights", "write", "note", "read", "noted", "drop")
}
"""Names under which hooks see the methods of these parts of a store."""


class FakeLogStore(RedisLogStore):
    """One shard, for tests and simulations.

    ``resolve`` names the node to connect to; the connection then stays, also to a node that the other nodes no longer
    regard as primary, until the node drops it. ``replicas`` is the number that AllReplicas waits for. Calls over one
    connection run one after the other.
    """

    def __init__(
        self,
        resolve: Callable[[], FakeNode | None],
        *,
        buckets: int = BUCKETS_DEFAULT,
        replicas: int = 0,
        commit_timeout_seconds: float = 1.0,
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self._resolve = resolve
        super().__init__(
            RedisSettings(
                buckets=buckets, replicas=replicas, commit_timeout_seconds=commit_timeout_seconds
            ),
            self._open,
        )
        self._write_lock = asyncio.Lock()
        self._read_lock = asyncio.Lock()
        self.compacted = cast("Any", _Faulty(self, self.compacted, COMPACTED))
        self.staged = cast("Any", _Faulty(self, self.staged, STAGED))

    async def _open(self, _settings: RedisSettings, replaces: Primary | None) -> Primary:
        node = self._resolve()
        if node is None or not node.is_reachable or self.faults.is_cut_off:
            raise Undecided("no connection to the store")
        connection = FakeConnection(node, lambda: not self.faults.is_cut_off)
        if replaces is not None and not replaces.connection.is_open:
            replaces = replace(replaces, run_id="")  # nothing of it can be under way
        return await handshake(
            cast("RedisConnection", connection), Endpoint(host=node.name), replaces
        )

    def turn(self, about: Sequence[object], *, writes: bool) -> asyncio.Lock:
        """The lock that keeps the order of calls. ``about``: the arguments of the call."""
        del about
        return self._write_lock if writes else self._read_lock

    async def reached(self, *, writes: bool) -> Primary | None:
        """The connection that a call will use; None if it is not known yet. Raises Undecided."""
        return await cast("PrimaryChannel", self._writes if writes else self._reads).ready()

    async def with_faults(
        self,
        call: str,
        run: Callable[[], Awaitable[_Result]],
        *,
        writes: bool,
        about: Sequence[object] = (),
    ) -> _Result:
        """Make a call over one of the connections, with the faults before and after it."""
        async with self.turn(about, writes=writes):
            if self.faults.fail_before > 0:
                self.faults.fail_before -= 1
                raise Undecided("the store did not answer")
            primary = await self.reached(writes=writes)
            await self.faults.hook(call, "before")
            _check(primary)
            result = await run()
            await self.faults.hook(call, "after")
            _check(primary)
            if self.faults.fail_after > 0:
                self.faults.fail_after -= 1
                raise Undecided("the store did not answer")
            return result

    async def append(self, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        run = super().append
        if not appends:
            return []
        return await self.with_faults("append", lambda: run(appends), writes=True, about=(appends,))

    async def commit(self, durability: Durability, *, replid: str = "") -> bool:
        run = super().commit
        if durability is Durability.NONE:
            return True
        return await self.with_faults(
            "commit", lambda: run(durability, replid=replid), writes=True, about=(durability,)
        )


def _check(primary: Primary | None) -> None:
    if primary is not None and not primary.connection.is_open:
        raise Undecided("the connection to the store was lost")


def _with_faults(name: str, *, writes: bool) -> Callable[..., Awaitable[Any]]:
    """A method of the production store, its calls with the store's faults."""
    method = getattr(RedisLogStore, name)

    async def call(self: FakeLogStore, *arguments: Any, **options: Any) -> Any:
        # A call uses its arguments at the time of the call, even if it is delayed.
        kept = [dict(each) if isinstance(each, dict) else each for each in arguments]
        return await self.with_faults(
            name, lambda: method(self, *kept, **options), writes=writes, about=kept
        )

    return call


for _name in WRITES:
    setattr(FakeLogStore, _name, _with_faults(_name, writes=True))
for _name in READS:
    setattr(FakeLogStore, _name, _with_faults(_name, writes=False))


class _Faulty:
    """The compacted or the staged part of a store, its calls with the store's faults."""

    def __init__(self, store: FakeLogStore, inner: object, calls: Mapping[str, str]) -> None:
        self._store = store
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method, call = getattr(self._inner, name), self._calls[name]
        writes = call.startswith("compact_")

        async def run(*arguments: Any, **options: Any) -> Any:
            return await self._store.with_faults(
                call, lambda: method(*arguments, **options), writes=writes, about=arguments
            )

        return run
