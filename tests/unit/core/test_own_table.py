"""The decision table of ownerships, and what their resources may be called."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import Identity, InvalidTopicName, TopicName, bucket_of
from onewriter_core.own.names import (
    RESOURCE_BYTES_MAX,
    canonical,
    own_field,
    resource_bucket,
    split_field,
    topic_of,
)
from onewriter_core.own.table import (
    GENERATION_ASKED_MAX,
    GENERATION_MAX,
    LINEAGE_BITS,
    Cause,
    Owner,
    Ownership,
    OwnershipDenied,
    OwnershipGranted,
    OwnRequest,
    decide,
    floor_of,
)

POD = Identity("system:serviceaccount:shop:worker", "uid-1")
OTHER_POD = Identity("system:serviceaccount:shop:worker", "uid-2")
HOLDER = Owner(POD, "task-3", "n1")
OWNED = Ownership(5, HOLDER, is_owned=True)
STRANGER = Owner(Identity("somebody"), "task-3", "n9")


@pytest.mark.parametrize(
    ("before", "asker", "requested", "cause", "generation"),
    [
        (Ownership(), STRANGER, 1, Cause.VACANT, 1),
        (Ownership(), STRANGER, 7, Cause.VACANT, 1),
        (OWNED.left(), STRANGER, 1, Cause.VACANT, 6),
        (OWNED.left(), STRANGER, 99, Cause.VACANT, 6),
        (OWNED.released(), HOLDER, 5, Cause.VACANT, 6),
        (OWNED, STRANGER, 6, Cause.OUTRANKED, 6),
        (OWNED, STRANGER, 40, Cause.OUTRANKED, 40),
        (OWNED, replace(HOLDER, nonce="n2"), 5, Cause.SUCCEEDED, 6),
        (OWNED, replace(HOLDER, nonce=""), 5, Cause.SUCCEEDED, 6),
        (OWNED, Owner(OTHER_POD, "task-3", "n2"), 5, Cause.SUCCEEDED, 6),
        (OWNED, HOLDER, 5, Cause.RETURNED, 5),
        (OWNED, HOLDER, 0, Cause.RETURNED, 5),
        (OWNED.left(), HOLDER, 1, Cause.RETURNED, 5),
        (OWNED, HOLDER, 6, Cause.OUTRANKED, 6),
    ],
)
def test_granted(
    before: Ownership, asker: Owner, requested: int, cause: Cause, generation: int
) -> None:
    answer = decide(before, OwnRequest(asker, requested))
    assert isinstance(answer, OwnershipGranted)
    assert (answer.cause, answer.after) == (cause, Ownership(generation, asker, is_owned=True))
    is_taken = before.is_owned and cause is not Cause.RETURNED
    assert answer.deposed == (before.owner if is_taken else None)
    assert answer.is_new is (cause is not Cause.RETURNED)


@pytest.mark.parametrize(
    ("before", "asker", "requested", "code"),
    [
        (OWNED, STRANGER, 4, ServerError.PRODUCER_FENCED),
        (OWNED, STRANGER, 5, ServerError.PRODUCER_BUSY),
        (OWNED, Owner(POD, "task-4"), 5, ServerError.PRODUCER_BUSY),
        (OWNED, replace(HOLDER, nonce="n2"), 4, ServerError.PRODUCER_FENCED),
        (OWNED, STRANGER, 0, ServerError.AUTHORIZATION_ERROR),
        (Ownership(), STRANGER, 0, ServerError.AUTHORIZATION_ERROR),
        (OWNED, HOLDER, -1, ServerError.NOT_ALLOWED_ERROR),
        (OWNED, STRANGER, GENERATION_ASKED_MAX + 1, ServerError.NOT_ALLOWED_ERROR),
        (Ownership(GENERATION_MAX), STRANGER, 1, ServerError.NOT_ALLOWED_ERROR),
    ],
)
def test_denied(before: Ownership, asker: Owner, requested: int, code: ServerError) -> None:
    answer = decide(before, OwnRequest(asker, requested))
    assert isinstance(answer, OwnershipDenied)
    assert (answer.code, answer.generation) == (code, before.generation)


@pytest.mark.parametrize("before", [Ownership(), OWNED, OWNED.left(), OWNED.released()])
def test_generation_0_succeeds_with_the_permission_and_never_goes_back(before: Ownership) -> None:
    answer = decide(before, OwnRequest(STRANGER, 0, may_reset=True))
    assert isinstance(answer, OwnershipGranted)
    assert answer.cause is Cause.RESET
    assert answer.after.generation == before.generation + 1


def test_a_request_that_only_returns_starts_no_generation() -> None:
    for before in (Ownership(), OWNED.released(), OWNED.left(), OWNED):
        request = OwnRequest(replace(HOLDER, nonce="n2"), 5, only_returns=True, may_reset=True)
        assert isinstance(decide(before, request), OwnershipDenied)
    assert isinstance(decide(OWNED, OwnRequest(HOLDER, 5, only_returns=True)), OwnershipGranted)


def test_an_identity_is_a_subject_with_a_name_or_a_pod() -> None:
    unnamed = Owner(POD)
    assert unnamed.is_same_as(Owner(POD, nonce="another life"))
    assert not unnamed.is_same_as(Owner(OTHER_POD)), "pods of one account take turns at nothing"
    assert not Owner(Identity()).is_same_as(Owner(Identity())), "nobody in particular"
    assert Owner(Identity(), "task").is_same_as(Owner(Identity(), "task"))
    assert not Owner(POD, "task").is_same_as(Owner(Identity("else"), "task"))
    assert not Owner(POD).is_return_of(Owner(POD)), "without a nonce nobody returns"
    assert not Owner(OTHER_POD, "t", "n").is_return_of(Owner(POD, "t", "n")), "a stolen nonce"


def test_a_record_that_may_have_forgotten_successors_is_nobodys_and_jumps() -> None:
    assert floor_of(OWNED, registration=3, known_since=3) == OWNED
    assert floor_of(OWNED, registration=3, known_since=0) == OWNED
    assert floor_of(OWNED, registration=2, known_since=3) == Ownership(3 << LINEAGE_BITS)
    high = Ownership(1 << 40, HOLDER, is_owned=True)
    assert floor_of(high, registration=2, known_since=3) == Ownership(1 << 40)
    assert floor_of(Ownership(), registration=0, known_since=0) == Ownership()


def test_topics_lie_with_their_logs_and_other_text_by_itself() -> None:
    topic = "persistent://public/default/orders"
    assert topic_of(topic) == TopicName.parse(topic)
    assert topic_of("orders") is None
    expected = bucket_of(TopicName.parse(topic), 64)
    assert resource_bucket(topic, 64) == resource_bucket(topic + "-partition-7", 64) == expected
    assert resource_bucket("orders", 64) == zlib.crc32(b"orders") % 64
    with pytest.raises(InvalidTopicName):
        resource_bucket("persistent://nothing", 64)


def test_a_record_is_named_by_group_and_resource() -> None:
    field = own_field("group", "any\u00e9 text")
    assert split_field(field) == ("group", "any\u00e9 text")
    assert own_field("a", "bc") != own_field("ab", "c")


@pytest.mark.parametrize("text", ["", "a\x1fb", "line\n", "x" * (RESOURCE_BYTES_MAX + 1)])
def test_an_invalid_resource_name_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        canonical(text)
