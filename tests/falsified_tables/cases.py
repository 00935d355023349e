"""The falsifications: those that a trial of the pipeline made by hand, and a seeded set of many more."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from tests.falsified_tables.lab import COPIED, ORDERS, PAYMENTS, ROWS, Change, Falsify, Lab

from onewriter_pipeline.tables.layout import AUDIT, MESSAGES, SEGMENTS, SegmentRow

SEED: Final = 18
"""Seed of the targets of the generated falsifications."""

DEPTHS: Final = ("the file", "the file and its commit", "the file, its commit and the digests")
"""What is rewritten together, with rising knowledge of the falsifier."""


@dataclass(frozen=True, slots=True)
class Case:
    """A falsification. ``is_harmless``: readers get the same rows, so nothing has to find it."""

    name: str
    falsify: Falsify
    is_harmless: bool = False


def replaced(content: pa.Table, name: str, values: list[Any]) -> pa.Table:
    """The content with other values of a column."""
    at = content.schema.get_field_index(name)
    return content.set_column(at, content.field(at), pa.array(values, content.field(at).type))


def with_value(name: str, row: int, change: Callable[[Any], Any]) -> Change:
    """Change one value of a column."""

    def apply(content: pa.Table) -> pa.Table:
        values = content[name].to_pylist()
        values[row] = change(values[row])
        return replaced(content, name, values)

    return apply


def without(content: pa.Table, row: int) -> pa.Table:
    """The content without a row."""
    return pa.concat_tables([content.slice(0, row), content.slice(row + 1)])


def doubled(content: pa.Table, row: int) -> pa.Table:
    """The content with a row twice."""
    return pa.concat_tables([content, content.slice(row, 1)])


def swapped(content: pa.Table, row: int, other: int) -> pa.Table:
    """The content with two rows in each other's place: the same rows in another order."""
    order = list(range(content.num_rows))
    order[row], order[other] = order[other], order[row]
    return content.take(pa.array(order))


# ------------------------------------------------------------ from the trial


