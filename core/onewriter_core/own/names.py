"""The names of resources, and the bucket of a resource's record.

A resource is any text. A text with the prefix ``persistent://`` is a topic or a partition: its record is stored in the
topic's bucket, beside its log, so that one script can compare the generation and append. The bucket of any other
text is its hash.
"""

from __future__ import annotations

import zlib
from typing import Final

from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName, bucket_of, is_printable

TOPIC_PREFIX: Final = "persistent://"

RESOURCE_BYTES_MAX: Final = 1_024
GROUP_BYTES_MAX: Final = 256
IDENTITY_BYTES_MAX: Final = 256
NONCE_BYTES_MAX: Final = 64
"""Maximum lengths in bytes of UTF-8."""

SEPARATOR: Final = "\x1f"
"""The separator between group and resource in the name of a record. Neither may contain it."""


def topic_of(resource: str) -> TopicName | None:
    """The topic or partition that the resource names; None for any other text.

    Raises InvalidTopicName for an invalid name with the prefix of a topic.
    """
    return TopicName.parse(resource) if resource.startswith(TOPIC_PREFIX) else None


def check_text(what: str, text: str, bytes_max: int, *, may_be_empty: bool = True) -> None:
    """Raise Refused for a text that is missing, too long, or has control characters."""
    if not text and not may_be_empty:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} is empty")
    if len(text.encode("utf-8", "surrogatepass")) > bytes_max:
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} is longer than {bytes_max} bytes")
    if not is_printable(text):
        raise Refused(ServerError.NOT_ALLOWED_ERROR, f"the {what} has control characters")


def canonical(resource: str) -> str:
    """A resource as in the name of its record. Raises Refused, InvalidTopicName."""
    check_text("resource's name", resource, RESOURCE_BYTES_MAX, may_be_empty=False)
    name = topic_of(resource)
    return resource if name is None else str(name)


def resource_bucket(resource: str, buckets: int) -> int:
    """The bucket of the resource's records, of all groups. Raises InvalidTopicName."""
    name = topic_of(resource)
    return zlib.crc32(resource.encode()) % buckets if name is None else bucket_of(name, buckets)


def own_field(group: str, resource: str) -> str:
    """The name of a record within its bucket."""
    return f"{group}{SEPARATOR}{resource}"


def split_field(field: str) -> tuple[str, str]:
    """The group and the resource in a record's name."""
    group, _, resource = field.partition(SEPARATOR)
    return group, resource
