"""What scripts/own.lua and own_drop.lua do, on a dataset in memory."""

from __future__ import annotations

from dataclasses import replace

from onewriter_broker.log.api import BrokenKey, Outcome, OwnedRecord, OwnWrite
from onewriter_broker.log.keys import Keys
from onewriter_broker.log.memory_scripts import add_audit, check_key, refusal
from onewriter_broker.log.memory_server import Change, Dataset, MemoryNode


def owned_in(keys: Keys, dataset: Dataset, bucket: int) -> dict[str, OwnedRecord]:
    """A bucket's records."""
    check_key(dataset, keys.own(bucket))
    check_key(dataset, keys.owners(bucket))
    return dict(dataset.owned.get(bucket, {}))


def owning(keys: Keys, node: MemoryNode, write: OwnWrite) -> Outcome | Change | None:
    """The change that the write makes; an Outcome: it is refused; None: there is nothing to write."""
    bucket, dataset = write.binding.bucket, node.dataset
    refused = refusal(keys, node, write.binding)
    if refused is not None:
        return refused
    if write.dropped or write.floors:
        return _dropping(keys, dataset, write)
    if not write.records:
        return _settling(bucket, write.binding.generation) if write.settles else None
    check_key(dataset, keys.audit(bucket))
    present = owned_in(keys, dataset, bucket)
    for field, record in write.records.items():
        found = present.get(field)
        if found is not None and found.generation > record.generation:
            text = f"generation {found.generation} of {field} was never granted"
            raise BrokenKey(f"{keys.own(bucket)}: {text}")
    records, audits = dict(write.records), [dict(each) for each in write.audits]
    stands = all(present.get(field) == record for field, record in records.items())

    def change(dataset: Dataset) -> None:
        dataset.owned.setdefault(bucket, {}).update(records)
        unit = dataset.units[bucket]
        dataset.units[bucket] = replace(unit, last_ledger=max(unit.last_ledger, write.ledger))
        for audit in () if stands else audits:
            add_audit(dataset, bucket, audit)

    return change


def _dropping(keys: Keys, dataset: Dataset, write: OwnWrite) -> Change:
    bucket, (audit,) = write.binding.bucket, write.audits
    check_key(dataset, keys.audit(bucket))
    present = owned_in(keys, dataset, bucket)
    for field, generation in write.dropped.items():
        found = present.get(field)
        if found is not None and found.generation > generation:
            text = f"generation {found.generation} of {field} was never granted"
            raise BrokenKey(f"{keys.own(bucket)}: {text}")
    is_there = not present.keys().isdisjoint(write.dropped)

    def change(dataset: Dataset) -> None:
        held = dataset.owned.setdefault(bucket, {})
        for name, floor in write.floors.items():
            before = held.get(name)
            highest = max(floor, 0 if before is None else before.generation)
            held[name] = OwnedRecord(highest, "")
        for name in (*write.floors_removed, *write.dropped):
            held.pop(name, None)
        if is_there:
            add_audit(dataset, bucket, audit)

    return change


def _settling(bucket: int, generation: int) -> Change:
    def change(dataset: Dataset) -> None:
        dataset.owned_settled[bucket] = generation

    return change
