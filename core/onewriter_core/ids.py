"""Small value types that name things: topics, positions, identities.

Two numbers are always kept apart (docs/concepts.md):

* a **ledger** is the storage fence. It rises at every transition and is Pulsar's ``ledgerId``.
* a **topic epoch** is PIP-68's number. It rises only if a new exclusive producer is granted the topic.

Both stay below 2**53, because Lua and JavaScript represent numbers as doubles.
"""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

NUMBER_MAX = 2**53 - 1
"""The highest possible ledger, topic epoch or entry id."""

TOPIC_NAME_LENGTH_MAX = 512
"""The maximum length in bytes of a topic's full name, without the suffix of a partition."""

NAMES_PARSED_MAX = 32_768
"""Parsed names that are kept, each in about 0.4 KiB: a broker that takes over gets the names of all topics of the lost one
several times within a short time."""

PARTITION_SUFFIX = "-partition-"
_PARTITION = re.compile(r"(?P<base>.+)-partition-(?P<index>0|[1-9][0-9]{0,4})")
_PART = re.compile(r"[-=:.\w]+", re.ASCII)


_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # direction and line breaks
    "\ud800-\udfff]"  # halves of characters
)
_NUMBER_DIGITS_MAX = 20


def is_printable(text: str) -> bool:
    """Whether a name has no control characters, also none that reverse the direction of text.

    New names must be printable. Stored names of earlier versions may not be.
    """
    return _UNPRINTABLE.search(text) is None


def escaped(text: str, *, backslash: str = "\\") -> str:
    """The name for a terminal or a log, with control characters as escape sequences."""
    return _UNPRINTABLE.sub(lambda found: f"{backslash}u{ord(found[0]):04x}", text)


def whole_number(text: str, most: int = NUMBER_MAX) -> int | None:
    """The number in ASCII digits, from 0 to ``most``; None for any other text."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _NUMBER_DIGITS_MAX:
        return None
    number = int(text)
    return number if number <= most else None


class InvalidTopicName(ValueError):
    """The topic name violates Pulsar's naming rules."""


class Position(NamedTuple):
    """The place of an entry in a topic's log. Positions are ordered lexicographically.

    ``ledger`` is Pulsar's ledgerId. ``entry`` counts from 1 in each ledger. Entry 0 is the ledger's marker and is
    never delivered.
    """

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}-{self.entry}"

    @property
    def previous(self) -> Position:
        """The highest position that is certainly less than this one."""
        if self.entry > 0:
            return Position(self.ledger, self.entry - 1)
        return Position(max(self.ledger - 1, 0), NUMBER_MAX)

    @property
    def next(self) -> Position:
        """The next position of the same ledger."""
        return Position(self.ledger, self.entry + 1)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``<ledger>-<entry>``; raises ValueError for anything else."""
        ledger, _, entry = text.partition("-")
        return cls(int(ledger), int(entry))


EARLIEST = Position(0, 0)
"""Before every entry of every log."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """A full topic name, ``persistent://tenant/namespace/local``, or the name of one partition."""

    tenant: str
    namespace: str
    local: str
    partition: int | None = None
    domain: str = "persistent"
    _text: str = field(default="", init=False, repr=False, compare=False)
    """The full name, after it was asked for once."""
    _number: int = field(default=-1, init=False, repr=False, compare=False)
    """What the bucket is computed from, after it was asked for once."""

    @classmethod
    def parse(cls, text: str, *, is_stored: bool = False) -> TopicName:
        """Read a full name, ``tenant/namespace/topic`` or a short ``topic`` of public/default.

        Raises InvalidTopicName. A ``-partition-N`` suffix is parsed as in Pulsar.
        ``is_stored``: accept a name that is too long, because earlier versions stored some.
        """
        return _parsed(text, is_stored)

    @classmethod
    def _parse(cls, text: str, *, is_stored: bool) -> TopicName:
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
            if "/" not in rest:
                rest = f"public/default/{rest}"
        parts = rest.split("/", 2)
        if domain not in {"persistent", "non-persistent"} or len(parts) != 3:
            raise _invalid(text)
        tenant, namespace, local = sys.intern(parts[0]), sys.intern(parts[1]), parts[2]
        if (
            not (_PART.fullmatch(tenant) and _PART.fullmatch(namespace) and local)
            or "\x00" in local
        ):
            raise _invalid(text)
        domain = sys.intern(domain)
        match = _PARTITION.fullmatch(local)
        if match is None:
            name = cls(tenant, namespace, local, None, domain)
        else:
            name = cls(tenant, namespace, match["base"], int(match["index"]), domain)
        if not is_stored and name._base_length > TOPIC_NAME_LENGTH_MAX:
            raise InvalidTopicName(f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} bytes")
        return name

    @classmethod
    def parse_stored(cls, text: str) -> TopicName:
        """Read the full name under which a topic is stored.

        Earlier versions stored names that are too long, and names with the suffix of a partition.
        Raises InvalidTopicName.
        """
        name = cls.parse(text, is_stored=True)
        return replace(name, local=name.local_name, partition=None)

    @property
    def _base_length(self) -> int:
        """Bytes of the full name without a partition's suffix."""
        before = len(f"{self.domain}://{self.tenant}/{self.namespace}/")
        return before + len(self.local.encode("utf-8", "surrogatepass"))

    @property
    def base(self) -> TopicName:
        """The topic of this partition; the name itself if it is not a partition."""
        return self if self.partition is None else replace(self, partition=None)

    @property
    def local_name(self) -> str:
        """The name after the namespace: the local name and the suffix of a partition."""
        suffix = "" if self.partition is None else f"{PARTITION_SUFFIX}{self.partition}"
        return self.local + suffix

    @property
    def namespace_name(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace}"

    def with_partition(self, partition: int) -> TopicName:
        """The name of one partition of this topic."""
        return replace(self, partition=partition)

    def __str__(self) -> str:
        text = self._text
        if not text:
            text = f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"
            object.__setattr__(self, "_text", text)
        return text


