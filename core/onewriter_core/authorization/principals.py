"""Principals: an authenticated identity, and the roles that the settings give it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from onewriter_core.ids import Identity

SERVICE_ACCOUNT: Final = "system:serviceaccount:"
"""The prefix of a ServiceAccount's subject, ``system:serviceaccount:NAMESPACE:NAME``."""


class Role(StrEnum):
    """Rights that the settings give to a subject, in addition to topics and claims."""

    ADMINISTRATOR = "administrator"
    """Reads and administers everything. Needs a claim to write, because the log records the writer."""
    OBSERVER = "observer"
    """Reads the list and the status of topics, and the metrics, but no message."""
    PIPELINE = "pipeline"
    """Reads every topic, keeps a subscription for its progress, and trims entries that it has stored."""


EVERY_ROLE: Final = frozenset(Role)


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated identity with its roles."""

    identity: Identity
    roles: frozenset[Role] = frozenset()

    @property
    def namespace(self) -> str | None:
        """The Kubernetes namespace of a ServiceAccount; None for any other subject."""
        subject = self.identity.subject
        if not subject.startswith(SERVICE_ACCOUNT):
            return None
        namespace, _, name = subject.removeprefix(SERVICE_ACCOUNT).partition(":")
        return namespace if namespace and name else None

    @property
    def is_administrator(self) -> bool:
        return Role.ADMINISTRATOR in self.roles

    def has(self, *roles: Role) -> bool:
        """Whether the principal has one of these roles."""
        return not self.roles.isdisjoint(roles)

    def __str__(self) -> str:
        return str(self.identity)


@dataclass(frozen=True, slots=True)
class RoleSubjects:
    """The subjects that the settings name for each role.

    If no token is required and the settings name no subject for any role, every client has every role. That is an
    installation on one machine.
    """

    administrators: frozenset[str] = frozenset()
    observers: frozenset[str] = frozenset()
    pipelines: frozenset[str] = frozenset()
    authentication_required: bool = False

    def principal(self, identity: Identity) -> Principal:
        """The principal of an authenticated identity."""
        are_named = self.administrators or self.observers or self.pipelines
        if not self.authentication_required and not are_named:
            return Principal(identity, EVERY_ROLE)
        subject = identity.subject
        if not subject or not are_named:
            return Principal(identity)
        named = {
            Role.ADMINISTRATOR: self.administrators,
            Role.OBSERVER: self.observers,
            Role.PIPELINE: self.pipelines,
        }
        return Principal(
            identity, frozenset(role for role, subjects in named.items() if subject in subjects)
        )


def subjects_of(text: str) -> frozenset[str]:
    """The subjects of a setting, separated by commas."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())
