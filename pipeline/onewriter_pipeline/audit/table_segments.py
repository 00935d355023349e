"""Facts from the table ``segments``: markers, runs, publishes, and missing rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onewriter_core.ids import EARLIEST, Position
from onewriter_pipeline.audit import facts
from onewriter_pipeline.audit.table_files import Offloaded, Publish
from onewriter_pipeline.tables.digest import DIGESTS, shown
from onewriter_pipeline.tables.layout import SegmentRow
from onewriter_pipeline.tables.publishes import PublishRun, extended, torn


def segment_facts(rows: Sequence[SegmentRow]) -> Iterator[dict[str, Any]]:
    """The rows of ``segments`` as markers and runs.

    Nothing is expected before the position at which a log begins in the table.
    """
    begun: set[str] = set()
    for (log, ledger), parts in _by_ledger(rows).items():
        first = parts[0]
        yield {
            "log": log,
            "kind": facts.MARKER,
            "ledger": ledger,
            "first": 0,
            "last": 0 if log in begun else first.first - 1,
            "epoch": first.epoch,
            "producer": first.producer,
            "subject": first.subject or "",
        }
        begun.add(log)
        for part in parts:
            if part.entries:
                yield {
                    "log": log,
                    "kind": facts.RUN,
                    "ledger": ledger,
                    "first": part.first,
                    "last": part.end - 1,
                    "entries": part.entries,
                    "messages": part.messages,
                    "bytes": part.bytes,
                }


def publishes_of(rows: Sequence[SegmentRow]) -> dict[str, list[Publish]]:
    """The atomic publishes of each log, from rows of ``segments``."""
    found: dict[str, list[Publish]] = {}
    for (log, ledger), parts in _by_ledger(rows).items():
        publishes = found.setdefault(log, [])
        for part in parts:
            if part.publishes is None:
                publishes.append(Publish(ledger, part.first, part.end, None, ""))
        publishes += [
            Publish(ledger, each.first, each.end, each.app, _name(each))
            for each in _publish_runs(parts)
        ]
    return found


def publish_facts(
    rows: Sequence[SegmentRow], ends: Mapping[str, Position]
) -> Iterator[dict[str, Any]]:
    """The publishes as facts, and faults for incomplete ones; ``ends``: the end of each log in the table."""
    for (log, ledger), parts in _by_ledger(rows).items():
        runs = _publish_runs(parts)
        for each in runs:
            yield {
                "log": log,
                "kind": facts.PUBLISH,
                "ledger": ledger,
                "first": each.first,
                "last": each.end - 1,
                "producer": each.app,
                "sequence": each.version,
                "last_sequence": each.last_version,
            }
        end = parts[-1].end
        following = end + (ends.get(log, EARLIEST) > Position(ledger, end))
        for each in torn(runs, following):
            here, first = Position(ledger, each.end), Position(ledger, each.first)
            sentence = f"only a part of publish {each.app}/{each.last_version} is before {here}"
            yield {
                "log": log,
                "kind": facts.FAULT,
                "predicate": "S15",
                "place": f"{first},{here}",
                "sentence": sentence,
            }


def unknown_publishes(rows: Sequence[SegmentRow]) -> Iterator[str]:
    """Notes about ranges whose publishes the table does not list."""
    for row in rows:
        if row.publishes is None:
            ledger, first, end = row.ledger, row.first, row.end
            span = f"{Position(ledger, first)} to {Position(ledger, end - 1)}"
            yield (
                f"{row.topic}: {span} have more atomic publishes than a table notes: whose its entries"
                " are was not checked there"
            )


def _publish_runs(parts: Sequence[SegmentRow]) -> tuple[PublishRun, ...]:
    """The known publishes of the parts of a ledger."""
    found: tuple[PublishRun, ...] = ()
    for part in parts:
        found = extended(found, part.publishes or ())
    return found


def _name(run: PublishRun) -> str:
    versions = f"{run.version}"
    if run.last_version != run.version:
        versions += f" to {run.last_version}"
    return f"{run.app}/{versions}"


def count_faults(
    rows: Sequence[SegmentRow], counted: Mapping[tuple[str, int], tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Faults for ledgers whose files have another number of rows than were offloaded.

    ``counted``: rows and first entry of the files, by log and ledger. Rows that retention dropped from the
    beginning of a table are not a fault.
    """
    kept: dict[str, int] = {}
    for log, ledger in counted:
        kept[log] = min(ledger, kept.get(log, ledger))
    for (log, ledger), parts in _by_ledger(rows).items():
        offloaded = sum(part.rows for part in parts)
        found, first = counted.get((log, ledger), (0, None))
        was_dropped = ledger < kept.get(log, ledger + 1) or (
            ledger == kept.get(log) and first is not None and first > parts[0].first
        )
        if found != offloaded and not (was_dropped and found < offloaded):
            yield {
                "log": log,
                "kind": facts.FAULT,
                "predicate": "S5",
                "place": str(Position(ledger, parts[0].first)),
                "sentence": f"{offloaded} messages of ledger {ledger} were offloaded, the table has"
                f" {found}",
            }


