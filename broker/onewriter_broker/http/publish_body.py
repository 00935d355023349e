"""What the body of a publish asks for: read some of it at a time.

A body may have 4 MiB. Python's own reader takes them all at once, up to a second for what is made to
take long, and nobody else is served meanwhile. What is JSON here is what ``json.loads`` takes for it;
what counts for nothing is passed over, and not kept.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Generator
from typing import Any, Final, NamedTuple, NoReturn

from onewriter_broker.http.site import Refusal
from onewriter_broker.log.blocks import is_app
from onewriter_broker.topic.staging import PART_BYTES_MAX, Claimed
from onewriter_core.ids import NUMBER_MAX
from onewriter_core.topic.model import AccessMode

PARTS_MAX: Final = 10_000
"""Parts of one publish."""

VALUES_PER_TURN: Final = 1_000
"""Values read before others get a turn of the event loop: a millisecond or two."""

PART_VALUES: Final = 4
"""A part as staging answers it takes as long as so many values that are read one by one."""

ALONE_BYTES: Final = 64 * 1024
"""A body that is larger is read alone: how many come at once says neither how long a turn takes, nor how
much memory."""

NESTED_MAX: Final = 1_000
"""Arrays and objects within one another; Python 3.11's own reader gives up somewhat earlier."""

FLAT_CHARACTERS_MAX: Final = 2_000
"""A part that is longer is read value by value."""

NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,14}")
LABEL: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

_STAGED: Final = re.compile(rf"(?:{NUMBER.pattern})/{LABEL.pattern}/{LABEL.pattern}")
_MODE_WORDS: Final = {
    "exclusive": AccessMode.EXCLUSIVE,
    "exclusive-with-fencing": AccessMode.EXCLUSIVE_WITH_FENCING,
    "wait-for-exclusive": AccessMode.WAIT_FOR_EXCLUSIVE,
}
"""How a topic is taken for a publish without an epoch; the first unless another is named."""

_TOLD: Final = frozenset({"epoch", "mode", "parts", "key", "rows", "bytes", "checksum"})
"""Names of values that count for something."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_FLAT: Final = re.compile(rf"\{{[^\[\]{{}}]{{0,{FLAT_CHARACTERS_MAX}}}+\}}")
"""A short object without arrays and objects in it, if it is one: it may end within a text."""

RUN_VALUES: Final = 1_000
"""Values that are passed over together, where there is nothing in them; it takes as long as reading"""
RUN_COST: Final = 100
"""so many."""

_RUN: Final = re.compile(
    r"""
    (?: [ \t\n\r]*
        (?: "[^"\\\x00-\x1f]{0,100}" | -?(?:0|[1-9][0-9]{0,15}) | true | false | null | \[\] | \{\} )
        [ \t\n\r]* , [ \t\n\r]*
    )"""
    rf"{{2,{RUN_VALUES}}}+",
    re.VERBOSE,
)
"""Values of an array that are easily seen to be some, with the commas behind them."""

_END: Final = "\0"
"""Stands behind the text, so that there is always something to look at. It begins nothing."""

_decode: Final = json.JSONDecoder().raw_decode


class Body(NamedTuple):
    """Under which epoch, or else how, which parts are to be published."""

    epoch: int | None
    mode: AccessMode
    parts: list[Claimed]


class PublishBodies:
    """Reads them; large ones one after the other."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()

    async def read(self, body: bytes, prefix: str) -> Body:
        """What a body asks for, whose parts begin with ``prefix``. Raises Refusal."""
        if len(body) <= ALONE_BYTES:
            return await _read(body, prefix)
        async with self._alone:
            return await _read(body, prefix)


async def _read(body: bytes, prefix: str) -> Body:
    reading = _Reading()
    steps, taken = reading.steps(body), 0
    try:
        for values in steps:
            taken += values
            if taken >= VALUES_PER_TURN:
                taken = 0
                await asyncio.sleep(0)
        epoch, mode = epoch_of(reading.told.get("epoch")), reading.told.get("mode")
        if reading.told["parts"] is not reading.parts:
            raise TypeError
        if mode is not None and (mode not in _MODE_WORDS or epoch is not None):
            raise Refusal(400, f"mode, without an epoch, is one of {', '.join(_MODE_WORDS)}")
        if reading.count > PARTS_MAX:
            raise Refusal(413, f"a publish has at most {PARTS_MAX} parts")
        if not reading.is_sound:
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(
            400, "the body is {epoch, parts: [{key, rows, bytes, checksum}]} as staging answered"
        ) from error
    parts = reading.parts
    if any(not part.key.startswith(prefix) for part in parts):
        raise Refusal(400, f"the parts of this publish begin with {prefix}")
    if len({part.key for part in parts}) != len(parts):
        raise Refusal(400, "a part is named twice")
    return Body(epoch, AccessMode.EXCLUSIVE if mode is None else _MODE_WORDS[mode], parts)


def epoch_of(epoch: object) -> int | None:
    """An epoch out of a body. Raises Refusal."""
    if epoch is not None and (type(epoch) is not int or not 0 < epoch <= NUMBER_MAX):
        raise Refusal(400, "epoch is a topic epoch, or null")
    return epoch


