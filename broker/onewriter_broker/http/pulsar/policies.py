"""Pulsar's policies over HTTP, of namespaces and of single topics.

A few have an effect here. Some are refused, because accepting them without effect would suggest a protection
that does not exist. All others are stored and returned, so that tools and test suites work, and the response
says that they have no effect (docs/http.md, "Policies").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from onewriter_broker.http.pulsar.policy_table import (
    NAMESPACE_POLICIES,
    NO_EFFECT,
    NOT_OFFERED,
    PERMISSION,
    QUOTA,
    TOPIC_POLICIES,
    WITH_EFFECT,
    Policy,
    inherited,
    under,
)
from onewriter_broker.http.pulsar.topics import PATH, existing, not_found, properties_of
from onewriter_broker.http.routes import Routes, on_namespace, on_topic
from onewriter_broker.http.site import (
    NO_CONTENT,
    Refusal,
    Site,
    flag,
    json_body,
    namespace_of,
    object_body,
)
from onewriter_broker.namespaces import text_of
from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_broker.topic.registry.policies import (
    COMPACTION_THRESHOLD,
    DEDUPLICATION,
    SCHEMA_STRATEGY,
    deduplicates,
    set_own,
)
from onewriter_broker.topic.schemas.rules import Strategy
from onewriter_core.authorization import Action
from onewriter_core.ids import TopicName

NAMESPACE_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}"


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Policies"."""
    for policy in NAMESPACE_POLICIES:
        _add_namespace_policy(router, site, policy)
    _add_permissions(router, site)
    _add_quotas(router, site)
    for policy in TOPIC_POLICIES:
        _add_topic_policy(router, site, policy)
    _add_topic_quotas(router, site)
    _add_topic_properties(router, site)


_STRATEGIES: Final = frozenset({"UNDEFINED", *(each.value for each in Strategy)})


def done_with(path: str) -> web.Response:
    """A successful response; it says if the policy has no effect."""
    headers = {} if path in WITH_EFFECT else {"Warning": NO_EFFECT}
    return web.Response(status=NO_CONTENT, headers=headers)


def _checked(path: str, value: object) -> object:
    """The value, if it may be set; raises Refusal."""
    if path in {DEDUPLICATION.of_namespace, DEDUPLICATION.of_topic} and type(value) is not bool:
        raise Refusal(400, f"{path} is true or false")
    if path == COMPACTION_THRESHOLD.of_topic and (type(value) is not int or value < 0):
        raise Refusal(412, f"{path} is a number of bytes; 0: compact on request only")
    is_strategy = isinstance(value, str) and value in _STRATEGIES
    if path == SCHEMA_STRATEGY.of_topic and not is_strategy:
        raise Refusal(412, f"{path} is one of Pulsar's strategies, for example FULL")
    unwanted, reason = NOT_OFFERED.get(path, (None, ""))
    if reason and value == unwanted:
        raise Refusal(412, reason)
    return value


def _answer(value: object) -> web.Response:
    return web.Response() if value is None else web.json_response(value)


# ---------------------------------------------------------------- namespaces


def _add_namespace_policy(router: Routes, site: Site, policy: Policy) -> None:
    namespaces = site.namespaces

    async def get(request: web.Request) -> web.Response:
        namespace = namespace_of(request)
        namespaces.require(namespace)
        value = namespaces.effective(namespace, policy.path, policy.field)
        return _answer(policy.default if value is None else value)

    async def set_(request: web.Request) -> web.Response:
        value = _checked(policy.path, await json_body(request))
        await namespaces.set_policy(namespace_of(request), policy.path, value)
        site.topics.follow_policies()
        return done_with(policy.path)

    async def remove(request: web.Request) -> web.Response:
        await namespaces.remove_policy(namespace_of(request), policy.path)
        site.topics.follow_policies()
        return done_with(policy.path)

    path = f"{NAMESPACE_PATH}/{policy.path}"
    router.add_get(path, get, on_namespace(Action.OBSERVE))
    router.add_put(path, set_, on_namespace(Action.ADMINISTER_NAMESPACE))
    if policy.path != "replication":
        router.add_post(path, set_, on_namespace(Action.ADMINISTER_NAMESPACE))
    router.add_delete(path, remove, on_namespace(Action.ADMINISTER_NAMESPACE))


