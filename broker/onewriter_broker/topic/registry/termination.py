"""Terminates logs: a terminated log never takes another entry, and stays readable."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from onewriter_broker.dispatch.positions import last_message_id
from onewriter_broker.log.topic_log.termination import terminated_at
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.field_names import TERMINATED

FINISH_SECONDS = 2.0
"""How long the broker waits for entries in progress before it disconnects all clients."""

log = structlog.get_logger(__name__)


async def terminate(topics: Topics, base: TopicName, partitions: list[int]) -> dict[int, Position]:
    """Terminate these logs of a topic. Returns each partition's last entry; EARLIEST if there is none.

    All clients of the topic are disconnected. They reconnect, and producers of a terminated log are refused. A
    second termination changes nothing. Raises Refused if the topic does not exist. Raises Unavailable and
    Undecided if the logs may or may not be terminated; then call it again.
    """
    topic = await topics.serve_existing(base)
    found = {
        partition: terminated_at(topic.runner.logs[partition].state) for partition in partitions
    }
    if None in found.values():
        await _finish(topic)
        async with topics.shut(topic, "the topic was terminated") as runner:
            for partition in partitions:
                # The log is fenced for this runner, which has no producers. So the last entry stays the last
                # one.
                topic_log = runner.logs[partition]
                if found[partition] is None:
                    found[partition] = (await last_message_id(topic_log))[1]
                    await topic_log.save_state({TERMINATED: str(found[partition])})
                    log.info(
                        "topic.terminated", topic=str(topic_log.name), last=str(found[partition])
                    )
    return {partition: last for partition, last in found.items() if last is not None}


async def _finish(topic: LoadedTopic) -> None:
    """Accept no more entries, and wait until the accepted ones are stored and answered.

    This is best effort. The remaining entries get no receipt, and their clients have to query them.
    """
    producers = list(topic.runner.producers.values())
    for producer in producers:
        producer.is_active = False
    with contextlib.suppress(TimeoutError, ProtocolError):
        async with asyncio.timeout(FINISH_SECONDS):
            for producer in producers:
                idle = asyncio.Event()
                producer.when_idle(idle.set)
                await idle.wait()
