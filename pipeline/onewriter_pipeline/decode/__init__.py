"""Decodes entries of a log, as Pulsar's clients sent them, to Arrow columns, thousands at once."""

from onewriter_pipeline.decode.decoder import CorruptEntry, Decoder

__all__ = ["CorruptEntry", "Decoder"]
