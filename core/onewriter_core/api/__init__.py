"""The declared resources, ``ExclusiveTopic`` and ``ProducerClaim``, as typed values.

One set of models reads the same YAML on one machine and in Kubernetes. The CRDs are generated from the models. So each
constraint is a bound of OpenAPI (range, length, pattern, enumeration) or a rule in CEL. The topic machine and the wire
codec never import this package. ``manifests`` reads files. The broker's use of claims is not here.
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
    FencingPolicy,
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
    "FencingPolicy",
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
