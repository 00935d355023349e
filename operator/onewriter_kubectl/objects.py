"""Reads parts of Kubernetes objects: times, conditions, producers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from onewriter_core.tables import text

Json = dict[str, Any]
Document = Mapping[str, Any]


TOPIC: Final = "exclusivetopics.onewriter.dev"
CLAIM: Final = "producerclaims.onewriter.dev"
ANCHOR: Final = "bucketanchors.onewriter.dev"
INSTALLATION: Final = "onewriters.onewriter.dev"
"""Kinds, as arguments of kubectl."""

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def metadata(document: Document) -> Document:
    found: Document = document.get("metadata") or {}
    return found


def spec(document: Document) -> Document:
    found: Document = document.get("spec") or {}
    return found


def status(document: Document) -> Document:
    """The status; empty if unset."""
    found: Document = document.get("status") or {}
    return found


def name(document: Document) -> str:
    """NAMESPACE/NAME."""
    about = metadata(document)
    return "/".join(str(about[part]) for part in ("namespace", "name") if about.get(part))


def annotation(document: Document, key: str) -> str:
    """An annotation's value; empty if unset."""
    return str((metadata(document).get("annotations") or {}).get(key, ""))


def is_set(document: Document, key: str) -> bool:
    """Whether a boolean annotation is true, as the operator reads it."""
    return annotation(document, key).strip().lower() in {"true", "yes", "1"}


def condition(document: Document, kind: str) -> Document:
    """A condition by its type; empty if missing."""
    for found in status(document).get("conditions") or ():
        if found.get("type") == kind:
            result: Document = found
            return result
    return {}


def epoch(document: Document) -> int | None:
    """The newest epoch in the status."""
    found = status(document).get("epoch")
    return None if found is None else int(found)


def person(found: Document) -> str:
    """A producer's name for people: its pod if it has one."""
    producer, pod = text(found.get("producerName")), found.get("pod")
    if not pod:
        return f"producer {producer}"
    return f"{text(pod)} (producer {producer})"


def seconds(moment: object) -> float | None:
    """Unix time of a timestamp; None for any other value."""
    if not isinstance(moment, str):
        return None
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None


def age(moment: object, now: float) -> str:
    """An age in kubectl's form: 12s, 3m20s, 5h, 2d. Empty if unknown."""
    since = seconds(moment)
    return "" if since is None else duration(max(0.0, now - since))


def duration(length_seconds: float) -> str:
    """A duration in its two largest units."""
    left = int(length_seconds)
    for index, (size, unit) in enumerate(_UNITS):
        if left >= size or unit == "s":
            whole, rest = divmod(left, size)
            below = _UNITS[index + 1] if index + 1 < len(_UNITS) else None
            if below is None or whole >= 10 or rest < below[0]:
                return f"{whole}{unit}"
            return f"{whole}{unit}{rest // below[0]}{below[1]}"
    raise AssertionError("seconds are always there")


def selects(selector: Document, labels: Mapping[str, str]) -> bool:
    """Whether a label selector, as in a PodDisruptionBudget, selects an object."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions") or ())


def _holds(requirement: Document, labels: Mapping[str, str]) -> bool:
    value = labels.get(str(requirement.get("key")))
    values = requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
