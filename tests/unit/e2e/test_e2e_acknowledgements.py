"""Acknowledgements are collected from pods that restart, from streams that break off, and from pods that go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from e2e.acknowledgements import Acknowledgements
from e2e.api import Api
from e2e.writers import until
from tests.cluster.control_plane import ClusterError

Json = dict[str, Any]


def line(at_ms: int) -> str:
    return f'{{"event": "wrote", "atMs": {at_ms}}}'


def pod(container: str, app: str = "stock") -> Json:
    running = {"name": "writer", "containerID": container, "state": {"running": {}}}
    return {
        "metadata": {"name": f"{app}-0", "labels": {"app": app}},
        "status": {"containerStatuses": [running]},
    }


class FakeApi:
    """Pods, and what their containers print: a stream for each time that one is opened."""

    def __init__(self, *streams: list[str]) -> None:
        self.pods = [pod("c0")]
        self.streams = list(streams)
        self.printed: dict[bool, list[str]] = {False: [], True: []}

    def list(self, kind: str, namespace: str) -> list[Json]:
        assert (kind, namespace) == ("pods", "shop")
        return self.pods

    def follow(
        self, namespace: str, pod: str, container: str, *, since_seconds: int
    ) -> Iterator[str]:
        del namespace, pod, container, since_seconds
        if not self.streams:
            raise ClusterError("the node does not answer")
        yield from self.streams.pop(0)

    def log(
        self, namespace: str, pod: str, container: str, *, previous: bool, since_seconds: int
    ) -> str:
        del namespace, pod, container, since_seconds
        return "\n".join(self.printed[previous])


def test_a_stream_that_breaks_off_is_opened_again_and_lines_count_once() -> None:
    api = FakeApi([line(1), line(2)], [line(2), line(3)])
    with Acknowledgements(cast("Api", api), "shop") as heard:
        until(lambda: heard.of("stock") == [1, 2, 3], lambda: heard.of("stock"))
        assert heard.of("stock", since_ms=2) == [2, 3]
        assert heard.of("another") == []


def test_the_output_of_a_former_container_is_read_at_the_end() -> None:
    api = FakeApi([line(5)])
    with Acknowledgements(cast("Api", api), "shop") as heard:
        until(lambda: heard.of("stock") == [5], lambda: heard.of("stock"))
        api.printed = {False: [line(5), "no JSON"], True: [line(4)]}
        heard.catch_up(60)
        assert heard.of("stock") == [4, 5]


def test_a_pod_that_is_no_writer_is_not_followed() -> None:
    api = FakeApi([line(1)])
    api.pods = [{"metadata": {"name": "x"}, "status": {}}, pod("c1")]
    with Acknowledgements(cast("Api", api), "shop") as heard:
        until(lambda: heard.of("stock") == [1], lambda: heard.of("stock"))