def offloaded_of(rows: Sequence[SegmentRow]) -> dict[str, list[Offloaded]]:
    """What was offloaded of each log, part by part."""
    found: dict[str, list[Offloaded]] = {}
    for (log, ledger), parts in _by_ledger(rows).items():
        found.setdefault(log, []).extend(
            Offloaded(ledger, part.first, part.end) for part in parts if part.entries
        )
    return found


def digest_faults(rows: Sequence[SegmentRow], observed: pa.Table) -> Iterator[dict[str, Any]]:
    """Faults for parts whose rows differ from those that were offloaded.

    Where the number of rows differs, ``count_faults`` reports it.
    """
    digests = observed.filter(pc.equal(observed["kind"], facts.DIGEST))
    columns = ("log", "ledger", "first", "messages", "uuid")
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    for log, ledger, first, count, text in zip(
        *(digests[name].to_pylist() for name in columns), strict=True
    ):
        before, digest = found.get((log, ledger, first), (0, 0))
        found[log, ledger, first] = before + count, (digest + int(text, 16)) % DIGESTS
    for (log, ledger), parts in _by_ledger(rows).items():
        for part in parts:
            count, digest = found.get((log, ledger, part.first), (0, 0))
            if part.rows and count == part.rows and shown(digest) != part.digest:
                last = Position(ledger, part.end - 1)
                yield {
                    "log": log,
                    "kind": facts.FAULT,
                    "predicate": "S7",
                    "place": f"{Position(ledger, part.first)},{last}",
                    "sentence": f"the messages {Position(ledger, part.first)} to {last} in the table are"
                    " not those that were offloaded: their digest is"
                    f" {shown(digest)} instead of {part.digest}",
                }


def _by_ledger(
    rows: Sequence[SegmentRow],
) -> dict[tuple[str, int], list[SegmentRow]]:
    found: dict[tuple[str, int], list[SegmentRow]] = {}
    for row in sorted(rows, key=lambda each: (each.topic, each.ledger, each.first)):
        if row.lost:
            continue  # a row about a loss covers nothing that was offloaded
        found.setdefault((row.topic, row.ledger), []).append(row)
    return found


def in_order(table: pa.Table) -> pa.Table:
    """Facts of tables with ordinals. In tables, the order of positions is the order of the log."""
    kinds = pc.if_else(pc.equal(table["kind"], facts.MARKER), 0, 1)
    keys = table.select(["log", "ledger", "first", "chunk"]).append_column("place", kinds)
    names = ("log", "ledger", "place", "first", "chunk")
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names])
    ordered = table.take(order)
    at = ordered.schema.get_field_index("ordinal")
    return ordered.set_column(at, "ordinal", pa.array(np.arange(len(ordered)), pa.int64()))


def counted_of(table: pa.Table) -> dict[tuple[str, int], tuple[int, int]]:
    """The number of rows and the first entry, by log and ledger."""
    runs = table.filter(pc.equal(table["kind"], facts.KEPT))
    grouped = runs.group_by(["log", "ledger"]).aggregate([("messages", "sum"), ("first", "min")])
    return {
        (row["log"], row["ledger"]): (row["messages_sum"], row["first_min"])
        for row in grouped.to_pylist()
    }


def settled_ledger(end: Position) -> int:
    """The highest ledger whose marker a table must have that ends there."""
    return end.ledger if end.entry > 1 else end.ledger - 1
