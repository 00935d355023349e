"""The policies that were set for a topic over HTTP: those of the topic, or else those of its namespace.

The policies below have an effect here. docs/http.md states that all others have none. The fields of an
ExclusiveTopic are separate from policies and not handled here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.api import ExclusiveTopic
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName

OWN_MAX: Final = 50
"""Most policies of one topic."""


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """One policy: its path for a topic and for a namespace, and its field in Pulsar's Policies."""

    of_topic: str
    of_namespace: str
    field: str = ""


DEDUPLICATION: Final = TopicPolicy("deduplicationEnabled", "deduplication", "deduplicationEnabled")


COMPACTION_THRESHOLD: Final = TopicPolicy(
    "compactionThreshold", "compactionThreshold", "compaction_threshold"
)


SCHEMA_STRATEGY: Final = TopicPolicy(
    "schemaCompatibilityStrategy",
    "schemaCompatibilityStrategy",
    "schema_compatibility_strategy",
)
SCHEMA_VALIDATION: Final = TopicPolicy(
    "schemaValidationEnforced", "schemaValidationEnforced", "schema_validation_enforced"
)
SCHEMA_AUTO_UPDATE: Final = TopicPolicy(
    "isAllowAutoUpdateSchema", "isAllowAutoUpdateSchema", "is_allow_auto_update_schema"
)


class NamespacePolicies(Protocol):
    """The policies of namespaces (namespaces.Namespaces)."""

    @property
    def version(self) -> int:
        """Increases whenever a policy is set."""
        ...

    async def known(self) -> None:
        """Return after the policies were read. Raises Undecided."""
        ...

    def effective(self, namespace: str, path: str, field: str) -> object:
        """One policy as it was set. None: it was not set."""
        ...


class CatalogEntries(Protocol):
    """The catalog entries of topics (topics.Topics)."""

    async def serve_existing(self, base: TopicName) -> object: ...

    async def change_entry(
        self, base: TopicName, change: Callable[[CatalogEntry | None], CatalogEntry]
    ) -> object: ...


class NoPolicies:
    """No policy is set."""

    version = 0

    async def known(self) -> None: ...

    def effective(self, namespace: str, path: str, field: str) -> object:
        del namespace, path, field
        return None


def effective(
    policy: TopicPolicy, name: TopicName, entry: CatalogEntry, namespaces: NamespacePolicies
) -> object:
    """A topic's policy: its own, its namespace's, or None."""
    own = entry.policies.get(policy.of_topic)
    if own is not None:
        return own
    return namespaces.effective(name.namespace_name, policy.of_namespace, policy.field)


def deduplicates(name: TopicName, entry: CatalogEntry, namespaces: NamespacePolicies) -> bool:
    """Whether a topic is deduplicated. By default it is not, as in Pulsar."""
    return effective(DEDUPLICATION, name, entry, namespaces) is True


def compaction_threshold(
    name: TopicName,
    declared: ExclusiveTopic | None,
    entry: CatalogEntry,
    namespaces: NamespacePolicies,
) -> int:
    """Bytes after the horizon at which a topic is compacted. 0: only on request, as in Pulsar.

    The declaration of an ExclusiveTopic has precedence over policies that were set over HTTP.
    """
    if declared is not None and declared.spec.compaction.enabled:
        return declared.spec.compaction.threshold_bytes
    found = effective(COMPACTION_THRESHOLD, name, entry, namespaces)
    return found if isinstance(found, int) else 0


def follow(topic: LoadedTopic, namespaces: NamespacePolicies) -> None:
    """Apply the present policies to a loaded topic."""
    topic.compaction_threshold = compaction_threshold(
        topic.name, topic.declared, topic.entry, namespaces
    )
    required = effective(SCHEMA_VALIDATION, topic.name, topic.entry, namespaces)
    topic.requires_schema = required is True
    is_on = deduplicates(topic.name, topic.entry, namespaces)
    if is_on != topic.runner.deduplications.is_on:
        topic.runner.deduplicate(is_on=is_on)


async def set_own(
    topics: CatalogEntries, base: TopicName, name: str, change: Callable[[object], object]
) -> None:
    """Set a topic's own policy to the result of ``change`` for the present one. None removes it.

    Raises what ``change`` raises; Refused if the topic does not exist; Unavailable, Undecided.
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
