"""The base of all HTTP handlers: the broker's parts, and the mapping of errors to responses.

The routes are in the other modules of this package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.connection.clients import Clients
from onewriter_broker.connection.lookups import wait_for_owner, why_not_served
from onewriter_broker.desired import Desired
from onewriter_broker.http.metrics import Metrics
from onewriter_broker.http.peers import PeerRefused, Peers
from onewriter_broker.http.watchers import Watchers
from onewriter_broker.log.store.api import LogStore, Observation, ShardState
from onewriter_broker.log.topic_log.losses import LatestReports, Loss, RangeAtRisk
from onewriter_broker.namespaces import Conflict, Invalid, NamespaceMissing, Namespaces
from onewriter_broker.ownership.membership import Membership
from onewriter_broker.ownership.store_access import StoreAccessWatch
from onewriter_broker.quotas.book import subject_of
from onewriter_broker.ticks import Ticks
from onewriter_broker.topic.compaction.schedule import Compactions
from onewriter_broker.topic.publish.atomic_publishes import AtomicPublishes
from onewriter_broker.topic.publish.staging import Staging
from onewriter_broker.topic.registry.catalog import Undivided
from onewriter_broker.topic.registry.topics import Topics
from onewriter_broker.topic.retention.retention import RetentionLimits
from onewriter_broker.topic.retention.segments import SegmentIndexes
from onewriter_core.authorization import Action
from onewriter_core.errors import OnewriterError, Refused, ServerError, Unavailable
from onewriter_core.ids import Identity, InvalidTopicName, TopicName
from onewriter_http.certificate import ServerCertificate

CONTAINERS_MAX: Final = 8_192
"""Objects and lists in a JSON body, counted as brackets (including those in texts): decoding many of them
takes long."""

BODY_BYTES_MAX: Final = 256 * 1024
"""Size of a request's body."""

DEPTH_MAX: Final = 64
"""Levels of lists and objects in a JSON body."""

RETRY_SECONDS: Final = 1
"""Seconds after which clients retry (Retry-After)."""

ITEMS_PER_TICK: Final = 20
"""Items of a long list that are built in one tick of the event loop: one or two milliseconds."""

_STATUS_OF: Final = {
    ServerError.AUTHENTICATION_ERROR: 401,
    ServerError.AUTHORIZATION_ERROR: 403,
    ServerError.CONSUMER_BUSY: 412,
    ServerError.TOPIC_NOT_FOUND: 404,
    ServerError.SUBSCRIPTION_NOT_FOUND: 404,
    ServerError.CONSUMER_NOT_FOUND: 404,
    ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR: 429,
    ServerError.TOO_MANY_REQUESTS: 429,
    ServerError.PRODUCER_BUSY: 409,
    ServerError.INCOMPATIBLE_SCHEMA: 409,
    ServerError.INVALID_TOPIC_NAME: 412,
    ServerError.NOT_ALLOWED_ERROR: 405,
    ServerError.PRODUCER_FENCED: 409,
    ServerError.TOPIC_TERMINATED_ERROR: 409,
    ServerError.SERVICE_NOT_READY: 503,
}


class Refusal(Exception):
    """Respond with this status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def status_of(error: Exception) -> int:
    """The HTTP status of an error that answers a request."""
    match error:
        case Refusal() | PeerRefused():
            return error.status
        case Conflict() | Undivided():
            return 409
        case NamespaceMissing():
            return 404
        case Invalid() | InvalidTopicName():
            return 412
        case Refused():
            return _STATUS_OF.get(error.code, 500)
        case _:
            return 503  # Unavailable; for a read also Undecided


def failure(status: int, reason: str) -> web.Response:
    """An error in Pulsar's format."""
    headers = {"Retry-After": f"{RETRY_SECONDS}"} if status in {429, 503} else None
    return web.json_response({"reason": reason}, status=status, headers=headers)


async def listing(
    document: Mapping[str, object], name: str, items: Iterable[object]
) -> web.Response:
    """A JSON object ``document`` whose empty list ``name`` is replaced by these items.

    The items are built in steps, because there may be many. State that may change meanwhile must be read
    before. Writing happens in one step, which takes a tenth of the time.
    """
    made, ticks = list[object](), Ticks(ITEMS_PER_TICK)
    for item in items:
        made.append(item)
        await ticks.step()
    body = msgspec.json.encode({**document, name: made})
    return web.Response(body=body, content_type="application/json", charset="utf-8")


NO_CONTENT: Final = 204


def done() -> web.Response:
    """A successful response without content."""
    return web.Response(status=NO_CONTENT)


