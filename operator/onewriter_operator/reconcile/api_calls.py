"""Calls of the API server whose failures the work queue understands."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import Kind, key_of
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.difference import correction, differs, exact
from onewriter_operator.workqueue import RetryLater

CONFLICT_SECONDS: Final = 0.5
"""Delay after a conflicting write: by then the watch has delivered the other one."""

BUSY_SECONDS_MIN: Final = 1.0
"""Least delay after the API server reported that it is overloaded."""

_Answer = TypeVar("_Answer")


class ApiFails(RetryLater):
    """The API server failed, or does not accept the object."""


async def api_answer(answer: Awaitable[_Answer]) -> _Answer:
    """The answer of a call.

    Raises RetryLater for a failure that may be temporary (ApiFails if it may also be permanent) and
    ApiRefused for a permanent one (missing rights).
    """
    try:
        return await answer
    except ApiUnreachable as error:
        raise RetryLater(f"the API server does not answer: {error}") from error
    except ApiRefused as refused:
        if refused.status in {404, 409}:
            raise RetryLater(str(refused), CONFLICT_SECONDS) from refused
        if refused.status == 429 or refused.retry_after_seconds is not None:
            seconds = max(refused.retry_after_seconds or 0.0, BUSY_SECONDS_MIN)
            raise RetryLater(str(refused), seconds, is_firm=True) from refused
        if refused.status == 422 or refused.status >= 500:
            raise ApiFails(str(refused)) from refused
        raise


async def enforce(kube: Kube, kind: Kind, wanted: Json, version: str = "") -> Json:
    """Write the wanted fields of an object, and lists item by item.

    Uses server-side apply first, so that other field managers keep their own fields. Apply cannot
    remove what another manager put into a list (a port, a variable), a selector or a sealed field: if it is
    left, a merge patch replaces lists as a whole and removes the fields. ``version``: only if the object has
    this resourceVersion. Raises ApiRefused, ApiUnreachable.
    """
    key = key_of(wanted)
    body = wanted | {
        "metadata": {**wanted["metadata"], **({"resourceVersion": version} if version else {})}
    }
    try:
        written = await kube.apply(kind, body)
    except ApiRefused as refused:
        if refused.status != 422 or await kube.get(kind, key.namespace, key.name) is None:
            raise
        return await kube.merge(kind, key, body)  # the merged lists are not valid
    complete = exact(wanted, written)
    if not differs(complete, written):
        return written
    body["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
    complete = complete | {"metadata": body["metadata"]}
    return await kube.merge(kind, key, correction(complete, written))


async def unless_gone(answer: Awaitable[object]) -> None:
    """Wait for a deletion; an object that is gone or was replaced counts as deleted.

    Raises RetryLater, ApiRefused.
    """

    async def tried() -> None:
        try:
            await answer
        except ApiRefused as refused:
            if refused.status not in {404, 409}:
                raise

    await api_answer(tried())
