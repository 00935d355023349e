"""The chart as Helm renders it, without a cluster."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml
from charts.generator.values import Values

from onewriter_operator.configuration import Configuration

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "onewriter"

EVERYTHING: Json = {
    "image": {"repository": "mirror/onewriter", "digest": f"sha256:{'0' * 64}"},
    "brokers": {
        "replicas": 5,
        "storage": {"size": "1Gi"},
        "tls": {"plain": True},
        "settings": {"silentAfterSeconds": 1.5, "rollBytes": 1048576},
        "authentication": {"adminSubjects": ["alice"]},
    },
    "valkey": {"passwordSecret": {"name": "given"}},
    "operator": {
        "replicas": 3,
        "namespaces": ["shop", "bank"],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "labels": {"team": "platform"},
        "annotations": {"note": "yes"},
        "spread": {"zones": "DoNotSchedule", "nodes": "None"},
    },
    "certificates": {"webhook": "CertManager", "brokers": "CertManager"},
    "crds": {"keep": False},
    "networkPolicies": {
        "clients": [{"namespaceSelector": {}}],
        "monitoring": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
    },
    "monitoring": {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "disabled": ["OnewriterDriftRepaired"]},
        "dashboard": {"enabled": True},
    },
}
"""Every choice made otherwise than by default."""

LEAST: Json = {
    "brokers": {
        "replicas": 1,
        "tls": {"enabled": False},
        "settings": {"minimumDurability": "None"},
    },
    "valkey": {"storage": {"size": ""}},
    "operator": {"replicas": 1, "podDisruptionBudget": {"enabled": False}},
    "webhook": {"enabled": False},
    "crds": {"enabled": False},
    "rbac": {"create": False},
    "networkPolicies": {"enabled": False},
    "checks": {"readiness": False, "test": False, "cleanUp": False},
}
"""As little as there can be."""

CLUSTER: Json = {
    "store": {"shards": 3, "replicas": 1},
    "brokers": {"settings": {"minimumDurability": "Replicated"}},
}
"""A cluster as the store."""

TLS: Json = {
    "store": {"shards": 3, "tls": {"secretName": "store-certificate"}},
    "valkey": {"image": "valkey/valkey:9"},
}
"""TLS to the installed store."""

ALL = {"defaults": {}, "everything": EVERYTHING, "least": LEAST, "cluster": CLUSTER, "tls": TLS}


@cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def rendered(values: Json | None = None, *, name: str = "onewriter") -> list[Json]:
    """All objects, hooks too, in the order of their files."""
    found: list[Json] = json.loads(_text(json.dumps(values or {}, sort_keys=True), name))
    return found


@cache
def _text(values: str, name: str) -> str:
    """Rendering makes keys, which takes its time: once for the same values."""
    files = chart().render(json.loads(values), name=name, namespace="system")
    found = [
        each
        for path in sorted(files)
        if path.endswith(".yaml")
        for each in yaml.load_all(files[path], yaml.CSafeLoader)
        if each
    ]
    return json.dumps(found)


def of_kind(documents: list[Json], *kinds: str) -> list[Json]:
    return [each for each in documents if each["kind"] in kinds]


def named(documents: list[Json], kind: str, name: str) -> Json:
    (found,) = [each for each in of_kind(documents, kind) if each["metadata"]["name"] == name]
    return found


def configuration(documents: list[Json]) -> Configuration:
    """What the operator of these objects would read."""
    text = named(documents, "ConfigMap", "onewriter-config")["data"]["configuration.yaml"]
    return Configuration.from_document(yaml.safe_load(text))


def pod_templates(documents: list[Json]) -> list[Json]:
    """Every pod that any object makes."""
    made = of_kind(documents, "Deployment", "Job", "StatefulSet")
    return of_kind(documents, "Pod") + [each["spec"]["template"] for each in made]


class _Readable(yaml.CSafeDumper):
    """Texts of several lines stay that way."""


def _represent(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _represent)


def stable(documents: list[Json]) -> str:
    """A rendering for people to compare, without what is made anew each time."""
    text = yaml.dump_all(documents, Dumper=_Readable, sort_keys=False, width=100)
    made = r"(tls\.crt|tls\.key|ca\.crt|ca\.key|caBundle): [A-Za-z0-9+/=]{100,}"
    text = re.sub(made, r"\1: <made>", text)
    return re.sub(r"onewriter.dev/valid-until: '\d+'", "onewriter.dev/valid-until: <then>", text)


def as_model(values: Json) -> Values:
    return Values.from_document(values)
