"""The CRDs in a real API server: accepted and refused objects, messages, and defaults.

Every bound and every rule of the models has an accepted and a refused case.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.generator import crd
from tests.cluster.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
API = "onewriter.dev/v1alpha1"

Json = dict[str, Any]


def topic(spec: Json | None = None, name: str = "orders") -> Json:
    found: Json = {"apiVersion": API, "kind": "ExclusiveTopic", "metadata": {"name": name}}
    if spec is not None:
        found["spec"] = spec
    return found


def claim(spec: Json | None = None, **more: Any) -> Json:
    base: Json = {"topicRef": {"name": "orders"}, "subject": {"serviceAccountName": "writer"}}
    return {
        "apiVersion": API,
        "kind": "ProducerClaim",
        "metadata": {"name": "primary"},
        "spec": {**base, **(spec or {}), **more},
    }


def port(name: str | None, number: int) -> Json:
    return {"port": number} if name is None else {"name": name, "port": number}


def service(*ports: Json, name: str = "leader") -> Json:
    return {"leaderService": {"name": name, "ports": list(ports)}}


ACCEPTED: dict[str, Json] = {
    "nothing but a name": topic(),
    "a topic's name": topic({"topic": "persistent://shop/default/orders"}),
    "a name with a colon": topic({"topic": "persistent://shop/default/a:b"}),
    "many partitions": topic({"partitions": 1024}),
    "two modes": topic({"access": {"modes": ["Shared", "Exclusive"]}}),
    "no claim needed": topic({"access": {"requireClaim": False}}),
    "Fifo": topic({"promotion": {"policy": "Fifo"}}),
    "quick pings": topic({"detection": {"pingIntervalSeconds": 0.1, "pingFailures": 1}}),
    "a progress deadline": topic({"detection": {"progressDeadlineSeconds": 86400}}),
    "a long handover": topic({"handover": {"timeoutSeconds": 600}}),
    "replicas": topic({"durability": "AllReplicas"}),
    "retention": topic({"retention": {"maxAgeSeconds": 1, "maxBytes": 2**53 - 1, "maxEntries": 1}}),
    "eviction now": topic({"fencing": {"podPolicy": "Delete", "minIntervalSeconds": 0}}),
    "one port without a name": topic(service(port(None, 80))),
    "two ports with names": topic(service(port("a", 80), port("b", 81))),
    "two ports of one number and two protocols": topic(
        service({**port("a", 53), "protocol": "UDP"}, port("b", 53))
    ),
    "labels with a prefix": claim(
        subject={"podSelector": {"matchLabels": {"app.kubernetes.io/name": "writer", "empty": ""}}}
    ),
    "deletion": topic({"deletionPolicy": "DeleteIfEmpty"}),
    "a claim": claim(),
    "a claim for pods": claim(subject={"podSelector": {"matchLabels": {"app": "writer"}}}),
    "a claim for a token": claim(subject={"tokenSubject": "somebody"}),
    "a claim to lead": claim(mode="WaitForExclusive", allow=["lead"]),
    "a claim to take over": claim(mode="ExclusiveWithFencing", allow=["lead", "takeover"]),
    "a claim to share": claim(mode="Shared", allow=[]),
    "equal priorities": claim(priority=5, defaultPriority=5),
    "the lowest priority": claim(priority=-(2**31)),
}

REFUSED: dict[str, tuple[Json, str]] = {
    "another scheme": (topic({"topic": "orders"}), "spec.topic"),
    "a partition": (
        topic({"topic": "persistent://shop/default/orders-partition-3"}),
        "must name a topic, not one of its partitions",
    ),
    "a partition by default": (
        topic(name="orders-partition-3"),
        "ends like the name of a partition",
    ),
    "a name of too many bytes": (
        topic({"topic": "persistent://shop/default/" + "\N{SNOWMAN}" * 300}),
        "at most 497 bytes",
    ),
    "a name of too many characters": (
        topic({"topic": "persistent://shop/default/" + "x" * 500}),
        "spec.topic",
    ),
    "too many partitions": (topic({"partitions": 1025}), "spec.partitions"),
    "negative partitions": (topic({"partitions": -1}), "spec.partitions"),
    "a text for a number": (topic({"partitions": "3"}), "spec.partitions"),
    "no mode": (topic({"access": {"modes": []}}), "spec.access.modes"),
    "a mode twice": (topic({"access": {"modes": ["Shared", "Shared"]}}), "spec.access.modes"),
    "an unknown mode": (topic({"access": {"modes": ["Solo"]}}), "spec.access.modes"),
    "an unknown policy": (topic({"promotion": {"policy": "Best"}}), "spec.promotion.policy"),
    "pings too quick": (
        topic({"detection": {"pingIntervalSeconds": 0.01}}),
        "spec.detection.pingIntervalSeconds",
    ),
    "no ping": (topic({"detection": {"pingFailures": 0}}), "spec.detection.pingFailures"),
    "a deadline too far": (
        topic({"detection": {"progressDeadlineSeconds": 86401}}),
        "spec.detection.progressDeadlineSeconds",
    ),
    "no time to hand over": (
        topic({"handover": {"timeoutSeconds": 0}}),
        "spec.handover.timeoutSeconds",
    ),
    "an unknown durability": (topic({"durability": "Eternal"}), "spec.durability"),
    "nothing kept": (topic({"retention": {"maxEntries": 0}}), "spec.retention.maxEntries"),
    "no bytes kept": (topic({"retention": {"maxBytes": 0}}), "spec.retention.maxBytes"),
    "no age": (topic({"retention": {"maxAgeSeconds": 0}}), "spec.retention.maxAgeSeconds"),
    "an unknown pod policy": (topic({"fencing": {"podPolicy": "Shoot"}}), "spec.fencing.podPolicy"),
    "a negative interval": (
        topic({"fencing": {"minIntervalSeconds": -1}}),
        "spec.fencing.minIntervalSeconds",
    ),
    "two ports without names": (
        topic(service(port(None, 80), port(None, 81))),
        "each needs a different name",
    ),
    "two ports of one name": (
        topic(service(port("a", 80), port("a", 81))),
        "each needs a different name",
    ),
    "two ports of one number": (
        topic(service(port("a", 80), port("b", 80))),
        "two ports with the same number and protocol",
    ),
    "no port": (topic(service()), "spec.leaderService.ports"),
    "a port beyond the last": (topic(service(port(None, 65536))), "ports[0].port"),
    "a Service named like a number": (
        topic(service(port(None, 80), name="1")),
        "spec.leaderService.name",
    ),
    "an unknown deletion": (topic({"deletionPolicy": "Burn"}), "spec.deletionPolicy"),
    "a claim without a topic": (claim(topicRef={}), "spec.topicRef.name"),
    "a claim for nobody": (claim(subject={}), "must have one of serviceAccountName"),
    "a claim for two": (
        claim(subject={"serviceAccountName": "writer", "tokenSubject": "other"}),
        "tokenSubject cannot be combined",
    ),
    "a claim for any pod": (claim(subject={"podSelector": {"matchLabels": {}}}), "matchLabels"),
    "a label's name that no pod can have": (
        claim(subject={"podSelector": {"matchLabels": {"no pod": "x"}}}),
        "no pod can have such a label: a name is",
    ),
    "a label's value that no pod can have": (
        claim(subject={"podSelector": {"matchLabels": {"app": "no pod"}}}),
        "no pod can have such a label: a value has",
    ),
    "a claim that allows nothing": (
        claim(allow=[]),
        "an empty allow permits Shared producers only",
    ),
    "a claim that allows nothing in an exclusive mode": (
        claim(mode="Exclusive", allow=[]),
        "spec.allow",
    ),
    "a claim without a spec": ({**claim(), "spec": None}, "spec"),
    "a takeover without lead": (claim(allow=["takeover"]), "takeover also needs lead"),
    "a permission twice": (claim(allow=["lead", "lead"]), "spec.allow"),
    "a mode without its permission": (
        claim(mode="ExclusiveWithFencing", allow=["lead"]),
        "allow lacks the permission for mode",
    ),
    "a default above the cap": (
        claim(priority=1, defaultPriority=2),
        "defaultPriority exceeds priority",
    ),
    "a priority beyond 32 bits": (claim(priority=2**31), "spec.priority"),
}


@pytest.fixture(scope="session")
def playground(api_server: ControlPlane) -> str:
    """A namespace for requests that change nothing."""
    return api_server.make_namespace("playground")


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_api_server_takes(api_server: ControlPlane, playground: str, case: str) -> None:
    text = yaml.safe_dump(ACCEPTED[case])
    done = api_server.kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=text, namespace=playground, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", REFUSED)
def test_the_api_server_refuses(api_server: ControlPlane, playground: str, case: str) -> None:
    document, words = REFUSED[case]
    done = api_server.kubectl(
        "create",
        "--dry-run=server",
        "-f",
        "-",
        stdin=yaml.safe_dump(document),
        namespace=playground,
        check=False,
    )
    assert done.returncode != 0, "it was taken"
    assert words in done.stderr


def documented() -> list[Json]:
    """The complete topics and claims in README, documentation and examples."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    texts = [
        block
        for page in pages
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        if f"apiVersion: {API}" in block and "..." not in block
    ]
    texts += [
        each.read_text(encoding="utf-8") for each in sorted((ROOT / "examples").glob("*.yaml"))
    ]
    found = [each for text in texts for each in yaml.safe_load_all(text) if each]
    return [each for each in found if each["kind"] in {"ExclusiveTopic", "ProducerClaim"}]