def _flipped(lab: Lab) -> None:
    """Flip a bit that changes a row. Some bits of a file, such as those of its statistics, change none."""
    path = lab.path(ORDERS, 7)
    whole, rows = path.read_bytes(), pq.ParquetFile(path).read()
    for at in range(4, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            if not pq.ParquetFile(path).read().equals(rows):
                return
        except (OSError, pa.ArrowException):
            return


def _deleted_by_engine(lab: Lab) -> None:
    where = "`__ledgerId` = 7 AND `__entryId` = 4"
    deltalake.DeltaTable(str(lab.folder(MESSAGES))).delete(where)


def _swapped_epochs(lab: Lab) -> None:
    others = {5: 7, 7: 5}
    lab.edit_rows(
        lambda row: replace(row, epoch=others.get(row.epoch or 0, row.epoch)),
        ORDERS,
        in_commits=False,
    )


def _upper(value: bytes) -> bytes:
    return value.upper()


def of_the_trial() -> list[Case]:
    """The falsifications that were tried by hand."""
    orders = partial(Lab.rewrite, log=ORDERS, ledger=7)
    raised = [each + 1 for each in [7] * ROWS]
    return [
        Case("a bit of a Parquet file is flipped", _flipped),
        Case(
            "one byte of a value is changed, and the file is written again",
            lambda lab: orders(lab, change=with_value("value", 4, lambda each: each[:-1] + b"x")),
        ),
        Case(
            "the epochs of all rows of a file are raised by 1",
            lambda lab: orders(lab, change=lambda each: replaced(each, "__epoch", raised)),
        ),
        Case("a row is dropped", lambda lab: orders(lab, change=lambda each: without(each, 0))),
        Case("a row is doubled", lambda lab: orders(lab, change=lambda each: doubled(each, 3))),
        Case("a file is removed", lambda lab: lab.path(ORDERS, 7).unlink()),
        Case(
            "two rows of a file are swapped",
            lambda lab: orders(lab, change=lambda each: swapped(each, 4, 9), depth=1),
            is_harmless=True,
        ),
        Case("another engine deletes a row", _deleted_by_engine),
        Case("the epochs of two rows of `segments` are swapped", _swapped_epochs),
        Case(
            "a row of `segments` is deleted",
            lambda lab: lab.edit_rows(lambda _: None, ORDERS, 7, in_commits=False),
        ),
        Case(
            "four grants are deleted from `audit`",
            lambda lab: lab.edit_audit(lambda each: None if each["ledger"] < 8 else each),
        ),
        Case("the newest commit of `messages` is removed", lambda lab: lab.remove_newest(MESSAGES)),
    ]


# ------------------------------------------------------------ generated


def generated(seed: int = SEED) -> list[Case]:
    """Many more, at places that a seed selects."""
    choose = random.Random(seed)
    return [
        *_of_rows(choose),
        *_of_descriptions(choose),
        *_of_files(choose),
        *_of_commits(choose),
        *_of_audit_records(choose),
    ]


def _of_rows(choose: random.Random) -> Iterator[Case]:
    changes: Mapping[str, Callable[[int], Change]] = {
        "a value is changed": lambda row: with_value("value", row, _upper),
        "a key is changed": lambda row: with_value("__key", row, _upper),
        "a property is changed": lambda row: with_value(
            "__messageProperties", row, lambda _: [("n", "0")]
        ),
        "an epoch is changed": lambda row: with_value("__epoch", row, lambda each: each + 1),
        "a producer is renamed": lambda row: with_value("__producerName", row, lambda _: "mallory"),
        "a sequence id is changed": lambda row: with_value(
            "__sequenceId", row, lambda each: each + 100
        ),
        "a time of publication is changed": lambda row: with_value(
            "__publishTime", row, lambda each: each.replace(minute=7)
        ),
        "a row is removed": lambda row: lambda content: without(content, row),
        "a row is doubled": lambda row: lambda content: doubled(content, row),
        "a row is replaced by its neighbour": lambda row: (
            lambda content: pa.concat_tables(
                [content.slice(0, row), content.slice(row - 1, 1), content.slice(row + 1)]
            )
        ),
        "two values are swapped": lambda row: (
            lambda content: replaced(content, "value", _swapped(content["value"].to_pylist(), row))
        ),
        "all rows but one are removed": lambda row: lambda content: content.slice(row, 1),
    }
    for what, make in changes.items():
        for depth, name in enumerate(DEPTHS):
            log, ledger = choose.choice(COPIED)
            row = choose.randrange(1, ROWS - 1)
            yield Case(
                f"{what}, in {name}",
                partial(Lab.rewrite, log=log, ledger=ledger, change=make(row), depth=depth),
            )


def _swapped(values: list[Any], row: int) -> list[Any]:
    return [*values[: row - 1], values[row], values[row - 1], *values[row + 1 :]]


def _of_descriptions(choose: random.Random) -> Iterator[Case]:
    changes: Mapping[str, Callable[[SegmentRow], SegmentRow | None]] = {
        "an epoch": lambda row: replace(row, epoch=(row.epoch or 0) - 1),
        "a producer": lambda row: replace(row, producer="mallory"),
        "a subject": lambda row: replace(row, subject="mallory@example"),
        "a cause": lambda row: replace(row, cause="resume"),
        "a number of bytes": lambda row: replace(row, bytes=row.bytes + 1),
        "a number of messages": lambda row: replace(row, messages=row.messages - 1),
        "a hash of a block": lambda row: replace(row, chain="0" * 32),
        "a digest": lambda row: replace(row, digest="0" * 16),
        "a time": lambda row: replace(row, newest_ms=(row.newest_ms or 0) + 1),
        "a whole row": lambda row: None,
    }
    for what, change in changes.items():
        for in_commits in (False, True):
            log, ledger = choose.choice(COPIED[:-1])
            where = "`segments` and the commits" if in_commits else "`segments`"
            verb = "removed from" if change(_any_row()) is None else "changed in"
            yield Case(
                f"{what} is {verb} {where}",
                partial(
                    Lab.edit_rows, change=change, log=log, ledger=ledger, in_commits=in_commits
                ),
            )


def _any_row() -> SegmentRow:
    return SegmentRow(
        topic=ORDERS, ledger=1, first=1, end=1, entries=0, messages=0, rows=0, bytes=0, digest="",
        publishes=(), batch=0,
    )  # fmt: skip


def _of_files(choose: random.Random) -> Iterator[Case]:
    log, ledger = choose.choice(COPIED)
    row, taken_bytes = choose.randrange(1, ROWS), choose.randrange(4, 90)

    def exchanged(lab: Lab) -> None:
        one, other = lab.path(ORDERS, 7), lab.path(PAYMENTS, 6)
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)

    def exchanged_with_commits(lab: Lab) -> None:
        exchanged(lab)
        lab.describe(ORDERS, 7)
        lab.describe(PAYMENTS, 6)

    def older(lab: Lab) -> None:
        lab.path(ORDERS, 8).write_bytes(lab.path(ORDERS, 5).read_bytes())

    def cut(lab: Lab) -> None:
        path = lab.path(log, ledger)
        path.write_bytes(path.read_bytes()[:-taken_bytes])

    def moved(lab: Lab, depth: int) -> None:
        content = pq.ParquetFile(lab.path(ORDERS, 5)).read()
        lab.rewrite(ORDERS, 5, lambda each: without(each, row), depth)
        taken = content.slice(row, 1)
        lab.rewrite(ORDERS, 7, lambda each: pa.concat_tables([taken, each]), min(depth, 1))

    def joined(lab: Lab) -> None:
        lab.tables.existing(MESSAGES).optimize(1024 * 1024)

    def joined_and_changed(lab: Lab) -> None:
        joined(lab)
        file = next(each for each in lab.tables.existing(MESSAGES).files() if "orders" in each.path)
        path = lab.folder(MESSAGES) / file.path
        lab.put(path, with_value("value", row, _upper)(pq.ParquetFile(path).read()))

    def updated(lab: Lab) -> None:
        table = deltalake.DeltaTable(str(lab.folder(MESSAGES)))
        table.update(
            predicate=f"`__ledgerId` = 7 AND `__entryId` = {row}", new_values={"__sequenceId": "99"}
        )

    def deleted_ledger(lab: Lab) -> None:
        deltalake.DeltaTable(str(lab.folder(MESSAGES))).delete("`__ledgerId` = 5")

    def restored(lab: Lab) -> None:
        deltalake.DeltaTable(str(lab.folder(MESSAGES))).restore(4)

    yield Case("the files of two topics are exchanged", exchanged)
    yield Case("the files of two topics are exchanged, with their commits", exchanged_with_commits)
    yield Case("a file is replaced by an older one", older)
    yield Case("a file is cut short", cut)
    yield Case("a row is moved to another file", partial(moved, depth=0))
    yield Case(
        "a row is moved to another file, with the commits",
        partial(moved, depth=1),
        is_harmless=True,
    )
    yield Case("another engine changes a row", updated)
    yield Case("another engine deletes the oldest ledger", deleted_ledger)
    yield Case("another engine restores an older version", restored)
    yield Case("small files are joined, as `table --optimize` does", joined, is_harmless=True)
    yield Case("a value is changed after small files were joined", joined_and_changed)


