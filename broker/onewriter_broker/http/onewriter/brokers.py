"""The brokers of the installation, and the losses that this broker has found, in onewriter's own API."""

from __future__ import annotations

from aiohttp import web

from onewriter_broker.http.onewriter import status, views
from onewriter_broker.http.routes import LISTED, AnyIdentity, Routes
from onewriter_broker.http.site import Site
from onewriter_broker.ownership.placement import name_of

_ROOT = "/onewriter/v1"


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "onewriter's own API"."""

    async def brokers(request: web.Request) -> web.Response:
        ownership = site.topics.ownership
        owners: dict[str, list[int]] = {}
        unowned: list[int] = []
        for bucket in range(site.clients.settings.buckets):
            owner = ownership.owner_of(bucket)
            if owner is None:
                unowned.append(bucket)
            else:
                owners.setdefault(owner.broker_url, []).append(bucket)
        known = site.membership.observer.members()
        members = {site.incarnation: (site.addresses, True)} | known
        return web.json_response(
            {
                "brokers": [
                    {
                        "name": name_of(incarnation),
                        "incarnation": incarnation,
                        "alive": is_alive,
                        "answering": incarnation == site.incarnation,
                        **status.addresses(site, addresses, is_secure=request.secure),
                        "buckets": owners.get(addresses.broker_url, []) if is_alive else [],
                    }
                    for incarnation, (addresses, is_alive) in sorted(members.items())
                ],
                "buckets": site.clients.settings.buckets,
                "unowned": unowned,
                "waiting": {
                    str(bucket): reason
                    for bucket in range(site.clients.settings.buckets)
                    if (reason := ownership.waiting_reason(bucket))
                },
            }
        )

    async def losses(request: web.Request) -> web.Response:
        shown = [each for each in site.losses if site.shows(request, each.topic)]
        at_risk = [each for each in site.at_risk if site.shows(request, each.topic)]
        return web.json_response(
            {
                "losses": [views.loss(each) for each in shown],
                "atRisk": [views.at_risk(each) for each in at_risk],
            }
        )

    router.add_get(_ROOT + "/brokers", brokers, AnyIdentity("clients may connect to every broker"))
    router.add_get(_ROOT + "/losses", losses, LISTED)
