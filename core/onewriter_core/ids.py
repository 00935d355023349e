"""Small value types that name things: topics, positions, identities.

Two numbers are never mixed up (docs/concepts.md):

* a **ledger** is the storage fence; it rises at every change of hands and is Pulsar's ``ledgerId``;
* a **topic epoch** is PIP-68's number; it rises only when a new exclusive producer takes over.

Both stay below 2**53, because Lua and JavaScript keep numbers as doubles.
"""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import dataclass, field, replace
from typing import NamedTuple

NUMBER_MAX = 2**53 - 1
"""The highest ledger, topic epoch or entry id ever used."""

TOPIC_NAME_LENGTH_MAX = 512
"""Bytes of a topic's full name, without the suffix of a partition; longer ones are refused."""

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
    """Whether a name has no control characters: none that a terminal obeys or that turns text around.

    Names that are new must be printable. Older ones may be stored that are not.
    """
    return _UNPRINTABLE.search(text) is None


def escaped(text: str, *, backslash: str = "\\") -> str:
    """A name for a terminal or a log: a control character as its number, after a ``backslash``."""
    return _UNPRINTABLE.sub(lambda found: f"{backslash}u{ord(found[0]):04x}", text)


def whole_number(text: str, most: int = NUMBER_MAX) -> int | None:
    """The number that a peer writes in ASCII digits, 0 to ``most``; None for any other text."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _NUMBER_DIGITS_MAX:
        return None
    number = int(text)
    return number if number <= most else None


class InvalidTopicName(ValueError):
    """A topic name that Pulsar's naming rules do not allow."""


class Position(NamedTuple):
    """Where an entry stands in a topic's log; positions order lexicographically.

    ``ledger`` is Pulsar's ledgerId. ``entry`` counts inside it from 1; entry 0 is the ledger's
    marker and is never delivered.
    """

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}-{self.entry}"

    @property
    def previous(self) -> Position:
        """The highest position that is certainly in front of this one."""
        if self.entry > 0:
            return Position(self.ledger, self.entry - 1)
        return Position(max(self.ledger - 1, 0), NUMBER_MAX)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read ``<ledger>-<entry>``; raises ValueError for anything else."""
        ledger, _, entry = text.partition("-")
        return cls(int(ledger), int(entry))


EARLIEST = Position(0, 0)
"""Before every entry of every log."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """A full topic name, ``persistent://tenant/namespace/local``, perhaps one partition of it."""

    tenant: str
    namespace: str
    local: str
    partition: int | None = None
    domain: str = "persistent"

    @classmethod
    def parse(cls, text: str, *, is_stored: bool = False) -> TopicName:
        """Read a full name, ``tenant/namespace/topic`` or a short ``topic`` of public/default.

        Raises InvalidTopicName. A ``-partition-N`` suffix is recognised as Pulsar does.
        ``is_stored``: take a name that is too long, as earlier versions stored some.
        """
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
            if "/" not in rest:
                rest = f"public/default/{rest}"
        parts = rest.split("/", 2)
        if domain not in {"persistent", "non-persistent"} or len(parts) != 3:
            raise InvalidTopicName(f"not a topic name: {text[:200]!r}")
        tenant, namespace, local = sys.intern(parts[0]), sys.intern(parts[1]), parts[2]
        if (
            not (_PART.fullmatch(tenant) and _PART.fullmatch(namespace) and local)
            or "\x00" in local
        ):
            raise InvalidTopicName(f"not a topic name: {text[:200]!r}")
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

        Earlier versions stored names that are too long, and names that end like a partition's.
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
        """The topic whose partition this is; itself when it is none."""
        return self if self.partition is None else replace(self, partition=None)

    @property
    def local_name(self) -> str:
        """What stands behind the namespace: the local name and, of a partition, its suffix."""
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
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"


_HASH_TAG = re.compile(r"\{([^}]+)\}")


def bucket_of(topic: TopicName, buckets: int) -> int:
    """The bucket that a topic hashes into: the unit of broker ownership and Redis' hash tag.

    All partitions of a topic share its base name's bucket, so that one script can fence them. A part
    of the local name in braces stands for the whole of it: ``{orders}-audit`` lies with ``orders``,
    so that one script can write to one under the guard of the other.
    """
    base = topic.base
    if "{" in base.local and (tag := _HASH_TAG.search(base.local)):
        base = replace(base, local=tag[1])
    return bucket_without_tags(base, buckets)


def bucket_without_tags(topic: TopicName, buckets: int) -> int:
    """The bucket of a topic's plain name: where versions that knew no hash tags kept it."""
    return zlib.crc32(str(topic.base).encode()) % buckets


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client proved to be.

    ``subject`` is a token's subject, empty when nobody authenticated it. ``pod_uid`` is the
    Kubernetes pod that the token is bound to, empty outside Kubernetes. ``pod`` and ``node`` say
    what that pod is called and where it runs: for people, no part of the identity.
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
