"""What a story waits for has a bound of its own, and the error says what was awaited."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from e2e.api import Api
from e2e.clusters import TestedCluster
from e2e.installation import Installation
from e2e.machines import UnknownMachines
from e2e.manifests import Json
from tests.cluster.binaries import locked
from tests.cluster.commands import CommandHangs, run
from tests.cluster.control_plane import Cluster, ClusterError

STAYS = "sleep 1000 & echo so far $!; wait"


def test_the_end_of_a_program_is_detected() -> None:
    done = run(["sh", "-c", "cat; echo no >&2; exit 3"], stdin="yes", seconds=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "yes", "no\n")


def test_a_program_that_hangs_is_named_and_ends_with_all_that_it_started() -> None:
    with pytest.raises(CommandHangs, match=r"no end within 0\.5 s: sh -c (?s:.*)so far") as caught:
        run(["sh", "-c", STAYS], seconds=0.5)
    child = Path("/proc") / str(caught.value).split()[-1] / "stat"
    deadline = time.monotonic() + 60
    while lives(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(process: Path) -> bool:
    """Whether it is there, and not only because nobody has asked for its exit code."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return process.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_lock_that_another_run_keeps_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lab.lock"
    with (
        locked(path, 60),
        pytest.raises(TimeoutError, match=f"another run has held {path}"),
        locked(path, 0),
    ):
        raise AssertionError("two at a time")
    with locked(path, 0):
        assert path.exists()


class FakeCluster(Cluster):
    """kubectl is a shell that prints its words; the first word may be ``hang``."""

    def __init__(self, tmp_path: Path) -> None:
        self.kubeconfig = tmp_path / "kubeconfig"
        self._program = tmp_path / "kubectl"
        self._program.write_text('#!/bin/sh\nshift\ntest "$1" = hang && sleep 1000\necho "$@"\n')
        self._program.chmod(0o755)

    def tool(self, name: str) -> Path:
        return self._program


def test_a_transcript_contains_what_is_known(tmp_path: Path) -> None:
    reported = FakeCluster(tmp_path).diagnostics(("hang", "here"), ("get", "pods"), seconds=0.5)
    assert "no end within 0.5 s" in reported
    assert reported.endswith("get pods\n")


class FakeApi:
    """Two brokers that count as ready, each on a node of its own."""

    def __init__(self, **nodes: str) -> None:
        self._nodes = nodes

    def list(self, kind: str, namespace: str = "", **labels: str) -> list[Json]:
        if kind == "nodes":
            return [_object(name, ready) for name, ready in self._nodes.items()]
        return [
            _object(f"broker-{number}", "True") | {"spec": {"nodeName": node}}
            for number, node in enumerate(self._nodes)
        ]


def _object(name: str, ready: str) -> Json:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name}, "status": {"conditions": conditions}}


def installation(tmp_path: Path, **nodes: str) -> Installation:
    tested = TestedCluster(FakeCluster(tmp_path), UnknownMachines(), tmp_path)
    return Installation(tested, cast("Api", FakeApi(**nodes)))


def test_no_program_is_started_on_a_node_that_does_not_answer(tmp_path: Path) -> None:
    """Its pods count as ready for a moment longer."""
    found = installation(tmp_path, first="Unknown", second="True")
    assert "exec --stdin broker-1 " in found.run_in_broker("true").stdout
    with pytest.raises(ClusterError, match="no broker is ready"):
        installation(tmp_path, first="Unknown", second="False").run_in_broker("true")
