"""The page of all names that users depend on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from charts.generator.values import Values
from docs.generator import commands, metrics, resources, settings
from docs.generator.tables import page
from pydantic import BaseModel

from onewriter_testing.in_process import InProcessBroker

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("core", "broker", "client", "operator", "pipeline")

INTRODUCTION: Final = """
Programs, manifests and dashboards of users contain these names, so a name that disappears breaks them. Rename with care:
keep the former name as an alias, state in [CHANGELOG.md](../../CHANGELOG.md) until when it stays, and run
`python -m docs.generator`. A test compares this page with the code. Names that are *stored*
([log format](../log-format.md)) never change.
"""

PROPERTY: Final = re.compile(r"onewriter\.[a-z]+(?:-[a-z]+)*")
ANNOTATION: Final = re.compile(r"onewriter\.dev/[a-z][a-z-]*")
VARIABLE: Final = re.compile(r"ONEWRITER_[A-Z][A-Z_]*[A-Z]")
HEADER: Final = re.compile(r"Onewriter-[A-Z][A-Za-z-]*")

NO_PROPERTIES: Final = frozenset({"onewriter.dev", "onewriter.testing", "onewriter.commands"})
"""The API group, and groups of entry points."""

Routes = Mapping[str, list[str]]
"""Method and path of every route, by server."""


def text(broker: InProcessBroker, routes: Routes) -> str:
    """The whole page."""
    sections = {
        "Commands and options": commands.names(),
        "Environment variables": sorted({*settings.variables(), *_mentioned(VARIABLE)}),
        "Properties of messages, producers, consumers and tables": _mentioned(
            PROPERTY, NO_PROPERTIES
        ),
        "Labels, annotations and finalizers of Kubernetes objects": _mentioned(ANNOTATION),
        "Headers of HTTP": _mentioned(HEADER),
        "Fields of Kubernetes objects": resources.names(),
        "Values of the chart": list(_values(Values, "")),
        "Metrics": metrics.names(broker),
        **{f"HTTP routes of the {server}": found for server, found in routes.items()},
    }
    parts = [
        f"## {name}\n\n```text\n" + "\n".join(each) + "\n```" for name, each in sections.items()
    ]
    return page("Names that users depend on", INTRODUCTION, *parts)


def _mentioned(pattern: re.Pattern[str], without: frozenset[str] = frozenset()) -> list[str]:
    """What the code has as a text of its own and looks like that."""
    return sorted({each for each in _texts() if pattern.fullmatch(each)} - without)


@cache
def _texts() -> frozenset[str]:
    """Every text literal of the code."""
    trees = (
        ast.parse(path.read_bytes())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.endswith("_pb2.py")
    )
    return frozenset(
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _values(model: type[BaseModel], path: str) -> Iterable[str]:
    """Every value of the chart by its path."""
    for name, field in model.model_fields.items():
        full = f"{path}{field.alias or field.serialization_alias or name}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _values(inner, f"{full}.")
        else:
            yield full
