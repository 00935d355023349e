"""Who asks: an identity that was proved, and the roles that the settings give it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from onewriter_core.ids import Identity

SERVICE_ACCOUNT: Final = "system:serviceaccount:"
"""How the subject of a Kubernetes ServiceAccount begins: ``system:serviceaccount:NAMESPACE:NAME``."""


class Role(StrEnum):
    """What the settings allow a subject beyond what topics and claims say."""

    ADMINISTRATOR = "administrator"
    """Reads and changes everything. Writes nothing without a claim: the log names who wrote."""
    OBSERVER = "observer"
    """Sees which topics there are and how they are, and the metrics; reads no message."""
    PIPELINE = "pipeline"
    """Reads every topic, keeps a subscription for what it has read, and trims what it has stored."""


EVERY_ROLE: Final = frozenset(Role)


@dataclass(frozen=True, slots=True)
class Principal:
    """A proven identity with its roles."""

    identity: Identity
    roles: frozenset[Role] = frozenset()

    @property
    def namespace(self) -> str | None:
        """The Kubernetes namespace of a ServiceAccount; None for every other subject."""
        subject = self.identity.subject
        if not subject.startswith(SERVICE_ACCOUNT):
            return None
        namespace, _, name = subject.removeprefix(SERVICE_ACCOUNT).partition(":")
        return namespace if namespace and name else None

    @property
    def is_administrator(self) -> bool:
        return Role.ADMINISTRATOR in self.roles

    def has(self, *roles: Role) -> bool:
        """Whether it has one of these roles."""
        return any(role in self.roles for role in roles)

    def __str__(self) -> str:
        return str(self.identity)


@dataclass(frozen=True, slots=True)
class RoleSubjects:
    """The subjects that the settings name for each role.

    While no token is required and no subject is named for any role, everybody has every role: that
    is one machine, whose owner asks.
    """

    administrators: frozenset[str] = frozenset()
    observers: frozenset[str] = frozenset()
    pipelines: frozenset[str] = frozenset()
    authentication_required: bool = False

    def principal(self, identity: Identity) -> Principal:
        """The principal of a proven identity."""
        named = {
            Role.ADMINISTRATOR: self.administrators,
            Role.OBSERVER: self.observers,
            Role.PIPELINE: self.pipelines,
        }
        if not self.authentication_required and not any(named.values()):
            return Principal(identity, EVERY_ROLE)
        subject = identity.subject
        if not subject:
            return Principal(identity)
        return Principal(
            identity, frozenset(role for role, subjects in named.items() if subject in subjects)
        )


def subjects_of(text: str) -> frozenset[str]:
    """The subjects of a setting, which are separated by commas."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())
