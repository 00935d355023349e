"""Why the pods of brokers are not ready, from what the kubelet and the scheduler report about them. Pure.

A text contains no count and no time, so that a pod that fails again and again causes no writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onewriter_core.json_values import Json, mapping, mappings, number, text

PROBLEM_LENGTH_MAX: Final = 500
"""Longest text about one pod."""

NAMED_MAX: Final = 3
"""Brokers that a message names for one problem; it counts the others."""

PROBLEMS_MAX: Final = 3
"""Different problems that a message contains."""

_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_NO_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"}
)
_RESTARTING: Final = "CrashLoopBackOff"


def pod_problem(pod: Json) -> str:
    """Why a pod is not ready; empty if it is ready, is being deleted, or is just starting."""
    if mapping(pod.get("metadata")).get("deletionTimestamp"):
        return ""
    status = mapping(pod.get("status"))
    conditions = {text(each.get("type")): each for each in mappings(status.get("conditions"))}
    ready = conditions.get("Ready", {})
    if text(ready.get("status")) == "True":
        return ""
    scheduled = conditions.get("PodScheduled", {})
    if text(scheduled.get("status")) == "False":
        return _bounded(f"its pod cannot be scheduled: {text(scheduled.get('message'))}")
    statuses = ("initContainerStatuses", "containerStatuses")
    for container in [each for name in statuses for each in mappings(status.get(name))]:
        problem = _container_problem(container)
        if problem:
            return _bounded(problem)
    if text(status.get("phase")) == "Failed":
        return _bounded(
            f"its pod failed: {text(status.get('reason'))} {text(status.get('message'))}"
        )
    if text(ready.get("reason")) == "BrokerLost":
        return _bounded(text(ready.get("message")))
    return ""


def brokers_message(problems: Mapping[str, str]) -> str:
    """The problems of all brokers by name as one text; empty if there is none."""
    by_problem: dict[str, list[str]] = {}
    for name, problem in sorted(problems.items(), key=lambda each: (len(each[0]), each[0])):
        by_problem.setdefault(problem, []).append(name)
    found = [
        f"{', '.join(brokers[:NAMED_MAX])}"
        + (f" and {len(brokers) - NAMED_MAX} others" if len(brokers) > NAMED_MAX else "")
        + f": {problem}"
        for problem, brokers in list(by_problem.items())[:PROBLEMS_MAX]
    ]
    return "; ".join(found)


def _container_problem(container: Json) -> str:
    state, before = mapping(container.get("state")), mapping(container.get("lastState"))
    ended = mapping(state.get("terminated")) or mapping(before.get("terminated"))
    waiting = mapping(state.get("waiting"))
    reason = text(waiting.get("reason"))
    if reason in _NO_IMAGE:
        # Two reasons with different messages alternate while the kubelet tries again.
        image = text(container.get("image"))
        return f"the image {image} cannot be pulled; `kubectl describe pod` shows why"
    if reason not in _STARTING | {_RESTARTING}:
        return f"its container cannot start: {reason}: {text(waiting.get('message'))}"
    if state.get("running") is not None and container.get("started") is True:
        return ""  # it served after the end of its former process
    return _end(ended)


def _end(ended: Json) -> str:
    """Why a process ended: its own words, or what the kubelet knows."""
    message = text(ended.get("message")).strip()
    if message:
        return message
    if text(ended.get("reason")) == "OOMKilled":
        return "its process was killed because it reached its memory limit"
    code = number(ended.get("exitCode"))
    return f"its process ended with exit code {code}" if code else ""


def _bounded(problem: str) -> str:
    line = " ".join(problem.split())
    return line if len(line) <= PROBLEM_LENGTH_MAX else line[: PROBLEM_LENGTH_MAX - 1] + "…"
