"""The body of a publish. It may have 4 MiB, so it is read in steps."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from onewriter_broker.http.site import Refusal
from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.publish.staging import (
    KEY_CHARACTERS_SHOWN,
    PART_BYTES_MAX,
    StagedPartRef,
)
from onewriter_core.ids import NUMBER_MAX
from onewriter_core.publish_rights import is_app

PARTS_MAX: Final = 10_000
"""Parts of one publish."""

PARTS_PER_TICK: Final = 500
"""Parts that are read in one tick of the event loop: one or two milliseconds."""

NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,14}")
LABEL: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

_STAGED: Final = re.compile(rf"(?:{NUMBER.pattern})/{LABEL.pattern}/{LABEL.pattern}")


class Body(NamedTuple):
    """The epoch of a publish, and its parts."""

    epoch: int | None
    parts: list[StagedPartRef]


class _Part(msgspec.Struct, frozen=True, gc=False):
    key: str
    rows: int
    bytes: int
    checksum: str


class _PublishBody(msgspec.Struct):
    parts: list[_Part]
    epoch: int | None = None


_DECODER: Final = msgspec.json.Decoder(_PublishBody)
"""It skips unknown fields without creating objects, so a body of many unknown fields is cheap."""


async def read_body(body: bytes, prefix: str) -> Body:
    """Parse a body whose parts begin with ``prefix``. Raises Refusal."""
    try:
        document = _DECODER.decode(body)
        epoch = epoch_of(document.epoch)
        if len(document.parts) > PARTS_MAX:
            raise Refusal(413, f"a publish has at most {PARTS_MAX} parts")
        parts, ticks = list[StagedPartRef](), Ticks(PARTS_PER_TICK)
        for part in document.parts:
            parts.append(_claimed(part))
            await ticks.step()
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        text = "the body is {epoch, parts: [{key, rows, bytes, checksum}]} as staging answered"
        raise Refusal(400, f"{text}: {error}") from error
    if any(not part.key.startswith(prefix) for part in parts):
        raise Refusal(400, f"the parts of this publish begin with {prefix}")
    if len({part.key for part in parts}) != len(parts):
        raise Refusal(400, "a part is named twice")
    return Body(epoch, parts)


def epoch_of(epoch: object) -> int | None:
    """The epoch in a body. Raises Refusal."""
    if epoch is None:
        return None
    if type(epoch) is not int or not 0 < epoch <= NUMBER_MAX:
        raise Refusal(400, "epoch is a topic epoch, or null")
    return epoch


def _claimed(part: _Part) -> StagedPartRef:
    if not (_is_key(part.key) and part.rows >= 0 and 0 < part.bytes <= PART_BYTES_MAX):
        raise ValueError(f"no part is {part.key[:KEY_CHARACTERS_SHOWN]}")
    return StagedPartRef(part.key, part.rows, part.bytes, part.checksum)


def _is_key(key: str) -> bool:
    """Whether the key has the format of the keys that staging returns."""
    app, _, staged = key.partition("/")
    return is_app(app) and _STAGED.fullmatch(staged) is not None