@dataclass(slots=True)
class Site:
    """The broker, as seen by the handlers."""

    clients: Clients
    incarnation: str
    store: LogStore
    membership: Membership
    store_access: StoreAccessWatch
    namespaces: Namespaces
    metrics: Metrics
    losses: LatestReports[Loss]
    at_risk: LatestReports[RangeAtRisk]
    declared: Sequence[str]
    """What an administrator declared about the store and nothing checked."""
    is_ready: asyncio.Event
    desired: Desired
    watchers: Watchers
    seen: Callable[[], Observation | None]
    """The latest observation of the store; of a cluster, of all its primaries together."""
    seen_of: Callable[[int], Observation | None]
    """The latest observation of the primary that serves a bucket."""
    shards: Callable[[], Sequence[tuple[ShardState, int]]]
    """The latest observation of each primary, and how often another one has replaced it."""
    store_problem: Callable[[], str]
    """Why the store did not answer at the latest observation; empty if it answered."""
    compactions: Compactions
    staging: Staging
    publishing: AtomicPublishes
    peers: Peers
    segments: SegmentIndexes
    retention_limits: RetentionLimits
    certificate: ServerCertificate | None = None
    """The certificate for TLS; None if TLS is not served."""

    @property
    def topics(self) -> Topics:
        return self.clients.topics

    @property
    def addresses(self) -> Addresses:
        return self.clients.addresses

    def check_topic(self, request: web.Request, name: TopicName) -> None:
        """Raise Refused for a topic that is not declared and must not be created."""
        self.clients.authorization.require(request[IDENTITY], Action.CREATE_TOPIC, name)

    def shows(self, request: web.Request, name: TopicName | str) -> bool:
        """Whether a listing shows the topic to the caller."""
        return self.clients.authorization.sees(request[IDENTITY], name)

    async def shown(self, request: web.Request, names: Iterable[str]) -> list[str]:
        """The topics of ``names`` that a listing shows to the caller."""
        return await self.clients.authorization.seen(request[IDENTITY], names)

    def sees_all(self, request: web.Request) -> bool:
        """Whether every listing shows the caller everything."""
        return self.clients.authorization.sees_all(request[IDENTITY])

    def require_namespace(self, namespace: str) -> None:
        """Raise NamespaceMissing for a namespace that was not created and is in no manifest."""
        declared = {topic.topic_name.namespace_name for topic in self.topics.desired.topics}
        if namespace not in declared:
            self.namespaces.require(namespace)

    async def require_owned(self, request: web.Request, name: TopicName) -> None:
        """Return if this broker serves the topic; otherwise redirect the client to the broker that does.

        Raises HTTPTemporaryRedirect, Unavailable.
        """
        owner = await wait_for_owner(self.topics, name)
        if self.topics.is_owned(name):
            return
        if owner is None or owner == self.addresses:
            raise Unavailable(why_not_served(self.topics, name))
        raise web.HTTPTemporaryRedirect(self.url_of(request, owner) + str(request.rel_url))

    def url_of(self, request: web.Request, owner: Addresses) -> str:
        """The URL of another broker for a client: over TLS if the client used TLS, or if all clients must."""
        return self.clients.named(owner, is_secure=request.secure).http_url

    async def forward(self, request: web.Request, owner: Addresses, method: str, path: str) -> None:
        """Forward a request to another broker with the caller's credentials.

        Raises PeerRefused, Unavailable.
        """
        await self.peers.ask(owner, method, path, request.headers.get("Authorization", ""))


# ------------------------------------------------------------ requests


IDENTITY: Final = web.RequestKey("identity", Identity)
"""The caller, as proved by the server's check."""

EXPIRES: Final[web.RequestKey[float | None]] = web.RequestKey("expires")
"""The expiry of that proof, in Unix seconds; None if it does not expire."""


def creator_of(request: web.Request) -> str:
    """The subject that a topic counts for if the request creates it."""
    return subject_of(request[IDENTITY], f"{request.remote or ''}:0")


def namespace_of(request: web.Request) -> str:
    """``tenant/namespace`` from the path."""
    return f"{request.match_info['tenant']}/{request.match_info['namespace']}"


def topic_of(request: web.Request) -> TopicName:
    """The topic from the path; raises InvalidTopicName.

    A topic that is to be deleted may have a name that is too long for a new topic.
    """
    found = request.match_info
    domain = found.get("domain", "persistent")
    text = f"{domain}://{found['tenant']}/{found['namespace']}/{found['topic']}"
    return TopicName.parse(text, is_stored=request.method == "DELETE")


def flag(request: web.Request, name: str) -> bool:
    """A boolean of the query, in the format of Pulsar's clients."""
    return request.query.get(name, "").lower() == "true"


def number(request: web.Request, name: str, default: int, most: int) -> int:
    """A whole number of the query, from 1 to ``most``; raises Refusal."""
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise Refusal(400, f"{name} must be a whole number from 1 to {most}")
    return min(int(text), most)


async def json_body(request: web.Request) -> object:
    """The body as JSON, whatever its content type is; None if it is empty. Raises Refusal."""
    text = await request.read()
    if not text.strip():
        return None
    containers = text.count(b"[") + text.count(b"{")
    if containers > CONTAINERS_MAX:
        raise Refusal(400, f"the body has more than {CONTAINERS_MAX} objects and lists")
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if containers > DEPTH_MAX and _is_deep(value):
        raise Refusal(400, f"the body is nested deeper than {DEPTH_MAX} levels")
    return value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


async def object_body(request: web.Request) -> dict[str, object]:
    """The body as a JSON object; an empty object if there is no body."""
    value = await json_body(request)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value


Answerable = (OnewriterError, InvalidTopicName, Refusal)
"""Exceptions that become responses."""
