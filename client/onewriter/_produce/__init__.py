"""Producers: from a message to its receipt.

``packer`` turns messages into entries, ``intake`` accepts messages in the order of the calls, ``outbox``
keeps what has no receipt. ``registration`` is one PRODUCER command on one connection, and ``tenure``
keeps the topic across connections. ``producer`` joins them; ``guarded`` is a producer whose writes depend
on another topic.
"""
