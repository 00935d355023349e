"""Pulsar's policies: their paths, their defaults, and which of them have an effect here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onewriter_broker.namespaces import STANDALONE
from onewriter_broker.topic.registry.policies import (
    COMPACTION_THRESHOLD,
    DEDUPLICATION,
    SCHEMA_AUTO_UPDATE,
    SCHEMA_STRATEGY,
    SCHEMA_VALIDATION,
)

NO_EFFECT: Final = '299 onewriter "kept and given back, without effect here: see docs/http.md"'
"""The Warning header of responses for policies without effect."""

PERMISSION: Final = "permissions/"
QUOTA: Final = "backlogQuota/"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: its path, its field in Pulsar's Policies object, and its default.

    ``default`` None: an empty response, as in Pulsar. ``inherits``: the namespace's policy that applies to a
    topic without one of its own.
    """

    path: str
    field: str = ""
    default: object = None
    inherits: str = ""


NAMESPACE_POLICIES: Final = (
    Policy(DEDUPLICATION.of_namespace, DEDUPLICATION.field),
    Policy("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
    Policy("schemaCompatibilityStrategy", "schema_compatibility_strategy", "UNDEFINED"),
    Policy("schemaAutoUpdateCompatibilityStrategy", "", "Full"),
    Policy("schemaValidationEnforced", "schema_validation_enforced", default=False),
    Policy("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", default=True),
    Policy("retention", "retention_policies"),
    Policy("persistence", "persistence"),
    Policy("persistence/bookieAffinity"),
    Policy("messageTTL", "message_ttl_in_seconds"),
    Policy("subscriptionExpirationTime", "subscription_expiration_time_minutes"),
    Policy("subscriptionTypesEnabled", "", ()),
    Policy("replication", "replication_clusters", (STANDALONE,)),
    Policy("allowedClusters", "allowed_clusters", ()),
    Policy("autoTopicCreation", "autoTopicCreationOverride"),
    Policy("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
    Policy("publishRate"),
    Policy("dispatchRate"),
    Policy("subscriptionDispatchRate"),
    Policy("subscribeRate"),
    Policy("replicatorDispatchRate"),
    Policy("maxProducersPerTopic", "max_producers_per_topic"),
    Policy("maxConsumersPerTopic", "max_consumers_per_topic"),
    Policy("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    Policy("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    Policy("maxTopicsPerNamespace", "max_topics_per_namespace", 0),
    Policy("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    Policy("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    Policy("compactionThreshold", "compaction_threshold"),
    Policy("delayedDelivery", "delayed_delivery_policies"),
    Policy("inactiveTopicPolicies", "inactive_topic_policies"),
    Policy("offloadThreshold", "offload_threshold", -1),
    Policy("offloadThresholdInSeconds", "offload_threshold_in_seconds", -1),
    Policy("offloadDeletionLagMs", "offload_deletion_lag_ms"),
    Policy("offloadPolicies", "offload_policies"),
    Policy("encryptionRequired", "encryption_required", default=False),
    Policy("antiAffinity", "antiAffinityGroup"),
    Policy("subscriptionAuthMode", "subscription_auth_mode", "None"),
    Policy("properties", "properties", {}),
    Policy("resourcegroup", "resource_group_name"),
    Policy("entryFilters", "entryFilters"),
    Policy("dispatcherPauseOnAckStatePersistent", default=False),
)

TOPIC_POLICIES: Final = (
    Policy(DEDUPLICATION.of_topic, inherits=DEDUPLICATION.of_namespace),
    Policy("maxProducers", inherits="maxProducersPerTopic"),
    Policy("maxConsumers", inherits="maxConsumersPerTopic"),
    Policy("maxUnackedMessagesOnConsumer", inherits="maxUnackedMessagesPerConsumer"),
    Policy("maxUnackedMessagesOnSubscription", inherits="maxUnackedMessagesPerSubscription"),
    Policy("schemaValidationEnforced", default=False, inherits="schemaValidationEnforced"),
    Policy("dispatcherPauseOnAckStatePersistent", default=False),
    Policy("maxMessageSize"),
    *(
        Policy(path, inherits=path)
        for path in (
            "autoSubscriptionCreation",
            "compactionThreshold",
            "deduplicationSnapshotInterval",
            "delayedDelivery",
            "dispatchRate",
            "entryFilters",
            "inactiveTopicPolicies",
            "maxConsumersPerSubscription",
            "maxSubscriptionsPerTopic",
            "messageTTL",
            "offloadPolicies",
            "persistence",
            "publishRate",
            "replication",
            "replicatorDispatchRate",
            "retention",
            "schemaCompatibilityStrategy",
            "subscribeRate",
            "subscriptionDispatchRate",
            "subscriptionTypesEnabled",
        )
    ),
)

WITH_EFFECT: Final = frozenset(
    {
        DEDUPLICATION.of_namespace,
        DEDUPLICATION.of_topic,
        COMPACTION_THRESHOLD.of_topic,
        SCHEMA_STRATEGY.of_topic,
        SCHEMA_VALIDATION.of_topic,
        SCHEMA_AUTO_UPDATE.of_topic,
        "properties",
    }
)
"""Policies with an effect here. Properties are only for people and tools."""

NOT_OFFERED: Final[Mapping[str, tuple[object, str]]] = {
    "encryptionRequired": (
        True,
        "encryption cannot be required here: nothing would refuse a producer without it",
    ),
    "subscriptionAuthMode": (
        "Prefix",
        "subscriptions are not bound to roles here: nothing would refuse another name",
    ),
}
"""Values that would promise a protection that does not exist here."""


def inherited(policy: Policy) -> Policy | None:
    """The namespace's policy that applies to a topic without one of its own."""
    return next((each for each in NAMESPACE_POLICIES if each.path == policy.inherits), None)


def under(policies: Mapping[str, object], prefix: str) -> dict[str, object]:
    """The policies whose names begin with the prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in policies.items()
        if name.startswith(prefix)
    }
