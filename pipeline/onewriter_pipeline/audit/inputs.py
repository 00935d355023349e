"""Facts and records by what they are: the small tables that checks name, each with the columns it needs. Pure.

They are made here and not by SQL because a query that begins with less is planned in less time, and
most audits are of little: then planning is what takes long.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onewriter_pipeline.audit import facts

_PLACE: Final = ("log", "ordinal", "ledger", "first", "last")
_SIZES: Final = ("entries", "messages", "bytes")
_NUMBERS: Final = ("sequence", "chunk", "published_ms", "uuid")
_WRITER: Final = ("producer", *_NUMBERS, *(f"last_{name}" for name in _NUMBERS))

_OF_FACTS: Final = {
    "along": ((facts.RUN, facts.MARKER, facts.CUT), ("kind", *_PLACE, *_SIZES)),
    "markers": (
        (facts.MARKER,),
        (*_PLACE, "epoch", "producer", "subject", "owner", "time_ms"),
    ),
    "writers": ((facts.WRITER,), (*_PLACE, *_WRITER)),
    "wrongs": ((facts.FALL, facts.TORN), ("kind", *_PLACE, *_WRITER)),
    "publishes": ((facts.PUBLISH,), (*_PLACE, "producer", "sequence", "last_sequence")),
    "publishers": ((facts.PUBLISHER,), (*_PLACE, "producer", "uuid", "subject", "pod_uid")),
    "kept": ((facts.KEPT,), (*_PLACE, "chunk", "last_chunk")),
}
"""The kinds of facts that a table is made of, and its columns."""

_OF_RECORDS: Final = {
    "fence_records": "fenced",
    "resumes": "resumed",
    "losses": "loss",
    "forgets": "forget",
    "recorded": "publisher",
    "ready": "ready",
}
"""The kind of records that a table is made of."""

NAMES: Final = (*_OF_FACTS, *_OF_RECORDS, "first_fences", "choices", "held", "logs", "remembered")
"""All of them. ``first_fences``: the first record of each ledger; ``choices``: those of fences that chose between
two who waited; ``held``: markers of ledgers that belong to one alone; ``remembered``: logs of which the store was
asked what it remembers.
"""


def tables_of(observed: pa.Table, records: pa.Table, logs: pa.Table) -> dict[str, pa.Table]:
    """All tables, by facts.FACTS, records.RECORDS and checks.LOGS."""
    found = {
        name: observed.filter(pc.is_in(observed["kind"], pa.array(kinds))).select(list(columns))
        for name, (kinds, columns) in _OF_FACTS.items()
    }
    found |= {
        name: records.filter(pc.equal(records["kind"], kind)) for name, kind in _OF_RECORDS.items()
    }
    fenced, markers = found["fence_records"], found["markers"]
    is_choice = pc.and_(pc.is_valid(fenced["promoted"]), pc.is_valid(fenced["waiting"]))
    is_held = pc.and_(pc.is_valid(markers["epoch"]), pc.is_valid(markers["producer"]))
    return found | {
        "first_fences": _first_of_each(fenced, ["log", "ledger"]),
        "choices": fenced.filter(is_choice),
        "held": markers.filter(is_held),
        "logs": logs,
        "remembered": logs.filter(pc.is_valid(logs["state_ledger"])),
    }


def _first_of_each(table: pa.Table, keys: list[str]) -> pa.Table:
    """The first row of all that have the same keys."""
    numbered = table.select(keys).append_column("row", pa.array(np.arange(len(table))))
    first = numbered.group_by(keys).aggregate([("row", "min")])
    return table.take(first["row_min"].sort())
