"""The quota book: what it counts, when it refuses, and its messages."""

from __future__ import annotations

import pytest

from onewriter_broker.quotas.book import (
    CountedItems,
    Quota,
    QuotaBook,
    QuotaExceeded,
    QuotaUnit,
    connection_units,
    subject_of,
)
from onewriter_broker.settings import Settings
from onewriter_core.ids import Identity

PRODUCERS = Quota.PRODUCERS_PER_SUBJECT
OF_NAMESPACE = Quota.PRODUCERS_PER_NAMESPACE


def test_the_quota_is_enforced_and_the_refusal_names_it() -> None:
    book = QuotaBook({PRODUCERS: 2})
    book.take(QuotaUnit(PRODUCERS, "subject a"))
    book.take(QuotaUnit(PRODUCERS, "subject a"))
    with pytest.raises(QuotaExceeded) as refused:
        book.take(QuotaUnit(PRODUCERS, "subject a"))
    assert "subject a has 2 producers" in refused.value.message
    assert "quota_producers_per_subject allows 2" in refused.value.message
    assert book.refused[PRODUCERS] == 1
    book.take(QuotaUnit(PRODUCERS, "subject b"))
    book.give_back(QuotaUnit(PRODUCERS, "subject a"))
    book.take(QuotaUnit(PRODUCERS, "subject a"))


def test_of_several_parts_all_are_taken_or_none() -> None:
    book = QuotaBook({PRODUCERS: 5, OF_NAMESPACE: 1})
    parts = QuotaUnit(PRODUCERS, "subject a"), QuotaUnit(OF_NAMESPACE, "namespace n")
    book.take(*parts)
    with pytest.raises(QuotaExceeded):
        book.take(*parts)
    assert book.used(PRODUCERS, "subject a") == 1


def test_a_quota_of_zero_allows_any_number() -> None:
    book = QuotaBook({PRODUCERS: 0})
    for _ in range(1_000):
        book.take(QuotaUnit(PRODUCERS, "subject a"))
    book.check(PRODUCERS, "subject a", 10**9)
    assert book.most(PRODUCERS) == ("subject a", 1_000)


def test_returned_quota_leaves_no_count() -> None:
    book = QuotaBook()
    book.take(QuotaUnit(PRODUCERS, "subject a"))
    book.give_back(QuotaUnit(PRODUCERS, "subject a"))
    assert book.most(PRODUCERS) == ("", 0)


def test_ids_of_a_connection_count_until_they_are_removed() -> None:
    book = QuotaBook({PRODUCERS: 3})
    held: CountedItems[str] = CountedItems(book)
    for number in range(3):
        held.take(number, QuotaUnit(PRODUCERS, "subject a"))
        held[number] = "producer"
    with pytest.raises(QuotaExceeded):
        held.take(3, QuotaUnit(PRODUCERS, "subject a"))
    del held[0]
    assert held.remove(1) == "producer"
    assert held.remove(1) is None
    assert book.used(PRODUCERS, "subject a") == 1
    held.clear()
    assert book.used(PRODUCERS, "subject a") == 0


def test_anonymous_clients_count_by_their_host() -> None:
    anonymous = Identity()
    assert subject_of(anonymous, "10.0.0.1:5000") == subject_of(anonymous, "10.0.0.1:5001")
    assert subject_of(anonymous, "10.0.0.1:5000") != subject_of(anonymous, "10.0.0.2:5000")
    assert subject_of(anonymous, "2001:db8::1:5000") == subject_of(
        anonymous, "2001:db8::f00:0:0:2:7"
    )
    assert subject_of(anonymous, "2001:db8::1:5000") != subject_of(anonymous, "2001:db8:1::1:5000")
    assert subject_of(anonymous, "::ffff:10.0.0.1:5000") == subject_of(anonymous, "10.0.0.1:5000")
    assert subject_of(Identity("a"), "10.0.0.1:5000") == subject_of(Identity("a"), "10.0.0.2:1")


def test_connections_of_all_service_accounts_of_a_namespace_count_together() -> None:
    parts = [
        connection_units(Identity(f"system:serviceaccount:shop:{name}"), "10.0.0.1:1")
        for name in ("a", "b")
    ]
    (first, both), (second, again) = parts
    assert first != second
    assert both == again
    assert len(connection_units(Identity("somebody"), "10.0.0.1:1")) == 1


def test_every_quota_has_a_setting() -> None:
    for quota in Quota:
        assert getattr(Settings(), quota.setting) > 0
