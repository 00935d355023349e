"""The desired state as the operator pushes it: what is read, what is refused, what is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.api.desired import Reading, read_desired
from onewriter_core.errors import ConfigurationError
from onewriter_core.ids import TopicName

Json = dict[str, Any]


def topic(name: str, spec: Json | None = None) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec or {},
    }


def claim(name: str, for_topic: str, subject: Json | None = None) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ProducerClaim",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "topicRef": {"name": for_topic},
            "subject": subject or {"serviceAccountName": "writer"},
        },
    }


def read(document: Mapping[str, Any], before: Reading | None = None) -> Reading:
    return read_desired(json.dumps(document).encode(), before)


def errors_of(document: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigurationError) as found:
        read(document)
    return str(found.value).splitlines()


SELECTED = {"podSelector": {"matchLabels": {"app": "writer"}}}


def test_topics_claims_and_pods_are_read() -> None:
    found = read(
        {
            "revision": "r1",
            "topics": [topic("orders", {"partitions": 3}), topic("bills")],
            "claims": [claim("primary", "orders", SELECTED), claim("other", "nothing")],
            "pods": {"shop/primary": ["u1", "u2"]},
        }
    )
    assert found.revision == "r1"
    orders = found.state.topic(TopicName.parse("persistent://shop/default/orders-partition-1"))
    assert orders is not None
    assert orders.spec.partitions == 3
    (primary,) = found.state.claims_for(orders)
    assert found.state.pods_of(primary) == {"u1", "u2"}
    assert len(found.state.warnings) == 1
    assert "no ExclusiveTopic nothing" in found.state.warnings[0]


def test_an_empty_state_is_one() -> None:
    assert read({"revision": "r"}).state.topics == ()


def test_an_unchanged_object_is_not_judged_again() -> None:
    document = {"revision": "1", "topics": [topic("a"), topic("b")], "claims": [claim("c", "a")]}
    before = read(document)
    changed = document | {"revision": "2", "topics": [topic("b", {"partitions": 2}), topic("a")]}
    after = read(changed, before)
    by_name = {each.metadata.name: each for each in before.state.topics}
    assert after.state.topics[1] is by_name["a"]
    assert after.state.topics[0].spec.partitions == 2
    assert after.state.claims[0] is before.state.claims[0]
    assert len(after.known) == 3, "what is no longer there is forgotten"


def test_every_error_is_named_and_nothing_is_taken() -> None:
    found = errors_of(
        {
            "topics": [topic("a", {"partitions": "3"}), topic("b", {"compaction": {"enabled": 1}})],
            "claims": [topic("c"), {"kind": "ProducerClaim"}, 7],
            "pods": {"x": ["u"], "shop/a": "u"},
            "surprise": 1,
        }
    )
    text = "\n".join(found)
    assert "ExclusiveTopic shop/a, spec.partitions" in text
    assert "ExclusiveTopic shop/b, spec.compaction" in text
    assert "is a ExclusiveTopic, and stands in claims" in text
    assert "claims[1], apiVersion" in text
    assert "claims[2]: must be a mapping" in text
    assert "pods['x']" in text
    assert "pods['shop/a']" in text
    assert "surprise" in text
    assert "revision" in text


def test_two_objects_for_one_topic_are_refused() -> None:
    twice = topic("b", {"topic": "persistent://shop/default/a"})
    (line,) = errors_of({"revision": "1", "topics": [topic("a"), twice]})
    assert "already declared in ExclusiveTopic shop/a" in line


NOT_JSON = [
    b"",
    b"{",
    b"[]",
    b'{"revision": "r"',
    b'{"revision": "r",}',
    b'{"revision": "r"} x',
    b'{"topics": [}',
    b'{"topics": [{} {}]}',
    b'{"topics": [{},]}',
    b'{7: "r"}',
    b'{"revision" "r"}',
    b"\xff\xfe",
    b'{"topics": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", NOT_JSON)
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not JSON"):
        read_desired(body)


def test_a_field_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="revision: stands twice"):
        read_desired(b'{"revision": "1", "revision": "2"}')


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("revision", "topics", "claims", "pods", "more"), _JSON),
    ),
    st.sampled_from([None, 1]),
)
def test_any_json_is_parsed_or_refused(document: Json, indent: int | None) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    try:
        text = read_desired(body).revision
    except ConfigurationError as error:
        text = str(error)
    assert text
