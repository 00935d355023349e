"""The kopf part of the operator: the watched kinds and the settings. It decides nothing.

Each handler passes on the event unchanged. There are no change-detection handlers, daemons or timers:
they keep state on the objects and write to the API server for every object.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import kopf
from kubernetes.aio import client

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import (
    CLAIM,
    FIELD_MANAGER,
    KUBERNETES_SLICE_MANAGER,
    MANAGED_BY,
    POD,
    SERVICE,
    SLICE,
    SLICE_MANAGER_LABEL,
    TOPIC,
    Kind,
)
from onewriter_core.kubernetes.names import CLAIM_LABEL, GROUP

Deliver = Callable[[str, Json], Awaitable[None]]
"""Takes the type of a watch event (None: from a listing) and the object."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A watched kind; ``labels`` is the label selector of the watch.

    ``listed`` selects further objects of the kind, which only listings find.
    """

    kind: Kind
    labels: str = ""
    listed: str = ""


WATCHED: Final = (
    Watched(TOPIC),
    Watched(CLAIM),
    Watched(POD, CLAIM_LABEL),
    Watched(SERVICE, f"{MANAGED_BY}={FIELD_MANAGER}"),
    # The operator's own slices, and those that a person or another program made for a leader Service.
    # If a leader Service gets a selector, Kubernetes makes slices for it, with the Service's labels.
    Watched(
        SLICE,
        f"{SLICE_MANAGER_LABEL}!={KUBERNETES_SLICE_MANAGER}",
        f"{SLICE_MANAGER_LABEL}={KUBERNETES_SLICE_MANAGER},{MANAGED_BY}={FIELD_MANAGER}",
    ),
)

DELETED: Final = "DELETED"

WORKERS_MAX: Final = 200
"""Objects whose events kopf handles at the same time."""

WORKER_IDLE_SECONDS: Final = 0.05
"""kopf keeps a worker per object for this time after its last event. With its default of five seconds,
``WORKERS_MAX`` workers could handle only that number of objects in five seconds."""

_BACKOFFS: Final = (1, 1, 2, 3, 5, 8)


class _NothingToCompare(kopf.DiffBaseStorage):
    """Disables kopf's change detection, which the operator does not use.

    It would copy every object for every event: half of kopf's CPU time.
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
    """The client configuration in kopf's form."""
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
    """Settings of kopf: no peering, no scanning, no writes, every wait bounded."""
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
    # kopf warns at every start that it does not handle signals, which is intended.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    return found
