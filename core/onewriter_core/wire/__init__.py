"""Pulsar's binary protocol without any I/O: bytes in, commands out, and back; both sides.

frames (lengths, slabs) → commands (typed, hot ones by hand in hot) → server | client (order of
commands). messages reads and builds the entries that frames carry; replies builds usual answers.
"""
