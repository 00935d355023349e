"""When writers got their acknowledgements, by their own clocks, collected while faults are injected.

The output of a pod is lost together with the pod, so each container is followed from its start to its end. A stream that
breaks off, as on a lost node, is opened again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Self

from e2e import log
from e2e.api import Api
from tests.cluster.control_plane import ClusterError

Json = dict[str, Any]

POLL_SECONDS: Final = 0.5
"""Interval between two looks for new containers."""

EARLIER_SECONDS: Final = 60
"""A stream begins this long before it is opened; lines that are read twice count once."""

CONTAINER: Final = "writer"


class Acknowledgements:
    """``with Acknowledgements(api, namespace)``: follows the writers of a namespace during the context."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._found: dict[str, set[int]] = {}
        self._followed: dict[str, threading.Thread] = {}
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._looking.join()

    def of(self, name: str, *, since_ms: int = 0) -> list[int]:
        """The times of the acknowledgements of the workload ``name``, in milliseconds, sorted."""
        with self._lock:
            return sorted(each for each in self._found.get(name, ()) if each >= since_ms)

    def catch_up(self, seconds: int) -> None:
        """Read what the present pods printed in the last ``seconds``: a stream may be behind."""
        for pod in self._pods():
            for previous in (False, True):
                name = pod["metadata"]["name"]
                printed = self._api.log(
                    self._namespace, name, CONTAINER, previous=previous, since_seconds=seconds
                )
                self._note(pod, printed.splitlines())

    def _pods(self) -> list[Json]:
        return [pod for pod in self._api.list("pods", self._namespace) if _workload(pod)]

    def _look(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            with suppress(ClusterError, OSError, ValueError):
                for pod in self._pods():
                    self._follow(pod)

    def _follow(self, pod: Json) -> None:
        """Follow the running container of a pod, unless that is done already."""
        container = _running(pod)
        if not container:
            return
        former = self._followed.get(container)
        if former is None or not former.is_alive():
            following = threading.Thread(target=self._read, args=(pod,), daemon=True)
            self._followed[container] = following
            following.start()

    def _read(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        with suppress(ClusterError, OSError, ValueError):
            for line in self._api.follow(
                self._namespace, name, CONTAINER, since_seconds=EARLIER_SECONDS
            ):
                self._note(pod, [line])

    def _note(self, pod: Json, lines: Iterable[str]) -> None:
        found = [at for line in lines for at in log.acknowledged_ms(line)]
        with self._lock:
            self._found.setdefault(_workload(pod), set()).update(found)


def _workload(pod: Json) -> str:
    return str(pod["metadata"].get("labels", {}).get("app", ""))


def _running(pod: Json) -> str:
    """The id of the running writer's container; empty if there is none."""
    for each in pod["status"].get("containerStatuses", ()):
        if each["name"] == CONTAINER and "running" in each.get("state", {}):
            return str(each.get("containerID", ""))
    return ""
