"""Ownership of resources over a raw connection: requests, answers, and notifications."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from tests.integration.conftest import RawClients
from tests.integration.raw import RawClient, RawConsumer, full

from onewriter_core.errors import ServerError
from onewriter_core.wire.encoding import encode_flow
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_testing.processes import LocalBrokers

Result = pb.CommandOwnResponse.Result

FOLLOW_SECONDS = 120.0
PAUSE_SECONDS = 0.05

_consumer_ids = itertools.count(1_000)


class DeniedByBroker(Exception):
    """A resource of a request was denied."""

    def __init__(self, result: Result) -> None:
        self.code = ServerError(result.error)
        self.current = result.current_generation
        super().__init__(f"{self.code.name}: {result.message}")


class OwnOptions(TypedDict, total=False):
    """The options of ``ask_own``."""

    group: str | None
    identity: str
    nonce: str
    only_returns: bool


def ask_own(
    client: RawClient,
    resources: Sequence[tuple[str, int]],
    *,
    group: str | None = "group",
    identity: str = "",
    nonce: str = "",
    only_returns: bool = False,
) -> int:
    """Send OWN; return its request id."""
    request_id = client.next_request_id()
    client.say(
        pb.CommandOwn(
            request_id=request_id,
            group=group,
            resources=[pb.OwnedResource(name=name, generation=n) for name, n in resources],
            identity=identity or None,
            nonce=nonce or None,
            only_returns=only_returns or None,
        )
    )
    return request_id


def own_all(
    client: RawClient, resources: Sequence[tuple[str, int]], **options: Unpack[OwnOptions]
) -> list[Result]:
    """Return the results of a request, in order. Raises RefusedByBroker if it is refused as a whole."""
    request_id = ask_own(client, resources, **options)
    return list(client.answer(pb.CommandOwnResponse, request_id).results)


def own(
    client: RawClient, resource: str, generation: int = 1, **options: Unpack[OwnOptions]
) -> int:
    """Own a resource and return its generation. Raises DeniedByBroker if it is denied."""
    (result,) = own_all(client, [(resource, generation)], **options)
    if result.HasField("error"):
        raise DeniedByBroker(result)
    assert not result.broker_service_url, f"ask {result.broker_service_url}"
    return result.generation


def disown(
    client: RawClient, resource: str, generation: int, *, group: str | None = "group"
) -> None:
    """Give up an ownership."""
    request_id = client.next_request_id()
    resources = [pb.OwnedResource(name=resource, generation=generation)]
    client.say(pb.CommandDisown(request_id=request_id, group=group, resources=resources))
    client.answer(pb.CommandSuccess, request_id)


def lost(client: RawClient) -> pb.CommandOwnershipLost:
    """Return the broker's notification that an ownership has ended."""
    return client.expect(pb.CommandOwnershipLost)


def own_anywhere(
    brokers: LocalBrokers,
    raw: RawClients,
    resource: str,
    generation: int = 1,
    *,
    asked: int = 0,
    **options: Unpack[OwnOptions],
) -> tuple[RawClient, int]:
    """Own at the broker that serves the resource; retry while no broker does."""
    deadline, number = time.monotonic() + FOLLOW_SECONDS, asked
    while True:
        try:
            client = raw(brokers.address(number))
            (result,) = own_all(client, [(resource, generation)], **options)
        except (OSError, TimeoutError):
            number = asked
        else:
            if result.broker_service_url:
                number = brokers.service_urls.index(result.broker_service_url)
            elif not result.HasField("error"):
                return client, result.generation
            elif ServerError(result.error) is not ServerError.SERVICE_NOT_READY:
                raise DeniedByBroker(result)
        if time.monotonic() > deadline:
            raise TimeoutError(f"no client keeps {resource}")
        time.sleep(PAUSE_SECONDS)


def subscribe_with(
    client: RawClient,
    topic: str,
    subscription: str,
    properties: Mapping[str, str],
    *,
    permits: int = 1_000,
) -> RawConsumer:
    """Return a consumer with properties. Raises RefusedByBroker if the broker refuses it."""
    consumer_id, request_id = next(_consumer_ids), client.next_request_id()
    client.say(
        pb.CommandSubscribe(
            topic=full(topic),
            subscription=subscription,
            sub_type=pb.CommandSubscribe.EXCLUSIVE,
            consumer_id=consumer_id,
            request_id=request_id,
            durable=True,
            initial_position=pb.CommandSubscribe.EARLIEST,
            metadata=[pb.KeyValue(key=key, value=value) for key, value in properties.items()],
        )
    )
    client.answer(pb.CommandSuccess, request_id)
    client.write(encode_flow(consumer_id, permits))
    return RawConsumer(client, consumer_id)
