"""What is remembered of a topic's logs when they leave this broker: what it has acknowledged in them."""

from __future__ import annotations

import structlog

from onewriter_broker.topic.fencing import Shell
from onewriter_broker.topic.runner import TopicRunner

log = structlog.get_logger(__name__)


def remember_acknowledged(runner: TopicRunner, shell: Shell, *, is_in_doubt: bool) -> None:
    """What was acknowledged in a bucket that leaves together with its dataset, perhaps.

    Also of one that is given back in order: this broker may still follow an old primary.
    """
    for topic_log in runner.logs.values():
        binding, ends = topic_log.binding, topic_log.kept_ends
        if binding is not None and ends:
            shell.left(topic_log.name, binding, ends)
            if is_in_doubt:
                log.warning("entries.in_doubt", topic=str(runner.name), last=str(ends[-1]))
