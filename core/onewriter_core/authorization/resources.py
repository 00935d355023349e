"""What a request is about: a topic, a namespace, a resource owned by name, the installation.

Each carries all that a decision about it depends on, so that the decision itself looks nothing up.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from onewriter_core.api.claim import ProducerClaim
from onewriter_core.api.topic import ExclusiveTopic
from onewriter_core.authorization.claims import PodsOf, no_pods
from onewriter_core.ids import Identity, TopicName

PUBLIC_TENANT: Final = "public"
"""The tenant of the Kubernetes namespace ``default`` (see ExclusiveTopic.topic_name)."""


class ConsumersDefault(StrEnum):
    """Who may read a topic whose ``spec.access.consumers`` is not set."""

    EVERYONE = "everyone"
    NAMESPACE = "namespace"
    """The ServiceAccounts of the topic's Kubernetes namespace."""


@dataclass(frozen=True, slots=True)
class UndeclaredTopics:
    """What happens to a topic that no ExclusiveTopic declares.

    With ``are_refused`` it does not exist. Otherwise it may be made in ``namespaces``
    (``tenant/namespace`` each), with the defaults and without claims.
    """

    are_refused: bool = False
    namespaces: Container[str] = frozenset({"public/default"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What the settings say for topics that say nothing themselves."""

    consumers_default: ConsumersDefault = ConsumersDefault.EVERYONE
    undeclared: UndeclaredTopics = UndeclaredTopics()
    with_bare_account_names: bool = True
    """Whether a subject that is only the name of a claim's ServiceAccount matches the claim. Such a name has no
    namespace, so it matches only if the installation does not check tokens of ServiceAccounts."""


def _kubernetes_namespace(tenant: str) -> str:
    return "default" if tenant == PUBLIC_TENANT else tenant


@dataclass(frozen=True, slots=True)
class TopicResource:
    """A topic, or one partition of it.

    ``declaration`` is its ExclusiveTopic, None when there is none; ``claims`` are the claims for it,
    and ``pods_of`` says which pods each one's podSelector is known to select.
    """

    name: TopicName
    declaration: ExclusiveTopic | None = None
    claims: tuple[ProducerClaim, ...] = ()
    pods_of: PodsOf = no_pods
    policy: Policy = Policy()

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace that the topic belongs to; an undeclared one: by its tenant."""
        if self.declaration is not None:
            return self.declaration.metadata.namespace
        return _kubernetes_namespace(self.name.tenant)

    def __str__(self) -> str:
        return str(self.name)


class Proof(StrEnum):
    """What a request shows of its right to publish under an epoch, as it was verified."""

    NONE = "none"
    """It shows neither a registration nor a capability."""
    REGISTRATION = "registration"
    """The registration of the epoch's holder."""
    CAPABILITY = "capability"
    """A capability that the holder passed on, for this app, which has not expired."""
    INVALID = "invalid"
    """A secret that was not made for this topic, epoch and app."""
    EXPIRED = "expired"
    """A capability whose time is over."""


@dataclass(frozen=True, slots=True)
class EpochResource:
    """An epoch of a topic, to be published under as ``app``.

    ``holder`` is the identity that the epoch was granted to, as far as it is known.
    """

    name: TopicName
    app: str
    epoch: int | None
    holder: Identity | None
    proof: Proof

    def __str__(self) -> str:
        epoch = "an epoch" if self.epoch is None else f"epoch {self.epoch}"
        return f"{epoch} of {self.name}"


@dataclass(frozen=True, slots=True)
class NamespaceResource:
    """A namespace of topics, ``tenant/namespace``, or a whole tenant."""

    name: str
    policy: Policy = Policy()

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace that it belongs to."""
        return _kubernetes_namespace(self.name.partition("/")[0])

    def __str__(self) -> str:
        return f"namespace {self.name}"


@dataclass(frozen=True, slots=True)
class OwnedResource:
    """A resource that is owned by name and is no topic.

    ``first_subject``: who owned it first and has not released it; None while nobody has.
    """

    name: str
    group: str = ""
    first_subject: str | None = None

    def __str__(self) -> str:
        return f"resource {self.name}" + (f" of group {self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class Installation:
    """All brokers and what they keep."""

    def __str__(self) -> str:
        return "the installation"


INSTALLATION: Final = Installation()

Resource = TopicResource | EpochResource | NamespaceResource | OwnedResource | Installation
