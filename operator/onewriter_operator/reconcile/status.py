"""Writes a complete status.

It writes nothing if the status is unchanged. The write fails if the object changed since it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onewriter_operator.kinds import Json, Kind
from onewriter_operator.kube import Kube
from onewriter_operator.objects import DeclaredObject, KubeObject, mapping
from onewriter_operator.reconcile.api_calls import api_answer
from onewriter_operator.store import ObjectCopy


def is_shown(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a status equals the wanted one. Conditions of other controllers do not count."""
    return _own(wanted, wanted) == _own(found, wanted)


def foreign_fields(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[Json]:
    """JSON-patch operations for status fields that differ after a server-side apply, because another field
    manager owns them.
    """
    mine, theirs = _own(wanted, wanted), _own(found, wanted)
    patch: list[Json] = []
    for name in sorted(theirs.keys() | mine.keys()):
        if name == "conditions" or mine.get(name) == theirs.get(name):
            continue
        path = f"/status/{name}"
        if name in mine:
            patch.append({"op": "replace", "path": path, "value": mine[name]})
        else:
            patch.append({"op": "remove", "path": path})
    return patch


def _own(status: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """A status with its conditions by type, without those that the wanted one lacks."""
    types = {each["type"] for each in wanted.get("conditions") or ()}
    conditions = {
        each["type"]: each for each in status.get("conditions") or () if each.get("type") in types
    }
    return {**status, "conditions": conditions}


async def write(
    kube: Kube, store: ObjectCopy, kind: Kind, declared: DeclaredObject, status: Json
) -> bool:
    """Write the status if it differs; whether it was written. Raises RetryLater, ApiRefused."""
    if is_shown(status, mapping(declared.document.get("status"))):
        return False
    store.put(await put_status(kube, kind, declared, status), is_own=True)
    return True


async def put_status(kube: Kube, kind: Kind, found: KubeObject, status: Json) -> Json:
    """Write a status; the object afterwards. Raises RetryLater, ApiRefused."""
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": found.key.name,
            "namespace": found.key.namespace,
            "uid": found.uid,
            # If another operator or a person has written since, the write fails.
            "resourceVersion": found.resource_version,
        },
        "status": status,
    }
    written = await api_answer(kube.apply_status(kind, body))
    left = foreign_fields(status, mapping(written.get("status")))
    if left:
        written = await api_answer(kube.mend_status(kind, written, left))
    return written
