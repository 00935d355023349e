"""The resource models as CustomResourceDefinitions, for Kubernetes >= 1.33.

``python -m charts.generator.crd DIRECTORY`` writes them to a directory such as ``crds/``. A test compares ``crds/`` with
the models. The bounds of the models become a structural schema. Their rules in CEL have a counterpart in Python for
one machine. The schema uses only the subset of OpenAPI v3 that Kubernetes supports
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from onewriter_core.api.anchor import BucketAnchor
from onewriter_core.api.claim import ProducerClaim
from onewriter_core.api.common import MODE_WORDS, rule
from onewriter_core.api.installation import OneWriter, OneWriterStatus
from onewriter_core.api.status import ExclusiveTopicStatus, ProducerClaimStatus
from onewriter_core.api.topic import ExclusiveTopic
from onewriter_core.topic.model import AccessMode

GROUP: Final = "onewriter.dev"
VERSION: Final = "v1alpha1"
STATUS_DEFAULT: Final = {"observedGeneration": -1}
"""Without it, tools treat a new object as ready before the operator has written its status."""

Schema = dict[str, Any]

_KEPT = (
    "description", "type", "format", "enum", "pattern", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "default", "required",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations",
    "items", "additionalProperties", "properties",
)  # fmt: skip
"""The keys of a JSON schema that are written, in this order."""
_OBJECT = frozenset({"apiVersion", "kind", "metadata"})
"""Fields of every object, which the API server checks itself."""

_EXACT_MAX = 2**53
"""Bounds are floating-point numbers in OpenAPI, which cannot represent larger integers exactly."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``. With ``priority`` 1 only in wide output."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its model, its names, its columns in kubectl and its selectable fields."""

    model: type[BaseModel]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    status: type[BaseModel] | None = None
    selectable: tuple[str, ...] = ()


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

KINDS: Final = (
    Kind(
        ExclusiveTopic,
        "exclusivetopics",
        "xt",
        (
            Column("Epoch", ".status.epoch", "integer"),
            Column("Holder", ".status.holder.name"),
            Column("State", _condition("WriterActive", "reason")),
            Column("Ready", _condition("Ready", "status")),
            Column("Message", _condition("Ready", "message"), priority=1),
            Column("Node", ".status.holder.node", priority=1),
            Column("Claim", ".status.holder.claim", priority=1),
            Column("Waiting", ".status.waiting", "integer", priority=1),
            Column("Durability", ".status.durability", priority=1),
            _AGE,
        ),
        ExclusiveTopicStatus,
        (".spec.topic",),
    ),
    Kind(
        ProducerClaim,
        "producerclaims",
        "pclaim",
        (
            Column("Topic", ".spec.topicRef.name"),
            Column("State", _condition("Granted", "reason")),
            Column("Epoch", ".status.epoch", "integer"),
            Column("Pod", ".status.pod"),
            Column("Ready", _condition("Ready", "status")),
            Column("Message", _condition("Ready", "message"), priority=1),
            _AGE,
        ),
        ProducerClaimStatus,
        (".spec.topicRef.name",),
    ),
    Kind(
        BucketAnchor,
        "bucketanchors",
        "xanchor",
        (
            Column("Buckets", ".summary.buckets", "integer"),
            Column("Owners", ".summary.owners", "integer"),
            Column("Generation", ".summary.generation", "integer"),
            _AGE,
        ),
    ),
    Kind(
        OneWriter,
        "onewriters",
        "ow",
        (
            Column("Ready", _condition("Ready", "status")),
            Column("Brokers", ".status.brokers.summary"),
            Column("Store", ".status.store.state"),
            Column("Waiting", ".status.buckets.waiting", "integer"),
            Column("Memory", ".status.store.memory.summary"),
            Column("Message", _condition("Ready", "message"), priority=1),
            Column("Operator", ".status.versions.operator", priority=1),
            Column("Broker-Version", ".status.versions.brokers", priority=1),
            Column("Certificate", ".status.certificates[0].notAfter", priority=1),
            _AGE,
        ),
        OneWriterStatus,
    ),
)


def definition(kind: Kind) -> Schema:
    """The CustomResourceDefinition of a kind."""
    name = kind.model.__name__
    schema = schema_of(kind.model)
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **{name: each for name, each in schema["properties"].items() if name not in _OBJECT},
    }
    version: Schema = {"name": VERSION, "served": True, "storage": True}
    if kind.status is not None:
        status = schema_of(kind.status)
        schema["properties"]["status"] = status | {"default": STATUS_DEFAULT}
        version["subresources"] = {"status": {}}
    _required(schema)
    version["schema"] = {"openAPIV3Schema": schema}
    version["additionalPrinterColumns"] = [_column(each) for each in kind.columns]
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": kind.plural,
                "singular": name.lower(),
                "shortNames": [kind.short_name],
                "categories": ["onewriter"],
            },
            "versions": [version],
        },
    }


class _WithModesInWords(GenerateJsonSchema):
    """pydantic writes defaults as Python values, where an access mode is Pulsar's number."""

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, tuple):
            return [self.encode_default(each) for each in dft]
        return MODE_WORDS[dft] if isinstance(dft, AccessMode) else super().encode_default(dft)