def _of_commits(choose: random.Random) -> Iterator[Case]:
    number = choose.randrange(1, len(COPIED))

    def all_set_back(lab: Lab, count: int) -> None:
        for layout in (MESSAGES, SEGMENTS):
            lab.remove_newest(layout, count)

    def edited(lab: Lab, change: Callable[[dict[str, Any]], Any], at: int = number) -> None:
        lab.edit_commit(lab.commits(MESSAGES)[at], change)

    def without_file(action: dict[str, Any]) -> Any:
        return None if "add" in action else action

    def stats(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], Any]:
        def apply(action: dict[str, Any]) -> Any:
            if "add" in action:
                found = json.loads(action["add"]["stats"])
                change(found)
                action["add"]["stats"] = json.dumps(found)
            return action

        return apply

    def narrowed(found: dict[str, Any]) -> None:
        found["maxValues"]["__entryId"] = 3

    def widened(found: dict[str, Any]) -> None:
        found["maxValues"]["__entryId"] = 99

    def fewer(found: dict[str, Any]) -> None:
        found["numRecords"] -= 1

    def smaller(action: dict[str, Any]) -> Any:
        if "add" in action:
            action["add"]["size"] -= 1
        return action

    def moved_offsets(action: dict[str, Any]) -> Any:
        info = action.get("commitInfo", {})
        if "onewriter.offsets" in info:
            offsets = json.loads(info["onewriter.offsets"])
            info["onewriter.offsets"] = json.dumps(offsets | {ORDERS: "8:5"})
        return action

    def other_id(lab: Lab) -> None:
        def change(action: dict[str, Any]) -> Any:
            if "metaData" in action:
                action["metaData"]["id"] = "00000000-0000-4000-8000-000000000000"
            return action

        lab.edit_commit(lab.commits(MESSAGES)[0], change)

    def older_transaction(action: dict[str, Any]) -> Any:
        if "txn" in action:
            action["txn"]["version"] = 0
        return action

    def checkpoint(lab: Lab, keep: Callable[[dict[str, Any]], bool]) -> None:
        deltalake.DeltaTable(str(lab.folder(MESSAGES))).create_checkpoint()
        (path,) = (lab.folder(MESSAGES) / "_delta_log").glob("*.checkpoint.parquet")
        content = pq.ParquetFile(path).read()
        kept = [keep(each) for each in content.to_pylist()]
        pq.write_table(content.filter(pa.array(kept)), path)

    def is_not_of_ledger_7(row: dict[str, Any]) -> bool:
        added = row.get("add")
        return added is None or '"__ledgerId": 7' not in str(added.get("stats"))

    yield Case(
        "the newest commits of `messages` and `segments` are removed",
        partial(all_set_back, count=1),
    )
    yield Case(
        "the three newest commits of `messages` and `segments` are removed",
        partial(all_set_back, count=3),
    )
    yield Case(
        "the newest commit of `segments` is removed",
        lambda lab: lab.remove_newest(SEGMENTS),
        is_harmless=True,
    )
    yield Case("a commit no longer adds its file", partial(edited, change=without_file))
    yield Case("a commit in the middle is removed", lambda lab: lab.commits(MESSAGES)[3].unlink())
    yield Case("a commit's bounds are narrowed", partial(edited, change=stats(narrowed)))
    yield Case(
        "a commit's bounds are widened", partial(edited, change=stats(widened)), is_harmless=True
    )
    yield Case("a commit names fewer rows", partial(edited, change=stats(fewer)))
    yield Case("a commit names another size", partial(edited, change=smaller))
    yield Case(
        "the newest commit names an earlier end of a log",
        partial(edited, change=moved_offsets, at=len(COPIED)),
    )
    yield Case(
        "the newest commit has the number of an older one",
        partial(edited, change=older_transaction, at=len(COPIED)),
    )
    yield Case("the table gets another id", other_id)
    yield Case("a checkpoint lacks a file", partial(checkpoint, keep=is_not_of_ledger_7))
    yield Case(
        "a checkpoint lacks the transactions",
        partial(checkpoint, keep=lambda row: row.get("txn") is None),
    )