def _add_permissions(router: Routes, site: Site) -> None:
    namespaces = site.namespaces

    async def every(request: web.Request) -> web.Response:
        found = under(namespaces.policies(namespace_of(request)), PERMISSION)
        return web.json_response({role: who for role, who in found.items() if "/" not in role})

    async def of_subscriptions(request: web.Request) -> web.Response:
        found = namespaces.policies(namespace_of(request))
        return web.json_response(under(found, PERMISSION + "subscription/"))

    async def grant(request: web.Request) -> web.Response:
        listed = await json_body(request)
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise Refusal(400, "permissions are a JSON list of actions, or of roles")
        name = PERMISSION + request.match_info["role"]
        await namespaces.set_policy(namespace_of(request), name, sorted(listed))
        return done_with("permissions")

    async def revoke(request: web.Request) -> web.Response:
        name = PERMISSION + request.match_info["role"]
        await namespaces.remove_policy(namespace_of(request), name)
        return done_with("permissions")

    async def revoke_one(request: web.Request) -> web.Response:
        name = f"{PERMISSION}subscription/{request.match_info['subscription']}"
        namespace, role = namespace_of(request), request.match_info["revoked"]
        present = namespaces.policy(namespace, name)
        roles = [each for each in present if each != role] if isinstance(present, list) else []
        await namespaces.set_policy(namespace, name, roles)
        return done_with("permissions")

    path = NAMESPACE_PATH + "/permissions"
    router.add_get(path, every, on_namespace(Action.OBSERVE))
    router.add_get(path + "/subscription", of_subscriptions, on_namespace(Action.OBSERVE))
    router.add_post(path + "/{role}", grant, on_namespace(Action.ADMINISTER_NAMESPACE))
    router.add_delete(path + "/{role}", revoke, on_namespace(Action.ADMINISTER_NAMESPACE))
    router.add_post(
        path + "/{role:subscription/[^/]+}", grant, on_namespace(Action.ADMINISTER_NAMESPACE)
    )
    router.add_delete(
        path + "/{subscription}/{revoked}", revoke_one, on_namespace(Action.ADMINISTER_NAMESPACE)
    )


def _kind_of(request: web.Request) -> str:
    return QUOTA + request.query.get("backlogQuotaType", "destination_storage")


def _add_quotas(router: Routes, site: Site) -> None:
    namespaces = site.namespaces

    async def every(request: web.Request) -> web.Response:
        return web.json_response(under(namespaces.policies(namespace_of(request)), QUOTA))

    async def set_(request: web.Request) -> web.Response:
        quota = await object_body(request)
        await namespaces.set_policy(namespace_of(request), _kind_of(request), quota)
        return done_with(QUOTA)

    async def remove(request: web.Request) -> web.Response:
        await namespaces.remove_policy(namespace_of(request), _kind_of(request))
        return done_with(QUOTA)

    router.add_get(NAMESPACE_PATH + "/backlogQuotaMap", every, on_namespace(Action.OBSERVE))
    router.add_post(
        NAMESPACE_PATH + "/backlogQuota", set_, on_namespace(Action.ADMINISTER_NAMESPACE)
    )
    router.add_delete(
        NAMESPACE_PATH + "/backlogQuota", remove, on_namespace(Action.ADMINISTER_NAMESPACE)
    )


# ---------------------------------------------------------------- topics


async def _own(site: Site, request: web.Request) -> tuple[TopicName, Mapping[str, object]]:
    """The topic of the path and its own policies; raises Refusal if the topic does not exist."""
    name, _ = await existing(site, request)
    entry = await site.topics.entry_of(name)
    if entry is None:
        raise not_found(name)
    return name.base, entry.policies


