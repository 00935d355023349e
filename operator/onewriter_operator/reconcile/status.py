"""Writes a complete status.

It writes nothing if the status is unchanged. The write fails if the object changed since it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onewriter_core.json_values import Json, mapping
from onewriter_core.kubernetes.kinds import Kind
from onewriter_core.kubernetes.objects import DeclaredObject, KubeObject, parse
from onewriter_operator.kube import Kube
from onewriter_operator.reconcile.api_calls import api_answer
from onewriter_operator.store import ObjectCopy


def is_shown(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a status equals the wanted one. Conditions of other controllers do not count."""
    return _own(wanted, wanted) == _own(found, wanted)


def foreign_fields(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[Json]:
    """JSON-patch operations for status fields that differ after a server-side apply, because another field
    manager owns them.
    """
    expected, present = _own(wanted, wanted), _own(found, wanted)
    patch: list[Json] = []
    for name in sorted(present.keys() | expected.keys()):
        if name == "conditions" or expected.get(name) == present.get(name):
            continue
        path = f"/status/{name}"
        if name in expected:
            patch.append({"op": "replace", "path": path, "value": expected[name]})
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
) -> KubeObject:
    """Write the status if it differs. Raises RetryLater, ApiRefused.

    Returns the object as this write left it. The store may know a later state, if its watch has
    already delivered a change that another client made since.
    """
    if is_shown(status, mapping(declared.document.get("status"))):
        return declared
    written = await put_status(kube, kind, declared, status)
    store.put(written, is_own=True)
    return parse(written)


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
