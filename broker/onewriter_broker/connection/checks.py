"""CHECK: asks the store whether an epoch is still current, and where the topic ends."""

from __future__ import annotations

from collections.abc import Callable

from onewriter_broker.dispatch.positions import last_message_id
from onewriter_broker.topic.epoch_checks import Prove, epoch_status_of
from onewriter_broker.topic.registry.topics import Topics
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import WHOLE
from onewriter_core.wire import replies
from onewriter_core.wire.proto import PulsarApi_pb2 as pb


class Checks:
    """Answers CHECK for the topics that this broker serves. The session has checked the right
    (rights.py).

    ``prove`` is the parameter of ``epoch_status_of``.
    """

    def __init__(self, topics: Topics, prove: Prove) -> None:
        self._topics = topics
        self._prove = prove

    async def check(self, command: pb.CommandCheck, write: Callable[[bytes], None]) -> None:
        """Answer CHECK. Raises the error that answers the request instead.

        The end of the topic is read before the proof, from memory if possible. It covers every
        entry that was acknowledged before the command arrived. Either this broker acknowledged the
        entry, which the proof afterwards confirms, or an earlier broker did, and then the entry is
        before this broker's marker.
        """
        name = TopicName.parse(command.topic)
        topic = self._topics.loaded.get(str(name.base))
        if topic is None or not topic.has(name):
            entry = await self._topics.entry_of(name)
            partition = WHOLE if name.partition is None else name.partition
            if entry is None or partition not in entry.log_numbers:
                raise Refused(ServerError.TOPIC_NOT_FOUND, f"{name} does not exist")
            topic = await self._topics.serve(name)
        topic_log = topic.runner.logs[topic.partition_of(name)]
        message_id, _ = await last_message_id(topic_log)
        epoch_status = await epoch_status_of(topic_log, self._prove)
        if topic.runner.topic.is_closed:
            raise Unavailable(f"{name} is moving to another broker; retry")
        requested = command.epoch if command.HasField("epoch") else epoch_status.epoch
        is_current = requested == epoch_status.leads != 0
        write(
            replies.check_response(
                command.request_id,
                epoch=epoch_status.epoch,
                # A fence may have been stored since the store was read.
                is_current=is_current and topic.runner.assure(topic.partition_of(name), requested),
                last_message_id=message_id,
            )
        )
