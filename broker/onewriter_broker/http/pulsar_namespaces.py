"""Pulsar's admin API for namespaces: making and deleting them, their policies, their topics.

Policies are stored and given back as they came. None of them changes how a topic is served here:
what a topic may do is declared by its ExclusiveTopic (docs/http.md says this too).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from aiohttp import web

from onewriter_broker.http.site import (
    Refusal,
    Site,
    done,
    flag,
    json_body,
    namespace_of,
    object_body,
)
from onewriter_broker.namespaces import STANDALONE, Conflict
from onewriter_core.ids import TopicName
from onewriter_core.topic.model import WHOLE

_ROOT = "/admin/v2/namespaces/{tenant}"
_PATH = _ROOT + "/{namespace}"

BOUNDARIES: Final = ("0x00000000", "0xffffffff")
"""Pulsar's bundles do not exist here; tools are told of a single one."""

DELETED_AT_ONCE_MAX: Final = 10_000
"""Topics that deleting a namespace by force deletes at most in one call."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: its path, its field in Pulsar's Policies object, and what it is when never set.

    ``default`` None: an empty answer, as Pulsar gives.
    """

    path: str
    field: str = ""
    default: object = None


POLICIES: Final = (
    Policy("deduplication", "deduplicationEnabled"),
    Policy("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
    Policy("schemaCompatibilityStrategy", "schema_compatibility_strategy", "UNDEFINED"),
    Policy("schemaAutoUpdateCompatibilityStrategy", "", "Full"),
    Policy("schemaValidationEnforced", "schema_validation_enforced", default=False),
    Policy("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", default=True),
    Policy("retention", "retention_policies"),
    Policy("persistence", "persistence"),
    Policy("messageTTL", "message_ttl_in_seconds"),
    Policy("subscriptionExpirationTime", "subscription_expiration_time_minutes"),
    Policy("replication", "replication_clusters", (STANDALONE,)),
    Policy("autoTopicCreation", "autoTopicCreationOverride"),
    Policy("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
    Policy("publishRate"),
    Policy("dispatchRate"),
    Policy("subscriptionDispatchRate"),
    Policy("subscribeRate"),
    Policy("replicatorDispatchRate"),
    Policy("maxProducersPerTopic", "max_producers_per_topic"),
    Policy("maxConsumersPerTopic", "max_consumers_per_topic"),
    Policy("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    Policy("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    Policy("maxTopicsPerNamespace", "max_topics_per_namespace"),
    Policy("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    Policy("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    Policy("compactionThreshold", "compaction_threshold"),
    Policy("delayedDelivery", "delayed_delivery_policies"),
    Policy("inactiveTopicPolicies", "inactive_topic_policies"),
    Policy("offloadThreshold", "offload_threshold", -1),
    Policy("offloadPolicies", "offload_policies"),
    Policy("encryptionRequired", "encryption_required", default=False),
    Policy("antiAffinity", "antiAffinityGroup"),
    Policy("subscriptionAuthMode", "subscription_auth_mode", "None"),
    Policy("properties", "properties"),
    Policy("resourcegroup", "resource_group_name"),
    Policy("entryFilters", "entryFilters"),
)

_PERMISSION = "permissions/"
_QUOTA = "backlogQuota/"


def add_routes(router: web.UrlDispatcher, site: Site) -> None:
    """See docs/http.md, "Namespaces"."""
    _add_namespaces(router, site)
    _add_topics(router, site)
    for policy in POLICIES:
        _add_policy(router, site, policy)
    _add_permissions(router, site)
    _add_quotas(router, site)


def _add_namespaces(router: web.UrlDispatcher, site: Site) -> None:
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
        topics = sorted(await site.topics.list(namespace))
        if topics and not flag(request, "force"):
            raise Conflict("Cannot delete non empty namespace")
        if len(topics) > DELETED_AT_ONCE_MAX:
            raise Conflict(f"more than {DELETED_AT_ONCE_MAX} topics: delete some of them first")
        for text in topics:
            await _delete_topic(site, request, TopicName.parse(text))
        await namespaces.delete(namespace)
        return done()

    async def replicate(request: web.Request) -> web.Response:
        await namespaces.set_policy(namespace_of(request), "replication", await json_body(request))
        return web.Response()  # 200, as Pulsar does here

    async def bundles(request: web.Request) -> web.Response:
        namespaces.require(namespace_of(request))
        return web.json_response(_bundles())

    router.add_get(_ROOT, of_tenant)
    router.add_get(_PATH, show)
    router.add_put(_PATH, create)
    router.add_post(_PATH, create)
    router.add_delete(_PATH, delete)
    router.add_get(_PATH + "/bundles", bundles)
    router.add_post(_PATH + "/replication", replicate)


async def _delete_topic(site: Site, request: web.Request, name: TopicName) -> None:
    """Delete one topic of a namespace, where it is served."""
    if site.topics.is_owned(name):
        await site.topics.delete(name)
        return
    owner = await site.owner_of(name, wait_seconds=1.0)
    if owner is None:
        raise Refusal(503, site.why_not_served(name))
    entry = await site.topics.entry_of(name)
    if entry is None:
        return
    parts = "/partitions" if entry.partitions else ""
    local = quote(name.local, safe="")
    path = f"/admin/v2/persistent/{name.tenant}/{name.namespace}/{local}{parts}"
    await site.forward(request, "DELETE", f"{owner.http_url}{path}?force=true")


def _add_topics(router: web.UrlDispatcher, site: Site) -> None:
    async def topics(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        site.require_namespace(namespace)
        if request.query.get("mode") == "NON_PERSISTENT":
            return web.json_response([])
        return web.json_response(await log_names(site, namespace))

    async def unload(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        site.require_namespace(namespace)
        for topic in list(site.topics.loaded.values()):
            if topic.name.namespace_name == namespace:
                await site.topics.unload(topic.name)
        return done()

    router.add_get(_PATH + "/topics", topics)
    router.add_put(_PATH + "/unload", unload)
    router.add_put(_PATH + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/unload", unload)


async def log_names(site: Site, namespace: str) -> list[str]:
    """Every log of a namespace by its full name: partitions, not partitioned topics."""
    entries = await site.topics.list(namespace)
    names: list[str] = []
    for text, entry in entries.items():
        if entry.slots == (WHOLE,):
            names.append(text)
        else:
            names += map(str, entry.log_names(TopicName.parse(text)))
    return sorted(names)


def _add_policy(router: web.UrlDispatcher, site: Site, policy: Policy) -> None:
    namespaces = site.namespaces

    async def get(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        value = namespaces.policy(namespace, policy.path)
        if value is None:
            created_with = namespaces.created_with(namespace)
            value = created_with.get(policy.field) if policy.field else None
        value = policy.default if value is None else value
        return web.Response() if value is None else web.json_response(value)

    async def set_(request: web.Request) -> web.Response:
        await namespaces.set_policy(namespace_of(request), policy.path, await json_body(request))
        return done()

    async def remove(request: web.Request) -> web.Response:
        await namespaces.remove_policy(namespace_of(request), policy.path)
        return done()

    path = f"{_PATH}/{policy.path}"
    router.add_get(path, get)
    router.add_put(path, set_)
    if policy.path != "replication":
        router.add_post(path, set_)
    router.add_delete(path, remove)


def _add_permissions(router: web.UrlDispatcher, site: Site) -> None:
    namespaces = site.namespaces

    async def every(request: web.Request) -> web.Response:
        return web.json_response(_prefixed(site, namespace_of(request), _PERMISSION))

    async def grant(request: web.Request) -> web.Response:
        actions = await json_body(request)
        if not isinstance(actions, list) or not all(isinstance(each, str) for each in actions):
            raise Refusal(400, "permissions are a JSON list of actions")
        role = request.match_info["role"]
        await namespaces.set_policy(namespace_of(request), _PERMISSION + role, sorted(actions))
        return done()

    async def revoke(request: web.Request) -> web.Response:
        role = request.match_info["role"]
        await namespaces.remove_policy(namespace_of(request), _PERMISSION + role)
        return done()

    router.add_get(_PATH + "/permissions", every)
    router.add_post(_PATH + "/permissions/{role}", grant)
    router.add_delete(_PATH + "/permissions/{role}", revoke)


def _add_quotas(router: web.UrlDispatcher, site: Site) -> None:
    namespaces = site.namespaces

    def kind_of(request: web.Request) -> str:
        return request.query.get("backlogQuotaType", "destination_storage")

    async def every(request: web.Request) -> web.Response:
        return web.json_response(_prefixed(site, namespace_of(request), _QUOTA))

    async def set_(request: web.Request) -> web.Response:
        quota = await object_body(request)
        await namespaces.set_policy(namespace_of(request), _QUOTA + kind_of(request), quota)
        return done()

    async def remove(request: web.Request) -> web.Response:
        await namespaces.remove_policy(namespace_of(request), _QUOTA + kind_of(request))
        return done()

    router.add_get(_PATH + "/backlogQuotaMap", every)
    router.add_post(_PATH + "/backlogQuota", set_)
    router.add_delete(_PATH + "/backlogQuota", remove)


def _prefixed(site: Site, namespace: str, prefix: str) -> dict[str, object]:
    policies = site.namespaces.policies(namespace)
    return {
        name.removeprefix(prefix): value
        for name, value in policies.items()
        if name.startswith(prefix)
    }


def _policies_object(site: Site, namespace: str) -> dict[str, object]:
    """A namespace in the shape of Pulsar's Policies."""
    known = site.namespaces.policies(namespace)
    found: dict[str, object] = {
        "auth_policies": {
            "namespace_auth": _prefixed(site, namespace, _PERMISSION),
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "bundles": _bundles(),
        "backlog_quota_map": _prefixed(site, namespace, _QUOTA),
        "deleted": False,
    }
    for policy in POLICIES:
        if policy.field and policy.default is not None:
            found[policy.field] = policy.default
    found |= site.namespaces.created_with(namespace)
    for policy in POLICIES:
        if policy.field and policy.path in known:
            found[policy.field] = known[policy.path]
    return found


def _bundles() -> dict[str, object]:
    return {"boundaries": list(BOUNDARIES), "numBundles": 1}
