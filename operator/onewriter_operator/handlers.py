"""kopf's side of the operator: what it watches, with which settings, and nothing that decides.

Each handler passes on the event as it came. There are no change-detection handlers, daemons or
timers: those keep state on the objects and write to the API server for every one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import kopf
from kubernetes.aio import client

from onewriter_operator.kinds import (
    CLAIM,
    CLAIM_LABEL,
    FIELD_MANAGER,
    GROUP,
    MANAGED_BY,
    POD,
    SERVICE,
    SLICE,
    TOPIC,
    Json,
    Kind,
)

Deliver = Callable[[str, Json], Awaitable[None]]
"""Takes the type of a watch event (None: from a listing) and the object."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A kind that is watched; ``labels`` selects at the API server."""

    kind: Kind
    labels: str = ""


WATCHED: Final = (
    Watched(TOPIC),
    Watched(CLAIM),
    Watched(POD, CLAIM_LABEL),
    Watched(SERVICE, f"{MANAGED_BY}={FIELD_MANAGER}"),
    Watched(SLICE, f"{MANAGED_BY}={FIELD_MANAGER}"),
)

DELETED: Final = "DELETED"

WORKERS_MAX: Final = 200
"""Objects whose events kopf passes on at the same time."""

WORKER_IDLE_SECONDS: Final = 0.05
"""kopf keeps a worker per object for so long after its last event. Its default of five seconds
would let a bounded number of workers see that many objects in five seconds, and no more."""

_BACKOFFS: Final = (1, 1, 2, 3, 5, 8)


class _NothingToCompare(kopf.DiffBaseStorage):
    """For kopf's detection of changes, which nothing here uses.

    It would copy every object for every event: half of all that kopf costs.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast("kopf.BodyEssence", {})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def registry(deliver: Deliver, configuration: client.Configuration | None) -> kopf.OperatorRegistry:
    """The handlers for kopf; ``deliver`` is called in kopf's own thread.

    ``configuration`` says how to reach the API server; None: as the pod's ServiceAccount.
    """
    found = kopf.OperatorRegistry()

    async def event(event: Mapping[str, Any], **_: Any) -> None:
        await deliver(str(event["type"]), dict(event["object"]))

    for watched in WATCHED:
        kind = watched.kind
        watch = kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=found)
        watch(event)

    def login(**keywords: Any) -> kopf.ConnectionInfo | None:
        if configuration is None:
            return kopf.login_with_service_account(**keywords)
        return connection(configuration)

    kopf.on.login(registry=found)(login)
    return found


def connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """What a kubeconfig said, in kopf's words."""
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme="Bearer",
        token=configuration.api_key.get("BearerToken", "").removeprefix("Bearer ") or None,
    )


def settings() -> kopf.OperatorSettings:
    """How kopf is to behave: no peering, no scanning, nothing written by it, every wait bounded."""
    found = kopf.OperatorSettings()
    found.peering.standalone = True
    found.scanning.disabled = True
    found.persistence.finalizer = f"{GROUP}/kopf"
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    found.persistence.diffbase_storage = _NothingToCompare()
    found.posting.enabled = False
    found.watching.server_timeout = 290
    found.watching.client_timeout = 300
    found.watching.chunk_size = 500
    found.networking.connect_timeout = 10
    found.networking.request_timeout = 30
    found.networking.error_backoffs = _BACKOFFS
    found.queueing.worker_limit = WORKERS_MAX
    found.queueing.idle_timeout = WORKER_IDLE_SECONDS
    found.execution.max_workers = 1
    for watched in WATCHED:
        if watched.labels:
            kind = watched.kind
            found.watching.label_selectors[kind.group, kind.version, kind.plural] = watched.labels
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It warns at every start that it leaves the signals to us, as it should.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    return found
