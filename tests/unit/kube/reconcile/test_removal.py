"""The meaning of the API server's answers to an eviction."""

from __future__ import annotations

from typing import Any, cast

import pytest

from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.plan.actions import RemovePod
from onewriter_operator.reconcile.api_calls import (
    BUSY_SECONDS_MIN,
    CONFLICT_SECONDS,
    api_answer,
    unless_gone,
)
from onewriter_operator.reconcile.removal import UNANSWERED_SECONDS, look_up, remove
from onewriter_operator.workqueue import RetryLater

Json = dict[str, Any]

EVICT = RemovePod("shop", "writer-0", "u0", "u0@2", is_deletion=False)
DELETE = RemovePod("shop", "writer-0", "u0", "u0@2", is_deletion=True)


class Server:
    """An API server with one pod that fails one call."""

    def __init__(
        self, failure: Exception | None = None, pod: Json | Exception | None = None
    ) -> None:
        self.failure = failure
        self.pod = pod
        self.calls: list[tuple[str, ...]] = []

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        self._call("evict", namespace, name, uid)

    async def delete(self, kind: Any, namespace: str, name: str, uid: str) -> None:
        self._call("delete", namespace, name, uid)

    async def get(self, kind: Any, namespace: str, name: str) -> Json | None:
        if isinstance(self.pod, Exception):
            raise self.pod
        return self.pod

    def _call(self, *what: str) -> None:
        self.calls.append(what)
        if self.failure is not None:
            raise self.failure


def kube(failure: Exception | None = None, pod: Json | Exception | None = None) -> Kube:
    return cast("Kube", Server(failure, pod))


def pod(uid: str) -> Json:
    return {"metadata": {"name": "writer-0", "uid": uid}, "status": {"podIP": "10.0.0.1"}}


@pytest.mark.parametrize(
    ("failure", "there", "answer"),
    [
        pytest.param(None, None, "Evicted", id="201"),
        pytest.param(ApiRefused(404, "gone"), None, "PodGone", id="404"),
        pytest.param(ApiRefused(409, "uid"), None, "PodGone", id="409 and nobody there"),
        pytest.param(ApiRefused(409, "uid"), pod("u1"), "PodGone", id="409 and a successor"),
        pytest.param(ApiRefused(409, "busy"), pod("u0"), "EvictionFailed", id="409 and still it"),
        pytest.param(ApiRefused(429, "budget"), pod("u0"), "BlockedByPDB", id="429"),
        pytest.param(ApiRefused(429, "budget"), pod("u1"), "PodGone", id="429 for a successor"),
        pytest.param(ApiRefused(500, "budgets"), pod("u1"), "PodGone", id="500 for a successor"),
        pytest.param(ApiRefused(500, "two budgets"), pod("u0"), "EvictionFailed", id="500"),
        pytest.param(ApiRefused(403, "forbidden"), pod("u0"), "EvictionFailed", id="403"),
    ],
)
async def test_answers(failure: Exception | None, there: Json | None, answer: str) -> None:
    found = await remove(kube(failure, there), EVICT, 3)
    assert (found.answer, found.count) == (answer, 3)


@pytest.mark.parametrize("silence", [ApiUnreachable("away"), ApiRefused(403, "forbidden")])
async def test_a_pod_that_cannot_be_read_may_be_there(silence: Exception) -> None:
    found = await remove(kube(ApiRefused(429, "budget"), silence), EVICT, 1)
    assert (found.answer, found.message) == ("BlockedByPDB", "budget")


async def test_retry_after_is_kept() -> None:
    found = await remove(kube(ApiRefused(429, "budget", 17), pod("u0")), EVICT, 1)
    assert found.retry_after_seconds == 17
    assert found.message == "budget"


async def test_without_an_answer_the_pod_is_checked_again_soon() -> None:
    found = await remove(kube(ApiUnreachable("away")), EVICT, 1)
    assert (found.answer, found.retry_after_seconds) == ("EvictionFailed", UNANSWERED_SECONDS)


async def test_deletion_names_the_uid_as_well() -> None:
    server = Server()
    await remove(cast("Kube", server), DELETE, 1)
    assert server.calls == [("delete", "shop", "writer-0", "u0")]


async def test_a_pod_of_the_same_name_is_not_the_one() -> None:
    assert not (await look_up(kube(pod=pod("u1")), "shop", "writer-0", "u0")).exists
    found = await look_up(kube(pod=pod("u0")), "shop", "writer-0", "u0")
    assert (found.exists, found.ip) == (True, "10.0.0.1")


async def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (ApiUnreachable("away"), None),
        (ApiRefused(409, "changed"), CONFLICT_SECONDS),
        (ApiRefused(404, "gone"), CONFLICT_SECONDS),
        (ApiRefused(422, "test failed"), None),
        (ApiRefused(429, "busy", 9), 9),
        (ApiRefused(500, "x"), None),
        (ApiRefused(503, "x", 2), 2),
        (ApiRefused(429, "busy", 0), BUSY_SECONDS_MIN),
        (ApiRefused(429, "busy"), BUSY_SECONDS_MIN),
    ],
)
async def test_a_temporary_failure_is_repeated(error: Exception, after: float | None) -> None:
    with pytest.raises(RetryLater) as later:
        await api_answer(failing(error))
    assert later.value.after_seconds == after
    is_named = isinstance(error, ApiRefused) and error.status in {429, 503}
    assert later.value.is_firm is is_named


async def test_a_permanent_failure_is_not_repeated() -> None:
    with pytest.raises(ApiRefused):
        await api_answer(failing(ApiRefused(403, "forbidden")))


async def test_a_deletion_of_what_is_gone_is_done() -> None:
    await unless_gone(failing(ApiRefused(404, "gone")))
    await unless_gone(failing(ApiRefused(409, "another uid")))
    with pytest.raises(RetryLater):
        await unless_gone(failing(ApiRefused(500, "x")))
