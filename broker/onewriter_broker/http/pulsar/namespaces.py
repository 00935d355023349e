"""Pulsar's admin API for namespaces: create and delete them, and list their topics."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import web

from onewriter_broker.connection.lookups import wait_for_owner, why_not_served
from onewriter_broker.http.pulsar.policy_table import (
    NAMESPACE_POLICIES,
    NO_EFFECT,
    PERMISSION,
    QUOTA,
    under,
)
from onewriter_broker.http.routes import LISTED, Routes, on_namespace, on_tenant
from onewriter_broker.http.site import (
    Refusal,
    Site,
    done,
    flag,
    json_body,
    namespace_of,
    object_body,
)
from onewriter_broker.namespaces import Conflict
from onewriter_broker.topic.deletion import delete as delete_topic
from onewriter_core.authorization import Action
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import WHOLE

_ROOT = "/admin/v2/namespaces/{tenant}"
_PATH = _ROOT + "/{namespace}"

BOUNDARIES: Final = ("0x00000000", "0xffffffff")
"""Tools get one bundle: topics here belong to buckets, not to Pulsar's bundles."""

DELETED_AT_ONCE_MAX: Final = 10_000
"""Topics that one forced deletion of a namespace deletes at most."""


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Namespaces"."""
    _add_namespaces(router, site)
    _add_topics(router, site)


def _add_namespaces(router: Routes, site: Site) -> None:
    namespaces = site.namespaces

    async def of_tenant(request: web.Request) -> web.Response:
        return web.json_response(namespaces.of_tenant(request.match_info["tenant"]))

    async def create(request: web.Request) -> web.Response:
        await namespaces.create(namespace_of(request), await object_body(request))
        return done()

    async def show(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        return web.json_response(_policies_object(site, namespace))

    async def delete(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        await namespaces.refresh()
        namespaces.require(namespace, f"Namespace {namespace} does not exist.")
        if namespace in namespaces.configured:
            raise Conflict(f"namespace {namespace} is there by configuration")
        topics = sorted(await site.topics.list(namespace, with_long_names=True))
        if topics and not flag(request, "force"):
            raise Conflict("Cannot delete non empty namespace")
        if len(topics) > DELETED_AT_ONCE_MAX:
            raise Conflict(f"more than {DELETED_AT_ONCE_MAX} topics: delete some of them first")
        for text in topics:
            await _delete_topic(site, request, TopicName.parse_stored(text))
        await namespaces.delete(namespace)
        return done()

    async def replicate(request: web.Request) -> web.Response:
        await namespaces.set_policy(namespace_of(request), "replication", await json_body(request))
        return web.Response(headers={"Warning": NO_EFFECT})  # 200, as Pulsar does here

    async def bundles(request: web.Request) -> web.Response:
        namespaces.require(namespace_of(request))
        return web.json_response(_bundles())

    router.add_get(_ROOT, of_tenant, on_tenant(Action.OBSERVE))
    router.add_get(_PATH, show, on_namespace(Action.OBSERVE))
    router.add_put(_PATH, create, on_namespace(Action.ADMINISTER_NAMESPACE))
    router.add_post(_PATH, create, on_namespace(Action.ADMINISTER_NAMESPACE))
    router.add_delete(_PATH, delete, on_namespace(Action.ADMINISTER_NAMESPACE))
    router.add_get(_PATH + "/bundles", bundles, on_namespace(Action.OBSERVE))
    router.add_post(_PATH + "/replication", replicate, on_namespace(Action.ADMINISTER_NAMESPACE))


async def _delete_topic(site: Site, request: web.Request, name: TopicName) -> None:
    """Delete one topic of a namespace, at the broker that serves it."""
    if site.topics.is_owned(name):
        await delete_topic(site.topics, name)
        return
    owner = await wait_for_owner(site.topics, name, 1.0)
    if owner is None:
        raise Refusal(503, why_not_served(site.topics, name))
    entry = await site.topics.entry_of(name)
    if entry is None:
        return
    parts = "/partitions" if entry.partitions else ""
    # Without declared partitions its single log names it, also if its name ends like that of a partition.
    named = name if entry.partitions else entry.log_names(name)[0]
    local = quote(named.local_name, safe="")
    path = f"/admin/v2/persistent/{name.tenant}/{name.namespace}/{local}{parts}"
    await site.forward(request, owner, "DELETE", f"{path}?force=true")


def _add_topics(router: Routes, site: Site) -> None:
    async def topics(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        site.require_namespace(namespace)
        if request.query.get("mode") == "NON_PERSISTENT":
            return web.json_response([])
        return web.json_response(await log_names(site, request, namespace))

    async def unload(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        site.require_namespace(namespace)
        for topic in list(site.topics.loaded.values()):
            if topic.name.namespace_name == namespace:
                await site.topics.unload(topic.name)
        return done()

    router.add_get(_PATH + "/topics", topics, LISTED)
    router.add_put(_PATH + "/unload", unload, on_namespace(Action.ADMINISTER_NAMESPACE))
    router.add_put(
        _PATH + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/unload",
        unload,
        on_namespace(Action.ADMINISTER_NAMESPACE),
    )


async def log_names(site: Site, request: web.Request, namespace: str) -> list[str]:
    """The logs of a namespace that the caller may see: partitions, not partitioned topics."""
    entries = await site.topics.list(namespace)
    names: list[str] = []
    for text in await site.shown(request, entries):
        entry = entries[text]
        if entry.log_numbers == (WHOLE,):
            names.append(text)
        else:
            names += map(str, entry.log_names(TopicName.parse(text)))
    return sorted(names)


def _policies_object(site: Site, namespace: str) -> dict[str, object]:
    """A namespace in Pulsar's format of Policies."""
    known = site.namespaces.policies(namespace)
    found: dict[str, object] = {
        "auth_policies": {
            "namespace_auth": under(known, PERMISSION),
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "bundles": _bundles(),
        "backlog_quota_map": under(known, QUOTA),
        "deleted": False,
    }
    for policy in NAMESPACE_POLICIES:
        if policy.field and policy.default is not None:
            found[policy.field] = policy.default
    found |= site.namespaces.created_with(namespace)
    for policy in NAMESPACE_POLICIES:
        if policy.field and policy.path in known:
            found[policy.field] = known[policy.path]
    return found


def _bundles() -> dict[str, object]:
    return {"boundaries": list(BOUNDARIES), "numBundles": 1}