def _of_audit_records(choose: random.Random) -> Iterator[Case]:
    ledger = choose.choice((4, 5, 6, 7))

    def edited(lab: Lab, **changes: Any) -> None:
        lab.edit_audit(lambda each: each | (changes if each["ledger"] == ledger else {}))

    def removed(lab: Lab) -> None:
        lab.edit_audit(lambda each: None if each["ledger"] == ledger else each)

    def first_id(path: Path) -> str:
        return str(pq.ParquetFile(path).read()["id"][0])

    def forged(lab: Lab) -> None:
        path = min(lab.folder(AUDIT).glob("*.parquet"), key=first_id)  # names are random
        content = pq.ParquetFile(path).read()
        record = json.loads(content["record"][0].as_py()) | {"id": "7-5", "kind": "resume"}
        extra = content.slice(0, 1)
        extra = replaced(extra, "id", ["7-5"])
        extra = replaced(extra, "record", [json.dumps(record)])
        lab.put(path, pa.concat_tables([content, extra]))

    def accomplice(lab: Lab) -> None:
        edited(lab, producer="mallory")
        lab.edit_rows(lambda row: replace(row, producer="mallory"), ledger=ledger)
        log = next(each for each, own in COPIED if own == ledger)
        names = ["mallory"] * ROWS
        lab.rewrite(log, ledger, lambda each: replaced(each, "__producerName", names), 2)

    yield Case("a grant is removed from `audit`", removed)
    yield Case("a grant names another producer", partial(edited, producer="mallory"))
    yield Case("a grant names another epoch", partial(edited, epoch=1))
    yield Case("a grant names another time without a writer", partial(edited, leaderlessMs=0))
    yield Case("a record is added to `audit`", forged)
    yield Case("the newest commit of `audit` is removed", lambda lab: lab.remove_newest(AUDIT))
    yield Case("a producer is renamed in rows, digests, `segments` and `audit`", accomplice)


def all_cases() -> list[Case]:
    """All falsifications."""
    return [*of_the_trial(), *generated()]
