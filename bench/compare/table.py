"""The decision table of the access modes, cell by cell, and what stands beside it.

Each row is one question to a broker whose answer is compared: who is granted, who waits, who is
refused with which error, and what becomes of those who were there before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.compare.scenario import UNFINISHED
from bench.compare.stage import GRANTED, Side, Stage, answer_to
from tests.integration.raw import (
    EXCLUSIVE,
    FENCING,
    SHARED,
    WAIT,
    RawProducer,
)

from onewriter_core.wire.proto import PulsarApi_pb2 as pb

ROUNDS = 3
"""How often each question is asked; the answers must agree."""

QUIET_SECONDS = 0.5
"""For the broker to tell the others what has happened, and to notice a connection that closed."""

HOLDERS = 5

MODES = {
    "Shared": SHARED,
    "Exclusive": EXCLUSIVE,
    "WaitForExclusive": WAIT,
    "ExclusiveWithFencing": FENCING,
}

STATES = {
    "nobody": "no other producer",
    "shared": "Shared producers",
    "shared-waiter": "Shared producers, one waiter",
    "owner": "an exclusive holder",
    "owner-waiter": "an exclusive holder, one waiter",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One question; ``difference`` is why the answers differ, empty where they must be the same."""

    key: str
    asks: str
    play: Callable[[Stage], str]
    difference: str = ""
    rounds: int = ROUNDS


@dataclass(slots=True)
class Answers:
    """What one broker said to one row, without repetitions."""

    said: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return " / ".join(self.said)


def ask(row: Row, side: Side) -> Answers:
    """Ask it some times; an answer that could not be had is one as well."""
    answers = Answers()
    for number in range(row.rounds):
        with Stage(side, f"compare-table-{row.key}-{number}", number) as stage:
            try:
                text = row.play(stage)
            except UNFINISHED as error:
                text = f"not finished ({type(error).__name__}: {error})"
        if text not in answers.said:
            answers.said.append(text)
    return answers


def _in_words(answer: str) -> str:
    """Errors as Pulsar spells them."""
    return answer if answer.islower() else answer.title().replace("_", "")


def _cell(mode: str, state: str, stage: Stage) -> str:
    writers, waiters = _occupy(stage, state)
    newcomer = stage.client().ask_producer(stage.topic, MODES[mode], name="newcomer")
    lines = [_in_words(answer_to(newcomer))]
    time.sleep(QUIET_SECONDS)
    lines += [f"the waiter: {_in_words(answer_to(w))}" for w in waiters if _is_answered(w)]
    still_write = [stage.writes(writer) for writer in writers]
    if writers and not any(still_write):
        lines.append("the others can no longer write")
    if lines[0] == GRANTED and not stage.writes(newcomer):
        lines.append("but it cannot write")
    return ", ".join(lines)


def _occupy(stage: Stage, state: str) -> tuple[list[RawProducer], list[RawProducer]]:
    writers: list[RawProducer] = []
    if state.startswith("shared"):
        names = ("first", "second")
        writers = [stage.client().producer(stage.topic, SHARED, name=name) for name in names]
    elif state.startswith("owner"):
        writers = [stage.client().producer(stage.topic, EXCLUSIVE, name="owner")]
    waits = state.endswith("-waiter")
    return writers, [stage.client().waiter(stage.topic, name="waiter")] if waits else []


def _is_answered(producer: RawProducer) -> bool:
    request_id = producer.command.request_id
    kinds: tuple[Any, ...] = (pb.CommandProducerSuccess, pb.CommandError)
    return any(
        producer.client.has_received(kind, lambda command: command.request_id == request_id)
        for kind in kinds
    )


def _rows_of_the_table() -> Iterator[Row]:
    for mode in MODES:
        for state, words in STATES.items():
            key = f"{mode}-{state}".lower()
            yield Row(key, f"{mode}: {words}", partial(_cell, mode, state))


def _comes_back(
    stage: Stage, *, mode: Any = EXCLUSIVE, name: str = "A", offset: int = 0, between: Any = None
) -> str:
    """A holder leaves without a word; somebody asks with its epoch, plus ``offset``."""
    first = stage.client()
    holder = first.producer(stage.topic, EXCLUSIVE, name="A")
    first.close()
    time.sleep(QUIET_SECONDS)
    if between is not None:
        stage.client().producer(stage.topic, between, name="between").close()
    epoch = (holder.epoch or 0) + offset
    again = stage.client().ask_producer(stage.topic, mode, name=name, epoch=epoch, reconnects=1)
    answer = _in_words(answer_to(again))
    if answer == GRANTED and mode != SHARED:
        answer += ", same epoch" if again.epoch == holder.epoch else ", another epoch"
    return answer


def _same_name(stage: Stage) -> str:
    stage.client().producer(stage.topic, SHARED, name="A")
    return _in_words(answer_to(stage.client().ask_producer(stage.topic, SHARED, name="A")))


def _numbers(stage: Stage) -> str:
    epochs = []
    for _ in range(HOLDERS):
        holder = stage.client().producer(stage.topic, EXCLUSIVE)
        epochs.append(str(holder.epoch))
        holder.close()
    return ", ".join(epochs)


TABLE = tuple(_rows_of_the_table())

BESIDE = (
    Row("name", "Shared, under the name of a connected Shared producer", _same_name),
    Row("resumes", "the last holder reconnects, no producer came after it", _comes_back),
    Row(
        "stale",
        "the last holder reconnects, another producer held the topic meanwhile",
        partial(_comes_back, between=EXCLUSIVE),
    ),
    Row(
        "shared-epoch",
        "Shared, with an epoch (the Go client sends one)",
        partial(_comes_back, mode=SHARED),
    ),
    Row(
        "shared-between",
        "the last holder reconnects, a Shared producer was connected meanwhile",
        partial(_comes_back, between=SHARED),
        difference="another producer has written: the right to resume has ended",
    ),
    Row(
        "other-name",
        "another producer reconnects with the last holder's epoch",
        partial(_comes_back, name="B"),
        difference="an epoch belongs to one holder, and only this holder resumes it",
    ),
    Row(
        "above",
        "the last holder reconnects with an epoch that was never granted",
        partial(_comes_back, offset=1000),
        difference="a broker never adopts an epoch from a client: the client is wrong, or the store has lost data",
    ),
    Row(
        "numbers",
        f"the epochs of {HOLDERS} holders, one after the other",
        _numbers,
        difference="an epoch is the number of a fence in the log: it rises, but not by one",
        rounds=1,
    ),
)
