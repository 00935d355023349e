"""The topics that a Kubernetes namespace may declare: those of the Pulsar tenant of the same name.

Only Kubernetes' namespace ``default`` also has the tenant ``public``. An administrator lists exceptions. The chart's
ValidatingAdmissionPolicy applies the same rule when an object is created. Operator and broker check it again, for
objects that are older than the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onewriter_core.api.topic import ExclusiveTopic
from onewriter_core.ids import TopicName

DEFAULT_NAMESPACE: Final = "default"
PUBLIC_TENANT: Final = "public"
"""The default tenant of Pulsar clients. It belongs to the namespace above."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The rule. ``exceptions`` are further tenants, by Kubernetes namespace."""

    is_enforced: bool = False
    exceptions: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)

    def allows(self, namespace: str, tenant: str) -> bool:
        """Whether a namespace may declare topics of a tenant."""
        if not self.is_enforced or tenant in self.exceptions.get(namespace, ()):
            return True
        if tenant == PUBLIC_TENANT:
            return namespace == DEFAULT_NAMESPACE
        return tenant == namespace

    def refusal(self, namespace: str, topic: TopicName) -> str:
        """Why a namespace may not declare a topic; empty if it may."""
        if self.allows(namespace, topic.tenant):
            return ""
        return (
            f"tenant {topic.tenant} of {topic} does not belong to namespace {namespace}: name a topic"
            f" persistent://{namespace}/..., or let an administrator allow it (chart value"
            " tenancy.allow)"
        )

    def refusals(self, topics: Iterable[ExclusiveTopic]) -> list[str]:
        """One line for each object that declares a topic of a foreign tenant."""
        return [
            f"ExclusiveTopic {topic.metadata}, spec.topic: {refusal}"
            for topic in topics
            if (refusal := self.refusal(topic.metadata.namespace, topic.topic_name))
        ]


def read_exceptions(text: str) -> dict[str, frozenset[str]]:
    """Read ``NAMESPACE=TENANT+TENANT,...``. Raises ValueError."""
    found: dict[str, frozenset[str]] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        namespace, separator, tenants = each.partition("=")
        names = frozenset(filter(None, (name.strip() for name in tenants.split("+"))))
        if not separator or not namespace.strip() or not names:
            raise ValueError(f"{each!r} is not NAMESPACE=TENANT or NAMESPACE=TENANT+TENANT")
        found[namespace.strip()] = found.get(namespace.strip(), frozenset()) | names
    return found


def written_exceptions(exceptions: Mapping[str, Iterable[str]]) -> str:
    """The exceptions as ``read_exceptions`` reads them."""
    return ",".join(
        f"{namespace}={'+'.join(sorted(tenants))}"
        for namespace, tenants in sorted(exceptions.items())
    )
