"""Pulsar's admin API for single messages (by id, by time, after a cursor), and for the termination of a
topic.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from onewriter_broker.dispatch.limits import Limits
from onewriter_broker.dispatch.positions import message_id_of, position_before_time
from onewriter_broker.http.pulsar.subscriptions import SUBSCRIPTION_PATH
from onewriter_broker.http.pulsar.topics import (
    PATH,
    existing,
    partition_numbers,
    served,
    signed,
)
from onewriter_broker.http.routes import Routes, on_topic
from onewriter_broker.http.site import Refusal, Site
from onewriter_broker.log.store.blocks import READ_BYTES
from onewriter_broker.log.topic_log.entries import Entry, entries_of
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.termination import terminate
from onewriter_core.authorization import Action
from onewriter_core.errors import ProtocolError
from onewriter_core.ids import EARLIEST, Position
from onewriter_core.wire.compression import decompress
from onewriter_core.wire.messages import entry_payload, parse_metadata
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.values import EARLIEST_ID, MessageId

CONTENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size up to which a compressed entry is decompressed. A larger one is returned as stored."""

PEEKED_MAX: Final = 1_000
"""Unacknowledged entries after its cursor that a subscription's peek may reach."""

INSTANT_MS_MAX: Final = 253_402_300_799_999
"""The last moment of the year 9999. A later value is shown as a number."""

_PREFIX = "X-Pulsar-"


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Messages" and "Termination"."""
    _add_messages(router, site)
    _add_termination(router, site)


def _add_messages(router: Routes, site: Site) -> None:
    async def one_log(request: web.Request, what: str) -> tuple[LoadedTopic, int]:
        """The single log of the path."""
        name, topic = await served(site, request)
        if len(partition_numbers(name, topic)) > 1 or (
            name.partition is None and topic.entry.partitions
        ):
            raise Refusal(405, f"{what} is not allowed on partitioned-topic")
        return topic, topic.partition_of(name)

    async def by_id(request: web.Request) -> web.Response:
        topic, partition = await one_log(request, "GetMessageById")
        position = Position(_number(request, "ledger"), _number(request, "entry"))
        topic_log = topic.runner.logs[partition]
        if position.entry == 0 or position > topic_log.committed:
            raise Refusal(404, "Message id not found")
        entries = entries_of(await topic_log.read(position.previous, 1, READ_BYTES))
        if not entries or entries[0].position != position:
            raise Refusal(404, "Message id not found")
        return _message(entries[0])

    async def by_time(request: web.Request) -> web.Response:
        topic, partition = await one_log(request, "Get message ID by timestamp")
        topic_log = topic.runner.logs[partition]
        after = await position_before_time(topic_log, _number(request, "timestamp"), Limits())
        entries = entries_of(await topic_log.read(after, 1, READ_BYTES))
        number = topic_log.name.partition
        found = message_id_of(entries[0], -1 if number is None else number) if entries else None
        return web.json_response(_id_object(found or EARLIEST_ID, number))

    async def peek(request: web.Request) -> web.Response:
        topic, partition = await one_log(request, "Peek messages")
        subscription = topic.subscriptions[partition].get(request.match_info["subscription"])
        wanted = _number(request, "position")
        if not 1 <= wanted <= PEEKED_MAX:
            raise Refusal(400, f"a position is a whole number from 1 to {PEEKED_MAX}")
        # Pulsar creates a subscription that does not exist. Here, the response shows what it would get.
        cursor = None if subscription is None else subscription.cursor
        after = EARLIEST if cursor is None else cursor.mark_delete
        while True:
            entries = entries_of(await topic.runner.logs[partition].read(after, 512, READ_BYTES))
            if not entries:
                raise Refusal(404, "Message not found")
            for entry in entries:
                wanted -= cursor is None or not cursor.is_acknowledged(entry.position)
                if wanted == 0:
                    return _message(entry)
            after = entries[-1].position

    router.add_get(PATH + "/ledger/{ledger}/entry/{entry}", by_id, on_topic(Action.CONSUME))
    router.add_get(PATH + "/messageid/{timestamp}", by_time, on_topic(Action.CONSUME))
    router.add_get(SUBSCRIPTION_PATH + "/position/{position}", peek, on_topic(Action.CONSUME))


