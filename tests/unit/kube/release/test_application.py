"""A pipeline job under Apache's Spark operator: one object per Job, created once, awaited."""

from __future__ import annotations

from typing import Any

import pytest

from onewriter_core.errors import ConfigurationError, Unavailable
from onewriter_operator.kube import ApiRefused, ApiUnreachable
from onewriter_operator.release import application
from onewriter_operator.release.application import Outcome, outcome, run

Json = dict[str, Any]

TEMPLATE: Json = {
    "apiVersion": "spark.apache.org/v1",
    "kind": "SparkApplication",
    "metadata": {"labels": {"team": "data"}},
    "spec": {"pyFiles": "local:///job.py"},
}


pytestmark = pytest.mark.looptime


def in_state(*states: str) -> Json:
    history = {str(each): {"currentStateSummary": state} for each, state in enumerate(states)}
    current = {"currentStateSummary": states[-1]} if states else {}
    return {"status": {"currentState": current, "stateTransitionHistory": history}}


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ((), Outcome.RUNNING),
        (("Submitted", "DriverRequested"), Outcome.RUNNING),
        (("Submitted", "RunningHealthy"), Outcome.RUNNING),
        (("RunningHealthy", "Succeeded"), Outcome.SUCCEEDED),
        (("RunningHealthy", "Succeeded", "ResourceReleased"), Outcome.SUCCEEDED),
        (("RunningHealthy", "Failed"), Outcome.FAILED),
        (("RunningHealthy", "Failed", "ResourceReleased"), Outcome.FAILED),
        (("SchedulingFailure",), Outcome.FAILED),
        (("Submitted", "ResourceReleased"), Outcome.FAILED),
        (("Failed", "TerminatedWithoutReleaseResources"), Outcome.FAILED),
    ],
)
def test_the_outcome_of_a_run_follows_from_the_states_of_its_pods(
    states: tuple[str, ...], wanted: Outcome
) -> None:
    assert outcome(in_state(*states)) is wanted


def test_no_status_is_no_end() -> None:
    assert outcome({}) is Outcome.RUNNING
    assert outcome({"status": None}) is Outcome.RUNNING


def test_the_object_is_called_like_its_job_and_goes_with_it() -> None:
    found = application.application(TEMPLATE, "system", "offload-1", "uid-1")
    assert found["metadata"]["name"] == "offload-1"
    assert found["metadata"]["labels"] == {"team": "data"}
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "offload-1", "uid-1")
    with pytest.raises(ConfigurationError, match="not a SparkApplication"):
        application.application({"kind": "Pod"}, "system", "offload-1", "uid-1")


class ScriptedKube:
    """The API server's answers, call by call; None: no object."""

    def __init__(self, *answers: Json | Exception | None, create: Exception | None = None) -> None:
        self.answers = list(answers)
        self.refusal = create
        self.created: list[str] = []
        self.deleted: list[str] = []

    async def get(self, *_: object) -> Json | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def create(self, _: object, document: Json) -> Json:
        self.created.append(document["metadata"]["name"])
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        return document

    async def delete(self, *given: object) -> None:
        self.deleted.append(str(given[-1]))


async def ran(kube: ScriptedKube, timeout_seconds: float = 10) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    document = application.application(TEMPLATE, "system", "offload-1", "uid-1")
    found = await run(kube, document, timeout_seconds, lines.append)  # type: ignore[arg-type]  # as far as it is used
    return found, lines


async def test_the_application_is_created_once_and_awaited() -> None:
    kube = ScriptedKube(None, in_state("Submitted"), in_state("Submitted"), in_state("Succeeded"))
    found, answer = await ran(kube)
    assert found is Outcome.SUCCEEDED
    assert kube.created == ["offload-1"]
    assert answer == ["offload-1: made", "offload-1: Submitted", "offload-1: Succeeded"]


async def test_a_pod_in_place_of_another_waits_for_the_same_run() -> None:
    kube = ScriptedKube(in_state("RunningHealthy"), in_state("Failed"))
    assert (await ran(kube))[0] is Outcome.FAILED
    assert kube.created == []


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    away = ApiUnreachable("away")
    kube = ScriptedKube(away, None, away, in_state("Succeeded"))
    assert (await ran(kube))[0] is Outcome.SUCCEEDED
    assert kube.created == ["offload-1"]


async def test_an_application_that_another_pod_created_is_the_same_run() -> None:
    kube = ScriptedKube(None, in_state("Succeeded"), create=ApiRefused(409, "AlreadyExists"))
    assert (await ran(kube))[0] is Outcome.SUCCEEDED


async def test_a_refusal_of_the_api_server_is_reported() -> None:
    with pytest.raises(ApiRefused, match="403"):
        await ran(ScriptedKube(None, create=ApiRefused(403, "Forbidden")))


async def test_a_run_without_end_is_deleted_by_its_uid() -> None:
    going = {**in_state("RunningHealthy"), "metadata": {"uid": "uid-of-the-run"}}
    kube = ScriptedKube(going)
    with pytest.raises(Unavailable, match="RunningHealthy; it is deleted"):
        await ran(kube, timeout_seconds=0.05)
    assert kube.deleted == ["uid-of-the-run"]
