"""What the scripts of log/scripts do, on a dataset in memory: the guards, a fence, changes of fields.

For MemoryLogStore (memory.py), and as pure as the scripts are: a node's dataset in, an Outcome or a
Change out. A key that was replaced (``Dataset.foreign``) raises BrokenKey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onewriter_broker.log.api import (
    FLOOR_PREFIX,
    OPEN_PUBLISH,
    VERSION_PREFIX,
    Append,
    Binding,
    BrokenKey,
    Fence,
    FencedLog,
    Guard,
    GuardKind,
    Marker,
    Outcome,
    StoredBlock,
    Unit,
)
from onewriter_broker.log.blocks import publish_of
from onewriter_broker.log.keys import Keys
from onewriter_broker.log.memory_server import Change, Dataset, Log, MemoryNode, no_change
from onewriter_broker.log.topic_log import LEDGER_ENDS, TRIMMED
from onewriter_core.ids import Position, TopicName
from onewriter_core.own.floors import decode
from onewriter_core.own.names import split_field

AUDIT_RECORDS_MAX = 10_000
"""Audit records kept per bucket."""


def check_key(dataset: Dataset, key: str) -> None:
    """Raises BrokenKey for a key that somebody else wrote."""
    if key in dataset.foreign:
        raise BrokenKey(f"{key}: WRONGTYPE")


def refusal(keys: Keys, node: MemoryNode, binding: Binding) -> Outcome | None:
    """The guard of scripts/guard.lua."""
    if node.replid != binding.replid:
        return Outcome.REFENCE
    check_key(node.dataset, keys.unit(binding.bucket))
    unit = node.dataset.units.get(binding.bucket, Unit())
    if unit.generation == 0:
        return Outcome.LOST
    if unit.generation > binding.generation:
        return Outcome.REFENCE
    if unit.owner != binding.owner:
        return Outcome.FENCED
    return None if unit.version == binding.version else Outcome.REFENCE


def log_refusal(
    keys: Keys, node: MemoryNode, binding: Binding, topic: TopicName, token: str
) -> Outcome | None:
    """Both guards of what writes to one log: the bucket's, and the log's own."""
    return refusal(keys, node, binding) or token_refusal(keys, node.dataset, topic, token)


def token_refusal(keys: Keys, dataset: Dataset, topic: TopicName, token: str) -> Outcome | None:
    """The log's state names another token, or none."""
    check_key(dataset, keys.state(topic))
    held = dataset.states.get(topic, {}).get("tok")
    if held is None:
        return Outcome.LOST
    return None if held == token else Outcome.FENCED


def guard_refusal(
    keys: Keys, dataset: Dataset, binding: Binding, topic: TopicName, guard: Guard
) -> Outcome | None:
    """STALE or AHEAD where what a guarded write depends on is not as it says."""
    match guard.kind:
        case GuardKind.FLOOR:
            floor = int(dataset.states[topic].get(guard.floor_field, "0"))
            return Outcome.STALE if floor > guard.number else None
        case GuardKind.EPOCH:
            other = TopicName.parse(guard.name)
            state = dataset.states.get(other, {})
            is_settled = state.get("generation") == str(binding.generation)
            if keys.state(other) in dataset.foreign or not is_settled:
                return Outcome.AHEAD
            current, highest = int(state.get("leads", "0")), int(state.get("epoch", "0"))
        case GuardKind.OWNERSHIP:
            is_settled = dataset.owned_settled.get(binding.bucket) == binding.generation
            if keys.own(binding.bucket) in dataset.foreign or not is_settled:
                return Outcome.AHEAD
            records = dataset.owned.get(binding.bucket, {})
            record = records.get(guard.name)
            floors = decode({name: each.generation for name, each in records.items()})
            current = 0 if record is None else record.generation
            highest = current or floors.of(split_field(guard.name)[0])
    if current == guard.number:
        return None
    return Outcome.STALE if highest >= guard.number else Outcome.AHEAD


def raise_floor(dataset: Dataset, topic: TopicName, guard: Guard | None) -> None:
    """Leave the number of a guarded write as the floor for those to come."""
    if guard is not None and guard.kind is GuardKind.FLOOR:
        state = dataset.states[topic]
        floor = int(state.get(guard.floor_field, "0"))
        state[guard.floor_field] = str(max(floor, guard.number))


def keep_floors(state: Mapping[str, str], changes: dict[str, str]) -> dict[str, str]:
    """What a fence sets, with no floor and no published version below the one that stands."""
    for name, value in changes.items():
        if name.startswith((FLOOR_PREFIX, VERSION_PREFIX)):
            changes[name] = str(max(int(value), int(state.get(name, "0"))))
    return changes


def keep_cut(state: Mapping[str, str], changes: dict[str, str]) -> dict[str, str]:
    """What a trim sets; one that comes late, behind one that cut farther, leaves what that one noted."""
    kept, cut = state.get(TRIMMED), changes.get(TRIMMED)
    if kept is not None and cut is not None and Position.parse(cut) < Position.parse(kept):
        changes |= {name: state[name] for name in (TRIMMED, LEDGER_ENDS) if name in state}
    return changes


