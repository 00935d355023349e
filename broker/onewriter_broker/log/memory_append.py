"""What append.lua and together.lua do, on a dataset in memory; for MemoryLogStore (memory.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onewriter_broker.log.api import Append, Binding, BrokenKey, Marker, Outcome
from onewriter_broker.log.keys import Keys
from onewriter_broker.log.memory_scripts import (
    add_block,
    check_key,
    guard_refusal,
    log_refusal,
    note_publish,
    publish_refusal,
    raise_floor,
    refusal,
    token_refusal,
)
from onewriter_broker.log.memory_server import Change, Dataset, Log, MemoryNode, no_change
from onewriter_core.ids import TopicName

Execute = Callable[[MemoryNode, Change, Binding], None]
"""Execute a change at a node; what it wrote may be committed."""


class MemoryAppends:
    """Appends to the logs of one server."""

    def __init__(self, keys: Keys, execute: Execute) -> None:
        self._keys = keys
        self._execute = execute

    def append(self, node: MemoryNode, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        """Blocks of any logs, one answer each."""
        stopped: dict[TopicName, Outcome] = {}
        answers: list[Outcome | BrokenKey] = []
        for item in appends:
            try:
                outcome = self._append(node, item, stopped.get(item.topic))
            except BrokenKey as broken:  # as is every later block of the log
                answers.append(broken)
                continue
            if outcome is not Outcome.DONE:
                stopped[item.topic] = _behind(outcome)
            answers.append(outcome)
        return answers

    def together(self, node: MemoryNode, appends: Sequence[Append]) -> list[Outcome | BrokenKey]:
        """Blocks of several logs of one bucket, all or none."""
        found = [self._hindrance(node, item) for item in appends]
        if all(each is None for each in found):
            self._execute(node, _additions(appends), appends[0].binding)
            return [Outcome.DONE] * len(appends)
        return [self._unhindered(node, item, why) for item, why in zip(appends, found, strict=True)]

    def _hindrance(self, node: MemoryNode, item: Append) -> Outcome | BrokenKey | None:
        """Why this block keeps all of them out; FENCED also where its place is taken."""
        dataset = node.dataset
        try:
            refused = log_refusal(self._keys, node, item.binding, item.topic, item.token)
            if refused is not None:
                return refused
            check_key(dataset, self._keys.log(item.topic))
        except BrokenKey as broken:
            return broken
        log = dataset.logs.get(item.topic)
        if log is None:
            return Outcome.LOST
        if item.block.position <= log.last:
            return Outcome.FENCED
        return self._unguarded(dataset, item)

    def _unhindered(
        self, node: MemoryNode, item: Append, why: Outcome | BrokenKey | None
    ) -> Outcome | BrokenKey:
        """What is said of a block when not all could be appended."""
        if isinstance(why, BrokenKey) or why in {Outcome.REFENCE, Outcome.LOST}:
            return why or Outcome.LOST
        is_owner = refusal(self._keys, node, item.binding) is None
        settled = self._settle(node, item, node.dataset.logs.get(item.topic), is_owner=is_owner)
        if settled is not Outcome.FENCED or why is Outcome.FENCED:
            return settled
        return (why or Outcome.HELD) if item.never_sent else Outcome.REFENCE

    def _append(self, node: MemoryNode, item: Append, stopped: Outcome | None) -> Outcome:
        dataset, binding, block = node.dataset, item.binding, item.block
        refused = refusal(self._keys, node, binding)
        outcome = refused or token_refusal(self._keys, dataset, item.topic, item.token) or stopped
        if outcome is Outcome.HELD and not item.never_sent:
            outcome = Outcome.REFENCE
        if outcome in {None, Outcome.FENCED}:
            check_key(dataset, self._keys.log(item.topic))
        log = dataset.logs.get(item.topic)
        if outcome is None and log is None:
            outcome = Outcome.LOST
        unguarded = self._unguarded(dataset, item) if outcome is None else None
        if unguarded is not None and item.never_sent:
            return unguarded
        if outcome is None and unguarded is None and log and block.position > log.last:
            self._add(node, item)
            return Outcome.DONE
        if outcome not in {None, Outcome.FENCED}:
            return outcome or Outcome.FENCED
        settled = self._settle(node, item, log, is_owner=refused is None)
        return settled if unguarded is None or settled is Outcome.DONE else Outcome.REFENCE

    def _unguarded(self, dataset: Dataset, item: Append) -> Outcome | None:
        """Why its guard, or an atomic publish, keeps the block out; None: nothing does."""
        refused = publish_refusal(dataset.states[item.topic], item)
        if refused is not None or item.guard is None:
            return refused
        return guard_refusal(self._keys, dataset, item.binding, item.topic, item.guard)

    def _add(self, node: MemoryNode, item: Append) -> None:
        self._execute(node, _additions([item]), item.binding)

    def _settle(
        self, node: MemoryNode, item: Append, log: Log | None, *, is_owner: bool
    ) -> Outcome:
        """What can be said about a block that may not be appended (any more)."""
        stored = log.blocks if log is not None else []
        for present in stored:
            if present.position == item.block.position:
                if isinstance(present, Marker) or present.chain != item.block.chain:
                    return Outcome.FENCED
                if not is_owner:
                    return Outcome.UNKNOWN
                self._execute(node, no_change, item.binding)
                return Outcome.DONE
        is_definite = item.never_sent or (stored and stored[0].position <= item.block.position)
        return Outcome.FENCED if is_definite else Outcome.UNKNOWN


def _additions(appends: Sequence[Append]) -> Change:
    def change(dataset: Dataset) -> None:
        for item in appends:
            add_block(dataset, item.topic, item.block)
            raise_floor(dataset, item.topic, item.guard)
            note_publish(dataset, item)

    return change


def _behind(outcome: Outcome) -> Outcome:
    """What later blocks of a log are answered behind one that was answered so."""
    match outcome:
        case Outcome.LOST | Outcome.REFENCE:
            return outcome
        case Outcome.STALE | Outcome.AHEAD | Outcome.HELD:
            return Outcome.HELD
        case _:
            return Outcome.FENCED