def schema_of(model: type[BaseModel]) -> Schema:
    """The structural schema of a model with the names in YAML."""
    whole = model.model_json_schema(
        by_alias=True, mode="serialization", schema_generator=_WithModesInWords
    )
    return _structural(whole, whole.get("$defs", {}))


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """A node with its references resolved, without the keys that Kubernetes does not support."""
    node = _resolved(node, definitions)
    found: Schema = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        found["enum"] = [node["const"]]
    if "properties" in node:
        found["properties"] = {
            name: _structural(each, definitions) for name, each in node["properties"].items()
        }
        found.pop("additionalProperties", None)  # the API server drops or rejects undeclared fields
        _required(found)
    elif isinstance(node.get("additionalProperties"), Mapping):
        found["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    if "items" in node:
        found["items"] = _structural(node["items"], definitions)
    if "description" in found:
        found["description"] = " ".join(found["description"].replace("``", "").split())
    _bound(found)
    _default(found)
    return found


def _required(schema: Schema) -> None:
    """Only the fields that a user must write."""
    required = [name for name in schema.pop("required", ()) if name not in _OBJECT]
    if required:
        schema["required"] = required


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Resolve references and "or null". Keys beside a reference override it."""
    resolved = dict(node)
    choices = [each for each in resolved.pop("anyOf", []) if each.get("type") != "null"]
    if len(choices) > 1:
        raise ValueError(f"a choice between schemas is not structural: {choices}")
    for choice in choices:
        resolved = {**choice, **resolved}
    reference = resolved.pop("$ref", None)
    if reference is not None:
        target = definitions[reference.rpartition("/")[2]]
        return {**_resolved(target, definitions), **resolved}
    return resolved


def _bound(schema: Schema) -> None:
    least = schema.get("minimum", 0)
    if least != int(least):  # the API server compares whole numbers with a rounded bound
        also = rule(f"self >= {least}", f"must be at least {least}")
        schema["x-kubernetes-validations"] = [*schema.get("x-kubernetes-validations", ()), also]
    for name in ("minimum", "maximum"):
        if name in schema and abs(schema[name]) > _EXACT_MAX:
            del schema[name]
            schema["format"] = "int64"


def _default(schema: Schema) -> None:
    """The default of an object is an empty object, whose fields have their own defaults."""
    if "default" not in schema:
        return
    if schema["default"] is None or (schema.get("type") == "array" and not schema["default"]):
        del schema["default"]
    elif schema.get("type") == "object":
        schema["default"] = {}


def _column(column: Column) -> Schema:
    found: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.priority:
        found["priority"] = column.priority
    return found


def document(kind: Kind) -> str:
    """The definition as YAML."""
    text = yaml.safe_dump(definition(kind), sort_keys=False, width=100, allow_unicode=True)
    return f"# Written by python -m {__spec__.name}: change the models, then run it.\n{text}"


def file_name(kind: Kind) -> str:
    """The file of a kind within ``crds/``."""
    return f"{kind.plural}.yaml"


def main(arguments: Sequence[str]) -> int:
    """Write every definition into a directory."""
    if len(arguments) != 1:
        sys.stderr.write(f"usage: python -m {__spec__.name} DIRECTORY\n")
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        (directory / file_name(kind)).write_text(document(kind), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
