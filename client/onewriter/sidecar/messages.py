"""Decoding of messages in request bodies: one per request, NDJSON lines, or length-prefixed. No I/O."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Any

from onewriter.sidecar.admission import too_large
from onewriter.sidecar.candidate import SidecarMessage
from onewriter.sidecar.errors import Failure

NDJSON = "application/x-ndjson"
LENGTH_PREFIXED = "application/vnd.onewriter.messages"

LINE_OVERHEAD_BYTES = 64 * 1024
"""Largest size of a line besides its content: key, properties, JSON syntax."""

_LENGTH = struct.Struct(">I")
_FIELDS = frozenset({"content", "contentBase64", "json", "key", "properties", "eventTimeMs"})
_CONTENTS = ("content", "contentBase64", "json")


def message_of_headers(content: bytes, headers: Mapping[str, str]) -> SidecarMessage:
    """Return the message of a request with one message: the body is its content, headers are the rest."""
    properties: object = {}
    if text := headers.get("Onewriter-Properties"):
        properties = _json(text, "Onewriter-Properties")
    event_time = headers.get("Onewriter-Event-Time", "0")
    if not event_time.isdecimal():
        raise _bad("Onewriter-Event-Time is a number of milliseconds since 1970")
    return SidecarMessage(
        content,
        key=_text(headers.get("Onewriter-Key"), "Onewriter-Key"),
        properties=_properties(properties),
        event_time_ms=_event_time(int(event_time)),
    )


def message_of_line(line: bytes, content_bytes_max: int) -> SidecarMessage:
    """Decode one NDJSON line. Raises Failure."""
    fields = _json(line, "the line")
    if not isinstance(fields, dict):
        raise _bad("a line is a JSON object")
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        raise _bad(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    given = [name for name in _CONTENTS if name in fields]
    if len(given) != 1:
        raise _bad(f"a line has one of {', '.join(_CONTENTS)}, this one has {given or 'none'}")
    content = _content(given[0], fields[given[0]])
    if len(content) > content_bytes_max:
        raise too_large(content_bytes_max)
    key, event_time = fields.get("key"), fields.get("eventTimeMs", 0)
    if not isinstance(key, str | None) or type(event_time) is not int:
        raise _bad("key is a string, eventTimeMs a number of milliseconds since 1970")
    return SidecarMessage(
        content,
        key=_text(key, "key"),
        properties=_properties(fields.get("properties", {})),
        event_time_ms=_event_time(event_time),
    )


async def lines(
    chunks: AsyncIterable[bytes], content_bytes_max: int
) -> AsyncGenerator[SidecarMessage, None]:
    """Yield the messages of an NDJSON body; empty lines are ignored. Raises Failure."""
    # Base64 and escapes make a line longer than its content.
    length_max = content_bytes_max * 2 + LINE_OVERHEAD_BYTES
    buffer = bytearray()
    async for chunk in chunks:
        searched = len(buffer)
        buffer += chunk
        start = 0
        while (end := buffer.find(b"\n", max(start, searched))) >= 0:
            line = bytes(buffer[start:end]).strip()
            start = end + 1
            if line:
                yield message_of_line(line, content_bytes_max)
        del buffer[:start]
        if len(buffer) > length_max:
            raise too_large(content_bytes_max)
    if line := bytes(buffer).strip():
        yield message_of_line(line, content_bytes_max)


async def length_prefixed(
    chunks: AsyncIterable[bytes], content_bytes_max: int
) -> AsyncGenerator[SidecarMessage, None]:
    """Yield the messages of a body of [length u32 big-endian][content]... Raises Failure."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            length = _LENGTH.unpack_from(buffer, start)[0]
            if length > content_bytes_max:
                raise too_large(content_bytes_max)
            stop = start + _LENGTH.size + length
            if stop > len(buffer):
                break
            yield SidecarMessage(bytes(buffer[start + _LENGTH.size : stop]))
            start = stop
        del buffer[:start]
    if buffer:
        raise _bad("the body ends in the middle of a message")


def _content(field: str, value: object) -> bytes:
    if field == "json":
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if not isinstance(value, str):
        raise _bad(f"{field} is a string")
    if field == "content":
        return (_text(value, field) or "").encode()
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(f"contentBase64 is not base64: {error}") from error


def _json(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(f"{where} is not JSON: {error}") from error


def _properties(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise _bad("properties are an object of strings")
    return {
        _text(name, "a property") or "": _text(text, name) or "" for name, text in value.items()
    }


def _text(text: str | None, where: str) -> str | None:
    """Return text that can be encoded as UTF-8, as protobuf requires. Raises Failure for other text."""
    if text is None:
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _bad(f"{where} is not UTF-8") from error
    return text


def _event_time(milliseconds: int) -> int:
    if not 0 <= milliseconds < 2**63:
        raise _bad("an event time is a number of milliseconds since 1970")
    return milliseconds


def _bad(reason: str) -> Failure:
    return Failure(400, "bad-message", reason)
