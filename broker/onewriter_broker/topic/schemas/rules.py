"""The stored form of schemas, when two schemas are the same, and which schema may follow which.

The functions are pure. Definitions in Avro (AVRO, JSON and PROTOBUF of Pulsar's clients) are compared by Apache
Avro's own rules for reader and writer. Of a schema of key and value, both parts are compared. The strategies
are Pulsar's.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import avro.errors
import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from onewriter_core.errors import OnewriterError
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

BYTES_MAX: Final = 64 * 1024
"""Size limit of a new definition with its properties."""

BRANCHES_MAX: Final = 200
"""Limit on the branches of one union in a new definition."""

NESTING_MAX: Final = 64
"""Limit on nested lists and objects in a new definition, as JSON."""

ERROR_LENGTH_MAX: Final = 500
"""Length limit of Avro's error text for a definition, because the text may quote the definition."""

DEFINITIONS_REMEMBERED: Final = 256
"""Definitions in a cache, so that a topic's schemas are not parsed again for each client that sends one."""

NOT_KEPT: Final = frozenset({pb.Schema.NONE, pb.Schema.AUTO_CONSUME})
"""Types with which a client states that it has no schema."""

NOT_OFFERED: Final = frozenset({pb.Schema.PROTOBUF_NATIVE, pb.Schema.EXTERNAL})

_IN_AVRO: Final = frozenset({pb.Schema.AVRO, pb.Schema.JSON, pb.Schema.PROTOBUF})

_LENGTH = struct.Struct(">i")


class Incompatible(OnewriterError):
    """A schema may not follow the schemas of a topic. The message states the reason, as Pulsar does."""


class InvalidSchema(OnewriterError):
    """A definition is invalid. The message states the reason."""


class Strategy(enum.Enum):
    """Which schemas may follow which. The values are Pulsar's."""

    FULL = "FULL"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"

    @property
    def new_reads_old(self) -> bool:
        """Whether a reader with the new schema must understand earlier data."""
        return "BACKWARD" in self.value or "FULL" in self.value

    @property
    def old_reads_new(self) -> bool:
        """Whether a reader with an older schema must understand later data."""
        return "FORWARD" in self.value or "FULL" in self.value


DEFAULT_STRATEGY: Final = Strategy.FULL


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema: its type (a number of pb.Schema.Type), definition and properties."""

    kind: int
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, schema: pb.Schema) -> Schema:
        """A schema as a client sends it."""
        data = b"" if schema.type in _WITHOUT_DEFINITION else schema.schema_data
        return cls(schema.type, data, {pair.key: pair.value for pair in schema.properties})

    @property
    def type_name(self) -> str:
        """Pulsar's name of the type."""
        return pb.Schema.Type.Name(pb.Schema.Type.ValueType(self.kind))


@dataclass(frozen=True, slots=True)
class KeptSchema:
    """A schema of a topic with its version, or a mark that the earlier schemas were deleted."""

    version: int
    schema: Schema
    time_ms: int
    is_deleted: bool = False

    def encode(self) -> str:
        """The stored form."""
        return json.dumps(
            {
                "type": self.schema.type_name,
                "data": base64.b64encode(self.schema.data).decode(),
                "properties": dict(self.schema.properties),
                "t": self.time_ms,
                "deleted": self.is_deleted,
            }
        )

    @classmethod
    def parse(cls, version: int, text: str) -> KeptSchema:
        """The inverse of ``encode``. Raises ValueError."""
        try:
            found = json.loads(text)
            schema = Schema(
                pb.Schema.Type.Value(found["type"]),
                base64.b64decode(found["data"], validate=True),
                dict(found["properties"]),
            )
            return cls(version, schema, int(found["t"]), bool(found["deleted"]))
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise ValueError(f"schema {version} cannot be understood: {error!r}") from error


_WITHOUT_DEFINITION: Final = frozenset(
    {
        pb.Schema.STRING,
        pb.Schema.BOOL,
        pb.Schema.INT8,
        pb.Schema.INT16,
        pb.Schema.INT32,
        pb.Schema.INT64,
        pb.Schema.FLOAT,
        pb.Schema.DOUBLE,
        pb.Schema.DATE,
        pb.Schema.TIME,
        pb.Schema.TIMESTAMP,
        pb.Schema.INSTANT,
        pb.Schema.LOCAL_DATE,
        pb.Schema.LOCAL_TIME,
        pb.Schema.LOCAL_DATE_TIME,
    }
)
"""Types that need no definition. The Python client sends the word "null" as the definition of such a type."""


def has_definition(schema: Schema) -> bool:
    """Whether readers need the definition, and not only the type, to read data of a schema."""
    return schema.kind not in _WITHOUT_DEFINITION


def weight(schema: Schema) -> int:
    """The approximate cost of comparing a schema with a similar one. Unions count most."""
    if schema.kind == pb.Schema.KEY_VALUE:
        return sum(map(weight, parts(schema)))
    if schema.kind not in _IN_AVRO:
        return 1
    unions = sum(branches * branches for branches, _ in _lists(schema))
    return unions + len(schema.data) // 16


def _lists(schema: Schema) -> Iterator[tuple[int, int]]:
    """For each list that may be a union: its length and its depth. Raises InvalidSchema."""
    try:
        waiting = [(json.loads(schema.data), 1)]
    except (ValueError, RecursionError) as error:
        raise _invalid(schema, error) from error
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict):
            for name, content in value.items():
                if isinstance(content, list) and name in _LISTS_OF_OBJECTS:
                    waiting += [(each, depth + 2) for each in content]
                elif isinstance(content, dict | list):
                    waiting.append((content, depth + 1))
            yield 0, depth
        elif isinstance(value, list):
            yield len(value), depth
            waiting += [(each, depth + 1) for each in value]


