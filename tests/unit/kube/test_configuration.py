"""The operator's configuration file: accepted values, refused values and their messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic
import pytest
from tests.unit.kube.installation_configurations import ALL, configured

from onewriter_core.errors import ConfigurationError
from onewriter_operator.configuration import Configuration, quantity, read

Json = dict[str, Any]

REFUSED: dict[str, tuple[Json, str]] = {
    "an unknown field": ({"brokers": {"replicaz": 3}}, "replicaz"),
    "no broker": ({"brokers": {"replicas": 0}}, "greater than or equal to 1"),
    "too many brokers": ({"brokers": {"replicas": 65}}, "less than or equal to 64"),
    "a setting of ours": ({"brokers": {"settings": {"redisUrl": "x"}}}, "follows from the rest"),
    "a setting in another style": (
        {"brokers": {"settings": {"roll_bytes": 1}}},
        "unknown setting 'roll_bytes'",
    ),
    "a directive of ours": (
        {"valkey": {"settings": {"appendonly": "no"}}},
        "'appendonly' cannot be set here",
    ),
    "two lines in a directive": ({"valkey": {"settings": {"hz 1\nuser": 1}}}, "cannot be set here"),
    "an amount of nothing": (
        {"valkey": {"resources": {"limits": {"memory": "much"}}}},
        "should match pattern",
    ),
    "a promise without a volume": ({"valkey": {"storage": {"size": ""}}}, "without a volume"),
    "a promise without a sync": ({"valkey": {"appendSync": "everysec"}}, "promises nothing"),
    "a promise of replicas": (
        {"brokers": {"settings": {"minimumDurability": "Replicated"}}},
        "has no replica",
    ),
    "two stores": (
        {"externalStore": {"url": "redis://a:1", "sentinels": ["b:2"]}},
        "exclude each other",
    ),
    "a password in the open": (
        {"externalStore": {"url": "redis://u:p@a:1"}},
        "must not carry a password",
    ),
    "tls to a store that does not use it": (
        {"externalStore": {"url": "redis://a:1", "tls": {"caSecretName": "ca"}}},
        "tls needs a url that begins with rediss:// or rediss.cluster://, or sentinels that begin",
    ),
    "tls through Sentinels that do not use it": (
        {"externalStore": {"sentinels": ["b:2"], "tls": {"serverName": "b"}}},
        "tls needs a url that begins with rediss:// or rediss.cluster://, or sentinels that begin",
    ),
    "Sentinels of which one uses tls": (
        {"externalStore": {"sentinels": ["rediss://a:1", "b:2"]}},
        "at all of them or at none",
    ),
    "another protocol": ({"externalStore": {"url": "http://a"}}, "must be redis://"),
    "a password in the URL of a cluster": (
        {"externalStore": {"url": "rediss+cluster://u:p@a:1,b:2"}},
        "must not carry a password",
    ),
    "tls to a cluster that does not use it": (
        {"externalStore": {"url": "redis+cluster://a:1,b:2", "tls": {"serverName": "a"}}},
        "tls needs a url that begins with rediss://",
    ),
    "several addresses that are no cluster": (
        {"externalStore": {"url": "redis://a:1,b:2"}},
        "need redis.cluster://",
    ),
    "a cluster with an empty address": (
        {"externalStore": {"url": "redis+cluster://a:1,,b:2"}},
        "must name a host at each address",
    ),
    "a cluster with a port that cannot be": (
        {"externalStore": {"url": "redis+cluster://a:1,b:70000"}},
        "Port out of range",
    ),
    "two shards": ({"store": {"shards": 2}}, "one of two is not a majority"),
    "too many shards": ({"store": {"shards": 17}}, "less than or equal to 16"),
    "a cluster without replicas": (
        {"store": {"shards": 3, "replicas": 0}},
        "greater than or equal",
    ),
    "a cluster beside another store": (
        {"store": {"shards": 3}, "externalStore": {"url": "redis://a"}},
        "externalStore replaces the installed store",
    ),
    "a directive of the cluster": (
        {"valkey": {"settings": {"cluster-node-timeout": 1}}},
        "'cluster-node-timeout' cannot be set here",
    ),
    "another directory of a process of a cluster": (
        {"store": {"shards": 3}, "valkey": {"settings": {"appenddirname": "log"}}},
        "valkey.settings.appenddirname cannot be set in a cluster",
    ),
    "a directive of the certificate": (
        {"valkey": {"settings": {"tls-cert-file": "/other"}}},
        "'tls-cert-file' cannot be set here",
    ),
    "tls with the image of all components": (
        {"store": {"tls": {"secretName": "store"}}},
        "store.tls needs valkey.image: the server in the image of all components is built without",
    ),
    "tls of the installed store with another store": (
        {"store": {"tls": {"secretName": "store"}}, "externalStore": {"url": "rediss://a"}},
        "use externalStore.tls",
    ),
    "a lease that ends too late": (
        {"operator": {"lease": {"renewSeconds": 15}}},
        "below durationSeconds",
    ),
    "a lease without a retry": (
        {"operator": {"lease": {"renewSeconds": 2.4}}},
        "above 1.2 times",
    ),
    "a namespace that cannot be": ({"operator": {"namespaces": ["A_B"]}}, "should match pattern"),
}


@pytest.mark.parametrize("case", ALL)
def test_taken(case: str) -> None:
    assert configured(ALL[case]).release == "onewriter"


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    document, words = REFUSED[case]
    with pytest.raises(pydantic.ValidationError, match=words):
        configured(document)


def test_weak_stores_are_taken_when_nothing_is_promised() -> None:
    weak = {"storage": {"size": ""}, "appendSync": "everysec"}
    promised = {"settings": {"minimumDurability": "None"}}
    assert configured({"valkey": weak, "brokers": promised}).valkey.memory_bytes > 0


def test_a_store_of_others_may_promise_more() -> None:
    found = configured(
        {
            "externalStore": {"url": "redis://store"},
            "brokers": {"settings": {"minimumDurability": "AllReplicas"}},
        }
    )
    assert found.external_store.is_used
    assert found.external_store.ports == (6379,)


@pytest.mark.parametrize(
    ("url", "ports", "is_encrypted"),
    [
        ("redis+cluster://a:7000,b:7001,c:7001", (7000, 7001), False),
        ("rediss+cluster://broker@a,b:7000", (6379, 7000), True),
        ("redis+cluster://[fd00::1]:7000,[fd00::2]", (6379, 7000), False),
    ],
)
def test_a_cluster_of_others_is_named_by_some_nodes(
    url: str, ports: tuple[int, ...], is_encrypted: bool
) -> None:
    found = configured({"externalStore": {"url": url, "replicas": 1}}).external_store
    assert found.is_used
    assert (found.ports, found.is_encrypted) == (ports, is_encrypted)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2", 2), ("1.5Gi", 1.5 * 2**30), ("500m", 0.5), ("10k", 10_000), ("1Mi", 2**20)],
)
def test_amounts(text: str, amount: float) -> None:
    assert quantity(text) == amount


def test_numbers_are_amounts_too() -> None:
    found = configured({"brokers": {"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}})
    assert found.brokers.resources.requests == {"cpu": "2", "memory": "1Gi"}


def test_the_memory_limit_leaves_space_for_rewriting_the_log() -> None:
    assert configured().valkey.memory_bytes == int(2 * 2**30 * 0.6)
    unlimited = configured({"valkey": {"resources": {"limits": {}}}})
    assert unlimited.valkey.memory_bytes == 0


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "configuration.yaml"
    path.write_text("{release: r, namespace: n, image: {reference: i}, brokers: {replicas: 2}}")
    found = read(path)
    assert isinstance(found, Configuration)
    assert (found.brokers.replicas, found.operator_subject) == (
        2,
        "system:serviceaccount:n:r-operator",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a list", "must be a mapping"),
        ("{a: [", "configuration.yaml"),
        ("{release: r, namespace: n, image: {reference: i}, broker: {}}", "broker: Extra inputs"),
        (
            "{release: r, namespace: n, image: {reference: i}, valkey: {storage: {size: ''}}}",
            "all: valkey.storage.size is empty",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_a_line_for_each_mistake(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "configuration.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read(tmp_path / "none.yaml")
