"""Reads of both tiers during concurrent offload and trim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.integration.offloading import FULL, Fill, numbered, offload, trim, values
from tests.integration.streaming import TYPES

from onewriter_core.ids import Position
from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.errors import Gap
from onewriter_pipeline.tables.tables import Tables
from pyspark_onewriter.backlog import backlog_of
from pyspark_onewriter.options import ReadOptions, stream_options
from pyspark_onewriter.snapshot import TableSnapshot
from pyspark_onewriter.tasks import read_task


def half_offloaded(access: Access, topic: str, fill: Fill, tables: Tables) -> None:
    """Write 300 messages in three tenures, of which the table has the first."""
    fill(topic, numbered(0, 100))
    offload(access, tables, topic)
    fill(topic, numbered(100, 200))
    fill(topic, numbered(200, 300))


def jobs(access: Access, topic: str, fill: Fill, tables: Tables) -> None:
    """Offload everything, and trim the first two tenures from the log."""
    fill(topic, numbered(300, 310))
    with Broker(access) as broker:
        second = broker.segments(topic).segments[1].ledger
        offload(access, tables, topic)
        trim(access, tables, topic)
        assert broker.segments(topic).first.ledger > second


def options_of(access: Access, topic: str, tables: Tables, fail: str) -> ReadOptions:
    given = {"admin.url": access.url, "topic": topic, "failOnDataLoss": fail}
    given |= {"tier": "all", "table": tables.place.location, "startingOffsets": "earliest"}
    return stream_options(given, TYPES)


def rows_of(tasks: list[Any], options: ReadOptions) -> list[bytes]:
    found = [batch for task in tasks for batch in read_task(task, options)]
    return [value for batch in found for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("moment", ["before the look", "before the tables", "before the tasks"])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_batch_has_all_rows_if_the_log_is_trimmed_while_it_is_planned(
    access: Access,
    topic: str,
    fill: Fill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: str,
    moment: str,
) -> None:
    tables, renew = Tables(str(tmp_path)), TableSnapshot.renew
    half_offloaded(access, topic, fill, tables)
    options = options_of(access, topic, tables, fail)

    def renew_late(found: TableSnapshot) -> None:
        monkeypatch.undo()
        jobs(access, topic, fill, tables)
        renew(found)

    with backlog_of(options) as planned:
        if moment == "before the look":
            jobs(access, topic, fill, tables)
        if moment == "before the tables":
            monkeypatch.setattr(TableSnapshot, "renew", renew_late)
        begins, ends = planned.selected_range()
        if moment == "before the tasks":
            jobs(access, topic, fill, tables)
        tasks = planned.tasks(begins, ends)
    assert rows_of(tasks, options)[:300] == numbered(0, 300)


def test_batch_from_a_trimmed_position_of_a_topic_without_a_table_is_refused(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    fill(f"{topic}-other", numbered(0, 5))
    offload(access, tables, f"{topic}-other")
    fill(topic, numbered(0, 100))
    fill(topic, numbered(100, 200))
    with Broker(access) as broker:
        held = broker.segments(topic)
        broker.trim(topic, Position(held.ledger, 0), epoch=held.epoch)
    start = f'{{"{topic}": "{held.first.ledger}:1"}}'
    with pytest.raises(Gap, match="neither in the table nor in the log"):
        values(access, topic, tables, startingOffsets=start)
    found = values(access, topic, tables, startingOffsets=start, failOnDataLoss="false")
    assert found == numbered(100, 200)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_stream_has_all_though_the_log_is_trimmed_while_it_is_planned(
    access: Access, topic: str, fill: Fill, tmp_path: Path, fail: str
) -> None:
    tables = Tables(str(tmp_path))
    half_offloaded(access, topic, fill, tables)
    options = options_of(access, topic, tables, fail)
    log = FULL + topic
    with backlog_of(options) as planned, backlog_of(options) as again:
        begins, ends = planned.initial(), planned.ends()
        with backlog_of(options) as counting:
            counting.runs(log, begins[log], ends[log])
            jobs(access, topic, fill, tables)
            counts = list(counting.counts(log, begins[log], ends[log]))
        runs = planned.runs(log, begins[log], ends[log])
        tasks = again.tasks(begins, ends)
    assert sum(int(each.messages.sum()) for each in counts) == 300
    assert sum(run.entries for run in runs) == 300
    assert rows_of(tasks, options) == numbered(0, 300)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_log_whose_first_offload_comes_in_between_begins_in_the_table(
    access: Access, topic: str, fill: Fill, tmp_path: Path, fail: str
) -> None:
    tables = Tables(str(tmp_path))
    fill(f"{topic}-other", numbered(0, 5))
    offload(access, tables, f"{topic}-other")
    for part in range(3):
        fill(topic, numbered(100 * part, 100 * part + 100))
    options = options_of(access, topic, tables, fail)
    log = FULL + topic
    with backlog_of(options) as planned, backlog_of(options) as met:
        ends = planned.ends()
        jobs(access, topic, fill, tables)
        begins = planned.initial()
        assert met.first(log) == begins[log]
        assert rows_of(planned.tasks(begins, ends), options) == numbered(0, 300)


def test_entries_missing_in_both_tiers_are_named_after_two_attempts(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    half_offloaded(access, topic, fill, tables)
    fill(topic, numbered(300, 310))
    log = FULL + topic
    options = options_of(access, topic, tables, "true")
    with backlog_of(options) as planned:
        begins, ends = planned.initial(), planned.ends()
    with Broker(access) as broker:
        held = broker.segments(topic)
        broker.trim(topic, Position(held.ledger, 0), epoch=held.epoch)
    with backlog_of(options) as planned:
        with pytest.raises(Gap, match="neither in the table nor in the log"):
            planned.runs(log, begins[log], ends[log])
        with pytest.raises(Gap, match="neither in the table nor in the log"):
            planned.tasks(begins, ends)
    with pytest.raises(Gap, match="neither in the table nor in the log"):
        values(access, topic, tables)
    assert values(access, topic, tables, failOnDataLoss="false")[-10:] == numbered(300, 310)