async def _change(
    site: Site, request: web.Request, policy: str, change: Callable[[object], object]
) -> None:
    """Set one of a topic's policies to the result of ``change``; None removes it."""
    name, _ = await existing(site, request)
    await site.require_owned(request, name)

    def bounded(present: object) -> object:
        value = change(present)
        if value is not None:
            text_of(value)  # raises Invalid for a value that is too large
        return value

    await set_own(site.topics, name.base, policy, bounded)


def _add_topic_policy(router: Routes, site: Site, policy: Policy) -> None:
    async def get(request: web.Request) -> web.Response:
        name, own = await _own(site, request)
        value = own.get(policy.path)
        if value is None and flag(request, "applied"):
            value = _applied(site, name, policy)
        return _answer(policy.default if value is None else value)

    async def set_(request: web.Request) -> web.Response:
        value = await json_body(request)
        if value is None and policy.path in request.query:  # this is how Pulsar sets messageTTL
            value = _whole(request.query[policy.path])
        _checked(policy.path, value)
        await _change(site, request, policy.path, lambda _: value)
        return done_with(policy.path)

    async def remove(request: web.Request) -> web.Response:
        await _change(site, request, policy.path, lambda _: None)
        return done_with(policy.path)

    path = f"{PATH}/{policy.path}"
    router.add_get(path, get, on_topic(Action.OBSERVE))
    router.add_post(path, set_, on_topic(Action.ADMINISTER_TOPIC))
    router.add_put(path, set_, on_topic(Action.ADMINISTER_TOPIC))
    router.add_delete(path, remove, on_topic(Action.ADMINISTER_TOPIC))


def _applied(site: Site, name: TopicName, policy: Policy) -> object:
    """The policy in effect for a topic without a policy of its own."""
    if policy.path == DEDUPLICATION.of_topic:
        return deduplicates(name, CatalogEntry(), site.namespaces)
    from_namespace = inherited(policy)
    if from_namespace is None:
        return None
    namespace = name.namespace_name
    value = site.namespaces.effective(namespace, from_namespace.path, from_namespace.field)
    return from_namespace.default if value is None else value


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Refusal(412, "a whole number that is not negative is expected")
    return int(text)


def _add_topic_quotas(router: Routes, site: Site) -> None:
    async def every(request: web.Request) -> web.Response:
        _, own = await _own(site, request)
        return web.json_response(under(own, QUOTA))

    async def set_(request: web.Request) -> web.Response:
        quota = await object_body(request)
        await _change(site, request, _kind_of(request), lambda _: quota)
        return done_with(QUOTA)

    async def remove(request: web.Request) -> web.Response:
        await _change(site, request, _kind_of(request), lambda _: None)
        return done_with(QUOTA)

    router.add_get(PATH + "/backlogQuotaMap", every, on_topic(Action.OBSERVE))
    router.add_post(PATH + "/backlogQuota", set_, on_topic(Action.ADMINISTER_TOPIC))
    router.add_delete(PATH + "/backlogQuota", remove, on_topic(Action.ADMINISTER_TOPIC))


def _add_topic_properties(router: Routes, site: Site) -> None:
    async def get(request: web.Request) -> web.Response:
        _, own = await _own(site, request)
        return web.json_response(own.get("properties", {}))

    async def merge(request: web.Request) -> web.Response:
        new = properties_of(await object_body(request))
        await _change(site, request, "properties", lambda present: properties_of(present) | new)
        return done_with("properties")

    async def remove(request: web.Request) -> web.Response:
        key = request.query.get("key", "")

        def without(present: object) -> object:
            return {name: value for name, value in properties_of(present).items() if name != key}

        await _change(site, request, "properties", without)
        return done_with("properties")

    router.add_get(PATH + "/properties", get, on_topic(Action.OBSERVE))
    router.add_put(PATH + "/properties", merge, on_topic(Action.ADMINISTER_TOPIC))
    router.add_delete(PATH + "/properties", remove, on_topic(Action.ADMINISTER_TOPIC))
