"""Consumers and readers: from a delivered entry to a message.

``link`` is one SUBSCRIBE on one connection, and ``stream`` continues it across connections. ``unpacker``
turns entries into messages, ``chunks`` joins the parts of large ones, ``window`` computes permits.
``source`` is what ``consumer`` and ``reader`` have in common.
"""