def test_the_api_server_takes_every_documented_topic_and_claim(
    api_server: ControlPlane, playground: str
) -> None:
    found = documented()
    assert len(found) >= 8
    for each in found:
        each["metadata"]["namespace"] = playground
        each.pop("status", None)
    done = api_server.kubectl(
        *("create", "--dry-run=server", "-f", "-"), stdin=yaml.safe_dump_all(found), check=False
    )
    assert done.returncode == 0, done.stderr


def test_kubectl_refuses_an_unknown_field(api_server: ControlPlane, playground: str) -> None:
    done = api_server.kubectl(
        "create",
        "--dry-run=server",
        "-f",
        "-",
        stdin=yaml.safe_dump(topic({"partitons": 3})),
        namespace=playground,
        check=False,
    )
    assert 'unknown field "spec.partitons"' in done.stderr


CHANGES: dict[str, tuple[Json, Json, str]] = {
    "the topic": (
        topic({"topic": "persistent://a/b/c"}),
        topic({"topic": "persistent://a/b/d"}),
        "cannot change",
    ),
    "a topic that was left out": (
        topic({}),
        topic({"topic": "persistent://a/b/c"}),
        "cannot change",
    ),
    "fewer partitions": (
        topic({"partitions": 4}),
        topic({"partitions": 3}),
        "can grow but not shrink",
    ),
    "partitions for a topic without": (
        topic({}),
        topic({"partitions": 1}),
        "cannot get partitions",
    ),
    "no partitions any more": (topic({"partitions": 1}), topic({"partitions": 0}), "can grow"),
    "more partitions": (topic({"partitions": 4}), topic({"partitions": 5}), ""),
    "the durability": (topic({}), topic({"durability": "None"}), ""),
    "a topic whose spec becomes null": (
        topic({"retention": {"maxEntries": 7}}),
        {**topic(), "spec": None},
        "",
    ),
    "a topic whose spec becomes null, and with it the name": (
        topic({"topic": "persistent://a/b/c"}),
        {**topic(), "spec": None},
        "cannot change",
    ),
    "a second port of the same number": (
        topic(service(port("a", 80))),
        topic(service(port("a", 80), port("b", 80))),
        "two ports with the same number and protocol",
    ),
    "a claim's topic": (claim(), claim(topicRef={"name": "others"}), "cannot change"),
    "a claim whose spec becomes null": (claim(), {**claim(), "spec": None}, "spec: Required value"),
    "a claim that allows nothing any more": (
        claim(),
        claim(allow=[]),
        "an empty allow permits Shared producers only",
    ),
    "a claim for Shared producers that allows nothing any more": (
        claim(mode="Shared"),
        claim(mode="Shared", allow=[]),
        "",
    ),
    "a claim's priority": (claim(), claim(priority=7), ""),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change(api_server: ControlPlane, namespace: str, case: str) -> None:
    before, after, words = CHANGES[case]
    api_server.apply(before, namespace=namespace)
    answer = api_server.apply(after, namespace=namespace, check=False)
    assert (words in answer) if words else "configured" in answer, answer


def test_defaults_are_filled_in_and_status_begins_unobserved(
    api_server: ControlPlane, namespace: str
) -> None:
    api_server.apply(topic(), namespace=namespace)
    found = api_server.get("xt", "orders", namespace=namespace)
    assert found["status"] == {"observedGeneration": -1}
    from onewriter_core.api import ExclusiveTopic

    written = copy.deepcopy(found)
    declared = ExclusiveTopic.from_document(written)
    assert declared.spec == ExclusiveTopic.from_document(topic()).spec
    assert found["spec"]["access"]["modes"] == [
        "Exclusive",
        "WaitForExclusive",
        "ExclusiveWithFencing",
    ]


def test_a_spec_of_null_has_every_default(api_server: ControlPlane, namespace: str) -> None:
    api_server.apply({**topic(name="null"), "spec": None}, topic(name="none"), namespace=namespace)
    found = [api_server.get("xt", name, namespace=namespace)["spec"] for name in ("null", "none")]
    assert found[0] == found[1]
    assert found[0]["access"]["requireClaim"] is True


def test_objects_are_selected_by_their_topic(api_server: ControlPlane, namespace: str) -> None:
    api_server.apply(topic({"topic": "persistent://a/b/c"}, "one"), namespace=namespace)
    api_server.apply(topic({"topic": "persistent://a/b/d"}, "other"), namespace=namespace)
    found = api_server.kubectl(
        "get",
        "xt",
        "--field-selector=spec.topic=persistent://a/b/c",
        "-o",
        "name",
        namespace=namespace,
    )
    assert found.stdout.split() == ["exclusivetopic.onewriter.dev/one"]


def test_short_names_category_and_columns(api_server: ControlPlane, namespace: str) -> None:
    api_server.apply(topic(), claim(), namespace=namespace)
    assert api_server.names("onewriter", namespace=namespace)
    header = api_server.kubectl("get", "xt", namespace=namespace).stdout.splitlines()[0].split()
    assert header == ["NAME", "EPOCH", "HOLDER", "STATE", "READY", "AGE"]
    header = api_server.kubectl("get", "pclaim", namespace=namespace).stdout.splitlines()[0].split()
    assert header == ["NAME", "TOPIC", "STATE", "EPOCH", "POD", "READY", "AGE"]


def test_an_installation_has_no_spec(api_server: ControlPlane, namespace: str) -> None:
    found: Json = {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "OneWriter",
        "metadata": {"name": "one"},
        "spec": {"replicas": 3},
    }
    answer = api_server.apply(found, namespace=namespace, check=False)
    assert 'unknown field "spec"' in answer


def _fields(schema: Json, path: str) -> dict[str, Json]:
    found = {}
    for name, each in schema.get("properties", {}).items():
        found[f"{path}.{name}"] = each
        found |= _fields(each, f"{path}.{name}")
        found |= _fields(each.get("items", {}), f"{path}.{name}[]")
    return found


@pytest.mark.parametrize("kind", crd.KINDS, ids=lambda kind: kind.plural)
def test_every_field_is_explained_and_every_list_and_text_is_bounded(kind: crd.Kind) -> None:
    whole = crd.definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, field in _fields(whole, kind.plural).items():
        if path.count(".") == 1 and path.split(".")[1] in {"apiVersion", "kind", "metadata"}:
            continue
        assert path.endswith(".status") or field.get("description"), f"{path} is not explained"
        if field["type"] == "array":
            assert "maxItems" in field, path
            assert "x-kubernetes-list-type" in field or "items" in field, path
        if field["type"] == "string":
            assert "maxLength" in field or "enum" in field, path
        assert "x-kubernetes-preserve-unknown-fields" not in field


@pytest.mark.parametrize("kind", crd.KINDS, ids=lambda kind: kind.plural)
def test_the_files_are_those_of_the_models(kind: crd.Kind) -> None:
    written = (ROOT / "crds" / crd.file_name(kind)).read_text(encoding="utf-8")
    assert yaml.safe_load(written) == crd.definition(kind), (
        "run python -m charts.generator.crd crds"
    )


def test_kubectl_explains_a_field(api_server: ControlPlane) -> None:
    explain = ("explain", "exclusivetopic.spec.durability")

    def is_explained() -> bool:
        """Return whether schemas are published, a moment after the kinds are served."""
        output = api_server.kubectl(*explain, check=False).stdout
        return "What an acknowledgement guarantees" in output

    api_server.until(is_explained, "the field is not explained")
