"""Serializers of keys and values for common types.

A serializer raises ``WrongType`` for a value that it does not accept, before anything is written. Two keys are the
same if their bytes are equal: ``STRING``, ``INTEGER`` and ``BYTES`` are suitable for keys; ``json_values`` sorts
the names of objects, so that equal objects have equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from onewriter.state.errors import WrongType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serializer(Generic[T]):
    """A pair of functions. ``dump`` raises WrongType for other types; ``load`` raises ValueError."""

    dump: Callable[[T], bytes]
    load: Callable[[bytes], T]


def _dump_string(value: str) -> bytes:
    if not isinstance(value, str):
        raise WrongType(f"the serializer requires a str, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise WrongType(f"text that is not Unicode: {error}") from error


def _dump_bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongType(f"the serializer requires bytes, not {type(value).__name__}")
    return bytes(value)


def _dump_integer(value: int) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongType(f"the serializer requires an int, not {type(value).__name__}")
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _load_integer(content: bytes) -> int:
    if not content:
        raise ValueError("an integer without bytes")
    return int.from_bytes(content, "big", signed=True)


STRING: Serializer[str] = Serializer(_dump_string, bytes.decode)
"""``str`` as UTF-8."""

BYTES: Serializer[bytes] = Serializer(_dump_bytes, bytes)
"""``bytes``, which are stored in the log unchanged."""

INTEGER: Serializer[int] = Serializer(_dump_integer, _load_integer)
"""``int`` of any size: two's complement, big-endian, as few bytes as possible (PIP-137's sample)."""


def _dump_json(value: Any) -> bytes:
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
        ).encode()
    except (TypeError, ValueError) as error:
        raise WrongType(f"this is not JSON: {error}") from error


def json_values() -> Serializer[Any]:
    """Return a serializer of any JSON value."""
    return Serializer(_dump_json, json.loads)


class _Model(Protocol):
    def model_dump_json(self) -> str: ...


M = TypeVar("M", bound=_Model)


def pydantic_model(model: type[M]) -> Serializer[M]:
    """Return a serializer of a pydantic model, as JSON that is validated when it is read."""
    validate: Callable[[bytes], M] = model.model_validate_json  # type: ignore[attr-defined]

    def dump(value: M) -> bytes:
        if not isinstance(value, model):
            raise WrongType(
                f"the serializer requires a {model.__name__}, not {type(value).__name__}"
            )
        return value.model_dump_json().encode()

    return Serializer(dump, validate)


def serializer_for(kind: type[T]) -> Serializer[T]:
    """Return the serializer of ``str``, ``int``, ``bytes``, ``dict``, ``list``, ``object`` (JSON), or a model.

    Raises WrongType for other types: pass a Serializer for them.
    """
    known: dict[object, Serializer[Any]] = {
        str: STRING,
        int: INTEGER,
        bytes: BYTES,
        dict: json_values(),
        list: json_values(),
        object: json_values(),
    }
    found = known.get(kind)
    if found is None and hasattr(kind, "model_validate_json"):
        found = pydantic_model(kind)
    if found is None:
        raise WrongType(f"there is no serializer for {kind!r}: pass a Serializer")
    return found
