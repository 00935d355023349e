"""Staged parts and atomic publishes, for the holder of a topic and the publishers to which it passes its
right on.

This module handles topics, rights and bodies. topic/publish/staging.py and topic/publish/atomic_publishes.py
do the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, Final

from aiohttp import web

from onewriter_broker.http.onewriter.publish_body import LABEL, NUMBER, epoch_of, read_body
from onewriter_broker.http.onewriter.publish_rights import (
    changer_of,
    may_ask_of_ended,
    owner_of,
    shows_proof,
    under_epoch,
)
from onewriter_broker.http.routes import ByHandler, Routes, on_topic
from onewriter_broker.http.shares import Capacity, Shares
from onewriter_broker.http.site import IDENTITY, Refusal, Site, creator_of, object_body, topic_of
from onewriter_broker.log.topic_log.atomic_publish import BoundElsewhere, TooLarge
from onewriter_broker.topic.publish.layouts import LAYOUT_PREFIX, Overtaken
from onewriter_broker.topic.publish.requests import PublishRequest, PublishResult, PublishRight
from onewriter_broker.topic.publish.staging import PART_BYTES_MAX, Changer, MissingPart
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_core.authorization import Action, Granted, RequestedProducer
from onewriter_core.errors import ProtocolError, Refused, ServerError, Unavailable, Undecided
from onewriter_core.ids import TopicName
from onewriter_core.log_format.field_names import OWNER_PREFIX, VERSION_PREFIX
from onewriter_core.log_format.limits import PUBLISH_VERSION_MAX
from onewriter_core.publish_rights import is_app
from onewriter_core.topic.model import WHOLE, AccessMode

PUBLISH_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of the body that names the parts of a publish."""

UPLOADS: Final = Capacity(places=8, each=3, kept=0, waiting=64)
"""Parts that are received concurrently: each may use PART_BYTES_MAX of memory."""

_TOPIC: Final = "/onewriter/v1/topics/{tenant}/{namespace}/{topic:[^/]+}"
_VERSION: Final = _TOPIC + "/staged/{app}/{version}"
_PART: Final = _VERSION + "/{part}/{attempt}"
_PUBLISH: Final = _VERSION + "/publish"
_DISCARD: Final = _VERSION + "/discard"
_LAYOUT: Final = _VERSION + "/layout"
_APP: Final = _TOPIC + "/published/{app}"

_UNDER_EPOCH: Final = ByHandler(
    Action.PUBLISH_UNDER_EPOCH, "the right depends on the secret that the request shows"
)

_MODES: Final = (
    AccessMode.EXCLUSIVE,
    AccessMode.EXCLUSIVE_WITH_FENCING,
    AccessMode.WAIT_FOR_EXCLUSIVE,
)


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Atomic publishes"."""
    uploads = Shares(UPLOADS, "uploads of parts")

    async def stage(request: web.Request) -> web.Response:
        name, app, version = _names(request)
        part, attempt = _label(request, "part"), _label(request, "attempt")
        right = await _right_to_stage(site, request, name, app)
        if site.clients.store_is_full:
            raise Unavailable("the store is almost full; nothing is staged; retry later")
        _check_share(site, name)
        async with uploads.place(creator_of(request), is_privileged=False):
            body = await _body(request, PART_BYTES_MAX)
            try:
                key = f"{app}/{version}/{part}/{attempt}"
                changer = changer_of(site, request, name, right)
                kept = await site.staging.keep(name, key, body, changer)
            except ProtocolError as error:
                raise Refusal(400, str(error)) from error
            except TooLarge as error:
                raise Refusal(413, str(error)) from error
            except Undecided as error:  # sending the part again does no harm
                raise Unavailable(f"the store did not take it: {error}") from error
        return web.json_response(
            {"key": kept.key, "rows": kept.rows, "bytes": kept.bytes, "checksum": kept.checksum}
        )

    async def publish(request: web.Request) -> web.Response:
        name, app, version = _names(request)
        body = await read_body(await _body(request, PUBLISH_BODY_BYTES_MAX), f"{app}/")
        if body.epoch is None:
            raise Refusal(
                400, "epoch is missing: lead the topic, and name the epoch under which you do"
            )
        topic, right = await _led(site, request, name, app, body.epoch, version=version)
        requested = PublishRequest(app, version, body.epoch, body.parts, request[IDENTITY], right)
        try:
            with _owner_named(site, request):
                answer = await site.publishing.publish(
                    name, topic, requested, site.clients.wall_ms()
                )
        except MissingPart as error:
            raise Refusal(410, str(error)) from error
        except TooLarge as error:
            raise Refusal(413, str(error)) from error
        return web.json_response(_document(answer, requested))

    router.add_put(_PART, stage, _UNDER_EPOCH)
    router.add_post(_PUBLISH, publish, _UNDER_EPOCH)
    _add_layout(router, site)
    _add_dropping(router, site)


