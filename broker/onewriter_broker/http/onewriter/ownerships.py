"""The owners of resources, in the buckets that this broker serves."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from onewriter_broker.http.pulsar.stats import iso
from onewriter_broker.http.routes import LISTED, Routes, on_installation
from onewriter_broker.http.site import IDENTITY, Refusal, Site, number
from onewriter_broker.resources.records import OwnershipRecord
from onewriter_core.authorization import Action, OwnedResource
from onewriter_core.own.names import TOPIC_PREFIX, split_field

ROWS_PER_PAGE: Final = 500
ROWS_PER_PAGE_MAX: Final = 5_000


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Ownerships"."""

    async def every(request: web.Request) -> web.Response:
        return web.json_response(await _list(site, request))

    async def drop(request: web.Request) -> web.Response:
        return web.json_response(await _drop(site, request))

    router.add_get("/onewriter/v1/ownerships", every, LISTED)
    router.add_delete(
        "/onewriter/v1/ownerships", drop, on_installation(Action.ADMINISTER_INSTALLATION)
    )


async def _list(site: Site, request: web.Request) -> dict[str, Any]:
    """A page of records, ordered by name. Raises Refusal, Unavailable, Undecided."""
    limit = number(request, "limit", ROWS_PER_PAGE, ROWS_PER_PAGE_MAX)
    after, group = request.query.get("after", ""), request.query.get("group")
    found: dict[str, tuple[int, OwnershipRecord]] = {}
    for bucket in sorted(site.topics.ownership.held()):
        resources = await site.clients.ownerships.of_bucket(bucket)
        for field, entry in resources.entries.items():
            own_group, resource = split_field(field)
            owner = entry.ownership.owner
            subject = None if owner is None else owner.identity.subject
            is_asked = field > after and group in {None, own_group}
            if is_asked and shows_owned(site, request, own_group, resource, subject):
                found[field] = (bucket, entry)
    page = sorted(found)[:limit]
    now = site.clients.now()
    return {
        "broker": site.clients.named(site.addresses).broker_url,
        "ownerships": [_row(field, *found[field], now) for field in page],
        "next": page[-1] if len(found) > limit else None,
    }


def shows_owned(
    site: Site, request: web.Request, group: str, resource: str, subject: str | None
) -> bool:
    """Whether the caller may see the owner of a resource that ``subject`` owned last."""
    if resource.startswith(TOPIC_PREFIX):
        return site.shows(request, resource)
    owned = OwnedResource(resource, group, subject)
    return site.clients.authorization.allows(request[IDENTITY], Action.OBSERVE, owned)


async def _drop(site: Site, request: web.Request) -> dict[str, Any]:
    """Drop the records of a group that have no owner. Raises Refusal, Unavailable, Undecided."""
    group, resource = request.query.get("group"), request.query.get("resource")
    if group is None:
        raise Refusal(400, "whose? group= names it, and is empty for resources without a group")
    matching, dropped = 0, 0
    for bucket in sorted(site.topics.ownership.held()):
        resources = await site.clients.ownerships.of_bucket(bucket)
        fields = [
            field
            for field in sorted(resources.entries)
            if split_field(field)[0] == group and resource in {None, split_field(field)[1]}
        ]
        matching += len(fields)
        dropped += len(await resources.drop(fields)) if fields else 0
    return {
        "broker": site.clients.named(site.addresses).broker_url,
        "dropped": dropped,
        "kept": matching - dropped,
    }


def _row(field: str, bucket: int, entry: OwnershipRecord, now: float) -> dict[str, Any]:
    """The public part of a record. It lacks the nonce, which identifies the owner."""
    group, resource = split_field(field)
    current = entry.current(now)
    owner = current.owner
    return {
        "resource": resource,
        "group": group,
        "generation": current.generation,
        "owned": current.is_owned,
        "connected": entry.end is not None,
        "owner": None
        if owner is None
        else {
            "subject": owner.identity.subject,
            "identity": owner.name,
            "pod": owner.identity.pod,
            "podUID": owner.identity.pod_uid,
            "node": owner.identity.node,
        },
        "since": iso(entry.since_ms) if entry.since_ms else None,
        "bucket": bucket,
    }
