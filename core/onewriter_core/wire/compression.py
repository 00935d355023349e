"""The codecs with which Pulsar's clients compress the content of an entry, after its metadata."""

from __future__ import annotations

import cramjam

from onewriter_core.errors import ProtocolError
from onewriter_core.wire.messages import Bytes
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

ZLIB_LEVEL = 6
ZSTD_LEVEL = 3


def compress(codec: int, content: Bytes) -> bytes:
    """Compress with a codec of ``MessageMetadata.Compression``. NONE returns the content unchanged.

    Raises ValueError for an unknown number.
    """
    match codec:
        case pb.MessageMetadata.NONE:
            return bytes(content)
        case pb.MessageMetadata.LZ4:
            return bytes(cramjam.lz4.compress_block(content, store_size=False))
        case pb.MessageMetadata.ZLIB:
            return bytes(cramjam.zlib.compress(content, level=ZLIB_LEVEL))
        case pb.MessageMetadata.ZSTD:
            return bytes(cramjam.zstd.compress(content, level=ZSTD_LEVEL))
        case pb.MessageMetadata.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(content))
        case _:
            raise ValueError(f"unknown compression {codec}")


def decompress(codec: int, content: Bytes, size: int) -> bytes:
    """Decompress. ``size`` is the metadata's ``uncompressed_size``; the caller limits it.

    Raises ProtocolError if the content is damaged or has another size.
    """
    if codec == pb.MessageMetadata.NONE:
        return bytes(content)
    space = bytearray(size)
    try:
        match codec:
            case pb.MessageMetadata.LZ4:
                written = cramjam.lz4.decompress_block_into(content, space, size)
            case pb.MessageMetadata.ZLIB:
                written = cramjam.zlib.decompress_into(content, space)
            case pb.MessageMetadata.ZSTD:
                written = cramjam.zstd.decompress_into(content, space)
            case pb.MessageMetadata.SNAPPY:
                written = cramjam.snappy.decompress_raw_into(content, space)
            case _:
                raise ProtocolError(f"unknown compression {codec}")
    except (cramjam.DecompressionError, OSError, ValueError) as error:
        raise ProtocolError(f"a content cannot be uncompressed: {error}") from None
    if written != size:
        raise ProtocolError(f"a content has {written} bytes, but its metadata says {size}")
    return bytes(space)
