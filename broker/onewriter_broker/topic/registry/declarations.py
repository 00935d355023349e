"""The effect of a declaration on a served topic, also of a declaration that changes meanwhile.

A new policy sorts the waiters at once. Detection applies from the next check, retention from the next sweep,
durability from the next ledger, access and claims from the next producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from onewriter_broker.topic.registry.catalog import Undivided
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.api import ExclusiveTopic
from onewriter_core.api.topic import Durability
from onewriter_core.errors import OnewriterError, Refused
from onewriter_core.ids import TopicName
from onewriter_core.topic.events import PolicyChanged
from onewriter_core.topic.model import PromotionPolicy

GROW_SECONDS: Final = 1.0
"""Time between two attempts to add partitions while the store or the anchor is unavailable."""

log = structlog.get_logger(__name__)


def asks_too_much(declared: ExclusiveTopic, promises: frozenset[Durability]) -> str:
    """Why a store with these durabilities cannot serve the topic. Empty: it can."""
    refusal = why_not_promised(declared.spec.durability, promises)
    return refusal and f"{declared.topic_name} is declared with {refusal}"


def why_not_promised(durability: Durability, promises: frozenset[Durability]) -> str:
    """Why a store with these durabilities does not provide another one. Empty: it provides it."""
    if durability in promises:
        return ""
    strongest = max(promises, key=list(Durability).index)
    return (
        f"durability {durability.value}, and the store can promise {strongest.value} at most: "
        "add replicas or change appendfsync, or declare less"
    )


def durability_of(declared: ExclusiveTopic | None, promises: frozenset[Durability]) -> Durability:
    """The durability of a topic's acknowledgements. Of an undeclared topic: Local, if the store provides it."""
    if declared is not None:
        return declared.spec.durability
    return Durability.LOCAL if Durability.LOCAL in promises else Durability.NONE


def promotion_of(declared: ExclusiveTopic | None) -> PromotionPolicy:
    """The order in which a topic's waiters are promoted."""
    if declared is None:
        return PromotionPolicy.PRIORITY
    return declared.spec.promotion.policy


def declare(topic: LoadedTopic, declared: ExclusiveTopic | None, now: float) -> bool:
    """Apply a declaration to a loaded topic. Returns whether it differs from the former one."""
    before, topic.declared = topic.declared, declared
    if declared is before or declared == before:
        return False
    promotion = promotion_of(declared)
    if promotion is not topic.runner.topic.policy:
        topic.runner.post(PolicyChanged(promotion, now))
    for topic_log in topic.runner.logs.values():
        if declared is not None:
            topic_log.set_wanted_durability(declared.spec.durability)
    say_undivided(topic)
    return True


def say_undivided(topic: LoadedTopic) -> None:
    """Log that a topic is declared with partitions and gets none. The operator has a condition for it."""
    if topic.entry.is_undivided and _wanted_partitions(topic):
        wanted = _wanted_partitions(topic)
        log.error(
            "partitions.refused", topic=str(topic.name), wanted=wanted, reason=str(Undivided())
        )


def lacks_partitions(topic: LoadedTopic) -> bool:
    """Whether more partitions are declared than the topic has, and it may have them."""
    return not topic.entry.is_undivided and _wanted_partitions(topic) > topic.entry.partitions


def _wanted_partitions(topic: LoadedTopic) -> int:
    return 0 if topic.declared is None else topic.declared.spec.partitions


async def grow(
    topic: LoadedTopic,
    set_partitions: Callable[[TopicName, int], Awaitable[None]],
    loaded: Mapping[str, LoadedTopic],
) -> None:
    """Add the declared partitions, until all exist or the topic is no longer served."""
    if topic.is_growing:
        return
    topic.is_growing = True
    try:
        while lacks_partitions(topic) and loaded.get(str(topic.name)) is topic:
            await _grow_once(topic, set_partitions)
    except Refused as error:
        log.warning("partitions.refused", topic=str(topic.name), reason=str(error))
    finally:
        topic.is_growing = False


async def _grow_once(
    topic: LoadedTopic, set_partitions: Callable[[TopicName, int], Awaitable[None]]
) -> None:
    try:
        await set_partitions(topic.name, _wanted_partitions(topic))
    except Refused:
        raise
    except OnewriterError as error:
        log.warning("partitions.wait", topic=str(topic.name), reason=str(error))
        await asyncio.sleep(GROW_SECONDS)