def _add_termination(router: Routes, site: Site) -> None:
    async def one(request: web.Request) -> web.Response:
        name, partitions = await existing(site, request)
        if partitions > 0 and name.partition is None:
            raise Refusal(405, "Termination of a partitioned topic is not allowed")
        await site.require_owned(request, name)
        _, topic = await served(site, request)
        partition = topic.partition_of(name)
        last = await terminate(site.topics, name.base, [partition])
        return web.json_response(_position_object(last[partition]))

    async def partitioned(request: web.Request) -> web.Response:
        name, partitions = await existing(site, request)
        if partitions == 0 or name.partition is not None:
            raise Refusal(
                405,
                "Termination of a non-partitioned topic is not allowed using "
                "partitioned-terminate, please use terminate commands",
            )
        await site.require_owned(request, name)
        topic = await site.topics.serve_existing(name.base)
        last = await terminate(site.topics, name.base, partition_numbers(name, topic))
        return web.json_response(
            {str(partition): _position_object(position) for partition, position in last.items()}
        )

    router.add_post(PATH + "/terminate", one, on_topic(Action.ADMINISTER_TOPIC))
    router.add_post(PATH + "/terminate/partitions", partitioned, on_topic(Action.ADMINISTER_TOPIC))


def _number(request: web.Request, name: str) -> int:
    text = request.match_info[name]
    if not (text.isascii() and text.isdecimal()) or len(text) > 16:
        raise Refusal(400, f"{name} is a whole number")
    return int(text)


def _position_object(last: Position) -> dict[str, object]:
    """The last entry of a terminated log; an empty log has none."""
    found = EARLIEST_ID if last.entry == 0 else MessageId(last.ledger, last.entry)
    return _id_object(found, None)


def _id_object(message_id: MessageId, partition: int | None) -> dict[str, object]:
    return {
        "ledgerId": signed(message_id.ledger),
        "entryId": signed(message_id.entry),
        "partitionIndex": -1 if partition is None else partition,
        "batchIndex": message_id.batch_index,
        "batchSize": message_id.batch_size or 0,
    }


# ---------------------------------------------------------------- one entry


def _message(entry: Entry) -> web.Response:
    """An entry in Pulsar's format: metadata as headers, the content or the whole batch as body.

    Raises ProtocolError for damaged metadata.
    """
    metadata = parse_metadata(entry.payload)
    content = _uncompressed(metadata, bytes(entry_payload(entry.payload)))
    fields = _fields(entry.position, metadata)
    headers = {_PREFIX + name: text for name, text in fields.items() if _may_stand(text)}
    return web.Response(body=content, content_type="application/octet-stream", headers=headers)


def _fields(position: Position, metadata: pb.MessageMetadata) -> dict[str, str]:
    found = {
        "Message-ID": f"{position.ledger}:{position.entry}",
        "publish-time": _instant(metadata.publish_time),
        "producer-name": metadata.producer_name,
        "sequence-id": str(metadata.sequence_id),
        "Is-Encrypted": str(bool(metadata.encryption_keys)).lower(),
    }
    if metadata.properties:
        named = {item.key: item.value for item in metadata.properties}
        found["PROPERTY"] = json.dumps(named)
    if metadata.event_time:
        found["event-time"] = _instant(metadata.event_time)
    if metadata.HasField("num_messages_in_batch"):
        found["num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.HasField("ordering_key"):
        found["Base64-ordering-key"] = base64.b64encode(metadata.ordering_key).decode()
    for field, value in metadata.ListFields():
        if field.name in _PLAIN:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found[_PLAIN[field.name]] = text
    return found


_PLAIN: Final = {
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo",
    "null_value": "null-value",
    "highest_sequence_id": "highest-sequence-id",
    "uuid": "uuid",
    "chunk_id": "chunk-id",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
}
"""Fields that are returned unchanged, by the names of their headers."""


def _may_stand(text: str) -> bool:
    """Whether it can be the value of a header: it must not end the header."""
    return text.isprintable() or not text


def _instant(milliseconds: int) -> str:
    """A time in the format of Java's Instant: milliseconds only if they are not zero."""
    if milliseconds > INSTANT_MS_MAX:
        return str(milliseconds)
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _uncompressed(metadata: pb.MessageMetadata, content: bytes) -> bytes:
    """The decompressed content; as stored if it is encrypted or too large."""
    size = metadata.uncompressed_size
    if (
        metadata.encryption_keys
        or size > CONTENT_BYTES_MAX
        or metadata.compression == pb.MessageMetadata.NONE
    ):
        return content
    try:
        return decompress(metadata.compression, content, size)
    except ProtocolError as error:
        raise Refusal(422, f"the message cannot be uncompressed: {error}") from None
