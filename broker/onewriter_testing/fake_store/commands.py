"""The commands that the store and its scripts use, with the arguments that they use. Pure but for the keyspace.

Replies are those of the server's protocol: int, bytes, None, a list of replies, or ``Status``. A refused command raises
a CommandError with the server's text. A write that changed something is passed to ``Call.wrote`` in the form in which it
is replicated: with the assigned id, and exactly the dropped entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from onewriter_testing.fake_store.keyspace import (
    MAXIMUM,
    MINIMUM,
    Keyspace,
    Stream,
    StreamId,
    WrongType,
)

Words = tuple[bytes, ...]

NODE_ENTRIES = 100
"""Entries in one node of a stream, which an approximate trim drops as a whole (``stream-node-max-entries``)."""


class Status(bytes):
    """A simple string of the protocol, such as OK."""


class CommandError(Exception):
    """An error reply; the text begins with its code, for example ``ERR`` or ``WRONGTYPE``."""


Reply = int | bytes | None | list["Reply"]

OK = Status(b"OK")

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@dataclass(slots=True)
class Call:
    """One command or script as it runs on a node.

    ``declared``: the keys that a script may use; None outside of scripts. ``information``: the sections of INFO by name.
    """

    keyspace: Keyspace
    information: Callable[[bytes], str]
    is_primary: bool = True
    declared: frozenset[bytes] | None = None
    writes: list[Words] = field(default_factory=list)

    def wrote(self, *words: bytes) -> None:
        self.writes.append(words)

    def run(self, words: Words) -> Reply:
        """Execute a command. Raises CommandError."""
        name = words[0].upper()
        command = COMMANDS.get(name)
        if command is None:
            raise CommandError(f"ERR unknown command '{name.decode(errors='replace')}'")
        if len(words) - 1 < command.words_min:
            raise CommandError(
                f"ERR wrong number of arguments for '{name.decode().lower()}' command"
            )
        if command.has_key and self.declared is not None and words[1] not in self.declared:
            raise CommandError(f"ERR the script uses the undeclared key {words[1]!r}")
        if command.is_write and not self.is_primary:
            raise CommandError("READONLY You can't write against a read only replica.")
        try:
            return command.run(self, words[1:])
        except WrongType as error:
            raise CommandError(WRONG_TYPE) from error


@dataclass(frozen=True, slots=True)
class Command:
    run: Callable[[Call, Words], Reply]
    words_min: int
    is_write: bool = False
    has_key: bool = True


# ------------------------------------------------------------------ keys and hashes


def _exists(call: Call, words: Words) -> Reply:
    return sum(key in call.keyspace for key in words)


def _delete(call: Call, words: Words) -> Reply:
    gone = [key for key in words if call.keyspace.delete(key)]
    if gone:
        call.wrote(b"DEL", *gone)
    return len(gone)


def _set(call: Call, words: Words) -> Reply:
    call.keyspace.put(words[0], words[1])
    call.wrote(b"SET", *words[:2])
    return OK


def _flush_all(call: Call, _words: Words) -> Reply:
    call.keyspace.clear()
    call.wrote(b"FLUSHALL")
    return OK


def _hget(call: Call, words: Words) -> Reply:
    return (call.keyspace.hash(words[0]) or {}).get(words[1])


def _hmget(call: Call, words: Words) -> Reply:
    held = call.keyspace.hash(words[0]) or {}
    return [held.get(name) for name in words[1:]]


def _hgetall(call: Call, words: Words) -> Reply:
    held = call.keyspace.hash(words[0]) or {}
    return [word for pair in held.items() for word in pair]


def _hset(call: Call, words: Words) -> Reply:
    key, pairs = words[0], words[1:]
    if len(pairs) % 2:
        raise CommandError("ERR wrong number of arguments for 'hset' command")
    held = call.keyspace.hash(key)
    if held is None:
        held = {}
        call.keyspace.put(key, held)
    before = len(held)
    held.update(zip(pairs[::2], pairs[1::2], strict=True))
    call.wrote(b"HSET", *words)
    return len(held) - before


def _hdel(call: Call, words: Words) -> Reply:
    key = words[0]
    held = call.keyspace.hash(key)
    gone = 0 if held is None else sum(held.pop(name, None) is not None for name in words[1:])
    if gone:
        call.wrote(b"HDEL", *words)
        if not held:
            call.keyspace.delete(key)
    return gone


# ------------------------------------------------------------------ streams


def shown(entry_id: StreamId) -> bytes:
    return b"%d-%d" % entry_id


def stream_id(word: bytes, missing: int = 0) -> StreamId:
    """``1-2``, or ``1`` with the second part that is missing. Raises CommandError."""
    first, dash, second = word.partition(b"-")
    try:
        found = (int(first), int(second) if dash else missing)
    except ValueError as error:
        raise CommandError("ERR Invalid stream ID specified as stream command argument") from error
    if not (MINIMUM <= found <= MAXIMUM):
        raise CommandError("ERR Invalid stream ID specified as stream command argument")
    return found


def _bound(word: bytes, *, is_low: bool) -> StreamId:
    if word == b"-":
        return MINIMUM
    if word == b"+":
        return MAXIMUM
    if word.startswith(b"("):
        at = stream_id(word[1:], 0 if is_low else MAXIMUM[1])
        return (at[0], at[1] + 1) if is_low else (at[0], at[1] - 1)
    return stream_id(word, 0 if is_low else MAXIMUM[1])


def _count(words: Sequence[bytes]) -> int | None:
    """The value behind COUNT or LIMIT."""
    for option in (b"COUNT", b"LIMIT"):
        for name, value in pairwise(words):
            if name.upper() == option:
                return _integer(value)
    return None


def _integer(word: bytes) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise CommandError("ERR value is not an integer or out of range") from error


def _range(call: Call, words: Words, *, reverse: bool) -> Reply:
    low, high = (words[2], words[1]) if reverse else (words[1], words[2])
    bounds = _bound(low, is_low=True), _bound(high, is_low=False)
    count = _count(words[3:])
    stream = call.keyspace.stream(words[0])
    if stream is None:
        return []
    found: Sequence[int] = stream.between(*bounds)
    chosen = (found[::-1] if reverse else found)[:count]
    return [[shown(stream.ids[at]), list(stream.entries[at])] for at in chosen]


def _xrange(call: Call, words: Words) -> Reply:
    return _range(call, words, reverse=False)


def _xrevrange(call: Call, words: Words) -> Reply:
    return _range(call, words, reverse=True)


def _xadd(call: Call, words: Words) -> Reply:
    key, rest = words[0], list(words[1:])
    creates, limit = True, None
    while rest and rest[0].upper() in {b"NOMKSTREAM", b"MAXLEN"}:
        if rest.pop(0).upper() == b"NOMKSTREAM":
            creates = False
        else:
            if rest[0] in {b"~", b"="}:
                rest.pop(0)
            limit = _integer(rest.pop(0))
    wanted, fields = rest[0], tuple(rest[1:])
    if not fields or len(fields) % 2:
        raise CommandError("ERR wrong number of arguments for 'xadd' command")
    chosen = None if wanted == b"*" else stream_id(wanted)
    if chosen == MINIMUM:
        raise CommandError("ERR The ID specified in XADD must be greater than 0-0")
    stream = call.keyspace.stream(key)
    last = MINIMUM if stream is None else stream.last
    entry_id = chosen or (last[0] + 1, 0)  # without a clock the next id follows the last one
    if stream is None:
        if not creates:
            return None
        stream = Stream()
        call.keyspace.put(key, stream)
    if entry_id <= last:
        raise CommandError(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item"
        )
    stream.add(entry_id, fields)
    call.wrote(b"XADD", key, shown(entry_id), *fields)
    if limit is not None:
        _drop_nodes(call, key, stream, len(stream.ids) - limit, None)
    return shown(entry_id)


def _drop_nodes(call: Call, key: bytes, stream: Stream, surplus: int, limit: int | None) -> int:
    """Drop as many whole nodes as lie in the surplus, as an approximate trim does."""
    count = max(surplus, 0) // NODE_ENTRIES * NODE_ENTRIES
    if limit:
        count = min(count, limit // NODE_ENTRIES * NODE_ENTRIES)
    if count:
        stream.drop_first(count)
        left = stream.ids[0] if stream.ids else stream.last
        call.wrote(b"XTRIM", key, b"MINID", b"=", shown(left))
    return count


def _xtrim(call: Call, words: Words) -> Reply:
    key, strategy, exactness, threshold = words[:4]
    if strategy.upper() != b"MINID" or exactness not in {b"=", b"~"}:
        raise CommandError("ERR syntax error")
    lowest = stream_id(threshold)
    stream = call.keyspace.stream(key)
    if stream is None:
        return 0
    surplus = stream.between(lowest, MAXIMUM).start
    if exactness == b"~":
        return _drop_nodes(call, key, stream, surplus, _count(words[4:]))
    if surplus:
        stream.drop_first(surplus)
        call.wrote(b"XTRIM", key, b"MINID", b"=", threshold)
    return surplus


def _xdel(call: Call, words: Words) -> Reply:
    stream = call.keyspace.stream(words[0])
    if stream is None:
        return 0
    ids = [stream_id(word) for word in words[1:]]
    gone = sum(stream.delete(each) for each in ids)
    if gone:
        call.wrote(b"XDEL", *words)
    return gone


def _xinfo(call: Call, words: Words) -> Reply:
    stream = call.keyspace.stream(words[0])
    if stream is None:
        raise CommandError("ERR no such key")
    return [b"length", len(stream.ids), b"last-generated-id", shown(stream.last)]


def _xinfo_of(call: Call, words: Words) -> Reply:
    if words[0].upper() != b"STREAM" or len(words) < 2:
        raise CommandError("ERR syntax error")
    if call.declared is not None and words[1] not in call.declared:
        raise CommandError(f"ERR the script uses the undeclared key {words[1]!r}")
    return _xinfo(call, words[1:])


def _xsetid(call: Call, words: Words) -> Reply:
    stream = call.keyspace.stream(words[0])
    if stream is None:
        raise CommandError("ERR no such key")
    stream.last = stream_id(words[1])
    call.wrote(b"XSETID", *words[:2])
    return OK


# ------------------------------------------------------------------ the server


def _info(call: Call, words: Words) -> Reply:
    return call.information(words[0] if words else b"").encode()


def _ping(_call: Call, _words: Words) -> Reply:
    return Status(b"PONG")


COMMANDS = {
    b"EXISTS": Command(_exists, 1),
    b"DEL": Command(_delete, 1, is_write=True),
    b"SET": Command(_set, 2, is_write=True),
    b"FLUSHALL": Command(_flush_all, 0, is_write=True, has_key=False),
    b"HGET": Command(_hget, 2),
    b"HMGET": Command(_hmget, 2),
    b"HGETALL": Command(_hgetall, 1),
    b"HSET": Command(_hset, 3, is_write=True),
    b"HDEL": Command(_hdel, 2, is_write=True),
    b"XADD": Command(_xadd, 4, is_write=True),
    b"XRANGE": Command(_xrange, 3),
    b"XREVRANGE": Command(_xrevrange, 3),
    b"XTRIM": Command(_xtrim, 4, is_write=True),
    b"XDEL": Command(_xdel, 2, is_write=True),
    b"XSETID": Command(_xsetid, 2, is_write=True),
    b"XINFO": Command(_xinfo_of, 1, has_key=False),
    b"INFO": Command(_info, 0, has_key=False),
    b"PING": Command(_ping, 0, has_key=False),
}
"""The supported commands, by name."""
