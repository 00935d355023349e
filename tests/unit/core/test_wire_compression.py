"""Pulsar's codecs: what is written can be read, and damage is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.compression import compress, decompress
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

CODECS = tuple(pb.MessageMetadata.Compression.values())
REAL_CODECS = tuple(codec for codec in CODECS if codec != pb.MessageMetadata.NONE)


@given(codec=st.sampled_from(CODECS), content=st.binary(max_size=2000))
def test_a_content_is_returned_unchanged(codec: int, content: bytes) -> None:
    assert decompress(codec, compress(codec, content), len(content)) == content


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_compressing_makes_it_smaller(codec: int) -> None:
    content = b"again and again " * 100
    assert len(compress(codec, content)) < len(content) / 4


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize("stated_size", [44, 46])
def test_a_size_that_is_not_the_contents_is_damage(codec: int, stated_size: int) -> None:
    compressed = compress(codec, b"hello" * 9)
    with pytest.raises(ProtocolError):
        decompress(codec, compressed, stated_size)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_uncompressed_bytes_under_a_codec_are_damage(codec: int) -> None:
    with pytest.raises(ProtocolError):
        decompress(codec, b"\xff\xfe garbage", 100)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(ValueError, match="99"):
        compress(99, b"")
    with pytest.raises(ProtocolError, match="99"):
        decompress(99, b"", 0)
