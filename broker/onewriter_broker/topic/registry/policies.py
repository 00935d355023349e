"""What was set over HTTP for a topic: for the topic itself, else for its namespace.

The policies that have an effect here are named below; docs/http.md says of all others that they
have none. What an ExclusiveTopic declares stands beside them and does not come through here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.api import ExclusiveTopic
from onewriter_core.ids import TopicName


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: its path for a topic and for a namespace, and its field in Pulsar's Policies."""

    of_topic: str
    of_namespace: str
    field: str = ""


DEDUPLICATION: Final = Policy("deduplicationEnabled", "deduplication", "deduplicationEnabled")


COMPACTION_THRESHOLD: Final = Policy(
    "compactionThreshold", "compactionThreshold", "compaction_threshold"
)


SCHEMA_STRATEGY: Final = Policy(
    "schemaCompatibilityStrategy",
    "schemaCompatibilityStrategy",
    "schema_compatibility_strategy",
)
SCHEMA_VALIDATION: Final = Policy(
    "schemaValidationEnforced", "schemaValidationEnforced", "schema_validation_enforced"
)
SCHEMA_AUTO_UPDATE: Final = Policy(
    "isAllowAutoUpdateSchema", "isAllowAutoUpdateSchema", "is_allow_auto_update_schema"
)


class NamespacePolicies(Protocol):
    """The namespaces' part (namespaces.Namespaces)."""

    @property
    def version(self) -> int:
        """Rises whenever anything was set."""
        ...

    async def known(self) -> None:
        """Return once they were read. Raises Undecided."""
        ...

    def effective(self, namespace: str, path: str, field: str) -> object:
        """One policy as it was set; None: it was not."""
        ...


class NoPolicies:
    """Nothing was set."""

    version = 0

    async def known(self) -> None: ...

    def effective(self, namespace: str, path: str, field: str) -> object:
        del namespace, path, field
        return None


def effective(
    policy: Policy, name: TopicName, entry: CatalogEntry, namespaces: NamespacePolicies
) -> object:
    """A topic's policy: its own, its namespace's, or None."""
    own = entry.policies.get(policy.of_topic)
    if own is not None:
        return own
    return namespaces.effective(name.namespace_name, policy.of_namespace, policy.field)


def deduplicates(name: TopicName, entry: CatalogEntry, namespaces: NamespacePolicies) -> bool:
    """Whether a topic is deduplicated; it is not by default, as in Pulsar."""
    return effective(DEDUPLICATION, name, entry, namespaces) is True


def compaction_threshold(
    name: TopicName,
    declared: ExclusiveTopic | None,
    entry: CatalogEntry,
    namespaces: NamespacePolicies,
) -> int:
    """At how many bytes behind the horizon a topic is compacted; 0: only on request, as in Pulsar.

    What an ExclusiveTopic declares counts for it, whatever was set over HTTP.
    """
    if declared is not None and declared.spec.compaction.enabled:
        return declared.spec.compaction.threshold_bytes
    found = effective(COMPACTION_THRESHOLD, name, entry, namespaces)
    return found if isinstance(found, int) else 0


def follow(topic: LoadedTopic, namespaces: NamespacePolicies) -> None:
    """Have a loaded topic do what is set now."""
    topic.compaction_threshold = compaction_threshold(
        topic.name, topic.declared, topic.entry, namespaces
    )
    required = effective(SCHEMA_VALIDATION, topic.name, topic.entry, namespaces)
    topic.requires_schema = required is True
    is_on = deduplicates(topic.name, topic.entry, namespaces)
    if is_on != topic.runner.deduplications.is_on:
        topic.runner.deduplicate(is_on=is_on)
