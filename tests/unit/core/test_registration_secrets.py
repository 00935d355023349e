"""Registrations and capabilities: what each depends on, and what is none."""

from __future__ import annotations

import itertools

import pytest

from onewriter_core.ids import Identity, TopicName
from onewriter_core.publish_rights import (
    APP_LENGTH_MAX,
    Capability,
    capability_of,
    is_app,
    is_capability_of,
    is_registration,
    parse_capability,
    registration_of,
)

KEY = b"k" * 32
ORDERS = TopicName.parse("orders")
WRITER = Identity("writer", "uid-1", "writer-0", "node-1")


def test_a_registration_depends_on_each_of_its_fields() -> None:
    registrations = [
        registration_of(KEY, ORDERS, 7, WRITER),
        registration_of(b"other" * 8, ORDERS, 7, WRITER),
        registration_of(KEY, TopicName.parse("returns"), 7, WRITER),
        registration_of(KEY, ORDERS, 8, WRITER),
        registration_of(KEY, ORDERS, 7, Identity("standby", "uid-1")),
        registration_of(KEY, ORDERS, 7, Identity("writer", "uid-2")),
        registration_of(KEY, ORDERS, 7, Identity("writeruid-1", "")),
    ]
    for one, other in itertools.combinations(registrations, 2):
        assert not is_registration(one, other)


def test_a_registration_is_the_same_for_all_partitions_and_names_of_its_holder() -> None:
    found = registration_of(KEY, ORDERS, 7, WRITER)
    assert is_registration(found, registration_of(KEY, ORDERS.with_partition(3), 7, WRITER))
    assert is_registration(found, registration_of(KEY, ORDERS, 7, Identity("writer", "uid-1")))


@pytest.mark.parametrize("shown", ["", "x", "\udc80", "ä" * 64])
def test_an_invalid_registration_is_refused_without_an_error(shown: str) -> None:
    assert not is_registration(shown, registration_of(KEY, ORDERS, 7, WRITER))


def test_a_capability_counts_for_its_registration_app_and_time_alone() -> None:
    registration = registration_of(KEY, ORDERS, 7, WRITER)
    text = capability_of(registration, "etl.v2", 1_700_000_000)
    found = parse_capability(text)
    assert found is not None
    assert found[:2] == ("etl.v2", 1_700_000_000)
    assert is_capability_of(found, registration)
    assert not is_capability_of(found, registration_of(KEY, ORDERS, 8, WRITER))
    assert not is_capability_of(found._replace(app="other"), registration)
    assert not is_capability_of(found._replace(expires=1_800_000_000), registration)
    assert not is_capability_of(Capability(*found[:2], "0" * 64), registration)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "app",
        "app.1",
        f"app.1.{'0' * 63}",
        f"app.-1.{'0' * 64}",
        f"a/b.1.{'0' * 64}",
        "\udc80",
        f"app.{'1' * 13}.{'0' * 64}",
        f"app.\u0661.{'0' * 64}",
        f"app.1.{'G' * 64}",
    ],
)
def test_an_invalid_capability_is_none(text: str) -> None:
    assert parse_capability(text) is None


@pytest.mark.parametrize(("app", "expires"), [("a/b", 1), ("", 1), ("app", -1), ("app", 10**12)])
def test_an_app_or_expiry_that_no_capability_can_have_is_an_error(app: str, expires: int) -> None:
    with pytest.raises(ValueError, match="no capability"):
        capability_of("0" * 64, app, expires)


def test_an_app_is_a_short_plain_name() -> None:
    assert is_app("A.z_0:9-")
    assert is_app("a" * APP_LENGTH_MAX)
    assert not any(map(is_app, ["", "a" * (APP_LENGTH_MAX + 1), "a b", "a/b", "ä", "a\n"]))
