"""``replace`` as in ``dataclasses``, in two thirds of the time, for the values of the topic machine.

A topic that is taken over changes about fifteen of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import replace  # type checkers know its types
else:
    from collections.abc import Callable, Mapping
    from dataclasses import fields
    from functools import cache
    from operator import attrgetter
    from typing import Any

    @cache
    def _shape(kind: type) -> tuple[Callable[[object], tuple[Any, ...]], Mapping[str, int]]:
        """A function that returns the values of all fields and the class, and each field's place among the values."""
        names = [field.name for field in fields(kind)]
        return attrgetter(*names, "__class__"), {name: place for place, name in enumerate(names)}

    def replace(instance: object, /, **changes: object) -> object:
        """The instance with other values in these fields. All fields of its class are arguments of its constructor."""
        read, places = _shape(instance.__class__)
        *values, kind = read(instance)
        for name, value in changes.items():
            values[places[name]] = value
        return kind(*values)


__all__ = ["replace"]
