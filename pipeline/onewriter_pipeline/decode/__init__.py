"""Entries of a log, as Pulsar's clients made them, into Arrow columns: thousands at once."""

from onewriter_pipeline.decode.decoder import CorruptEntry, Decoder

__all__ = ["CorruptEntry", "Decoder"]
