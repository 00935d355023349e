"""Pulsar's admin API for compaction by key: start it, and ask for its result."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from onewriter_broker.http.pulsar.topics import PATH, partition_numbers, served
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import NO_CONTENT, Refusal, Site
from onewriter_broker.topic.compaction.schedule import CompactionStatus, Progress
from onewriter_core.authorization import Action

_WORST = (Progress.RUNNING, Progress.ERROR, Progress.NOT_RUN, Progress.SUCCESS)
"""The order in which the answers of several partitions count."""


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Compaction"."""

    async def trigger(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        begun = [
            site.compactions.request(topic.runner.logs[partition])
            for partition in partition_numbers(name, topic)
        ]
        if not any(begun):
            raise Refusal(409, "Compaction already in progress")
        return web.Response(status=NO_CONTENT)

    async def status(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        logs = topic.runner.logs
        statuses = [
            site.compactions.status(logs[partition]) for partition in partition_numbers(name, topic)
        ]
        return web.json_response(status_of(statuses))

    router.add_put(PATH + "/compaction", trigger, on_topic(Action.ADMINISTER_TOPIC))
    router.add_get(PATH + "/compaction", status, on_topic(Action.OBSERVE))


def status_of(statuses: Sequence[CompactionStatus]) -> dict[str, object]:
    """Pulsar's status of a long-running process, for one log or for all of a topic's."""
    worst = min(statuses, key=lambda status: _WORST.index(status.progress))
    return {"status": worst.progress.value, "lastError": worst.last_error}
