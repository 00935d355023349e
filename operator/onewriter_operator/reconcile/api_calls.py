"""The API server's refusals in the words that a queue understands."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from onewriter_operator.kinds import Json, Kind, key_of
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.difference import differs
from onewriter_operator.workqueue import RetryLater

CONFLICT_SECONDS: Final = 0.5
"""Somebody else wrote first: after so long the watch has told what."""

BUSY_SECONDS_MIN: Final = 1.0
"""The API server has too much to do: it is left alone for at least so long."""

_Answer = TypeVar("_Answer")


class ApiFails(RetryLater):
    """The API server failed at it, or does not accept what it was given."""


async def api_answer(answer: Awaitable[_Answer]) -> _Answer:
    """The answer to a call.

    Raises RetryLater for what may pass (ApiFails where nothing tells that it will), ApiRefused for
    what will not (missing rights).
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
    """Make an object what it ought to be: the fields that are wanted, and lists item by item.

    Server-side apply first, so that others keep fields of their own. It cannot take away what
    somebody else put into a list (a port, a variable): where that is left, the wanted fields are
    merged, which replaces lists as a whole. ``version``: only if the object is still that one.
    Raises ApiRefused, ApiUnreachable.
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
        return await kube.merge(kind, key, body)  # together with theirs ours is not valid
    if not differs(wanted, written):
        return written
    body["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
    return await kube.merge(kind, key, body)


async def unless_gone(answer: Awaitable[object]) -> None:
    """Wait for a deletion; what is gone already, or another object by now, is as good.

    Raises RetryLater, ApiRefused.
    """

    async def tried() -> None:
        try:
            await answer
        except ApiRefused as refused:
            if refused.status not in {404, 409}:
                raise

    await api_answer(tried())
