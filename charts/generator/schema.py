"""values.schema.json: the models' JSON schema, with the brokers' settings by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from charts.generator.values import Values
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from onewriter_broker.settings import Settings
from onewriter_operator.configuration import MANAGED_SETTINGS

Json = dict[str, Any]


def schema() -> Json:
    """The schema of the values; it refuses unknown names."""
    whole = Values.model_json_schema(by_alias=True)
    definitions = whole.pop("$defs")
    found = _plain(whole, definitions)
    found["properties"]["brokers"]["properties"]["settings"] = _settings()
    # A parent chart may hand down values for all of its charts.
    found["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "onewriter", **found}


def text() -> str:
    """The text of the file."""
    return json.dumps(schema(), indent=2) + "\n"


def settings() -> dict[str, Any]:
    """The brokers' settings that values may set, by their names in YAML."""
    fields = Settings.model_fields
    return {
        to_camel(name): field
        for name, field in fields.items()
        if to_camel(name) not in MANAGED_SETTINGS
    }


def _settings() -> Json:
    whole = Settings.model_json_schema()
    definitions = whole.get("$defs", {})
    properties = {to_camel(name): each for name, each in whole["properties"].items()}
    kept = {name: _plain(properties[name], definitions) for name in settings()}
    return {"type": "object", "additionalProperties": False, "properties": kept}


def _plain(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Json:
    """A schema with inlined references, without titles."""
    found: Json = {}
    for key, value in node.items():
        if key == "$ref":
            found = {**_plain(definitions[value.rpartition("/")[2]], definitions), **found}
        elif key == "properties":
            found[key] = {name: _plain(each, definitions) for name, each in value.items()}
        elif key in {"anyOf", "allOf", "prefixItems"}:
            found[key] = [_plain(each, definitions) for each in value]
        elif isinstance(value, Mapping) and key in {"items", "additionalProperties"}:
            found[key] = _plain(value, definitions)
        elif key == "description":
            found[key] = " ".join(str(value).split())
        elif key != "title":
            found[key] = value
    return found


def is_part(annotation: Any) -> bool:
    """Whether a field's type is one of the models, that is, a section of the values."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
