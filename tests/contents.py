"""The contents of a fake node in the terms of the log format, for tests that read or damage them.

Everything is a view: a change of a view changes the keyspace, as an operator with a terminal would, and leaves no
trace in the append-only file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from onewriter_broker.log.store.api import Block, Marker, OwnedRecord, StoredBlock, Unit
from onewriter_broker.log.store.blocks import decode_entry
from onewriter_broker.log.store.compacted import CompactedBlock, decode_block, head_of
from onewriter_broker.log.store.keys import MEMBERS
from onewriter_core.ids import TopicName
from onewriter_core.log_format.integers import pack_u32
from onewriter_testing.fake_store.commands import shown, stream_id
from onewriter_testing.fake_store.keyspace import Fields, Hash, Keyspace, Stream
from onewriter_testing.fake_store.server import FakeNode

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")

AuditRecord = tuple[str, MutableMapping[str, str]]


def stored_in(node: FakeNode) -> Contents:
    """Return a node's present contents. They stay current after a restart, which gives the node another keyspace."""
    return Contents(node.keyspace)


class Contents:
    """The parts of a keyspace, by the kinds of keys in docs/log-format.md."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.keyspace = keyspace

    def copy(self) -> Contents:
        """Return a copy of the present contents, independent of later deletions."""
        kept = Keyspace()
        for key in self.keyspace:
            value = self.keyspace.get(key)
            assert value is not None
            kept.put(key, value)
        return Contents(kept)

    @property
    def logs(self) -> Keyed[TopicName, Log]:
        return Keyed(self, "log", TopicName.parse, Log)

    @property
    def states(self) -> Keyed[TopicName, HashView]:
        return Keyed(self, "state", TopicName.parse, HashView)

    @property
    def audits(self) -> Keyed[int, Audit]:
        return Keyed(self, "audit", None, Audit)

    @property
    def units(self) -> Units:
        return Units(self)

    @property
    def owned(self) -> Keyed[int, Owned]:
        return Keyed(self, "own", None, Owned)

    @property
    def compacted(self) -> Compacted:
        return Compacted(self)

    @property
    def staged_parts(self) -> Keyed[int, HashView]:
        return Keyed(self, "staged", None, HashView)

    @property
    def staged(self) -> list[bytes]:
        """The keys of staged parts; ``clear_staged`` deletes them."""
        return [key for key in self.keyspace if re.match(rb"ow:\{b\d+\}:staged:", key)]

    def clear_staged(self) -> None:
        for key in self.staged:
            self.keyspace.delete(key)

    @property
    def staged_chunks(self) -> int:
        """Return the number of stored chunks of staged parts."""
        return sum(len(self.keyspace.hash(key) or {}) for key in self.staged)

    @property
    def members(self) -> HashView:
        return HashView(self, MEMBERS.encode())

    def keys_of(self, kind: str) -> Iterator[tuple[int, str, bytes]]:
        """Yield bucket, name and key of all keys of a kind."""
        for key in self.keyspace:
            if found := re.fullmatch(r"ow:\{b(\d+)\}:(\w+)(?::(.*))?", key.decode()):
                bucket, of_kind, name = found.groups()
                if of_kind == kind and (name is not None) == (kind in {"log", "state"}):
                    yield int(bucket), name or "", key


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One key."""

    contents: Contents
    key: bytes

    @property
    def hash(self) -> Hash:
        found = self.contents.keyspace.hash(self.key)
        if found is None:
            found = {}
            self.contents.keyspace.put(self.key, found)
        return found

    @property
    def stream(self) -> Stream:
        found = self.contents.keyspace.stream(self.key)
        if found is None:
            found = Stream()
            self.contents.keyspace.put(self.key, found)
        return found


class HashView(View, MutableMapping[str, str]):
    """A hash of texts."""

    __slots__ = ()

    def __getitem__(self, name: str) -> str:
        return self.hash[name.encode()].decode()

    def __setitem__(self, name: str, value: str) -> None:
        self.hash[name.encode()] = value.encode()

    def __delitem__(self, name: str) -> None:
        del self.hash[name.encode()]

    def __iter__(self) -> Iterator[str]:
        return iter([name.decode() for name in self.hash])

    def __len__(self) -> int:
        return len(self.hash)


