"""Which schemas are the same, and which may follow which."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from onewriter_broker.topic.schemas.rules import (
    BYTES_MAX,
    Incompatible,
    InvalidSchema,
    KeptSchema,
    Schema,
    Strategy,
    check,
    check_follows,
    check_reads,
    parts,
    same,
)
from onewriter_broker.topic.schemas.topic_schemas import counting, find, kept_in
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

TEXT = Schema(pb.Schema.STRING)


def record(*fields: str, kind: int = pb.Schema.AVRO) -> Schema:
    """A record of number fields. A field whose name ends with ? is optional."""
    described: list[dict[str, object]] = []
    for field in fields:
        described.append({"name": field.rstrip("?"), "type": "int"})
        if field.endswith("?"):
            described[-1]["default"] = 0
    definition = {"type": "record", "name": "Point", "fields": described}
    return Schema(kind, json.dumps(definition).encode())


def kept(*schemas: Schema) -> list[KeptSchema]:
    return [KeptSchema(version, schema, 0) for version, schema in enumerate(schemas)]


def allows(judge: Callable[[], None]) -> bool:
    try:
        judge()
    except Incompatible:
        return False
    return True


OLD, MORE, MAYBE_MORE, LESS = record("x"), record("x", "y"), record("x", "y?"), record()


@pytest.mark.parametrize(
    ("strategy", "more", "maybe_more", "less"),
    [
        (Strategy.FULL, False, True, False),
        (Strategy.BACKWARD, False, True, True),
        (Strategy.FORWARD, True, True, False),
        (Strategy.ALWAYS_COMPATIBLE, True, True, True),
        (Strategy.ALWAYS_INCOMPATIBLE, False, False, False),
    ],
)
def test_a_new_schema_follows_by_the_strategy(
    strategy: Strategy, *, more: bool, maybe_more: bool, less: bool
) -> None:
    found = [
        allows(lambda new=new: check_follows(new, kept(OLD), strategy))  # type: ignore[misc]  # bound now
        for new in (MORE, MAYBE_MORE, LESS)
    ]
    assert found == [more, maybe_more, less]


def test_transitive_strategies_ask_all_versions() -> None:
    before = kept(record(), record("y?"), record("y"))
    assert allows(lambda: check_follows(record("y"), before, Strategy.BACKWARD))
    assert not allows(lambda: check_follows(record("y"), before, Strategy.BACKWARD_TRANSITIVE))
    assert allows(lambda: check_reads(record("y"), before, Strategy.FULL))
    assert not allows(lambda: check_reads(record("y"), before, Strategy.FULL_TRANSITIVE))
    assert allows(lambda: check_reads(record("z"), before, Strategy.ALWAYS_COMPATIBLE))


def test_the_first_one_is_always_welcome() -> None:
    check_follows(OLD, [], Strategy.ALWAYS_INCOMPATIBLE)


@pytest.mark.parametrize("new", [TEXT, record("x", kind=pb.Schema.JSON)])
def test_types_do_not_mix(new: Schema) -> None:
    with pytest.raises(Incompatible, match="exists schema type AVRO, new schema type"):
        check_follows(new, kept(OLD), Strategy.FULL)


def test_the_same_definition_is_the_same_schema_however_it_is_written() -> None:
    spaced = Schema(OLD.kind, json.dumps(json.loads(OLD.data), indent=3).encode())
    assert same(OLD, spaced)
    assert not same(OLD, MORE)
    assert not same(OLD, record("x", kind=pb.Schema.JSON))
    assert not same(OLD, Schema(OLD.kind, b"{"))
    assert same(
        TEXT, Schema.from_wire(pb.Schema(name="", schema_data=b"null", type=pb.Schema.STRING))
    )


@pytest.mark.parametrize(
    "schema",
    [
        Schema(pb.Schema.AVRO, b""),
        Schema(pb.Schema.AVRO, b"{}"),
        Schema(pb.Schema.JSON, b"\xff"),
        Schema(pb.Schema.AVRO, b"[" * 100_000),
        Schema(pb.Schema.STRING, bytes(BYTES_MAX + 1)),
        Schema(pb.Schema.PROTOBUF_NATIVE, b"x"),
        Schema(pb.Schema.EXTERNAL, b"x"),
        Schema(pb.Schema.KEY_VALUE, b"\x00\x00"),
        Schema(pb.Schema.KEY_VALUE, b"\x00\x00\x00\x09short"),
        Schema(pb.Schema.KEY_VALUE, bytes(8), {"key.schema.type": "NO_SUCH"}),
        Schema(pb.Schema.KEY_VALUE, bytes(8), {"key.schema.type": "KEY_VALUE"}),
    ],
)
def test_a_schema_that_cannot_be_stored_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidSchema):
        check(schema)


def key_value(key: Schema, value: Schema) -> Schema:
    data = b"".join(struct.pack(">i", len(part.data)) + part.data for part in (key, value))
    types = {"key.schema.type": key.type_name, "value.schema.type": value.type_name}
    return Schema(pb.Schema.KEY_VALUE, data, types)


def test_of_a_key_and_a_value_both_are_compared() -> None:
    before = kept(key_value(TEXT, OLD))
    assert parts(before[0].schema) == (TEXT, OLD)
    check(before[0].schema)
    assert allows(lambda: check_follows(key_value(TEXT, MAYBE_MORE), before, Strategy.FULL))
    assert not allows(lambda: check_follows(key_value(TEXT, MORE), before, Strategy.FULL))
    number = Schema(pb.Schema.INT32)
    assert not allows(lambda: check_follows(key_value(number, OLD), before, Strategy.FULL))


def test_versions_are_found_and_a_deletion_begins_again() -> None:
    state = {f"schema:{each.version}": each.encode() for each in kept(OLD, MAYBE_MORE)}
    state |= {"schema:2": KeptSchema(2, Schema(0), 7, is_deleted=True).encode(), "epoch": "3"}
    found = kept_in(state)
    assert [each.version for each in found] == [0, 1, 2]
    assert found[1].schema == MAYBE_MORE
    assert counting(found) == []
    assert counting(found[:2]) == found[:2]
    assert find(found, None) is None
    assert find(found[:2], None) == found[1]
    assert find(found, 0) == found[0]
    assert find(found, 2) is None
    assert find(found, 3) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"type": "NO"}', '{"type": 1, "data": 2}'])
def test_a_stored_schema_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="schema 4"):
        kept_in({"schema:4": text})
