"""The common parts of the resource models: strictness, metadata, names, lists, words and rules.

Values are frozen. Types are not converted: ``partitions: "3"`` is an error, as in Kubernetes. Unknown fields are errors.
Field names are camelCase in YAML and snake_case here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from onewriter_core.topic.model import AccessMode

API_VERSION: Final = "onewriter.dev/v1alpha1"
"""The only version."""

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1

DNS_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
SERVICE_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
DECLARED_TOPIC = r"^persistent://[-=:.A-Za-z0-9_]+/[-=:.A-Za-z0-9_]+/[^\x00-\x20\x7f]+$"
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"

PATTERN_MEANINGS: Final[Mapping[str, str]] = {
    DNS_LABEL: "lower-case letters, digits and '-', with a letter or digit at both ends",
    DNS_SUBDOMAIN: "lower-case letters, digits, '-' and '.', with letters or digits around each dot",
    SERVICE_NAME: "lower-case letters, digits and '-', beginning with a letter",
    DECLARED_TOPIC: "persistent://TENANT/NAMESPACE/NAME without white space",
    PRINTABLE: "printable characters",
}
"""Each pattern in words, for error messages."""

ResourceName = Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=253)]
NamespaceName = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]

IS_A_SET: Final[JsonDict] = {"x-kubernetes-list-type": "set"}
"""Schema of a list without duplicates."""


def rules(*each: JsonDict) -> JsonDict:
    """A model's ``json_schema_extra`` for rules that only CEL can express."""
    return {"x-kubernetes-validations": list(each)}


def rule(expression: str, message: str, *, field: str = "", reason: str = "") -> JsonDict:
    """A rule in CEL (https://kubernetes.io/docs/reference/using-api/cel/) with its error message.

    ``expression`` is true for allowed values. ``self`` is the value that has the rule, ``oldSelf`` its former value.
    ``field`` is the path of the invalid field below this value.
    """
    found: JsonDict = {"rule": expression, "message": message}
    if field:
        found["fieldPath"] = field
    found["reason"] = reason or "FieldValueInvalid"
    return found


_Item = TypeVar("_Item")
ListOf = Annotated[tuple[_Item, ...], Field(strict=False)]
"""A YAML list, kept as a tuple; its items stay strict."""

_Word = TypeVar("_Word", bound=StrEnum)
WordOf = Annotated[_Word, Field(strict=False)]
"""A value of a StrEnum, spelled as in YAML."""

_MODES: Final[Mapping[str, AccessMode]] = {
    "Shared": AccessMode.SHARED,
    "Exclusive": AccessMode.EXCLUSIVE,
    "WaitForExclusive": AccessMode.WAIT_FOR_EXCLUSIVE,
    "ExclusiveWithFencing": AccessMode.EXCLUSIVE_WITH_FENCING,
}
MODE_WORDS: Final[Mapping[AccessMode, str]] = {mode: word for word, mode in _MODES.items()}
"""The name of each access mode in YAML and in messages."""


def _read_mode(value: object) -> AccessMode:
    if isinstance(value, AccessMode):
        return value
    if isinstance(value, str) and value in _MODES:
        return _MODES[value]
    raise ValueError(f"must be one of {', '.join(_MODES)}")


AccessModeWord = Annotated[
    AccessMode,
    PlainValidator(_read_mode),
    PlainSerializer(lambda mode: MODE_WORDS[mode], return_type=str),
    WithJsonSchema({"type": "string", "enum": list(_MODES)}),
]
"""An access mode: Pulsar's number in the machine, its name in YAML."""


class ApiModel(BaseModel):
    """The pydantic settings of every part of a resource."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> Self:
        """Validate parsed YAML or JSON. Raises pydantic.ValidationError.

        Only camelCase names are accepted. The snake_case names are for Python code.
        """
        return cls.model_validate(document, by_alias=True, by_name=False)


_BOOKKEEPING = frozenset({
    "clusterName", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp",
    "finalizers", "generateName", "generation", "managedFields", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
})  # fmt: skip
"""Fields of Kubernetes' ObjectMeta that the API server sets. They are accepted and ignored."""


class Metadata(ApiModel):
    """What names an object. ``namespace`` is Kubernetes'; it is part of a topic's default name."""

    name: ResourceName
    namespace: NamespaceName = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _ignore_bookkeeping(cls, data: Any) -> Any:
        return _without(data, _BOOKKEEPING)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Resource(ApiModel):
    """A declared object. ``status`` is the operator's to write: accepted, and ignored."""

    metadata: Metadata

    @model_validator(mode="before")
    @classmethod
    def _ignore_status(cls, data: Any) -> Any:
        return _without(data, frozenset({"status"}))


def _without(data: Any, names: frozenset[str]) -> Any:
    """A mapping without some keys. Any other value is returned unchanged, and pydantic rejects it."""
    if not isinstance(data, Mapping):
        return data
    return {key: value for key, value in data.items() if key not in names}
