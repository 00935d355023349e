"""The OpenAPI document of a broker's HTTP API, and the page of its routes, from ``http_api.yaml``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from docs.generator.tables import code, page, table

Schema = dict[str, Any]

DATA: Final = Path(__file__).with_name("http_api.yaml")
METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
SIMPLE: Final = frozenset({"string", "integer", "number", "boolean", "null"})
ERROR: Final = {"$ref": "#/components/responses/Error"}
OR_NULL: Final = " or null"

INTRODUCTION: Final = """
Every route of a broker, with its parameters and answers. [`openapi.json`](openapi.json) has the same with the schemas
of bodies, as an OpenAPI 3.1 document. Tests compare both with the routes that a broker registers, and with its answers.

[HTTP API](../http.md) explains the routes, the rights that they need, and errors. An error is JSON,
`{"reason": "..."}`; each route may answer with the errors in that page's table.
"""


@cache
def document() -> Schema:
    """The whole document."""
    data = _data()
    paths: Schema = {}
    for route, facts in _routes():
        method, _, path = route.partition(" ")
        item = paths.setdefault(path, {"parameters": _path_parameters(path)})
        for each in METHODS if method == "*" else (method.lower(),):
            item[each] = _operation(facts)
    variables = sorted({name for path in paths for name in _variables(path)})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "onewriter broker",
            "version": "1",
            "description": "docs/http.md explains these routes.",
        },
        "paths": paths,
        "components": {
            "schemas": {name: schema(facts) for name, facts in data["schemas"].items()},
            "responses": {"Error": _response("error", "Error")},
            "parameters": {
                name: {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in variables
            },
        },
    }


def text() -> str:
    """openapi.json: a path in each line, so that a change of a route is a change of a line."""
    rest = dict(document())
    paths = rest.pop("paths")
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(item)}" for path, item in paths.items())
    return json.dumps(rest, indent=1).removesuffix("\n}") + f',\n "paths": {{\n{lines}\n }}\n}}\n'


def routes_page() -> str:
    """The page of routes."""
    groups: dict[str, list[tuple[str, ...]]] = {
        "onewriter's own API": [],
        "Health and metrics": [],
        "Look-up": [],
        "Pulsar's admin API": [],
    }
    for route, facts in _routes():
        group = {"onewriter": 0, "healthz": 1, "readyz": 1, "metrics": 1, "lookup": 2, "admin": 3}
        number = group[route.split("/")[1]]
        query = ", ".join(code(each) for each in facts.get("query", {}))
        statuses = ", ".join(str(each) for each in facts if isinstance(each, int))
        groups[list(groups)[number]].append((code(route), facts["does"], query, statuses))
    parts = [
        f"## {name}\n\n" + table(("route", "what it does", "query", "answers"), rows)
        for name, rows in groups.items()
    ]
    return page("HTTP routes", INTRODUCTION, *parts)


def routes() -> list[str]:
    """Method and path of every route; ``*`` is every method."""
    return [route for route, _ in _routes()]


def schema(facts: Any) -> Schema:
    """A type of the data as a JSON schema."""
    match facts:
        case str():
            return _named(facts)
        case [inner]:
            return {"type": "array", "items": schema(inner)}
        case {"*": inner}:
            return {"type": "object", "additionalProperties": schema(inner)}
        case dict():
            return _object(facts)
        case _:
            raise ValueError(f"unknown type {facts!r}")


def _named(name: str) -> Schema:
    if name.endswith(OR_NULL):
        return {"anyOf": [_named(name.removesuffix(OR_NULL)), {"type": "null"}]}
    words = re.fullmatch(r"one\((.*)\)", name)
    if words:
        return {"enum": [each.strip() for each in words[1].split(",")]}
    if name == "any":
        return {}
    if name in SIMPLE:
        return {"type": name}
    if name not in _data()["schemas"]:
        raise ValueError(f"unknown schema {name}")
    return {"$ref": f"#/components/schemas/{name}"}


def _object(facts: Mapping[str, Any]) -> Schema:
    fields = dict(_fields(facts))
    is_open = fields.pop("...", None) is not None
    properties = {name.strip("()"): schema(each) for name, each in fields.items()}
    required = [name for name in fields if not name.startswith("(")]
    found: Schema = {"type": "object"}
    if properties:
        found["properties"] = properties
    if required:
        found["required"] = required
    return found if is_open else found | {"additionalProperties": False}


def _fields(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of an object, with those of the schema that it extends."""
    for name, each in facts.items():
        if name == "+":
            yield from _fields(_data()["schemas"][each])
        else:
            yield name, each


def _variables(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _path_parameters(path: str) -> list[Schema]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in _variables(path)]


def _operation(facts: Mapping[Any, Any]) -> Schema:
    found: Schema = {"summary": facts["does"]}
    parameters = [
        {"name": name, "in": place, "schema": schema(kind)}
        for place, key in (("query", "query"), ("header", "headers"))
        for name, kind in facts.get(key, {}).items()
    ]
    if parameters:
        found["parameters"] = parameters
    if "body" in facts:
        found["requestBody"] = {"content": _content(facts["body"])}
    found["responses"] = {
        str(status): ERROR if kind == "Error" else _response(status, kind)
        for status, kind in facts.items()
        if isinstance(status, int)
    } | {"default": ERROR}
    return found


def _response(status: object, kind: Any) -> Schema:
    found: Schema = {"description": str(status)}
    return found if kind == "nothing" else found | {"content": _content(kind)}


def _content(kind: Any) -> Schema:
    match kind:
        case "text":
            return {"text/plain": {"schema": {"type": "string"}}}
        case "binary":
            return {"application/octet-stream": {}}
        case _:
            return {"application/json": {"schema": schema(kind)}}


def _routes() -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Every route, METHOD and path, with what is said of it."""
    data = _data()
    for route, facts in data["routes"].items():
        yield _whole(route), facts
    for prefix, policies in data["policies"].items():
        for name in policies["names"]:
            route = _whole(f"{prefix}/{name}")
            query = policies["query"]
            yield f"GET {route}", {"does": "Show a policy.", "query": query, 200: "any"}
            change = {"body": "any", 204: "nothing", 412: "Error"}
            yield f"PUT {route}", {"does": "Set a policy.", **change}
            yield f"POST {route}", {"does": "Set a policy.", **change}
            yield f"DELETE {route}", {"does": "Remove a policy.", 204: "nothing"}


def _whole(route: str) -> str:
    return re.sub(r"\$(\w)", lambda match: str(_data()["prefixes"][match[1]]), route)


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = yaml.safe_load(DATA.read_text())
    return data
