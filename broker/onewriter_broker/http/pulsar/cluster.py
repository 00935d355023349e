"""Pulsar's admin API for the levels above namespaces: clusters, tenants, brokers."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from onewriter_broker.anchor.api import Addresses
from onewriter_broker.connection.listener import SERVER_VERSION
from onewriter_broker.http.routes import AnyIdentity, Filtered, Routes, on_installation, on_tenant
from onewriter_broker.http.site import IDENTITY, Refusal, Site, done, json_body, object_body
from onewriter_broker.namespaces import STANDALONE, Invalid
from onewriter_core.authorization import Action

_ROOT = "/admin/v2"

_CLUSTERS = AnyIdentity("tools ask for the names of clusters before anything else")
_BROKERS = AnyIdentity("clients may connect to every broker")
_ADMINISTER = on_installation(Action.ADMINISTER_INSTALLATION)


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Clusters, tenants, brokers"."""
    _add_clusters(router, site)
    _add_tenants(router, site)
    _add_brokers(router, site)


def _add_clusters(router: Routes, site: Site) -> None:
    namespaces = site.namespaces

    async def every(request: web.Request) -> web.Response:
        del request
        return web.json_response(namespaces.clusters())

    async def one(request: web.Request) -> web.Response:
        stored = namespaces.cluster(request.match_info["cluster"])
        return web.json_response(_addresses(site) if stored is None else stored)

    async def create(request: web.Request) -> web.Response:
        data = await object_body(request)
        await namespaces.put_cluster(request.match_info["cluster"], data, is_new=True)
        return web.Response()  # 200, as Pulsar does here

    async def update(request: web.Request) -> web.Response:
        data = await object_body(request)
        await namespaces.put_cluster(request.match_info["cluster"], data, is_new=False)
        return web.Response()

    async def delete(request: web.Request) -> web.Response:
        await namespaces.delete_cluster(request.match_info["cluster"])
        return done()

    async def migrate(request: web.Request) -> web.Response:
        raise Refusal(405, f"cluster {request.match_info['cluster']} cannot be migrated")

    path = _ROOT + "/clusters/{cluster}"
    router.add_get(_ROOT + "/clusters", every, _CLUSTERS)
    router.add_get(path, one, _CLUSTERS)
    router.add_put(path, create, _ADMINISTER)
    router.add_post(path, update, _ADMINISTER)
    router.add_delete(path, delete, _ADMINISTER)
    router.add_post(path + "/migrate", migrate, _ADMINISTER)


def _add_tenants(router: Routes, site: Site) -> None:
    namespaces = site.namespaces

    async def every(request: web.Request) -> web.Response:
        rights = site.clients.authorization
        found = [
            tenant
            for tenant in namespaces.tenants()
            if rights.allows(request[IDENTITY], Action.OBSERVE, rights.namespace(tenant))
        ]
        return web.json_response(found)

    async def one(request: web.Request) -> web.Response:
        return web.json_response(namespaces.tenant(request.match_info["tenant"]))

    async def information(request: web.Request) -> dict[str, object]:
        body = await json_body(request)
        if body is None:
            raise Invalid("TenantInfo is null")
        if not isinstance(body, dict):
            raise Refusal(400, "a TenantInfo is a JSON object")
        return body

    async def create(request: web.Request) -> web.Response:
        await namespaces.create_tenant(request.match_info["tenant"], await information(request))
        return done()

    async def update(request: web.Request) -> web.Response:
        await namespaces.update_tenant(request.match_info["tenant"], await information(request))
        return done()

    async def delete(request: web.Request) -> web.Response:
        await namespaces.delete_tenant(request.match_info["tenant"])
        return done()

    path = _ROOT + "/tenants/{tenant}"
    router.add_get(
        _ROOT + "/tenants", every, Filtered(Action.OBSERVE, "the caller sees its own tenant")
    )
    router.add_get(path, one, on_tenant(Action.OBSERVE))
    router.add_put(path, create, _ADMINISTER)
    router.add_post(path, update, _ADMINISTER)
    router.add_delete(path, delete, _ADMINISTER)


def _addresses(site: Site) -> dict[str, str]:
    """This broker's addresses, in Pulsar's format of a cluster."""
    plain, tls = site.clients.over_plain(site.addresses), site.clients.over_tls(site.addresses)
    found = {"serviceUrl": plain.http_url, "brokerServiceUrl": plain.broker_url}
    if tls.http_url:
        found |= {"serviceUrlTls": tls.http_url, "brokerServiceUrlTls": tls.broker_url}
    return found


def _add_brokers(router: Routes, site: Site) -> None:
    def addresses() -> list[Addresses]:
        members = site.membership.observer.members().values()
        others = [address for address, is_alive in members if is_alive]
        known = sorted({site.addresses, *others}, key=lambda each: each.http_url)
        return [site.clients.named(each) for each in known]

    def host_of(address: Addresses) -> str:
        return urlsplit(address.http_url).netloc

    async def active(request: web.Request) -> web.Response:
        cluster = request.match_info.get("cluster", STANDALONE)
        site.namespaces.cluster(cluster)  # raises NamespaceMissing
        return web.json_response([host_of(address) for address in addresses()])

    async def leader(request: web.Request) -> web.Response:
        del request  # no broker leads here; Pulsar's tools need only one that answers
        first = addresses()[0]
        return web.json_response({"serviceUrl": first.http_url, "brokerId": host_of(first)})

    async def healthy(request: web.Request) -> web.Response:
        del request
        if site.membership.view() is None:
            raise Refusal(503, "the store does not answer")
        return web.json_response(text="ok")

    async def version(request: web.Request) -> web.Response:
        del request
        return web.json_response(text=SERVER_VERSION)

    path = _ROOT + "/brokers"
    router.add_get(path, active, _BROKERS)
    router.add_get(path + "/health", healthy, _BROKERS)
    router.add_get(path + "/ready", healthy, _BROKERS)
    router.add_get(path + "/version", version, _BROKERS)
    router.add_get(path + "/leaderBroker", leader, _BROKERS)
    router.add_get(path + "/{cluster}", active, _BROKERS)
