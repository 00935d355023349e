"""Pulsar's admin API for topics: create, list, partition, unload, measure, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from onewriter_broker.http.pulsar.namespaces import log_names
from onewriter_broker.http.pulsar.stats import (
    compacted_ledger,
    compaction_stats,
    consumers_of,
    internal_stats,
    producers_of,
    summed,
    topic_stats,
)
from onewriter_broker.http.routes import LISTED, Handler, Routes, on_topic
from onewriter_broker.http.site import (
    Refusal,
    Site,
    creator_of,
    done,
    flag,
    json_body,
    namespace_of,
    topic_of,
)
from onewriter_broker.topic.deletion import delete as delete_topic
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.policies import set_own
from onewriter_core.api.topic import PARTITIONS_MAX
from onewriter_core.authorization import Action
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import WHOLE

_ROOT = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
PATH: Final = _ROOT + "/{topic:[^/]+}"

PARTITIONS_SHOWN_MAX: Final = 64
"""Partitions with own statistics in those of a partitioned topic."""

_LATER: Final = {
    "offload": "offloading is not done by the broker",
}


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Topics"."""
    _add_lists(router, site)
    _add_topic(router, site)
    _add_partitions(router, site)
    _add_stats(router, site)
    _add_later(router)


def checked(site: Site, request: web.Request) -> TopicName:
    """The topic of the path, if it may exist; raises Refusal, Refused, InvalidTopicName."""
    name = topic_of(request)
    try:
        site.check_topic(request, name)
    except Refused as refused:
        if refused.code is ServerError.TOPIC_NOT_FOUND:
            raise Refusal(404, f"Namespace not found ({refused.message})") from None
        raise
    return name


def not_found(name: TopicName) -> Refusal:
    """The response for a topic that does not exist."""
    return Refusal(404, f"Topic {name} not found")


async def existing(site: Site, request: web.Request) -> tuple[TopicName, int]:
    """The existing topic of the path, and its partitions. Raises Refusal."""
    name = checked(site, request)
    partitions = await site.topics.partitions_of(name)
    if partitions is None or (name.partition is not None and 0 < partitions <= name.partition):
        raise not_found(name)
    return name, partitions


async def served(site: Site, request: web.Request) -> tuple[TopicName, LoadedTopic]:
    """The topic of the path, loaded here; otherwise redirects the client to its owner."""
    name, partitions = await existing(site, request)
    await site.require_owned(request, name)
    topic = await site.topics.serve_existing(name.base)
    if name.partition is None and partitions > 0:
        return name, topic
    if not topic.has(name):
        if partitions == 0:
            raise not_found(name)
        topic = await site.topics.serve(name)
    return name, topic


def partition_numbers(name: TopicName, topic: LoadedTopic) -> list[int]:
    """The partitions of a path's topic: one log, or all partitions."""
    if name.partition is None and topic.entry.partitions > 0:
        return sorted(topic.subscriptions)
    return [topic.partition_of(name)]


