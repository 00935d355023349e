"""The error of a test that finds a broken promise. ``tests/run.py`` never repeats such a test."""

from __future__ import annotations


class Violation(AssertionError):
    """A predicate that follows from a promise does not hold. The text names it and says what was found."""


NAME = f"{Violation.__module__}.{Violation.__qualname__}"
"""How pytest names the error in the reason of a failure."""


def require(holds: object, what_is_broken: str) -> None:
    """Raise Violation unless ``holds`` is true."""
    if not holds:
        raise Violation(what_is_broken)
