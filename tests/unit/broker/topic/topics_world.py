"""All topics of a broker, around the fence path of fence_path_world.py. Here the broker has one bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from tests.unit.broker.topic.fence_path_world import World

from onewriter_broker.dispatch.subscriptions import Subscriptions
from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.ownership.buckets import BucketOwnership
from onewriter_broker.settings import Settings
from onewriter_broker.topic.dependencies import TopicDependencies
from onewriter_broker.topic.registry.catalog import Catalogs
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.runner import TopicRunner

BUCKETS = 64


def topics_of(
    world: World,
    dependencies: Callable[[TopicDependencies], TopicDependencies] = lambda found: found,
) -> Topics:
    """The topics of a broker. ``dependencies`` changes what they depend on."""

    def subscriptions(topic_log: TopicLog, runner: TopicRunner) -> Subscriptions:
        return Subscriptions(
            topic_log, spawn=runner.spawn, clock=lambda: 0.0, wall_clock_ms=lambda: 0
        )

    topics = Topics(Settings(), Catalogs(world.store, BUCKETS), subscriptions)
    used = replace(
        world.dependencies, ownership=world.owner, resumable_until=topics.resumable_until
    )
    topics.serve_with(cast("BucketOwnership", world.owner), dependencies(used))
    return topics