def _add_layout(router: Routes, site: Site) -> None:
    async def layout(request: web.Request) -> web.Response:
        name, app, version = _names(request)
        if name.partition is not None:
            raise Refusal(400, f"{name} is a partition: ask for {name.base}")
        epoch, is_noted = await _requested_layout(request)
        await site.require_owned(request, name)
        partitions = await site.topics.partitions_of(name) or 0
        first = name.with_partition(0) if partitions else name
        if epoch is None:
            topic = await _admitted(site, request, first)
            owner = owner_of(site, request[IDENTITY])
        else:
            topic, right = await _led(site, request, first, app, epoch, action=Action.STAGE)
            owner = None if right is None else right.owner
        if partitions:
            topic_log = topic.runner.logs[topic.partition_of(first)]
            names = [name.with_partition(number) for number in range(partitions)]

            async def counted() -> int:
                if epoch is None:
                    return len(names)
                return await site.publishing.count_led(topic.runner, len(names), epoch)

            async def held() -> int:
                found = -1
                for each in names:
                    served = await site.topics.serve(each)
                    log = served.runner.logs[served.partition_of(each)]
                    found = max(found, await site.publishing.held_version(log, app))
                return found

            layouts = site.publishing.layouts
            try:
                with _owner_named(site, request):
                    partitions = await (
                        layouts.note(topic_log, app, version, counted, held, owner)
                        if is_noted
                        else counted()
                    )
            except Overtaken as error:
                text = f"version {version} of {app} is not published: {name} has {error}"
                raise Refusal(409, text) from error
        return web.json_response({"partitions": partitions})

    router.add_post(_LAYOUT, layout, _UNDER_EPOCH)


def _add_dropping(router: Routes, site: Site) -> None:
    async def discard(request: web.Request) -> web.Response:
        name, app, version = _names(request)
        changer = await _changer(site, request, name, app)
        dropped = await site.staging.drop(name, f"{app}/{version}/", changer)
        return web.json_response({"dropped": dropped})

    async def discard_parts(request: web.Request) -> web.Response:
        name, app, version = _names(request)
        body = await _body(request, PUBLISH_BODY_BYTES_MAX)
        parts = (await read_body(body, f"{app}/{version}/")).parts
        changer = await _changer(site, request, name, app)
        dropped = await site.staging.drop_parts(name, [part.key for part in parts], changer)
        return web.json_response({"dropped": dropped})

    async def forget(request: web.Request) -> web.Response:
        name, app = topic_of(request), _app(request)
        await site.require_owned(request, name)
        await site.topics.serve_existing(name.base)
        partitions = 0 if name.partition is not None else await site.topics.partitions_of(name) or 0
        names = [name.with_partition(number) for number in range(partitions)] or [name]
        served = [(each, await site.topics.serve(each)) for each in names]
        prefixes = [VERSION_PREFIX] + ([] if name.partition is not None else [LAYOUT_PREFIX])
        prefixes.append(OWNER_PREFIX)  # the response contains the version's owner, if there is one
        fields = [f"{each}{app}" for each in prefixes]
        topic = served[0][1]
        first = topic.runner.logs[topic.partition_of(names[0])]
        async with AsyncExitStack() as locks:
            await locks.enter_async_context(site.publishing.layouts.lock(first, app))
            for each, topic in served:  # check all partitions before the first one forgets
                topic_log = topic.runner.logs[topic.partition_of(each)]
                locks.enter_context(site.publishing.blocking(topic_log, app))
            versions = [
                await _forgotten(site, topic, topic.partition_of(each), app, fields)
                for each, topic in served
            ]
        if max(versions) < 0:
            raise Refusal(404, f"{name} was never published to under {app}")
        return web.json_response({"app": app, "version": max(versions)})

    router.add_post(_DISCARD, discard_parts, _UNDER_EPOCH)
    router.add_delete(_VERSION, discard, _UNDER_EPOCH)
    router.add_delete(_APP, forget, on_topic(Action.ADMINISTER_TOPIC))


