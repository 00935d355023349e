"""Authorization: one pure function, ``may(principal, action, resource)``.

Every command of the wire protocol and every HTTP route calls it. The package performs no I/O and knows no connections,
queues or clocks. The topic machine decides *when* a producer writes, and the broker authenticates identities.
docs/security.md has the table of rights.
"""

from onewriter_core.authorization.claims import PodsOf, matches
from onewriter_core.authorization.decisions import (
    Action,
    Denied,
    Granted,
    RequestedProducer,
    may,
)
from onewriter_core.authorization.principals import Principal, Role, RoleSubjects, subjects_of
from onewriter_core.authorization.resources import (
    INSTALLATION,
    ConsumersDefault,
    EpochResource,
    Installation,
    NamespaceResource,
    OwnedResource,
    Policy,
    Proof,
    Resource,
    TopicResource,
    UndeclaredTopics,
)

__all__ = [
    "INSTALLATION",
    "Action",
    "ConsumersDefault",
    "Denied",
    "EpochResource",
    "Granted",
    "Installation",
    "NamespaceResource",
    "OwnedResource",
    "PodsOf",
    "Policy",
    "Principal",
    "Proof",
    "RequestedProducer",
    "Resource",
    "Role",
    "RoleSubjects",
    "TopicResource",
    "UndeclaredTopics",
    "matches",
    "may",
    "subjects_of",
]