_LISTS_OF_OBJECTS: Final = frozenset({"fields", "symbols", "aliases"})
"""Lists in a definition that cannot be unions."""


def check(schema: Schema, *, is_parsed: bool = True) -> None:
    """Raise InvalidSchema for a schema that cannot be stored. Without ``is_parsed``, check only its size."""
    if schema.kind in NOT_OFFERED:
        raise InvalidSchema(
            f"schemas of type {schema.type_name} are not supported: use AVRO or JSON, or send bytes"
        )
    size = len(schema.data) + sum(len(k) + len(v) for k, v in schema.properties.items())
    if size > BYTES_MAX:
        raise InvalidSchema(f"a schema has at most {BYTES_MAX} bytes")
    if schema.kind in _IN_AVRO:
        for branches, depth in _lists(schema):
            if branches > BRANCHES_MAX:
                raise InvalidSchema(f"a union has at most {BRANCHES_MAX} branches, not {branches}")
            if depth > NESTING_MAX:
                raise InvalidSchema(f"a schema has at most {NESTING_MAX} levels")
        if is_parsed:
            _parsed(schema)
    elif schema.kind == pb.Schema.KEY_VALUE:
        for part in parts(schema):
            check(part, is_parsed=is_parsed)


@lru_cache(maxsize=DEFINITIONS_REMEMBERED)
def _meaning(data: bytes) -> bytes | None:
    """A hash that is equal for definitions that are equal as JSON. None: the definition is not JSON."""
    try:
        return hashlib.sha256(json.dumps(json.loads(data), sort_keys=True).encode()).digest()
    except (ValueError, RecursionError):
        return None


def same(one: Schema, other: Schema) -> bool:
    """Whether two schemas are the same version."""
    if one.kind != other.kind:
        return False
    if one.data == other.data:
        return True
    if one.kind not in _IN_AVRO:
        return False
    meaning = _meaning(one.data)
    return meaning is not None and meaning == _meaning(other.data)


def check_follows(new: Schema, kept: Sequence[KeptSchema], strategy: Strategy) -> None:
    """Raise Incompatible if a topic with the ``kept`` schemas, oldest first, may not get a new one."""
    if not kept or strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    latest = kept[-1].schema
    if latest.kind != new.kind:
        raise Incompatible(
            f"Incompatible schema: exists schema type {latest.type_name}, "
            f"new schema type {new.type_name}"
        )
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise Incompatible("schemas of this topic are never compatible: the strategy says so")
    compared = kept if strategy.value.endswith("TRANSITIVE") else kept[-1:]
    for old in compared:
        if strategy.new_reads_old:
            _check_reads(new, old.schema, f"the new schema cannot read version {old.version}")
        if strategy.old_reads_new:
            _check_reads(old.schema, new, f"version {old.version} cannot read the new schema")


def check_reads(reader: Schema, kept: Sequence[KeptSchema], strategy: Strategy) -> None:
    """Raise Incompatible if a consumer with the schema ``reader`` cannot read the topic's data.

    As in Pulsar, it compares the schema with the latest one, or with all if the strategy is transitive.
    """
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    is_transitive = strategy.value.endswith("TRANSITIVE")
    check_follows(
        reader, kept, Strategy.BACKWARD_TRANSITIVE if is_transitive else Strategy.BACKWARD
    )


def _check_reads(reader: Schema, writer: Schema, what: str) -> None:
    if reader.kind == pb.Schema.KEY_VALUE:
        for reader_part, writer_part in zip(parts(reader), parts(writer), strict=True):
            if reader_part.kind != writer_part.kind:
                raise Incompatible(
                    f"{what}: {reader_part.type_name} is not {writer_part.type_name}"
                )
            _check_reads(reader_part, writer_part, what)
        return
    if reader.kind not in _IN_AVRO:
        return
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(_parsed(reader), _parsed(writer))
    if result.compatibility is not SchemaCompatibilityType.compatible:
        reasons = ", ".join(sorted(str(reason) for reason in result.messages))
        raise Incompatible(f"Unable to read schema: {what}: {reasons or 'incompatible'}")


def _parsed(schema: Schema) -> avro.schema.Schema:
    try:
        return avro.schema.parse(schema.data.decode())
    except (avro.errors.AvroException, ValueError, TypeError, RecursionError) as error:
        raise _invalid(schema, error) from error


def _invalid(schema: Schema, error: Exception) -> InvalidSchema:
    return InvalidSchema(
        f"Invalid schema definition data for {schema.type_name} schema: {str(error)[:ERROR_LENGTH_MAX]}"
    )


def parts(schema: Schema) -> tuple[Schema, Schema]:
    """The schemas of the key and of the value of a KEY_VALUE schema. Raises InvalidSchema."""
    found: list[Schema] = []
    rest = schema.data
    for name in ("key", "value"):
        kind = schema.properties.get(f"{name}.schema.type", "BYTES")
        if len(rest) < _LENGTH.size:
            raise InvalidSchema("a schema of key and value is cut short")
        length = max(0, _LENGTH.unpack_from(rest)[0])
        data, rest = rest[_LENGTH.size : _LENGTH.size + length], rest[_LENGTH.size + length :]
        if len(data) != length:
            raise InvalidSchema("a schema of key and value is cut short")
        try:
            number = pb.Schema.NONE if kind == "BYTES" else pb.Schema.Type.Value(kind.upper())
        except ValueError as error:
            raise InvalidSchema(f"there is no schema type {kind}") from error
        if number == pb.Schema.KEY_VALUE:
            raise InvalidSchema("a key or a value has no key of its own")
        found.append(Schema(number, data))
    return found[0], found[1]