@contextmanager
def _owner_named(site: Site, request: web.Request) -> Iterator[None]:
    """While the context is open, name the owner of another subject's app in refusals to administrators."""
    try:
        yield
    except BoundElsewhere as error:
        if not site.clients.authorization.principal(request[IDENTITY]).is_administrator:
            raise
        raise Refusal(403, f"{error}; it is bound to {error.owner}") from error


async def _forgotten(
    site: Site, topic: LoadedTopic, partition: int, app: str, fields: Sequence[str]
) -> int:
    """Let a log forget the version of an app; the version, or -1 if the log had none. Raises Unavailable,
    Undecided.
    """
    topic_log = topic.runner.logs[partition]
    # The memory of this broker may lack what the store has.
    state = await site.publishing.state_of(topic_log)
    found = [field for field in fields if field in state]
    if not found:
        return -1
    version = state[found[0]].partition(" ")[0]
    if not version.isdecimal():
        version = "0"  # a damaged version is forgotten like any other
    await topic_log.save_state({}, found)
    if found[0].startswith(VERSION_PREFIX):
        topic.runner.history.audit(
            {"kind": "forget", "log": str(topic_log.name), "app": app, "version": version}
        )
    return int(version)


async def _led(
    site: Site,
    request: web.Request,
    name: TopicName,
    app: str,
    epoch: int | None = None,
    *,
    version: int | None = None,
    action: Action = Action.PUBLISH_UNDER_EPOCH,
) -> tuple[LoadedTopic, PublishRight | None]:
    """The topic, served here, under whose epoch this caller may publish as ``app``.

    ``epoch`` None: the epoch that leads. ``version``: a version that may be on its way into the log. Until
    that is decided, the answer is Undecided instead of a refusal, because a refusal would mean that the
    version is not published. The right is None if a capability cannot be verified because its epoch has
    ended: a caller that may read the topic may then ask for the result of a version, but not publish. Raises
    Refused, Refusal, Unavailable, Undecided, HTTPTemporaryRedirect.
    """
    if action is Action.PUBLISH_UNDER_EPOCH and not shows_proof(request):
        under_epoch(site, request, name, app, None, epoch)
    await site.require_owned(request, name)
    topic = await _existing(site, name)
    right: PublishRight | None
    try:
        right = under_epoch(site, request, name, app, topic, epoch, action)
    except Refused:
        if (
            topic is not None
            and epoch is not None
            and may_ask_of_ended(site, request, name, topic, epoch)
        ):
            return topic, None
        if topic is not None and version is not None:
            topic_log = topic.runner.logs[topic.partition_of(name)]
            site.publishing.check_not_in_progress(topic_log, app, version)
        raise
    if topic is None:
        await _check_undivided(site, name)
        raise Refused(ServerError.TOPIC_NOT_FOUND, f"{name} does not exist")
    _check_takes_rows(name, topic)
    return topic, right


async def _existing(site: Site, name: TopicName) -> LoadedTopic | None:
    """The log's topic, loaded; None if there is no such log. Raises Unavailable, Undecided."""
    entry = await site.topics.entry_of(name)
    partition = WHOLE if name.partition is None else name.partition
    if entry is None or partition not in entry.log_numbers:
        return None
    return await site.topics.serve(name)


async def _check_undivided(site: Site, name: TopicName) -> None:
    """Raise Refusal for a partitioned topic; raises Undecided."""
    if name.partition is None and (await site.topics.partitions_of(name) or 0) > 0:
        raise Refusal(400, f"{name} has partitions: name the one that is to be published to")


