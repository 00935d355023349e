"""Pulsar's binary protocol without I/O: from bytes to commands and back, for both sides.

frames (lengths, slabs) → commands (typed; those of the data path in decoding and encoding) → server | client (order
of commands). ``messages`` reads and builds the entries that frames carry. ``replies`` builds the usual answers.
"""
