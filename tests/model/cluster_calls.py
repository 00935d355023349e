"""The append calls of one bucket and their acknowledgements as a model: connections, redirections, WAIT.

A broker sends the blocks of a bucket in order. A call may be refused without being executed (TRYAGAIN while a hash
slot is half moved), its answer may be lost with the connection, and the server may execute the calls of a connection
that the broker has given up, later and in their order. The store accepts a block only above its newest one
(docs/adr/0001), and finds a block that it has already. WAIT covers what this connection has written, and nothing else: a
connection that has written nothing gets the answer at once.

Two rules of docs/adr/0023 are the subject: at most one call of a bucket is undecided, and WAIT counts only on the
connection that carried the writes. After the run the replica may be promoted, with any number of writes that it is not
known to have.

Not modelled: fences and datasets (storage_protocol), more than one replica (cluster_protocol).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class CallRules:
    """``undecided_max``: calls of the bucket without a result. ``wait_on_writer``: what was stored over a lost
    connection is written again before a WAIT may confirm it."""

    undecided_max: int = 1
    wait_on_writer: bool = True


@dataclass(frozen=True, slots=True)
class CallScope:
    """``blocks`` to send; ``connections`` opened one after the other; ``refusals`` by TRYAGAIN."""

    blocks: int = 3
    connections: int = 2
    refusals: int = 1


class Connection(NamedTuple):
    """Calls under way, and the number of writes in the log after the last write of this connection."""

    queue: tuple[int, ...] = ()
    written: int = 0


class CallState(NamedTuple):
    """``again``: undecided blocks that must be sent again. ``stored`` are not acknowledged yet.

    The last connection is the open one. ``held`` writes are known to be on the replica.
    """

    connections: tuple[Connection, ...] = (Connection(),)
    log: tuple[int, ...] = ()
    held: int = 0
    following: int = 0
    undecided: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    acknowledged: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    refusals: int = 0
    promoted: bool = False


class CallAction(NamedTuple):
    kind: str
    block: int = -1
    number: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "send":
                return f"the broker sends block {self.block}"
            case "execute":
                return f"connection {self.number}: the server executes the call with block {self.block}"
            case "refuse":
                return f"connection {self.number}: the call with block {self.block} is answered TRYAGAIN"
            case "drop":
                return "the broker gives the connection up and opens another one"
            case "wait":
                return "WAIT is answered"
            case _:
                return f"the replica is promoted with {self.number} writes"


@dataclass(frozen=True, slots=True)
class ClusterCalls:
    rules: CallRules = CallRules()
    scope: CallScope = CallScope()

    def initial(self) -> Iterator[CallState]:
        yield CallState()

    def successors(self, state: CallState) -> Iterator[tuple[CallAction, CallState]]:
        if state.promoted:
            return
        yield from self._send(state)
        for number, connection in enumerate(state.connections):
            if connection.queue:
                yield from self._execute(state, number, connection)
        if len(state.connections) < self.scope.connections:
            yield CallAction("drop"), self._dropped(state)
        yield from self._wait(state)
        for count in range(state.held, len(state.log) + 1):
            cut = state._replace(log=state.log[:count], promoted=True)
            yield CallAction("promote", number=count), cut

    def _send(self, state: CallState) -> Iterator[tuple[CallAction, CallState]]:
        for block in sorted(state.again):
            after = state._replace(again=state.again - {block})
            yield CallAction("send", block), self._queued(after, block)
        is_free = len(state.undecided) < self.rules.undecided_max
        if is_free and not state.again and state.following < self.scope.blocks:
            block = state.following
            after = state._replace(following=block + 1, undecided=state.undecided | {block})
            yield CallAction("send", block), self._queued(after, block)

    @staticmethod
    def _queued(state: CallState, block: int) -> CallState:
        *former, newest = state.connections
        queued = newest._replace(queue=(*newest.queue, block))
        return state._replace(connections=(*former, queued))

    def _execute(
        self, state: CallState, number: int, connection: Connection
    ) -> Iterator[tuple[CallAction, CallState]]:
        block, *rest = connection.queue
        is_open = number == len(state.connections) - 1
        is_awaited = is_open and block in state.undecided
        if state.refusals < self.scope.refusals:
            after = _with(state, number, connection._replace(queue=tuple(rest)))
            after = after._replace(refusals=state.refusals + 1)
            if is_awaited:
                after = after._replace(again=after.again | {block})
            yield CallAction("refuse", block, number), after
        log, is_stored = state.log, True
        if not log or block > max(log):
            log = (*log, block)
        else:
            is_stored = block in log  # if so, the script writes a mark, for WAIT
        written = len(log) if is_stored else connection.written
        after = _with(state, number, Connection(tuple(rest), written))._replace(log=log)
        if is_awaited:
            decided = "stored" if is_stored else "refused"
            after = after._replace(
                undecided=after.undecided - {block},
                **{decided: getattr(after, decided) | {block}},
            )
        yield CallAction("execute", block, number), after

    def _dropped(self, state: CallState) -> CallState:
        """Calls without an answer are undecided; the server may still execute them."""
        undecided, stored = state.undecided, state.stored
        if self.rules.wait_on_writer:
            undecided, stored = undecided | stored, frozenset()
        return state._replace(
            connections=(*state.connections, Connection()),
            undecided=undecided,
            stored=stored,
            again=undecided,
        )

    def _wait(self, state: CallState) -> Iterator[tuple[CallAction, CallState]]:
        if state.stored:
            yield (
                CallAction("wait"),
                state._replace(
                    held=max(state.held, state.connections[-1].written),
                    acknowledged=state.acknowledged | state.stored,
                    stored=frozenset(),
                ),
            )


def _with(state: CallState, number: int, connection: Connection) -> CallState:
    connections = (*state.connections[:number], connection, *state.connections[number + 1 :])
    return state._replace(connections=connections)
