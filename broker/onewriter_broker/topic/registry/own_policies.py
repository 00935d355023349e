"""Setting a policy of one topic, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName

OWN_MAX: Final = 50
"""Policies of one topic."""


async def set_own(
    topics: Topics, base: TopicName, name: str, change: Callable[[object], object]
) -> None:
    """Set a topic's own policy to what ``change`` makes of the present one; None removes it.

    Raises what ``change`` raises; Refused when the topic does not exist, Unavailable, Undecided.
    """

    def changed(known: CatalogEntry | None) -> CatalogEntry:
        if known is None:
            raise Refused(ServerError.TOPIC_NOT_FOUND, f"{base} does not exist")
        entry = known.with_policy(name, change(known.policies.get(name)))
        if len(entry.policies) > OWN_MAX:
            text = f"{base} has {OWN_MAX} policies already"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        return entry

    await topics.serve_existing(base)
    await topics.change_entry(base, changed)
