"""The desired state as the operator pushes it: one JSON document with all topics and claims.

::

    {"revision": "...", "topics": [ExclusiveTopic, ...], "claims": [ProducerClaim, ...],
     "pods": {"NAMESPACE/CLAIM": ["pod uid", ...]}}

The document can be large, and the operator pushes it again after each change. So the broker reads it piece by piece (a
single call of a C decoder would block all other threads). A piece that has not changed is not validated again: its
resource is taken from the previous reading.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder
from typing import Final

from onewriter_core.api.manifests import Declared, DesiredState, Located, combine, read_resource
from onewriter_core.errors import ConfigurationError

REVISION_LENGTH_MAX: Final = 253

POD_UID_LENGTH_MAX: Final = 64

_SPACE = re.compile(r"[ \t\n\r]*")
_LISTS: Final = {"topics": "ExclusiveTopic", "claims": "ProducerClaim"}


@dataclass(frozen=True, slots=True)
class Reading:
    """A desired state, and the pieces that a later reading can reuse."""

    revision: str
    state: DesiredState
    known: Mapping[bytes, Located] = field(repr=False)


def read_desired(body: bytes, before: Reading | None = None) -> Reading:
    """Read and validate a desired state. Raises ConfigurationError with one line per error.

    It takes tenths of a second for thousands of resources: call it in a thread.
    """
    errors: list[str] = []
    values: dict[str, object] = {}
    known: dict[bytes, Located] = {}
    resources: list[Located] = []
    former = {} if before is None else before.known
    try:
        for name, place, text, value in _pieces(body.decode("utf-8")):
            if name in _LISTS:
                digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
                found = former.get(digest)
                if found is None:
                    found = _judged(name, place, value, errors)
                if found is not None:
                    known[digest] = found
                    resources.append(found)
            elif name in values:
                errors.append(f"{name}: stands twice")
            else:
                values[name] = value
    except (ValueError, RecursionError) as error:  # ValueError: also a number with too many digits
        raise ConfigurationError(f"the desired state is not JSON: {error}") from None
    revision = _revision(values.pop("revision", None), errors)
    pods = _pods(values.pop("pods", {}), errors)
    errors += [f"{name[:100]}: there is no such field" for name in values]
    return Reading(revision, combine(resources, errors, pods), known)


def _judged(name: str, place: int, value: object, errors: list[str]) -> Located | None:
    """Validate one resource. Adds its violations to ``errors``."""
    where = f"{name}[{place}]"
    if isinstance(value, Mapping) and isinstance(value.get("metadata"), Mapping):
        names = value["metadata"]
        where = f"{_LISTS[name]} {names.get('namespace')}/{names.get('name')}"
    found = read_resource(value, where, errors)
    if found is None:
        return None
    resource: Declared = found.resource
    if resource.kind != _LISTS[name]:
        errors.append(f"{where}: is a {resource.kind}, and stands in {name}")
        return None
    return found


def _revision(value: object, errors: list[str]) -> str:
    if isinstance(value, str) and 0 < len(value) <= REVISION_LENGTH_MAX:
        return value
    errors.append(f"revision: must be a text of 1 to {REVISION_LENGTH_MAX} characters")
    return ""


def _pods(value: object, errors: list[str]) -> dict[str, frozenset[str]]:
    if not isinstance(value, Mapping):
        errors.append("pods: must be a mapping of NAMESPACE/CLAIM to lists of pod uids")
        return {}
    found: dict[str, frozenset[str]] = {}
    for name, uids in value.items():
        is_list = isinstance(uids, list) and all(
            isinstance(uid, str) and 0 < len(uid) <= POD_UID_LENGTH_MAX for uid in uids
        )
        if is_list and name.count("/") == 1:
            found[name] = frozenset(uids)
        else:
            errors.append(f"pods[{name[:200]!r}]: must be NAMESPACE/CLAIM and a list of pod uids")
    return found


def _pieces(text: str) -> Iterator[tuple[str, int, str, object]]:
    """The field, index, text and value of each piece. A field without a list is one piece.

    Raises JSONDecodeError.
    """
    decoder = JSONDecoder()
    at = _expect(text, _skip(text, 0), "{")
    if text[at : at + 1] == "}":
        at += 1
    else:
        while True:
            name, at = decoder.raw_decode(text, at)
            if not isinstance(name, str):
                raise JSONDecodeError("a field's name is expected", text, at)
            at = _expect(text, _skip(text, at), ":")
            if name in _LISTS and text[at : at + 1] == "[":
                at = yield from _items(decoder, name, text, at)
            else:
                start = at
                value, at = decoder.raw_decode(text, at)
                yield name, 0, text[start:at], value
            at = _skip(text, at)
            if text[at : at + 1] != ",":
                at = _expect(text, at, "}")
                break
            at = _skip(text, at + 1)
    if _skip(text, at) != len(text):
        raise JSONDecodeError("nothing more is expected", text, at)


def _items(
    decoder: JSONDecoder, name: str, text: str, at: int
) -> Generator[tuple[str, int, str, object], None, int]:
    """The items of the list that begins at ``at``. The generator returns the end of the list."""
    at = _skip(text, at + 1)
    place = 0
    while text[at : at + 1] != "]":
        if place:
            at = _expect(text, at, ",")
        start = at
        value, at = decoder.raw_decode(text, at)
        yield name, place, text[start:at], value
        place += 1
        at = _skip(text, at)
    return at + 1


def _skip(text: str, at: int) -> int:
    """The end of the white space at ``at``."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _expect(text: str, at: int, sign: str) -> int:
    """The position after the required sign and the white space that follows it."""
    if text[at : at + 1] != sign:
        raise JSONDecodeError(f"{sign!r} is expected", text, at)
    return _skip(text, at + 1)
