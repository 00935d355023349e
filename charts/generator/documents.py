"""values.yaml and the README's table: the models' defaults with what each means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import yaml
from charts.generator.schema import is_part, settings
from charts.generator.values import Values
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from onewriter_operator.configuration import PodOptions

HEADER = """\
# Values of the onewriter chart. Written by python -m charts.generator: change the models, then run it.
# Names that are not here are refused (values.schema.json).
"""
WIDTH = 98

README_HEAD = """\
# onewriter

Topics that have one writer at a time, provably: the operator, the brokers, and the store behind them.

```sh
helm install onewriter charts/onewriter --namespace onewriter --create-namespace
helm test onewriter --namespace onewriter
```

Kubernetes 1.33 or later. Everything runs in a namespace that enforces the `restricted` Pod Security
Standard. How to install, upgrade, back up, restore, size and secure it: [docs/install.md](../../docs/install.md).
What happens when a part of it dies: [docs/failures.md](../../docs/failures.md). For Argo CD a health check
of topics and claims comes along, [argocd/health.lua](argocd/health.lua).

<!-- Written by python -m charts.generator: change the models, then run it. -->

## Values

| value | default | meaning |
|---|---|---|
"""
README_SETTINGS = """
## Settings of the brokers

Below `brokers.settings`. What follows from other values cannot be set there.

| setting | default | meaning |
|---|---|---|
"""


def values() -> str:
    """values.yaml."""
    return HEADER + "\n".join(_lines(Values(), 0)) + "\n"


def readme() -> str:
    """README.md of the chart."""
    rows = [_row(path, default, meaning) for path, default, meaning in _flat(Values(), "")]
    more = [
        _row(name, plain(field.default), _sentence(field)) for name, field in settings().items()
    ]
    return README_HEAD + "\n".join(rows) + "\n" + README_SETTINGS + "\n".join(more) + "\n"


def plain(value: Any) -> Any:
    """A default as YAML has it."""
    match value:
        case BaseModel():
            return {
                _alias(name, field): plain(getattr(value, name))
                for name, field in type(value).model_fields.items()
            }
        case Enum():
            return value.value
        case tuple():
            return [plain(each) for each in value]
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _lines(model: BaseModel, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for name, field in _ordered(model):
        alias, value = _alias(name, field), getattr(model, name)
        if depth == 0:
            yield ""
        yield from _comment(_sentence(field), pad)
        if is_part(field.annotation):
            yield f"{pad}{alias}:"
            yield from _lines(value, depth + 1)
        else:
            yield from _entry(alias, plain(value), pad)


def _ordered(model: BaseModel) -> list[tuple[str, FieldInfo]]:
    """A section's own fields first, then those that all pods have."""
    fields = type(model).model_fields
    shared = PodOptions.model_fields if isinstance(model, PodOptions) else {}
    return sorted(fields.items(), key=lambda each: each[0] in shared)


def _entry(alias: str, value: Any, pad: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        yield f"{pad}{alias}:"
        for key, each in value.items():
            yield from _entry(key, each, pad + "  ")
    else:
        yield f"{pad}{alias}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...") if value != "" else '""'


def _comment(text: str, pad: str) -> Iterator[str]:
    line = f"{pad}#"
    for word in text.split():
        if len(line) + len(word) + 1 > WIDTH and line.strip() != "#":
            yield line
            line = f"{pad}#"
        line += f" {word}"
    yield line


def _flat(model: BaseModel, prefix: str) -> Iterator[tuple[str, Any, str]]:
    for name, field in _ordered(model):
        path, value = prefix + _alias(name, field), getattr(model, name)
        if is_part(field.annotation) and not _is_repeated(path):
            yield from _flat(value, f"{path}.")
        elif not _is_repeated(path):
            yield path, plain(value), _sentence(field)


def _is_repeated(path: str) -> bool:
    """What all pods have is told once, of the brokers."""
    section, _, rest = path.partition(".")
    name = re.sub("(?=[A-Z])", "_", rest.partition(".")[0]).lower()
    return section in {"valkey", "operator"} and name in PodOptions.model_fields


def _row(path: str, default: Any, meaning: str) -> str:
    return f"| `{path}` | `{json.dumps(default)}` | {meaning.replace('|', chr(92) + '|')} |"


def _alias(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _sentence(field: FieldInfo) -> str:
    return " ".join((field.description or "").replace("``", "`").split())


def crd_template(definition: Mapping[str, Any]) -> str:
    """A definition as a template that can be left out, and kept."""
    text = yaml.safe_dump(dict(definition), sort_keys=False, width=100, allow_unicode=True)
    name = definition["metadata"]["name"]
    wanted = f"metadata:\n  name: {name}\n"
    if "{{" in text or wanted not in text:
        raise ValueError(f"{name} cannot be a template as it is")
    kept = (
        wanted
        + '  labels:\n    {{- include "onewriter.labels" (dict "root" . "component" "crds") | nindent 4 }}\n'
        + "  {{- if .Values.crds.keep }}\n"
        + "  annotations:\n    helm.sh/resource-policy: keep\n"
        + "  {{- end }}\n"
    )
    body = text.replace(wanted, kept, 1)
    note = "{{- /* Written by python -m charts.generator from crds/. */}}\n"
    return f"{note}{{{{- if .Values.crds.enabled }}}}\n{body}{{{{- end }}}}\n"