def _add_lists(router: Routes, site: Site) -> None:
    async def logs(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        site.require_namespace(namespace)
        persistent = request.match_info["domain"] == "persistent"
        return web.json_response(await log_names(site, request, namespace) if persistent else [])

    async def partitioned(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        site.require_namespace(namespace)
        if request.match_info["domain"] != "persistent":
            return web.json_response([])
        entries = await site.topics.list(namespace)
        return web.json_response(
            sorted(
                [
                    text
                    for text in await site.shown(request, entries)
                    if entries[text].partitions > 0
                ]
            )
        )

    router.add_get(_ROOT, logs, LISTED)
    router.add_get(_ROOT + "/partitioned", partitioned, LISTED)


def _add_topic(router: Routes, site: Site) -> None:
    async def create(request: web.Request) -> web.Response:
        name = checked(site, request)
        await site.require_owned(request, name)
        properties = properties_of(await json_body(request))
        if await _has_log(site, name):
            raise Refusal(409, "This topic already exists")
        await site.topics.serve(name, creator_of(request))
        if properties:
            await set_own(site.topics, name.base, "properties", lambda _: properties)
        return done()

    async def delete(request: web.Request) -> web.Response:
        await _check_declared_by(site, request)
        name, partitions = await existing(site, request)
        await site.require_owned(request, name)
        if partitions > 0 and name.partition is None:
            raise Refusal(
                409,
                f"{name} is a partitioned topic, instead of calling delete topic, "
                "please call delete-partitioned-topic.",
            )
        topic = await site.topics.serve_existing(name.base)
        if not topic.has(name):
            raise not_found(name)
        if len(topic.subscriptions) > 1:
            raise Refusal(
                405, f"{name} is one of several partitions: delete {name.base} as a whole"
            )
        await _delete(site, request, topic)
        return done()

    async def unload(request: web.Request) -> web.Response:
        name, _ = await existing(site, request)
        await site.require_owned(request, name)
        await site.topics.unload(name.base)
        return done()

    router.add_put(PATH, create, on_topic(Action.ADMINISTER_TOPIC))
    router.add_delete(PATH, delete, on_topic(Action.ADMINISTER_TOPIC))
    router.add_put(PATH + "/unload", unload, on_topic(Action.ADMINISTER_TOPIC))


async def _has_log(site: Site, name: TopicName) -> bool:
    """Whether this very log exists. A topic whose partitions were created by name has no other log."""
    entry = await site.topics.entry_of(name)
    if entry is None:
        return False
    if entry.partitions > 0:
        return name.partition is None or name.partition < entry.partitions
    return (WHOLE if name.partition is None else name.partition) in entry.log_numbers


async def _check_declared_by(site: Site, request: web.Request) -> None:
    """Raise Refusal if the request names another namespace than the topic's."""
    name, declared_by = topic_of(request).base, request.query.get("declaredBy", "")
    entry = await site.topics.entry_of(name) if declared_by else None
    if entry is not None and entry.declared_by not in {"", declared_by}:
        text = f"{name} was declared by namespace {entry.declared_by}, not {declared_by}: it stays"
        raise Refusal(412, text)


async def _delete(site: Site, request: web.Request, topic: LoadedTopic) -> None:
    """Delete the topic if no client is connected (or by force), or if it is empty."""
    if not flag(request, "force"):
        connected = sum(
            len(producers_of(topic, partition)) + consumers_of(topic, partition)
            for partition in topic.subscriptions
        )
        if connected:
            raise Refusal(412, f"Topic has {connected} connected producers/consumers")
    only_if_empty = flag(request, "onlyIfEmpty")
    if not await delete_topic(site.topics, topic.name, only_if_empty=only_if_empty):
        raise Refusal(409, "Topic has entries")


def _add_partitions(router: Routes, site: Site) -> None:
    async def get(request: web.Request) -> web.Response:
        name = checked(site, request)
        found = await site.topics.partitions_of(name)
        if found is None and not flag(request, "checkAllowAutoCreation"):
            raise not_found(name)
        count = 0 if found is None or name.partition is not None else found
        return web.json_response({"partitions": count, "deleted": False})

    async def create(request: web.Request) -> web.Response:
        name = checked(site, request)
        body = await json_body(request)
        partitions = _partitions(body)
        properties = properties_of(body.get("properties") if isinstance(body, dict) else None)
        if name.partition is not None:
            raise Refusal(412, "Partitioned Topic Name should not contain '-partition-'")
        if partitions < 1:
            raise Refusal(406, "Number of partitions should be more than 0")
        _check_most(partitions)
        await site.require_owned(request, name)
        if await site.topics.exists(name):
            raise Refusal(409, "This topic already exists")
        await site.topics.set_partitions(name, partitions, creator_of(request))
        if properties:
            await set_own(site.topics, name, "properties", lambda _: properties)
        return done()

    async def update(request: web.Request) -> web.Response:
        name = checked(site, request)
        wanted = _partitions(await json_body(request))
        await site.require_owned(request, name)
        present = await site.topics.partitions_of(name)
        if not present or name.partition is not None:
            raise Refusal(409, f"Topic {name} is not the partitioned topic.")
        if wanted < present:
            raise Refusal(
                422,
                f"Desired partitions {wanted} can't be less than the current partitions {present}.",
            )
        _check_most(wanted)
        if wanted > present:
            await site.topics.set_partitions(name, wanted, creator_of(request))
        return done()

    async def delete(request: web.Request) -> web.Response:
        await _check_declared_by(site, request)
        name, partitions = await existing(site, request)
        if partitions == 0:
            raise Refusal(
                409,
                f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic "
                "please call delete.",
            )
        await site.require_owned(request, name)
        await _delete(site, request, await site.topics.serve_existing(name.base))
        return done()

    path = PATH + "/partitions"
    router.add_get(path, get, on_topic(Action.LOOK_UP))
    router.add_put(path, create, on_topic(Action.ADMINISTER_TOPIC))
    router.add_post(path, update, on_topic(Action.ADMINISTER_TOPIC))
    router.add_delete(path, delete, on_topic(Action.ADMINISTER_TOPIC))


def properties_of(value: object) -> dict[str, object]:
    """A topic's properties, which map names to texts; raises Refusal for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        raise Refusal(400, "properties are a JSON object of texts")
    return dict(value)


def _partitions(body: object) -> int:
    """A number of partitions, bare or in Pulsar's partitioned topic metadata."""
    if isinstance(body, dict):
        body = body.get("partitions")
    if isinstance(body, bool) or not isinstance(body, int):
        raise Refusal(400, "the body is the number of partitions")
    return body


def _check_most(partitions: int) -> None:
    if partitions > PARTITIONS_MAX:
        raise Refusal(406, f"Number of partitions should be less than or equal to {PARTITIONS_MAX}")


def _add_stats(router: Routes, site: Site) -> None:
    clients = site.clients
    owner = urlsplit(clients.named(site.addresses).http_url).netloc

    async def one(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        if name.partition is None and topic.entry.partitions > 0:
            raise not_found(name)
        partition = topic.partition_of(name)
        await topic.subscriptions[partition].measure_backlogs()
        stats = topic_stats(topic, partition, clients.now(), owner)
        stats["compaction"] = compaction_stats(
            site.compactions.status(topic.runner.logs[partition])
        )
        return web.json_response(_shown(request, stats))

    async def partitioned(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        if topic.entry.partitions == 0 or name.partition is not None:
            raise Refusal(404, f"Partitioned Topic {name} not found")
        parts: dict[str, dict[str, object]] = {}
        for partition in partition_numbers(name, topic):
            await topic.subscriptions[partition].measure_backlogs()
            full_name = str(name.with_partition(partition))
            stats = topic_stats(topic, partition, clients.now(), owner)
            parts[full_name] = _shown(request, stats)
        stats = summed(parts.values())
        stats["metadata"] = {"partitions": topic.entry.partitions, "deleted": False}
        with_each = request.query.get("perPartition", "true").lower() != "false"
        shown = list(parts.items())[:PARTITIONS_SHOWN_MAX] if with_each else []
        stats["partitions"] = dict(shown)
        return web.json_response(stats)

    async def internal(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        if name.partition is None and topic.entry.partitions > 0:
            raise not_found(name)
        return web.json_response(_internal(topic, topic.partition_of(name)))

    async def internal_partitioned(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        if topic.entry.partitions == 0 or name.partition is not None:
            raise Refusal(404, f"Partitioned Topic {name} not found")
        partitions = partition_numbers(name, topic)[:PARTITIONS_SHOWN_MAX]
        return web.json_response(
            {
                "metadata": {"partitions": topic.entry.partitions, "deleted": False},
                "partitions": {
                    str(name.with_partition(partition)): _internal(topic, partition)
                    for partition in partitions
                },
            }
        )

    def _shown(request: web.Request, stats: dict[str, object]) -> dict[str, object]:
        """The statistics without the parts that the caller excludes."""
        if flag(request, "excludePublishers"):
            stats["publishers"] = []
        subscriptions = stats["subscriptions"]
        if flag(request, "excludeConsumers") and isinstance(subscriptions, dict):
            for subscription in subscriptions.values():
                subscription["consumers"] = []
        return stats

    def _internal(topic: LoadedTopic, partition: int) -> dict[str, object]:
        topic_log = topic.runner.logs[partition]
        found = internal_stats(topic_log, clients.now(), clients.wall_ms())
        return found | compacted_ledger(topic_log)

    async def last_message_id(request: web.Request) -> web.Response:
        name, topic = await served(site, request)
        if name.partition is None and topic.entry.partitions > 0:
            raise not_found(name)
        found = await topic.subscriptions[topic.partition_of(name)].last_message_id()
        return web.json_response(
            {
                "ledgerId": signed(found.ledger),
                "entryId": signed(found.entry),
                "partitionIndex": -1 if name.partition is None else name.partition,
                "batchIndex": found.batch_index,
                "batchSize": found.batch_size or 0,
            }
        )

    for path, handler in (
        ("/stats", one),
        ("/partitioned-stats", partitioned),
        ("/internalStats", internal),
        ("/partitioned-internalStats", internal_partitioned),
    ):
        router.add_get(PATH + path, handler, on_topic(Action.OBSERVE))
    router.add_get(PATH + "/lastMessageId", last_message_id, on_topic(Action.CONSUME))


def signed(value: int) -> int:
    """A 64-bit number in the signed representation of Java."""
    return value - 2**64 if value >= 2**63 else value


def _add_later(router: Routes) -> None:
    def refusing(reason: str) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            del request
            raise Refusal(405, reason)

        return handler

    for path, reason in _LATER.items():
        router.add_route("*", f"{PATH}/{path}", refusing(reason), on_topic(Action.ADMINISTER_TOPIC))
