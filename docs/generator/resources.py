"""The page of Kubernetes objects: every field of each kind, from the CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from charts.generator import crd
from docs.generator.tables import code, page, prose, table

Schema = Mapping[str, Any]

INTRODUCTION: Final = """
These fields are in the files of [`crds/`](../../crds), and `kubectl explain` shows them. `[]` stands for each element of
a list, `{}` for each value of a map. [The operator](../operator.md) describes what the fields do together.
"""

BOUNDS: Final = (
    ("minimum", "≥ {}"),
    ("maximum", "≤ {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} elements"),
    ("maxItems", "at most {} elements"),
    ("maxProperties", "at most {} entries"),
    ("pattern", "matches `{}`"),
)


def text() -> str:
    """The whole page."""
    return page("Kubernetes objects", INTRODUCTION, *map(_kind, crd.KINDS))


def names() -> list[str]:
    """Every field, with its kind before it."""
    return [
        f"{kind.model.__name__} {path}"
        for kind in crd.KINDS
        for path, _, _ in _fields(_schema(kind), "")
    ]


def _schema(kind: crd.Kind) -> Schema:
    version: Schema = crd.definition(kind)["spec"]["versions"][0]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def _kind(kind: crd.Kind) -> str:
    name = kind.model.__name__
    schema = _schema(kind)
    rows = [
        (
            code(path),
            str(field.get("type", "")) + (", required" if is_required else ""),
            _default(field),
            ", ".join(_bounds(field)),
            prose(field.get("description", "")),
        )
        for path, field, is_required in _fields(schema, "")
    ]
    parts = [
        f"## {name}",
        f"`{crd.GROUP}/{crd.VERSION}`, short name `{kind.short_name}`. "
        + prose(schema.get("description", "")),
        table(("field", "type", "default", "bounds", "meaning"), rows),
    ]
    rules = list(_rules(schema, ""))
    if rules:
        parts += ["Rules between fields:", table(("at", "rule"), rules)]
    return "\n\n".join(parts)


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    """Every field below a schema: path, schema, whether a user has to set it."""
    for name, field in schema.get("properties", {}).items():
        if not path and name in {"apiVersion", "kind", "metadata"}:
            continue
        full = f"{path}.{name}" if path else name
        yield full, field, name in schema.get("required", ())
        yield from _fields(*_inside(field, full))


def _inside(field: Schema, path: str) -> tuple[Schema, str]:
    """What has the fields below a field: itself, its elements, or its values."""
    if "items" in field:
        return _inside(field["items"], f"{path}[]")
    if isinstance(field.get("additionalProperties"), Mapping):
        return _inside(field["additionalProperties"], f"{path}{{}}")
    return field, path


def _default(field: Schema) -> str:
    if "default" not in field or isinstance(field["default"], Mapping):
        return ""
    value = field["default"]
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(", ".join(map(str, value)) if isinstance(value, list) else value)


def _bounds(field: Schema) -> Iterator[str]:
    inner = field.get("items", field)
    if "enum" in inner:
        yield " or ".join(code(each) for each in inner["enum"])
    for name, words in BOUNDS:
        if name in field:
            yield words.format(field[name])


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield code(path or "."), prose(rule.get("message", rule["rule"]))
    for name, field in schema.get("properties", {}).items():
        inside, full = _inside(field, f"{path}.{name}" if path else name)
        yield from _rules(inside, full)