async def _right_to_stage(
    site: Site, request: web.Request, name: TopicName, app: str
) -> PublishRight | None:
    """The right to stage under the epoch that leads; None if the caller may only produce.

    The proof may be for an epoch that has ended or does not lead this partition. Then the caller's own right
    to produce suffices for staging, and the publish decides. Raises as ``_led``.
    """
    refusal: Refused | None = None
    if shows_proof(request):
        try:
            return (await _led(site, request, name, app))[1]
        except Refused as refused:
            if refused.code is not ServerError.AUTHORIZATION_ERROR:
                raise
            refusal = refused
    try:
        await _admitted(site, request, name)
    except Refused as refused:
        raise refusal or refused from refused
    return None


async def _changer(site: Site, request: web.Request, name: TopicName, app: str) -> Changer:
    """The caller, who wants to drop parts. Each part decides who may drop it. Raises as ``_led``."""
    right = None
    if shows_proof(request):
        with suppress(Refused):  # the secret of a former epoch may drop what was staged under it
            right = (await _led(site, request, name, app))[1]
    elif not site.clients.authorization.principal(request[IDENTITY]).is_administrator:
        await _admitted(site, request, name)
    await site.require_owned(request, name)
    return changer_of(site, request, name, right)


def _check_share(site: Site, name: TopicName) -> None:
    """Raise Refused if the topic's share of the store is used up."""
    is_declared = site.topics.desired.topic(name.base) is not None
    share = site.topics.shares.now(name.namespace_name, is_declared=is_declared)
    if share.refusal:
        raise Refused(ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR, share.refusal)


def _check_takes_rows(name: TopicName, topic: LoadedTopic) -> None:
    if topic.requires_schema:
        raise Refused(ServerError.INCOMPATIBLE_SCHEMA, f"{name} takes messages with a schema only")


async def _admitted(site: Site, request: web.Request, name: TopicName) -> LoadedTopic:
    """The topic, served here, where this caller may produce in one of the modes that lead.

    Raises Refused, Refusal, Unavailable, HTTPTemporaryRedirect.
    """
    topics, authorization = site.topics, site.clients.authorization
    resource, identity = authorization.topic(name), request[IDENTITY]
    decisions = [
        authorization.may(identity, Action.PRODUCE, resource, RequestedProducer(mode))
        for mode in _MODES
    ]
    if not any(isinstance(each, Granted) for each in decisions):
        # The refusal of the first mode is counted and returned.
        authorization.require(identity, Action.PRODUCE, resource, RequestedProducer(_MODES[0]))
    await site.require_owned(request, name)
    await _check_undivided(site, name)
    topic = await topics.serve(name, creator_of(request))
    _check_takes_rows(name, topic)
    return topic


async def _body(request: web.Request, bytes_max: int) -> bytes:
    """A body that may be larger than those of other routes. Raises Refusal."""
    found, size = [], 0
    async for chunk in request.content.iter_any():
        found.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            raise Refusal(413, f"a body has at most {bytes_max} bytes here")
    return b"".join(found)


def _names(request: web.Request) -> tuple[TopicName, str, int]:
    text = request.match_info["version"]
    if not NUMBER.fullmatch(text):
        raise Refusal(400, f"version is a whole number below {PUBLISH_VERSION_MAX}")
    return topic_of(request), _app(request), int(text)


def _app(request: web.Request) -> str:
    app = request.match_info["app"]
    if not is_app(app):
        raise Refusal(400, "an app is 1 to 200 letters, digits, or characters of . _ : -")
    return app


def _label(request: web.Request, name: str) -> str:
    text = request.match_info[name]
    if not LABEL.fullmatch(text):
        raise Refusal(400, f"{name} is 1 to 64 letters, digits, or characters of . _ -")
    return text


async def _requested_layout(request: web.Request) -> tuple[int | None, bool]:
    """The epoch of the request, and whether the layout is to be recorded. Raises Refusal."""
    requested = await object_body(request)
    is_noted = requested.get("noted", True)
    if not isinstance(is_noted, bool):
        raise Refusal(400, "noted is true or false")
    return epoch_of(requested.get("epoch")), is_noted


def _document(answer: PublishResult, requested: PublishRequest) -> dict[str, Any]:
    where = answer.where
    return {
        "outcome": "duplicate" if answer.is_duplicate else "published",
        "first": None if where is None else f"{where.first.ledger}:{where.first.entry}",
        "last": None if where is None else f"{where.last.ledger}:{where.last.entry}",
        "rows": requested.rows,
        "held": answer.held,
    }
