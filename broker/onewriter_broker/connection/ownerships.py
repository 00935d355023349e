"""The ownerships of one connection: answers OWN and DISOWN, and reports losses at once.

A request may go to any broker and name resources of all buckets. For resources of another broker,
the answer names that broker. ``authorization`` decides who may own a resource; ``owning`` decides
who owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.lookups import wait_for_bucket
from onewriter_broker.connection.requests import Link, code_of
from onewriter_broker.resources.dependencies import WantedResource
from onewriter_broker.topic.registry.loaded_topic import Detection
from onewriter_core.authorization import Action, OwnedResource
from onewriter_core.errors import OnewriterError, Refused, ServerError
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_core.own.names import (
    GROUP_BYTES_MAX,
    IDENTITY_BYTES_MAX,
    NONCE_BYTES_MAX,
    canonical,
    check_text,
    own_field,
    split_field,
    topic_of,
)
from onewriter_core.own.table import SERVE_SECONDS_MAX, Owner, OwnershipDenied, OwnershipGranted
from onewriter_core.wire import replies
from onewriter_core.wire.commands import encode_command
from onewriter_core.wire.proto import PulsarApi_pb2 as pb

RESOURCES_MAX = 1_000
"""Resources of one request."""

Result = pb.CommandOwnResponse.Result


class OwnershipCommands:
    """Implements OwnerEnd. Calls ``depended_on`` when the first ownership depends on the link."""

    def __init__(
        self,
        clients: Clients,
        link: Link,
        identity: Identity,
        depended_on: Callable[[Detection], None],
    ) -> None:
        self._clients = clients
        self._link = link
        self._identity = identity
        self._depended_on = depended_on
        self._owns = False
        self._is_gone = False

    async def own(self, command: pb.CommandOwn) -> None:
        """Answer OWN. Raises the error that answers the whole request instead."""
        self._check(command.resources, command.group)
        check_text("identity", command.identity, IDENTITY_BYTES_MAX)
        check_text("nonce", command.nonce, NONCE_BYTES_MAX)
        if command.serve_milliseconds > 1000 * SERVE_SECONDS_MAX:
            text = f"an owner serves for at most {SERVE_SECONDS_MAX:g} s without asking"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        results: list[Result] = []
        buckets: dict[int, list[tuple[Result, WantedResource]]] = {}
        for resource in command.resources:
            result = Result(name=resource.name)
            results.append(result)
            try:
                name = canonical(resource.name)
                wanted = self._wanted(command.group, name, resource.generation)
                bucket = self._clients.ownerships.bucket_of(name)
            except (Refused, InvalidTopicName) as error:
                _refuse(result, error)
            else:
                buckets.setdefault(bucket, []).append((result, wanted))
        owner = Owner(
            self._identity, command.identity, command.nonce, command.serve_milliseconds / 1000
        )
        work = (
            self._own_in(bucket, owner, requested, only_returns=command.only_returns)
            for bucket, requested in buckets.items()
        )
        await asyncio.gather(*work)
        self._link.write(
            encode_command(pb.CommandOwnResponse(request_id=command.request_id, results=results))
        )

    async def disown(self, command: pb.CommandDisown) -> None:
        """Answer DISOWN: release what this connection owns of it. Raises as ``own``."""
        self._check(command.resources, command.group)
        buckets: dict[int, list[WantedResource]] = {}
        for resource in command.resources:
            name = canonical(resource.name)
            wanted = WantedResource(own_field(command.group, name), resource.generation)
            buckets.setdefault(self._clients.ownerships.bucket_of(name), []).append(wanted)
        for bucket, requested in buckets.items():
            if self._clients.topics.ownership.holding(bucket) is not None:
                resources = await self._clients.ownerships.of_bucket(bucket)
                await resources.disown(self, requested)
        self._link.write(replies.success(command.request_id))

    def lost(self) -> None:
        """The connection is closed."""
        self._is_gone = True
        if self._owns:
            self._clients.ownerships.left(self)

    # ------------------------------------------------------------ OwnerEnd

    @property
    def is_gone(self) -> bool:
        return self._is_gone

    def ownership_lost(
        self, field: str, generation: int, message: str, *, current: int | None, is_moving: bool
    ) -> None:
        group, resource = split_field(field)
        self._link.write(
            encode_command(
                pb.CommandOwnershipLost(
                    group=group or None,
                    resource=pb.OwnedResource(name=resource, generation=generation),
                    message=message,
                    current_generation=current,
                    is_moving=is_moving or None,
                )
            )
        )

    # ------------------------------------------------------------ inside

    def _check(self, resources: Sequence[pb.OwnedResource], group: str) -> None:
        if self._link.extensions_version == 0:
            text = "announce onewriter_extensions in CONNECT to own resources"
            raise Refused(ServerError.NOT_ALLOWED_ERROR, text)
        if not resources:
            raise Refused(ServerError.NOT_ALLOWED_ERROR, "the request names no resource")
        if len(resources) > RESOURCES_MAX:
            text = f"a request names at most {RESOURCES_MAX} resources: ask in several"
            raise Refused(ServerError.TOO_MANY_REQUESTS, text)
        check_text("group", group, GROUP_BYTES_MAX)

    def _wanted(self, group: str, resource: str, generation: int) -> WantedResource:
        """The request to the record's bucket. Raises Refused, InvalidTopicName."""
        rights, identity, name = self._clients.authorization, self._identity, topic_of(resource)
        field = own_field(group, resource)
        if name is None:
            resets = generation == 0 and rights.principal(identity).is_administrator
            return WantedResource(
                field, generation, resets, lambda last: self._not_its_name(group, resource, last)
            )
        if generation == 0 and rights.allows(identity, Action.RESET_OWNERSHIP, name):
            return WantedResource(field, generation, may_reset=True)
        rights.require(identity, Action.OWN, name)
        return WantedResource(
            field, generation, objection=lambda last: self._not_its_group(group, name, last)
        )

    def _not_its_name(self, group: str, resource: str, last: Identity | None) -> Refused | None:
        """The reason why this identity may not own a resource that ``last`` owned and did not
        release.
        """
        owned = OwnedResource(resource, group, None if last is None else last.subject)
        try:
            self._clients.authorization.require(self._identity, Action.OWN, owned)
        except Refused as refused:
            return refused
        return None

    def _not_its_group(self, group: str, name: TopicName, last: Identity | None) -> Refused | None:
        """The reason why this identity may not own in a group without owners: other identities
        consume for the group now.
        """
        topic = self._clients.topics.loaded.get(str(name.base))
        if last is not None or not group or topic is None:
            return None
        partitions = topic.subscriptions if name.partition is None else [topic.partition_of(name)]
        for partition in partitions:
            subscriptions = topic.subscriptions.get(partition)
            subscription = None if subscriptions is None else subscriptions.get(group)
            for consumer in () if subscription is None else subscription.consumers:
                if consumer.channel.identity.subject != self._identity.subject:
                    text = (
                        f"{self._identity} lacks the right {Action.OWN} on {name} for group {group}:"
                        " consumers of another identity read the subscription of that name"
                    )
                    return Refused(ServerError.AUTHORIZATION_ERROR, text)
        return None

    async def _own_in(
        self,
        bucket: int,
        owner: Owner,
        requested: Sequence[tuple[Result, WantedResource]],
        *,
        only_returns: bool,
    ) -> None:
        """Fill in the results of one bucket's resources."""
        clients = self._clients
        addresses = await wait_for_bucket(clients.topics, bucket)
        if addresses is not None and addresses != clients.addresses:
            tls = clients.over_tls(addresses).broker_url
            for result, _ in requested:
                # SDKs interpret a result without this field as a refusal, so it is never empty.
                result.broker_service_url = clients.named(addresses).broker_url
                if tls:
                    result.broker_service_url_tls = tls
            return
        try:
            resources = await clients.ownerships.of_bucket(bucket)
            wanted = [each for _, each in requested]
            answers = await resources.own(owner, self, wanted, only_returns=only_returns)
        except OnewriterError as error:
            for result, _ in requested:
                _refuse(result, error)
            return
        for (result, _), answer in zip(requested, answers, strict=True):
            clients.ownerships.statistics.answered(answer)
            _answer(result, answer)
        if any(isinstance(answer, OwnershipGranted) for answer in answers):
            self._depends()

    def _depends(self) -> None:
        """Watch this connection as closely as the connections of topic holders."""
        if not self._owns:
            self._owns = True
            settings = self._clients.settings
            self._depended_on(
                Detection(settings.ping_interval_seconds, settings.silent_after_seconds)
            )
        if self._is_gone:
            self._clients.ownerships.left(self)


def _answer(result: Result, answer: OwnershipGranted | OwnershipDenied) -> None:
    if isinstance(answer, OwnershipGranted):
        result.generation = answer.after.generation
        return
    result.error = replies.wire_code(answer.code)
    result.message = answer.text
    result.current_generation = answer.generation


def _refuse(result: Result, error: Exception) -> None:
    result.error = replies.wire_code(code_of(error))
    result.message = str(error)