class Entries(View, MutableSequence[Item], Generic[Item]):
    """A stream's entries as a list."""

    __slots__ = ()

    def _decoded(self, at: int) -> Item:
        raise AssertionError

    def _encoded(self, item: Item) -> tuple[str, Fields]:
        raise AssertionError

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> MutableSequence[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | MutableSequence[Item]:
        chosen = range(len(self))[at]
        if isinstance(chosen, range):
            return [self._decoded(each) for each in chosen]
        return self._decoded(chosen)

    def __setitem__(self, at: Any, item: Any) -> None:
        encoded = [self._encoded(each) for each in (item if isinstance(at, slice) else [item])]
        chosen = at if isinstance(at, slice) else slice(at, at + 1 or None)
        self.stream.ids[chosen] = [stream_id(place.encode()) for place, _ in encoded]
        self.stream.entries[chosen] = [fields for _, fields in encoded]

    def __delitem__(self, at: int | slice) -> None:
        del self.stream.ids[at], self.stream.entries[at]

    def insert(self, index: int, value: Item) -> None:
        place, fields = self._encoded(value)
        self.stream.ids.insert(index, stream_id(place.encode()))
        self.stream.entries.insert(index, fields)

    def __len__(self) -> int:
        return len(self.stream.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Iterable) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a view changes


class Blocks(Entries[StoredBlock]):
    """The blocks and markers of a log."""

    __slots__ = ()

    def _decoded(self, at: int) -> StoredBlock:
        return decode_entry(self.key.decode(), shown(self.stream.ids[at]), self.stream.entries[at])

    def _encoded(self, item: StoredBlock) -> tuple[str, Fields]:
        if isinstance(item, Marker):
            return str(item.position), _words({"k": "marker", **item.fields})
        return str(item.position), tuple(_block_fields(item))


def _block_fields(block: Block) -> Iterator[bytes]:
    yield from (b"n", pack_u32(block.lengths), b"p", bytes(block.payload))
    yield from (b"t", b"%d" % block.time_ms, b"h", block.chain)
    if block.counts is not None:
        yield from (b"c", pack_u32(block.counts))
    if block.publish:
        yield from (b"x", block.publish.encode())
    if block.by:
        yield from (b"by", block.by.encode())
    if block.commits:
        yield from (b"xc", b"1")


def _words(fields: Mapping[str, str]) -> Fields:
    return tuple(word.encode() for pair in fields.items() for word in pair)


class Log(View):
    """A topic's log."""

    __slots__ = ()

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.contents, self.key)


@dataclass(frozen=True, slots=True, eq=False)
class RecordFields(MutableMapping[str, str]):
    """The fields of one audit record."""

    stream: Stream
    at: int

    def _all(self) -> dict[str, str]:
        words = [word.decode() for word in self.stream.entries[self.at]]
        return dict(zip(words[::2], words[1::2], strict=True))

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __setitem__(self, name: str, value: str) -> None:
        self.stream.entries[self.at] = _words(self._all() | {name: value})

    def __delitem__(self, name: str) -> None:
        kept = self._all()
        del kept[name]
        self.stream.entries[self.at] = _words(kept)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class Audit(Entries[AuditRecord]):
    """The audit records of a bucket."""

    __slots__ = ()

    def _decoded(self, at: int) -> AuditRecord:
        return shown(self.stream.ids[at]).decode(), RecordFields(self.stream, at)

    def _encoded(self, item: AuditRecord) -> tuple[str, Fields]:
        return item[0], _words(item[1])


class Owned(View, MutableMapping[str, OwnedRecord]):
    """The ownership records of a bucket: generations in one hash, owners in another."""

    __slots__ = ()

    @property
    def _owners(self) -> HashView:
        return HashView(self.contents, self.key + b"ers")  # "own" becomes "owners"

    def __getitem__(self, name: str) -> OwnedRecord:
        return OwnedRecord(int(self.hash[name.encode()]), self._owners.get(name, ""))

    def __setitem__(self, name: str, record: OwnedRecord) -> None:
        self.hash[name.encode()] = b"%d" % record.generation
        self._owners[name] = record.owner

    def __delitem__(self, name: str) -> None:
        del self.hash[name.encode()]
        self._owners.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter([name.decode() for name in self.hash])

    def __len__(self) -> int:
        return len(self.hash)


