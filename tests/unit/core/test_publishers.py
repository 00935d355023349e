"""Who published, as the field of a block: written, and read back from whatever stands there."""

from __future__ import annotations

import pytest

from onewriter_core.ids import Identity
from onewriter_core.publishers import Publisher, decode_publisher, encode_publisher, publisher_of


@pytest.mark.parametrize(
    ("publisher", "text"),
    [
        (Publisher(), ""),
        (Publisher("alice"), '{"subject":"alice"}'),
        (Publisher("alice", "pod-1"), '{"subject":"alice","podUID":"pod-1"}'),
        (Publisher('a"\u00e9\n'), '{"subject":"a\\"\\u00e9\\n"}'),
    ],
)
def test_an_encoded_publisher_is_decoded_again(publisher: Publisher, text: str) -> None:
    assert encode_publisher(publisher) == text
    assert decode_publisher(text) == publisher


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "null",
        "[]",
        "{}",
        "7",
        "{",
        "[" * 100_000,
        '{"subject":["alice"]}',
        '{"subject":7}',
        '{"subject":null}',
        '{"subject": "alice"}',
        '{"podUID":"pod-1","subject":"alice"}',
        '{"subject":"alice","podUID":""}',
        '{"subject":"alice","role":"admin"}',
    ],
)
def test_a_text_that_no_broker_writes_names_no_publisher(text: str) -> None:
    assert decode_publisher(text) is None


def test_an_identity_without_a_token_has_no_subject() -> None:
    assert publisher_of(Identity("", "pod-1")) == Publisher()
    assert publisher_of(Identity("alice", "pod-1", "web-0", "node-a")) == Publisher(
        "alice", "pod-1"
    )
    assert str(publisher_of(Identity("alice", "pod-1"))) == str(Identity("alice", "pod-1"))
