"""The OpenAPI document describes the broker: its routes, their parameters, and what it answers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from docs.generator import openapi, routes
from jsonschema import Draft202012Validator
from tests.integration.http_calls import ADMIN, OWN, PERSISTENT, Http
from tests.integration.raw import EXCLUSIVE, clients

from onewriter import sync
from onewriter_testing.in_process import InProcessBroker, in_process_broker

ROOT = Path(__file__).parents[3]

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders}
spec: {access: {requireClaim: false}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: shifts}
spec: {access: {requireClaim: false}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: parts}
spec: {partitions: 2, access: {requireClaim: false}}
"""

ORDERS, LOG = f"{OWN}/orders", f"{PERSISTENT}/orders"
LOOKUP = "/lookup/v2/topic/persistent/public/default/orders"

AVRO = json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]})
SCHEMA = {"type": "AVRO", "schema": AVRO, "properties": {}}
SCHEMAS = f"{ADMIN}/schemas/public/default/orders"

READS = [
    *("/healthz", "/readyz", LOOKUP, f"{LOOKUP}/bundle"),
    *(f"/onewriter/v1/{each}" for each in ("topics?limit=1", "topics?namespace=public/default")),
    *(
        f"/onewriter/v1/{each}"
        for each in ("brokers", "losses", "desired", "ownerships", "audit/0")
    ),
    *(ORDERS, f"{OWN}/parts", f"{OWN}/nothing", f"{ORDERS}/history?limit=1", f"{ORDERS}/history"),
    *(f"{ORDERS}/segments?after=0:0&state=true", f"{OWN}/parts/segments"),
    *(
        f"{ADMIN}/{each}"
        for each in ("clusters", "clusters/standalone", "tenants", "tenants/public")
    ),
    *(f"{ADMIN}/brokers{each}" for each in ("", "/standalone", "/leaderBroker", "/version")),
    *(f"{ADMIN}/brokers/{each}" for each in ("health", "ready")),
    *(f"{ADMIN}/namespaces/public{each}" for each in ("", "/default", "/default/topics")),
    *(f"{ADMIN}/namespaces/public/default/{each}" for each in ("bundles", "permissions")),
    *(f"{ADMIN}/namespaces/public/default/{each}" for each in ("retention", "backlogQuotaMap")),
    *(PERSISTENT, f"{PERSISTENT}/partitioned", f"{PERSISTENT}/parts/partitioned-stats"),
    *(f"{LOG}/{each}" for each in ("partitions", "stats", "internalStats", "lastMessageId")),
    *(f"{LOG}/{each}" for each in ("subscriptions", "compaction", "retention", "properties")),
    *(f"{LOG}/{each}" for each in ("messageid/0", "partitioned-stats", "backlogQuotaMap")),
]
"""Paths that are read."""

