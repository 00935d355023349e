"""The page of settings: broker, operator and sidecar, from their models."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from docs.generator.tables import code, page, prose, table
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from onewriter.sidecar.settings import Settings as SidecarSettings
from onewriter_broker.settings import Settings as BrokerSettings
from onewriter_operator.settings import OperatorSettings

MODELS: Final[dict[str, type[BaseSettings]]] = {
    "Broker": BrokerSettings,
    "Operator": OperatorSettings,
    "Sidecar": SidecarSettings,
}

UNITS: Final = ("seconds", "days", "bytes", "share")
"""Last words of names that are units; without one of them a number is a number of things."""

INTRODUCTION: Final = """
Each setting is an environment variable; a value outside the range is an error at the start. Some settings are also
options of `onewriter up`, `onewriter sidecar` and `onewriter operator` ([commands](commands.md)). The chart sets the brokers' settings under `brokers.settings`
([values](../../charts/onewriter/README.md)).
"""


def text() -> str:
    """The whole page."""
    parts = []
    for name, model in MODELS.items():
        rows = (
            (
                code(variable(model, field_name)),
                code(default(field)),
                unit(field_name),
                bounds(field),
                prose(field.description or ""),
            )
            for field_name, field in model.model_fields.items()
        )
        parts += [f"## {name}", table(("variable", "default", "unit", "range", "meaning"), rows)]
    return page("Settings", INTRODUCTION, *parts)


def variables() -> list[str]:
    """The environment variables of all settings."""
    return sorted(variable(model, name) for model in MODELS.values() for name in model.model_fields)


def variable(model: type[BaseSettings], name: str) -> str:
    """The environment variable of a setting."""
    return f"{model.model_config.get('env_prefix', '')}{name}".upper()


def unit(name: str) -> str:
    """The unit that a name states."""
    words = name.split("_")
    return next(("fraction" if each == "share" else each for each in UNITS if each in words), "")


def default(field: FieldInfo) -> str:
    """The default as a user writes it; a word where it depends on the machine."""
    value = field.default
    if field.default_factory is not None:
        return "(host name)" if "host" in repr(field.default_factory) else "(computed)"
    match value:
        case _ if value is PydanticUndefined:
            return "(required)"
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case Path() | int() | str():
            return str(value)
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(map(str, value))
        case None:
            return ""
        case _:
            return str(value)


def bounds(field: FieldInfo) -> str:
    """The range of a value, or its choices."""
    found = [*_limits(field.metadata), *_choices(field.annotation)]
    return ", ".join(found)


def _limits(metadata: list[Any]) -> Iterator[str]:
    for each in metadata:
        match each:
            case Ge():
                yield f"≥ {each.ge}"
            case Gt():
                yield f"> {each.gt}"
            case Le():
                yield f"≤ {each.le}"
            case Lt():
                yield f"< {each.lt}"
            case MinLen():
                yield f"at least {each.min_length} characters"
            case MaxLen():
                yield f"at most {each.max_length} characters"
            case _:
                pass


def _choices(annotation: Any) -> Iterator[str]:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        yield " or ".join(code(each) for each in typing.get_args(annotation))
    elif origin in {typing.Union, types.UnionType}:
        for each in typing.get_args(annotation):
            yield from _choices(each)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield " or ".join(code(each.value) for each in annotation)
    elif annotation is bool:
        yield "`true` or `false`"
