"""Reads the rows of a topic with a stock client, and checks that each is there once and in order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pulsar

READ_MILLISECONDS = 60_000
ROWS_SHOWN = 10


class Rows:
    """The numbers in a topic's messages, in the order of the log; ``read`` continues where it ended."""

    def __init__(self, client: Any, topic: str) -> None:
        self.numbers: list[int] = []
        self._client, self._topic = client, topic
        self._behind = pulsar.MessageId.earliest

    def read(self) -> list[int]:
        """All numbers that the topic has now."""
        reader = self._client.create_reader(self._topic, self._behind)
        while reader.has_message_available():
            message = reader.read_next(READ_MILLISECONDS)
            self._behind = message.message_id()
            self.numbers.append(int(message.data()))
        reader.close()
        return self.numbers


def stored(client: Any, topic: str) -> list[int]:
    """All numbers of a topic."""
    return Rows(client, topic).read()


def faults(found: Sequence[int], count: int) -> list[str]:
    """What is wrong if rows 0 to ``count`` should be there once, in order; empty: nothing."""
    counted = Counter(found)
    groups = {
        "lost": [each for each in range(count) if each not in counted],
        "doubled": [each for each, times in counted.items() if times > 1],
        "from nowhere": [each for each in counted if not 0 <= each < count],
        "behind a later one": [each for before, each in itertools.pairwise(found) if each < before],
    }
    return [
        f"{len(rows)} rows are {what}: {', '.join(map(str, rows[:ROWS_SHOWN]))}"
        for what, rows in groups.items()
        if rows
    ]
