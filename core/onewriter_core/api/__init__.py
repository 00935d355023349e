"""The resources people declare, ``ExclusiveTopic`` and ``ProducerClaim``, as typed values.

One set of models reads the same YAML on one machine and in Kubernetes, and is what the CRDs are
generated from: a constraint is therefore written as a bound that OpenAPI has (range, length,
pattern, enumeration), or as a rule that CEL can say. The topic machine and the wire codec never
import this package. Reading files lives in ``manifests``; what a broker does with a claim does not
live here.
"""

from onewriter_core.api.claim import (
    ClaimSubject,
    LabelSelector,
    Permission,
    ProducerClaim,
    ProducerClaimSpec,
    TopicReference,
)
from onewriter_core.api.common import API_VERSION, AccessModeWord, Metadata
from onewriter_core.api.topic import (
    Access,
    Compaction,
    Consumers,
    DeletionPolicy,
    Detection,
    Durability,
    ExclusiveTopic,
    ExclusiveTopicSpec,
    Fencing,
    Handover,
    LeaderService,
    PodPolicy,
    Promotion,
    Retention,
    ServicePort,
)

__all__ = [
    "API_VERSION",
    "Access",
    "AccessModeWord",
    "ClaimSubject",
    "Compaction",
    "Consumers",
    "DeletionPolicy",
    "Detection",
    "Durability",
    "ExclusiveTopic",
    "ExclusiveTopicSpec",
    "Fencing",
    "Handover",
    "LabelSelector",
    "LeaderService",
    "Metadata",
    "Permission",
    "PodPolicy",
    "ProducerClaim",
    "ProducerClaimSpec",
    "Promotion",
    "Retention",
    "ServicePort",
    "TopicReference",
]
