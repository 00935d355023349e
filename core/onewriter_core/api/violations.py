"""Error messages for violated constraints: the field, the violation, and the allowed values.

pydantic reports the constraint and the place. This module writes the message for users, with the terms of YAML
(mapping, list). For an unknown field it lists the existing ones.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from onewriter_core.api.common import PATTERN_MEANINGS

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*")

_KEY_ITSELF = "[key]"
"""pydantic's place for a violation of a mapping's key, not of its value."""

Place = tuple[int | str, ...]


def in_words(model: type[BaseModel], error: ValidationError) -> list[str]:
    """One phrase per violation, ``, FIELD.PATH: must ...``, to follow the document's name."""
    violations = error.errors(include_url=False, include_input=False)
    places = [violation["loc"] for violation in violations]
    return [
        _phrase(model, violation["type"], violation["loc"], violation)
        for violation in violations
        if not _follows_from_another(violation["type"], violation["loc"], places)
    ]


def _phrase(model: type[BaseModel], kind: str, place: Place, violation: Mapping[str, Any]) -> str:
    wrong = _wrong(model, kind, place, violation)
    if place and place[-1] == _KEY_ITSELF:
        return f"{_path(place[:-1])}: the key {wrong}"
    return f"{_path(place)}: {wrong}"


def _follows_from_another(kind: str, place: Place, places: Sequence[Place]) -> bool:
    """Pydantic also reports a list with only invalid items as too short. The errors of the items are sufficient."""
    if kind != "too_short":
        return False
    return any(other[: len(place)] == place and len(other) > len(place) for other in places)


def _path(place: Place) -> str:
    path = ""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            path += f".{part}" if path else part
        else:
            path += f"[{part[:100]!r}]"
    return f", {path}" if path else ""


def _wrong(model: type[BaseModel], kind: str, place: Place, violation: Mapping[str, Any]) -> str:
    context: Mapping[str, Any] = violation.get("ctx", {})
    match kind:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return _unknown_field(model, place)
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "too_short":
            return f"must have {context['min_length']} or more items"
        case "too_long":
            return f"must have {context['max_length']} or fewer items"
        case "string_too_long":
            return f"must have {context['max_length']} or fewer characters"
        case "string_pattern_mismatch":
            return f"must be {PATTERN_MEANINGS[context['pattern']]}"
        case "enum" | "literal_error":
            return f"must be one of {context['expected'].replace(chr(39), '')}"
        case "string_type" | "string_unicode":
            return "must be a string"
        case "int_type" | "int_from_float" | "int_parsing_size":
            return "must be a whole number"
        case "float_type" | "finite_number":
            return "must be a number"
        case "bool_type":
            return "must be true or false"
        case "tuple_type":
            return "must be a list"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a mapping"
        case "invalid_key":
            return "must be a string: quote this key"
        case "value_error":
            return str(context["error"])
        case _:
            return str(violation["msg"])


def _unknown_field(model: type[BaseModel], place: Place) -> str:
    known = _fields(model, place[:-1])
    near = difflib.get_close_matches(str(place[-1])[:100], known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown field{hint}; allowed are {', '.join(known)}"


def _fields(model: type[BaseModel], place: Place) -> list[str]:
    """The YAML names of the allowed fields of a mapping at that place."""
    for part in place:
        if isinstance(part, int):
            continue
        inner = next(f.annotation for f in model.model_fields.values() if f.alias == part)
        model = _models(inner)[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: object) -> list[type[BaseModel]]:
    """The models in an annotation such as ``tuple[Model, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in typing.get_args(annotation) for model in _models(argument)]
