"""Why a broker's pod is not ready, as the kubelet and the scheduler report it."""

from __future__ import annotations

from typing import Any

import pytest

from onewriter_operator.plan.pod_problems import (
    NAMED_MAX,
    PROBLEM_LENGTH_MAX,
    PROBLEMS_MAX,
    brokers_message,
    pod_problem,
)

Json = dict[str, Any]

AWAY = "the store does not answer: redis://store:6379 refused the connection"


def pod(*containers: Json, ready: str = "False", **status: Any) -> Json:
    conditions = [{"type": "Ready", "status": ready}, *status.pop("conditions", [])]
    return {
        "metadata": {"name": "broker-0"},
        "status": {"conditions": conditions, "containerStatuses": list(containers), **status},
    }


def ended(message: str = "", *, code: int = 2, reason: str = "Error") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


RUNNING: Json = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}

REPEATED = (
    {"state": ended(AWAY), "lastState": {}},
    {"state": waiting("CrashLoopBackOff", "back-off 10s restarting"), "lastState": ended(AWAY)},
    {"state": RUNNING, "started": False, "lastState": ended(AWAY)},
    {"state": ended(AWAY), "lastState": ended(AWAY)},
    {"state": waiting("CrashLoopBackOff", "back-off 5m0s restarting"), "lastState": ended(AWAY)},
)
"""The states of a container that ends at each start, in their order."""


def test_a_broker_that_ends_at_each_start_has_one_problem_all_the_time() -> None:
    assert {pod_problem(pod(each | {"restartCount": 7})) for each in REPEATED} == {AWAY}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (pod(ready="True"), ""),
        (pod(), ""),
        (pod({"state": waiting("ContainerCreating")}), ""),
        (pod({"state": RUNNING, "started": False}), ""),
        (
            pod({"state": RUNNING, "started": True, "lastState": ended(AWAY)}),
            "",  # it served after that
        ),
        (pod({"state": ended(AWAY)}, ready="True"), ""),
        (
            pod({"state": ended("", code=137, reason="OOMKilled")}),
            "its process was killed because it reached its memory limit",
        ),
        (pod({"state": ended(code=139)}), "its process ended with exit code 139"),
        (pod({"state": ended(code=0, reason="Completed")}), ""),
        (
            pod({"state": waiting("CreateContainerConfigError", 'secret "tls" not found')}),
            'its container cannot start: CreateContainerConfigError: secret "tls" not found',
        ),
        (
            pod(
                conditions=[
                    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes:\n no CPU"}
                ]
            ),
            "its pod cannot be scheduled: 0/3 nodes: no CPU",
        ),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on memory."),
            "its pod failed: Evicted The node was low on memory.",
        ),
        (
            {
                "status": {
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "False",
                            "reason": "BrokerLost",
                            "message": "it does not answer",
                        }
                    ]
                }
            },
            "it does not answer",
        ),
    ],
)
def test_the_problem_of_a_pod(found: Json, problem: str) -> None:
    assert pod_problem(found) == problem


def test_an_image_that_cannot_be_pulled_has_one_text_for_both_reasons() -> None:
    reasons = ("ErrImagePull", "ImagePullBackOff")
    found = {
        pod_problem(pod({"image": "r/x:1", "state": waiting(each, f"message of {each}")}))
        for each in reasons
    }
    assert found == {"the image r/x:1 cannot be pulled; `kubectl describe pod` shows why"}


def test_a_pod_that_is_being_replaced_has_no_problem() -> None:
    found = pod({"state": ended(AWAY)})
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_problem(found) == ""


def test_a_text_is_bounded() -> None:
    assert len(pod_problem(pod({"state": ended("x" * 4096)}))) == PROBLEM_LENGTH_MAX


def test_brokers_with_the_same_problem_are_named_together() -> None:
    problems = {f"b-{number}": AWAY for number in range(NAMED_MAX)} | {"b-10": "killed"}
    assert brokers_message(problems) == f"b-0, b-1, b-2: {AWAY}; b-10: killed"
    assert brokers_message({}) == ""


def test_the_message_names_a_bounded_number_of_brokers_and_problems() -> None:
    many = {f"b-{number:02}": AWAY for number in range(64)}
    assert brokers_message(many) == f"b-00, b-01, b-02 and 61 others: {AWAY}"
    different = {f"b-{number:02}": f"problem {number}" for number in range(64)}
    assert brokers_message(different).count("problem") == PROBLEMS_MAX
