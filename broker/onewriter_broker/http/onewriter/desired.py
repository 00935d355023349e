"""``/onewriter/v1/desired``: receives the desired state of topics and claims from the operator."""

from __future__ import annotations

from typing import Any, Final

import structlog
from aiohttp import web

from onewriter_broker.desired import BODY_BYTES_MAX
from onewriter_broker.http.routes import Routes, on_installation
from onewriter_broker.http.site import Refusal, Site
from onewriter_core.api.manifests import DesiredState
from onewriter_core.authorization import Action
from onewriter_core.errors import ConfigurationError

PATH: Final = "/onewriter/v1/desired"

WARNINGS_MAX: Final = 100
"""Warnings in a response; further ones are counted."""

log = structlog.get_logger(__name__)


def add_routes(router: Routes, site: Site) -> None:
    """See docs/http.md, "Desired state"."""

    async def put(request: web.Request) -> web.Response:
        body = await _body(request)
        try:
            reading = await site.desired.put(body)
        except ConfigurationError as error:
            errors = str(error).splitlines()
            log.warning("desired.refused", errors=errors[:5], count=len(errors))
            return web.json_response({"reason": errors[0], "errors": errors}, status=400)
        warnings = reading.state.warnings
        return web.json_response(
            _counted(reading.revision, reading.state)
            | {
                "warnings": list(warnings[:WARNINGS_MAX]),
                "warningsOmitted": max(0, len(warnings) - WARNINGS_MAX),
            }
        )

    async def get(request: web.Request) -> web.Response:
        del request
        return web.json_response(
            _counted(site.desired.revision, site.desired.state) | {"known": site.desired.is_known}
        )

    router.add_put(PATH, put, on_installation(Action.ADMINISTER_INSTALLATION))
    router.add_get(PATH, get, on_installation(Action.OBSERVE))


def _counted(revision: str | None, state: DesiredState) -> dict[str, Any]:
    return {
        "revision": revision,
        "topics": len(state.topics),
        "claims": len(state.claims),
    }


async def _body(request: web.Request) -> bytes:
    """The body, which may be larger than elsewhere. Raises Refusal."""
    body = bytearray()
    async for chunk in request.content.iter_chunked(256 * 1024):
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise Refusal(413, f"a desired state has at most {BODY_BYTES_MAX} bytes")
    return bytes(body)