def fenceable(keys: Keys, dataset: Dataset, fence: Fence, fenced: FencedLog) -> Outcome | None:
    """DONE when the log already carries this very fence, None when it may be fenced."""
    check_key(dataset, keys.audit(fence.binding.bucket))
    check_key(dataset, keys.state(fenced.topic))
    check_key(dataset, keys.log(fenced.topic))
    log, state = dataset.logs.get(fenced.topic), dataset.states.get(fenced.topic, {})
    held = state.get("tok")
    if log is not None and held == fence.binding.token(fence.ledger):
        for block in log.blocks:
            if isinstance(block, Marker) and block.position == Position(fence.ledger, 0):
                return Outcome.DONE
    if not fenced.create and (log is None or held is None):
        return Outcome.LOST
    reached = max(0 if log is None else log.last.ledger, int(state.get("ledger", "0")))
    if reached < fence.ledger:
        return None
    known = dataset.units[fence.binding.bucket].last_ledger
    if known and reached > known:
        raise BrokenKey(f"{keys.log(fenced.topic)}: ledger {reached} was never opened")
    return Outcome.FENCED


def fencing(fence: Fence, logs: Sequence[FencedLog]) -> Change:
    """The markers, states and audit record of a fence of these of its logs."""
    if not logs:
        return no_change
    binding, ledger = fence.binding, fence.ledger
    own = {"owner": binding.owner, "gen": str(binding.generation)}
    token = {"tok": binding.token(ledger), "ledger": str(ledger)}
    markers = [(log.topic, Marker(Position(ledger, 0), {**own, **log.marker})) for log in logs]
    states = [(log.topic, {**token, **log.state}) for log in logs]
    audit = dict(fence.audit)

    def change(dataset: Dataset) -> None:
        for topic, marker in markers:
            aborted = drop_open(dataset, topic)
            add_block(dataset, topic, replace(marker, fields={**marker.fields, **aborted}))
        for topic, state in states:
            present = dataset.states.setdefault(topic, {})
            present.update(keep_floors(present, dict(state)))
        unit = dataset.units[binding.bucket]
        dataset.units[binding.bucket] = replace(unit, last_ledger=max(unit.last_ledger, ledger))
        if audit:
            add_audit(dataset, binding.bucket, audit)

    return change


def publish_refusal(state: Mapping[str, str], item: Append) -> Outcome | None:
    """Why a block may not stand here by what is published as a whole; None: it may."""
    opened = state.get(OPEN_PUBLISH, "").partition(" ")[0]
    publish = item.block.publish
    if not publish or not item.opens:
        return None if opened == publish else Outcome.REFENCE
    if opened:
        return Outcome.REFENCE
    app, version = publish_of(publish)
    held = state.get(f"{VERSION_PREFIX}{app}")
    return Outcome.STALE if held is not None and int(held) >= version else None


def note_publish(dataset: Dataset, item: Append) -> None:
    """What follows from a part of a publish that is appended."""
    state, block = dataset.states[item.topic], item.block
    if block.commits:
        app, version = publish_of(block.publish)
        state[f"{VERSION_PREFIX}{app}"] = str(version)
        state.pop(OPEN_PUBLISH, None)
    elif item.opens:
        entries = " ".join(str(each.entry) for each in item.opens)
        state[OPEN_PUBLISH] = f"{block.publish} {block.position.ledger} {entries}"


def drop_open(dataset: Dataset, topic: TopicName) -> dict[str, str]:
    """Drop what there is of a publish that was not committed; what the marker says of it."""
    opened = dataset.states.get(topic, {}).pop(OPEN_PUBLISH, "")
    if not opened:
        return {}
    name, ledger, *entries = opened.split(" ")
    gone = {Position(int(ledger), int(entry)) for entry in entries}
    log = dataset.logs.setdefault(topic, Log())
    log.blocks = [block for block in log.blocks if block.position not in gone]
    return {"aborted": name}


def add_block(dataset: Dataset, topic: TopicName, block: StoredBlock) -> None:
    """Append to a log."""
    log = dataset.logs.setdefault(topic, Log())
    log.blocks.append(block)
    log.last = block.position


def add_audit(dataset: Dataset, bucket: int, record: Mapping[str, str]) -> None:
    """Append to a bucket's audit stream."""
    dataset.audits_written += 1
    records = dataset.audits.setdefault(bucket, [])
    records.append((f"{dataset.audits_written}-0", dict(record)))
    del records[:-AUDIT_RECORDS_MAX]


def bear(dataset: Dataset, bucket: int, birthmark: str) -> None:
    """Leave a birthmark."""
    unit = dataset.units.get(bucket, Unit())
    dataset.units[bucket] = replace(unit, birthmark=birthmark)


def change_fields(target: dict[str, str], fields: Mapping[str, str], remove: Sequence[str]) -> None:
    """Set and remove fields of a hash."""
    target.update(fields)
    for name in remove:
        target.pop(name, None)


def change_state(
    dataset: Dataset, topic: TopicName, fields: Mapping[str, str], remove: Sequence[str]
) -> None:
    """Set and remove fields of a log's state; a floor is raised, never lowered."""
    state = dataset.states[topic]
    change_fields(state, keep_floors(state, dict(fields)), remove)
