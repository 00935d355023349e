"""Objects that only the plugin reads: Events and PodDisruptionBudgets, as typed values. Pure.

``onewriter_core.kubernetes.objects`` parses the other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onewriter_core.json_values import Json, mapping, mappings, number, optional_number, text


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event. ``last_seen`` is a timestamp."""

    is_warning: bool
    reason: str
    message: str
    last_seen: str

    @property
    def type(self) -> str:
        """The type, as kubectl shows it."""
        return "Warning" if self.is_warning else "Normal"


def parse_event(document: Json) -> Event:
    """An Event of the core API."""
    times = (
        mapping(document.get("series")).get("lastObservedTime"),
        document.get("lastTimestamp"),
        document.get("eventTime"),
        mapping(document.get("metadata")).get("creationTimestamp"),
    )
    return Event(
        document.get("type") == "Warning",
        text(document.get("reason")),
        text(document.get("message")),
        text(next(filter(None, times), None)),
    )


@dataclass(frozen=True, slots=True)
class Requirement:
    """One of a selector's ``matchExpressions``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels satisfy it. An operator of a later version selects nothing."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return False


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A label selector. An empty one selects every object."""

    requirements: tuple[Requirement, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(each.holds(labels) for each in self.requirements)


def parse_selector(found: Json) -> LabelSelector:
    """A selector with ``matchLabels`` and ``matchExpressions``."""
    equal = [
        Requirement(key, "In", (text(value),))
        for key, value in mapping(found.get("matchLabels")).items()
    ]
    others = [
        Requirement(
            text(each.get("key")),
            text(each.get("operator")),
            tuple(text(value) for value in each.get("values") or ()),
        )
        for each in mappings(found.get("matchExpressions"))
    ]
    return LabelSelector((*equal, *others))


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget. Numbers of pods are None until the cluster has counted them."""

    name: str
    selector: LabelSelector = field(default_factory=LabelSelector)
    disruptions_allowed: int = 0
    current_healthy: int | None = None
    desired_healthy: int | None = None


def parse_budget(document: Json) -> DisruptionBudget:
    """A PodDisruptionBudget."""
    status = mapping(document.get("status"))
    return DisruptionBudget(
        text(mapping(document.get("metadata")).get("name")),
        parse_selector(mapping(mapping(document.get("spec")).get("selector"))),
        number(status.get("disruptionsAllowed")),
        optional_number(status.get("currentHealthy")),
        optional_number(status.get("desiredHealthy")),
    )
