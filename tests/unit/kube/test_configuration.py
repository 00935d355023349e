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
        "tls needs a url that begins with rediss://",
    ),
    "tls through Sentinels": (
        {"externalStore": {"sentinels": ["b:2"], "tls": {"serverName": "b"}}},
        "tls needs a url that begins with rediss://",
    ),
    "another protocol": ({"externalStore": {"url": "http://a"}}, "must be redis://"),
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
    ("text", "amount"),
    [("2", 2), ("1.5Gi", 1.5 * 2**30), ("500m", 0.5), ("10k", 10_000), ("1Mi", 2**20)],
)
def test_amounts(text: str, amount: float) -> None:
    assert quantity(text) == amount


def test_numbers_are_amounts_too() -> None:
    found = configured({"brokers": {"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}})
    assert found.brokers.resources.requests == {"cpu": "2", "memory": "1Gi"}


def test_memory_for_data_leaves_room_for_rewriting_the_log() -> None:
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
            "all: Value error, valkey.storage.size is empty",
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