class Units(MutableMapping[int, Unit]):
    """The records of buckets."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def _fields(self, bucket: int) -> HashView:
        return HashView(self._contents, b"ow:{b%d}:unit" % bucket)

    def __getitem__(self, bucket: int) -> Unit:
        fields = self._fields(bucket)
        return Unit(
            generation=int(fields.get("gen", "0")),
            owner=fields.get("owner", ""),
            version=int(fields.get("version", "0")),
            last_ledger=int(fields.get("lastLedger", "0")),
            birthmark=fields.get("born", ""),
            format=int(fields.get("format", "0")),
            note=fields.get("replid", ""),
        )

    def __setitem__(self, bucket: int, unit: Unit) -> None:
        fields = self._fields(bucket)
        fields["gen"], fields["owner"] = str(unit.generation), unit.owner
        fields["version"], fields["lastLedger"] = str(unit.version), str(unit.last_ledger)

    def __delitem__(self, bucket: int) -> None:
        self._fields(bucket).clear()

    def settled(self, bucket: int) -> int:
        """Return the registration since which the ownership records contain all grants."""
        return int(self._fields(bucket).get("owned", "0"))

    def __iter__(self) -> Iterator[int]:
        return (bucket for bucket, _, _ in self._contents.keys_of("unit"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class CompactedBlocks(View, MutableSequence[CompactedBlock]):
    """The blocks of one compacted view."""

    __slots__ = ()

    @overload
    def __getitem__(self, at: int) -> CompactedBlock: ...
    @overload
    def __getitem__(self, at: slice) -> MutableSequence[CompactedBlock]: ...
    def __getitem__(self, at: int | slice) -> CompactedBlock | MutableSequence[CompactedBlock]:
        chosen = range(len(self))[at]
        if isinstance(chosen, range):
            return [self[each] for each in chosen]
        head, payload = self.hash[b"m%d" % chosen], self.hash[b"p%d" % chosen]
        return decode_block(self.key.decode(), head, payload)

    def __setitem__(self, at: Any, block: Any) -> None:
        self.hash[b"m%d" % at], self.hash[b"p%d" % at] = head_of(block), bytes(block.payload)

    def __delitem__(self, at: int | slice) -> None:
        kept = list(self)
        del kept[at]
        self.replace(kept)

    def insert(self, index: int, value: CompactedBlock) -> None:
        kept = list(self)
        kept.insert(index, value)
        self.replace(kept)

    def replace(self, blocks: Iterable[CompactedBlock]) -> None:
        self.contents.keyspace.delete(self.key)
        for number, block in enumerate(blocks):
            self[number] = block
            self.hash[b"n"] = b"%d" % (number + 1)

    def clear(self) -> None:
        self.contents.keyspace.delete(self.key)

    def __len__(self) -> int:
        held = self.contents.keyspace.hash(self.key) or {}
        return int(held.get(b"n", b"0"))


class Compacted(MutableMapping[tuple[TopicName, int], MutableSequence[CompactedBlock]]):
    """Compacted views, by topic and slot."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def _view(self, place: tuple[TopicName, int]) -> CompactedBlocks:
        topic, slot = place
        suffix = f":compacted{slot}:{topic}".encode()
        for key in self._contents.keyspace:
            if key.endswith(suffix):
                return CompactedBlocks(self._contents, key)
        bucket = next(
            bucket for bucket, name, _ in self._contents.keys_of("state") if name == str(topic)
        )
        return CompactedBlocks(self._contents, b"ow:{b%d}" % bucket + suffix)

    def __getitem__(self, place: tuple[TopicName, int]) -> CompactedBlocks:
        return self._view(place)

    def __setitem__(
        self, place: tuple[TopicName, int], blocks: MutableSequence[CompactedBlock]
    ) -> None:
        self._view(place).replace(list(blocks))

    def __delitem__(self, place: tuple[TopicName, int]) -> None:
        self._view(place).clear()

    def __iter__(self) -> Iterator[tuple[TopicName, int]]:
        for key in self._contents.keyspace:
            if found := re.fullmatch(r"ow:\{b\d+\}:compacted(\d):(.*)", key.decode()):
                yield TopicName.parse(found[2]), int(found[1])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Keyed(MutableMapping[Key, Value], Generic[Key, Value]):
    """All keys of one kind: by topic, or by bucket where ``parse`` is None."""

    def __init__(
        self,
        contents: Contents,
        kind: str,
        parse: Callable[[str], Key] | None,
        view: Callable[[Contents, bytes], Value],
    ) -> None:
        self._contents = contents
        self._kind = kind
        self._parse = parse
        self._view = view

    def _found(self) -> dict[Any, bytes]:
        return {
            bucket if self._parse is None else self._parse(name): key
            for bucket, name, key in self._contents.keys_of(self._kind)
        }

    def __getitem__(self, key: Key) -> Value:
        return self._view(self._contents, self._found()[key])

    def get(self, key: Key, default: Any = None) -> Any:
        found = self._found().get(key)
        return default if found is None else self._view(self._contents, found)

    def __setitem__(self, key: Key, fields: Any) -> None:
        """Replace a hash by these fields."""
        name = self._found().get(key)
        if name is None:
            assert isinstance(key, int), "a topic's keys lie in a bucket that is not known here"
            name = f"ow:{{b{key}}}:{self._kind}".encode()
        self._contents.keyspace.delete(name)
        HashView(self._contents, name).update(fields)

    def __delitem__(self, key: Key) -> None:
        self._contents.keyspace.delete(self._found()[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())
