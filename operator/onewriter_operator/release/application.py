"""Runs a pipeline job as a SparkApplication of Apache's Spark operator, and waits for its end.

That operator has no schedules. The pod of a CronJob creates the object and runs until the job has ended,
so that the next run cannot begin earlier. The object has the Job's name: a pod that replaces another one
finds it and waits for the same run, and never starts a second driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from onewriter_core.errors import ConfigurationError, Unavailable
from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import Kind
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube

APPLICATION: Final = Kind("spark.apache.org", "v1", "SparkApplication", "sparkapplications")

POLL_SECONDS: Final = 2.0

_OVER: Final = frozenset({"ResourceReleased", "TerminatedWithoutReleaseResources"})
_FAILED: Final = frozenset({
    "DriverEvicted", "DriverReadyTimedOut", "DriverStartTimedOut", "ExecutorsStartTimedOut",
    "Failed", "SchedulingFailure",
})  # fmt: skip
"""States of an application in that operator."""


class Outcome(Enum):
    """Result of a run."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def application(template: Mapping[str, Any], namespace: str, name: str, owner: str) -> Json:
    """The object of one run. ``owner``: the uid of the Job that owns the object."""
    if template.get("kind") != APPLICATION.kind or not isinstance(template.get("spec"), dict):
        raise ConfigurationError(f"the template is not a {APPLICATION.kind}")
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner}
    about = {**template.get("metadata", {}), "name": name, "namespace": namespace}
    return {
        "apiVersion": APPLICATION.api_version,
        "kind": APPLICATION.kind,
        "metadata": {**about, "ownerReferences": [job]},
        "spec": template["spec"],
    }


def outcome(document: Mapping[str, Any]) -> Outcome:
    """The state or result of a run, from its object's status."""
    states = _states(document)
    if states & _FAILED:
        return Outcome.FAILED
    if "Succeeded" in states:
        return Outcome.SUCCEEDED
    return Outcome.FAILED if states & _OVER else Outcome.RUNNING


async def run(
    kube: Kube, document: Mapping[str, Any], timeout_seconds: float, report: Callable[[str], None]
) -> Outcome:
    """Create the object if it does not exist, and wait for the run's end; ``report`` receives its states.

    Retries while the API server does not answer. Deletes a run that takes longer than
    ``timeout_seconds`` and raises Unavailable. Raises ApiRefused.
    """
    about = document["metadata"]
    reported = ""
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                found = await _made(kube, document)
                if found is not None:
                    state = _current(found)
                    if state != reported:
                        reported = state
                        report(f"{about['name']}: {state}")
                    result = outcome(found)
                    if result is not Outcome.RUNNING:
                        return result
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        found = await kube.get(APPLICATION, about["namespace"], about["name"])
        if found is not None:
            uid = found["metadata"]["uid"]
            await kube.delete(APPLICATION, about["namespace"], about["name"], uid)
        raise Unavailable(
            f"{about['name']} was not over after {timeout_seconds:g} s: {reported}; it is deleted"
        ) from error


async def _made(kube: Kube, document: Mapping[str, Any]) -> Json | None:
    """The object, created if necessary; None if the API server did not answer."""
    about = document["metadata"]
    try:
        found = await kube.get(APPLICATION, about["namespace"], about["name"])
        return found or await kube.create(APPLICATION, document)
    except ApiUnreachable:
        return None
    except ApiRefused as refused:
        if refused.status == 409:  # another pod was faster
            return None
        raise


def _current(document: Mapping[str, Any]) -> str:
    state = (document.get("status") or {}).get("currentState") or {}
    return str(state.get("currentStateSummary", "made"))


def _states(document: Mapping[str, Any]) -> set[str]:
    """The present state and the former states."""
    status = document.get("status") or {}
    history = (status.get("stateTransitionHistory") or {}).values()
    return {_current(document), *(str(each.get("currentStateSummary")) for each in history)}