class _Reading:
    """A body as far as it was read.

    Of ``told``, arrays and objects are empty lists, but for ``parts``. These are not ``is_sound`` where one
    of them is no part; ``count`` goes as far as there may be.
    """

    __slots__ = ("_text", "count", "is_sound", "parts", "told")

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.parts: list[Claimed] = []
        self.count = 0
        self.is_sound = True
        self._text = ""

    def steps(self, body: bytes) -> Generator[int]:
        """Read it; yields now and then how many values that were. Raises ValueError, TypeError."""
        self._text = body.decode(json.detect_encoding(body), "surrogatepass") + _END
        at = self._behind_space(0)
        if self._text[at] != "{":
            _fail()
        self.told, at = yield from self._object(at, is_whole=True)
        if self._behind_space(at) != len(self._text) - len(_END):
            _fail()

    def _object(
        self, at: int, *, is_whole: bool
    ) -> Generator[int, None, tuple[dict[str, Any], int]]:
        """An object that begins there, and where it ends. ``is_whole``: it is the body."""
        text, found = self._text, dict[str, Any]()
        at = self._behind_space(at + 1)
        if text[at] == "}":
            return found, at + 1
        while True:
            name, at = self._name(at)
            value: Any
            if is_whole and name == "parts" and text[at] == "[":
                at = yield from self._all_parts(at)
                value = self.parts
            else:
                value, at = yield from self._value(at)
            if name in _TOLD:  # the last one of a name counts
                found[name] = value
            yield 1
            at = self._behind_space(at)
            if text[at] == "}":
                return found, at + 1
            at = self._behind_comma(at)

    def _all_parts(self, at: int) -> Generator[int, None, int]:
        """Read the array of parts that begins there; where it ends."""
        text = self._text
        self.parts, self.count, self.is_sound = [], 0, True
        at = self._behind_space(at + 1)
        if text[at] == "]":
            return at + 1
        while True:
            if self.count > PARTS_MAX:
                self.parts.clear()
                return (yield from self._passing(at, ["]"]))
            part, at = self._flat(at) or (yield from self._part(at))
            self.count += 1
            if self.is_sound and self.count <= PARTS_MAX:
                try:
                    self.parts.append(_claimed(part))
                except (KeyError, TypeError, ValueError):
                    self.is_sound = False
            yield PART_VALUES
            at = self._behind_space(at)
            if text[at] == "]":
                return at + 1
            at = self._behind_comma(at)

    def _flat(self, at: int) -> tuple[Any, int] | None:
        """The part that begins there, and where it ends; None: it is to be read value by value."""
        flat = _FLAT.match(self._text, at)
        if flat is None:
            return None
        try:
            return _decode(flat.group())[0], flat.end()
        except ValueError:
            return None  # what looked like its end stands in a text, or it is damaged

    def _part(self, at: int) -> Generator[int, None, tuple[Any, int]]:
        if self._text[at] == "{":
            return (yield from self._object(at, is_whole=False))
        return (yield from self._value(at))

    def _value(self, at: int) -> Generator[int, None, tuple[Any, int]]:
        if self._text[at] in "[{":
            return [], (yield from self._passing(at, []))
        return _decode(self._text, at)

    def _passing(self, at: int, ends: list[str]) -> Generator[int, None, int]:
        """Pass over the value that begins there, and the rest of those around it that end with ``ends``.

        Where the outermost ends; without ``ends`` the value is an array or an object.
        """
        text = self._text
        while True:
            yield 1
            if text[at] in "[{":
                if len(ends) >= NESTED_MAX:
                    _fail()
                ends.append("]" if text[at] == "[" else "}")
                at = self._behind_space(at + 1)
                is_begun = text[at] != ends[-1]
            else:
                at = self._behind_space(_decode(text, at)[1])
                is_begun = False
            if not is_begun:
                while text[at] == ends[-1]:
                    ends.pop()
                    if not ends:
                        return at + 1
                    at = self._behind_space(at + 1)
                at = self._behind_comma(at)
            if ends[-1] == "}":
                _, at = self._name(at)
            else:
                while run := _RUN.match(text, at):
                    at = run.end()
                    yield RUN_COST

    def _name(self, at: int) -> tuple[str, int]:
        """A name in an object, and where its value begins."""
        if self._text[at] != '"':
            _fail()
        name, at = _decode(self._text, at)
        at = self._behind_space(at)
        if self._text[at] != ":":
            _fail()
        return name, self._behind_space(at + 1)

    def _behind_comma(self, at: int) -> int:
        if self._text[at] != ",":
            _fail()
        return self._behind_space(at + 1)

    def _behind_space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return at if found is None else found.end()


def _fail() -> NoReturn:
    raise ValueError("this is not JSON")


def _claimed(part: Any) -> Claimed:
    key, rows, size, checksum = part["key"], part["rows"], part["bytes"], part["checksum"]
    is_sound = type(rows) is int and type(size) is int and rows >= 0 and 0 < size <= PART_BYTES_MAX
    if not (_is_key(key) and isinstance(checksum, str) and is_sound):
        raise ValueError(part)
    return Claimed(key, rows, size, checksum)


def _is_key(key: object) -> bool:
    """Whether staging may have answered this key."""
    if not isinstance(key, str):
        return False
    app, _, staged = key.partition("/")
    return is_app(app) and _STAGED.fullmatch(staged) is not None
