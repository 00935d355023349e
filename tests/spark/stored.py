"""What a topic holds, as a stock client reads it."""

from __future__ import annotations

from typing import Any

import pulsar

READ_MILLISECONDS = 60_000


def stored(client: Any, topic: str) -> list[int]:
    """The numbers that are a topic's messages, in the log's order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(READ_MILLISECONDS).data()))
    reader.close()
    return found