CHANGES: list[tuple[str, str, object]] = [
    ("POST", "/onewriter/v1/topics", {"topics": ["orders", "nothing"]}),
    ("POST", "/onewriter/v1/topics", {"topics": 1}),
    ("PUT", f"{ORDERS}/acknowledged/job", {"before": "1:1"}),
    ("POST", f"{ORDERS}/trim", {"before": "1:0", "epoch": 99}),
    ("POST", f"{ORDERS}/handover", {}),
    ("POST", f"{ORDERS}/fence", {"ifEpoch": 99}),
    ("POST", f"{ORDERS}/reassign", {"to": "shop"}),
    ("POST", f"{ORDERS}/staged/app/1/layout", {}),
    ("POST", f"{ORDERS}/staged/app/1/publish", {"epoch": 1, "parts": []}),
    ("DELETE", f"{ORDERS}/staged/app/1", None),
    ("DELETE", f"{ORDERS}/published/app", None),
    ("DELETE", "/onewriter/v1/ownerships?group=none", None),
    ("PUT", "/onewriter/v1/desired", {"revision": "1", "topics": [], "claims": []}),
    ("PUT", f"{LOG}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
    ("GET", f"{LOG}/retention", None),
    ("DELETE", f"{LOG}/retention", None),
    ("PUT", f"{LOG}/properties", {"team": "a"}),
    ("DELETE", f"{LOG}/properties?key=team", None),
    ("PUT", f"{LOG}/subscription/other", None),
    ("POST", f"{LOG}/subscription/other/skip/1", None),
    ("POST", f"{LOG}/subscription/other/skip_all", None),
    ("DELETE", f"{LOG}/subscription/other", None),
    ("POST", f"{LOG}/offload", {}),
    ("PUT", f"{LOG}/compaction", None),
    ("POST", f"{SCHEMAS}/compatibility", SCHEMA),
    ("POST", f"{SCHEMAS}/schema", SCHEMA),
    ("GET", f"{SCHEMAS}/schema", None),
    ("GET", f"{SCHEMAS}/schemas", None),
    ("POST", f"{SCHEMAS}/version", SCHEMA),
    ("DELETE", f"{SCHEMAS}/schema", None),
    ("PUT", f"{ADMIN}/tenants/shop", {"adminRoles": [], "allowedClusters": ["standalone"]}),
    ("PUT", f"{ADMIN}/namespaces/shop/web", None),
    ("DELETE", f"{ADMIN}/namespaces/shop/web", None),
    ("DELETE", f"{ADMIN}/tenants/shop", None),
    ("PUT", f"{PERSISTENT}/other", None),
    ("PUT", f"{PERSISTENT}/other", None),
    ("DELETE", f"{PERSISTENT}/other", None),
    ("PUT", f"{PERSISTENT}/more/partitions", 2),
    ("POST", f"{PERSISTENT}/more/terminate/partitions", None),
    ("POST", f"{LOG}/terminate", None),
    ("POST", f"{ORDERS}/fence", {}),
]
"""Requests that change something, in this order."""


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with in_process_broker(manifests=MANIFESTS) as started:
        yield started


def test_the_document_is_an_openapi_document_whose_schemas_are_valid() -> None:
    document = openapi.document()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for path, item in document["paths"].items():
        named = [each["$ref"].rpartition("/")[2] for each in item["parameters"]]
        assert named == re.findall(r"\{(\w+)\}", path)
        assert set(named) <= set(document["components"]["parameters"])
        assert all(
            item[method]["summary"].endswith(".") for method in item if method != "parameters"
        )


def test_every_registered_route_is_in_the_document_and_no_other(broker: InProcessBroker) -> None:
    registered = {route for route in routes.of_broker(broker) if route[0] != "HEAD"}
    described = {tuple(route.split(" ", 1)) for route in openapi.routes()}
    assert registered - described == set(), "add these to docs/generator/http_api.yaml"
    assert described - registered == set(), "remove these from docs/generator/http_api.yaml"


def test_the_guide_explains_every_route_of_the_own_api() -> None:
    guide = (ROOT / "docs/http.md").read_text()
    paths = [route for route in openapi.routes() if "/onewriter/v1/" in route]
    # What follows the API's prefix, or the name of the topic, without the parameters at the end.
    ends = {
        re.split(r"/onewriter/v1|\}(?=/)", re.sub(r"(/\{\w+\})+$", "", each))[-1] for each in paths
    }
    assert {end for end in ends if end not in guide} == set()


def test_the_document_has_the_parameters_that_handlers_read() -> None:
    operations = [
        item[method]
        for item in openapi.document()["paths"].values()
        for method in item
        if method != "parameters"
    ]
    parameters = [each for one in operations for each in one.get("parameters", ())]
    described = {each["name"] for each in parameters if each["in"] == "query"}
    assert read_from_queries() == described


def read_from_queries() -> set[str]:
    """The names of parameters that the broker's handlers read from a query."""
    found: set[str] = set()
    for path in (ROOT / "broker/onewriter_broker/http").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                function = ast.unparse(node.func)
                index = {"request.query.get": 0, "flag": 1, "number": 1, "positions.requested": 1}
                place = index.get(function)
                is_local = f"def {function}(" in text  # of a variable in the path
                if place is None or is_local or len(node.args) <= place:
                    continue
                name = node.args[place]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found.add(name.value)
    return found


def test_the_answers_of_a_broker_are_those_of_the_document(broker: InProcessBroker) -> None:
    call = Http(broker.http_url)
    wrong: list[str] = []
    with sync.Client(broker.service_url) as client, client.lead("orders") as leadership:
        leadership.send(b"one")
        with client.lead("parts"), client.own("workers", "task"):
            for path in READS:
                wrong += differences("GET", path, *call("GET", path))
        for method, path, body in CHANGES:
            wrong += differences(method, path, *call(method, path, body))
    assert not wrong, "\n".join(wrong)  # change docs/generator/http_api.yaml, or the broker


def test_the_answer_to_a_successful_handover_is_that_of_the_document(
    broker: InProcessBroker,
) -> None:
    found = urlsplit(broker.service_url)
    assert found.hostname is not None
    assert found.port is not None
    with clients((found.hostname, found.port), 2) as (first, second):
        first.producer("shifts", EXCLUSIVE)
        second.waiter("shifts", name="next")
        path = f"{OWN}/shifts/handover"
        status, body = Http(broker.http_url)("POST", path, {"to": "next"})
    assert status == 200
    assert body["holder"]["producerName"] == "next"
    assert differences("POST", path, status, body) == []


def differences(method: str, path: str, status: int, body: Any) -> list[str]:
    """What an answer has that the document does not allow."""
    document = openapi.document()
    request = f"{method} {path}: {status}"
    template, operation = operation_of(method, path)
    response = operation["responses"].get(str(status))
    if response is None:
        if status < 300:
            return [f"{request} is not an answer of {template}"]
        response = operation["responses"]["default"]
    if "$ref" in response:
        response = document["components"]["responses"]["Error"]
    content = response.get("content", {})
    if "application/json" not in content:
        return [] if content or body == "" else [f"{request} has a body: {body!r}"]
    schema = content["application/json"]["schema"] | {"components": document["components"]}
    errors = Draft202012Validator(schema).iter_errors(body)
    return [f"{request}: {error.json_path}: {error.message[:300]}" for error in errors]


def operation_of(method: str, path: str) -> tuple[str, dict[str, Any]]:
    """The operation that a request is: the path with the fewest variables that matches."""
    plain = path.partition("?")[0]
    matching = [
        template
        for template, operations in openapi.document()["paths"].items()
        if method.lower() in operations
        and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), plain)
    ]
    template = min(matching, key=lambda each: each.count("{"))
    return template, openapi.document()["paths"][template][method.lower()]
