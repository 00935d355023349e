"""Work for which no client waits: a bounded number of tasks for any number of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, cast

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.history.background import SAVES_MAX, PresenceSaves, Recalls
from onewriter_core.errors import Undecided


class Log:
    """A log that saves its state when ``allowed`` is set."""

    def __init__(self, allowed: asyncio.Event, error: Exception | None = None) -> None:
        self.name = "log"
        self.saved: list[Mapping[str, str]] = []
        self.is_repeated: bool | None = None
        self._allowed = allowed
        self._error = error

    async def save_state(
        self, fields: Mapping[str, str], *, may_repeat: Callable[[], bool]
    ) -> None:
        await self._allowed.wait()
        self.is_repeated = may_repeat()
        if self._error is not None:
            raise self._error
        self.saved.append(fields)


class Tasks:
    """Starts tasks, and counts them."""

    def __init__(self) -> None:
        self.started: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.started.append(asyncio.get_running_loop().create_task(work))
        return self.started[-1]

    async def ended(self) -> None:
        await asyncio.gather(*self.started)


async def guarded(work: Coroutine[object, object, None]) -> None:
    await work


def save(saves: PresenceSaves, log: Log, fields: Mapping[str, str], bucket: int = 0) -> None:
    saves.save(bucket, cast("TopicLog", log), fields, guarded)


async def test_a_bounded_number_of_tasks_saves_all_records() -> None:
    tasks, allowed = Tasks(), asyncio.Event()
    saves, logs = PresenceSaves(tasks.spawn), [Log(allowed) for _ in range(10 * SAVES_MAX)]
    for log in logs:
        save(saves, log, {"present": "1"})
    assert len(tasks.started) == SAVES_MAX
    allowed.set()
    await tasks.ended()
    assert all(log.saved == [{"present": "1"}] for log in logs)


async def test_records_of_a_bucket_whose_store_does_not_answer_delay_no_other_bucket() -> None:
    tasks, hangs, allowed = Tasks(), asyncio.Event(), asyncio.Event()
    allowed.set()
    saves, log = PresenceSaves(tasks.spawn), Log(allowed)
    hanging = [Log(hangs) for _ in range(40 * SAVES_MAX)]
    for each in hanging:
        save(saves, each, {"present": "1"}, bucket=1)
    save(saves, log, {"present": "1"}, bucket=2)
    async with asyncio.timeout(60):
        await tasks.started[-1]
    assert log.saved == [{"present": "1"}]
    assert not any(each.saved for each in hanging)
    hangs.set()
    await tasks.ended()
    assert all(each.saved for each in hanging)


async def test_later_fields_of_a_waiting_record_replace_earlier_ones() -> None:
    tasks, allowed = Tasks(), asyncio.Event()
    saves, log = PresenceSaves(tasks.spawn), Log(allowed)
    save(saves, log, {"present": "0", "absentSince": "5"})
    save(saves, log, {"present": "1"})
    allowed.set()
    await tasks.ended()
    assert log.saved == [{"present": "1", "absentSince": "5"}]


async def test_a_record_that_was_taken_is_saved_by_its_taker() -> None:
    tasks, allowed = Tasks(), asyncio.Event()
    saves, log = PresenceSaves(tasks.spawn), Log(allowed)
    save(saves, log, {"present": "1"})
    assert saves.take(0, cast("TopicLog", log)) == {"present": "1"}
    assert saves.take(0, cast("TopicLog", log)) == {}
    allowed.set()
    await tasks.ended()
    assert log.saved == []


async def test_a_record_that_is_being_sent_is_saved_by_its_taker_and_not_repeated() -> None:
    tasks, allowed = Tasks(), asyncio.Event()
    saves, log, other = PresenceSaves(tasks.spawn), Log(allowed), Log(allowed)
    save(saves, log, {"present": "0", "absentSince": "5"})
    save(saves, other, {"present": "0"})
    await asyncio.sleep(0)
    assert saves.is_waiting(0, cast("TopicLog", log))
    assert saves.take(0, cast("TopicLog", log)) == {"present": "0", "absentSince": "5"}
    assert not saves.is_waiting(0, cast("TopicLog", log))
    allowed.set()
    await tasks.ended()
    assert (log.is_repeated, other.is_repeated) == (False, True)


async def test_a_record_that_cannot_be_saved_does_not_stop_the_others() -> None:
    tasks, allowed = Tasks(), asyncio.Event()
    allowed.set()
    saves = PresenceSaves(tasks.spawn)
    lost, log = Log(allowed, Undecided("the store did not answer")), Log(allowed)
    save(saves, lost, {"present": "1"})
    save(saves, log, {"present": "1"})
    await tasks.ended()
    assert log.saved == [{"present": "1"}]


async def test_one_task_of_each_bucket_recalls_all_its_topics() -> None:
    tasks, allowed = Tasks(), asyncio.Event()
    recalls, recalled = Recalls(tasks.spawn), list[int]()

    async def recall(topic: int) -> None:
        await allowed.wait()
        recalled.append(topic)

    for topic in range(20):
        recalls.add(topic % 2, partial(recall, topic))
    assert len(tasks.started) == 2
    await asyncio.sleep(0)
    recalls.add(0, partial(recall, 20))
    allowed.set()
    await tasks.ended()
    assert sorted(recalled) == list(range(21))
    recalls.add(0, partial(recall, 21))
    await tasks.ended()
    assert recalled[-1] == 21