def _invalid(text: str) -> InvalidTopicName:
    return InvalidTopicName(
        f"not a topic name: {text[:200]!r} (NAME, TENANT/NAMESPACE/NAME, or persistent://TENANT/NAMESPACE/NAME)"
    )


@lru_cache(NAMES_PARSED_MAX)
def _parsed(text: str, is_stored: bool) -> TopicName:
    return TopicName._parse(text, is_stored=is_stored)  # noqa: SLF001 - the part of ``parse`` that is kept


_HASH_TAG = re.compile(r"\{([^}]+)\}")


def bucket_of(topic: TopicName, buckets: int) -> int:
    """The bucket that a topic hashes into: the unit of broker ownership and Redis' hash tag.

    All partitions of a topic are in the bucket of its base name, so that one script can fence them. If a part of
    the local name is in braces, only this part is hashed: ``{orders}-audit`` is in the bucket of ``orders``, so that
    one script can write to one topic under the guard of the other.
    """
    number = topic._number  # noqa: SLF001 - the part of the name that this function keeps
    if number < 0:
        base = topic.base
        if "{" in base.local and (tag := _HASH_TAG.search(base.local)):
            base = replace(base, local=tag[1])
        number = _checksum(base)
        object.__setattr__(topic, "_number", number)
    return number % buckets


def bucket_without_tags(topic: TopicName, buckets: int) -> int:
    """The bucket of a topic's plain name, as in versions without hash tags."""
    return _checksum(topic.base) % buckets


def _checksum(base: TopicName) -> int:
    return zlib.crc32(str(base).encode())


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated identity of a client.

    ``subject`` is the subject of a token, empty if the client is anonymous. ``pod_uid`` is the Kubernetes pod that
    the token is bound to, empty outside Kubernetes. ``pod`` and ``node`` are the pod's name and node: they inform
    people and are not part of the identity.
    """

    subject: str = ""
    pod_uid: str = ""
    pod: str = field(default="", compare=False)
    node: str = field(default="", compare=False)

    @property
    def is_anonymous(self) -> bool:
        return not self.subject

    def __str__(self) -> str:
        if self.is_anonymous:
            return "anonymous"
        return f"{self.subject} (pod {self.pod_uid})" if self.pod_uid else self.subject
