"""What e2e does to pods is undone at the end, whatever happens, and only where it could be done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from e2e.faults import Faults
from e2e.machines import NotPossible, UnknownMachines
from e2e.manifests import Json
from tests.cluster import commands
from tests.cluster.control_plane import ClusterError

POD: Json = {
    "metadata": {"namespace": "shop", "name": "writer", "uid": "11-22"},
    "spec": {"nodeName": "lab"},
    "status": {
        "containerStatuses": [
            {"name": "writer", "containerID": "containerd://c0ffee", "state": {"running": {}}}
        ]
    },
}


class RecordedMachines(UnknownMachines):
    """Notes what is asked of it; ``printed`` is what every script prints."""

    def __init__(self, printed: str = "") -> None:
        self.asked: list[str] = []
        self._printed = printed

    def shell(self, node: str, script: str, seconds: float = 0) -> str:
        self.asked.append(f"{node}: {script}")
        return self._printed

    def pod_logs(self, node: str) -> str:
        return f"/logs/{node}"

    def stop_api_server(self) -> None:
        self.asked.append("stop")

    def start_api_server(self) -> None:
        self.asked.append("start")

    def stop_dns(self) -> None:
        self.asked.append("no names")

    def start_dns(self) -> None:
        self.asked.append("names")

    def misname(self) -> None:
        self.asked.append("wrong names")

    def name_rightly(self) -> None:
        self.asked.append("right names")


@pytest.mark.parametrize(
    ("fault", "done", "undone"),
    [
        (Faults.freeze, "kill -STOP", "kill -CONT"),
        (Faults.cut_off, "-I OUTPUT", "-D OUTPUT"),
        (lambda faults, pod: faults.freeze_container(pod, "writer"), "kill -STOP", "kill -CONT"),
        (
            lambda faults, pod: faults.shift_clock(pod, 258),
            r"printf '\002\001\000",
            r"printf '\000",
        ),
    ],
)
def test_a_fault_is_undone_when_the_scenario_fails(
    fault: Callable[[Faults, Json], object], done: str, undone: str
) -> None:
    machines = RecordedMachines()

    def scenario() -> None:
        with Faults(machines) as faults:
            fault(faults, POD)
            raise AssertionError("broken off")

    with pytest.raises(AssertionError, match="broken off"):
        scenario()
    assert [done in machines.asked[0], undone in machines.asked[1]] == [True, True]
    assert len(machines.asked) == 2


@pytest.mark.parametrize("fault", [Faults.freeze, Faults.cut_off])
def test_a_fault_that_failed_is_not_undone(fault: Callable[[Faults, Json], object]) -> None:
    with pytest.raises(NotPossible, match="nothing but Kubernetes"), Faults(UnknownMachines()) as f:
        fault(f, POD)


def test_the_api_server_is_restored_before_the_failure_is_raised() -> None:
    machines = RecordedMachines()
    with Faults(machines) as faults, pytest.raises(AssertionError), faults.api_server_away():
        raise AssertionError("broken off")
    assert machines.asked == ["stop", "start"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [(Faults.dns_away, ["no names", "names"]), (Faults.dns_wrong, ["wrong names", "right names"])],
)
def test_the_dns_is_restored_before_the_failure_is_raised(
    fault: Callable[[Faults], AbstractContextManager[None]], words: list[str]
) -> None:
    machines = RecordedMachines()
    with Faults(machines) as faults, pytest.raises(AssertionError), fault(faults):
        raise AssertionError("broken off")
    assert machines.asked == words


def test_a_clock_that_is_set_right_needs_no_undo() -> None:
    machines = RecordedMachines()
    with Faults(machines) as faults:
        faults.shift_clock(POD, 0)
    assert len(machines.asked) == 1


def test_container_logs_are_read_on_their_node() -> None:
    machines = RecordedMachines('2026-11-22T03:45:34Z stdout F {"event": "wrote it"}\n')
    with Faults(machines) as faults:
        assert faults.said(POD, "writer") == '{"event": "wrote it"}'
    assert machines.asked == ["lab: cat /logs/lab/shop_writer_11-22/writer/*.log"]


class ThisMachine(RecordedMachines):
    """Runs what may be run here: the looking out, and no killing."""

    def __init__(self, logs: Path) -> None:
        super().__init__()
        self._logs = logs

    def shell(self, node: str, script: str, seconds: float = 0) -> str:
        waiting, _, killing = script.partition("; found=")
        self.asked.append(killing)
        done = commands.run(["sh", "-ec", waiting], seconds=seconds)
        if done.returncode != 0:
            raise ClusterError(done.stderr)
        return ""

    def pod_logs(self, node: str) -> str:
        return str(self._logs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the node keeps what the container prints."""
    found = tmp_path / "shop_writer_11-22" / "writer"
    found.mkdir(parents=True)
    return found


def test_a_process_without_the_expected_words_is_reported_with_its_output(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "0.log").write_text("x stdout F no such table\n")
    with (
        Faults(ThisMachine(tmp_path)) as faults,
        pytest.raises(ClusterError, match=r"not within -1 s: batch 0:(?s:.*)no such table"),
    ):
        faults.kill_behind("batch 0:", POD, "writer", seconds=-1)


def test_a_container_is_killed_after_its_expected_output(folder: Path, tmp_path: Path) -> None:
    machines = ThisMachine(tmp_path)
    with Faults(machines) as faults:
        killing = threading.Thread(target=faults.kill_behind, args=("batch 0:", POD, "writer"))
        killing.start()
        (folder / "0.log").write_text("batch 1 is planned\n")
        killing.join(0.2)
        assert killing.is_alive(), "nothing of the kind was said"
        (folder / "0.log").write_text("x stdout F batch 0: 20 messages\n")
        killing.join()
    (killed,) = machines.asked
    assert "kill -KILL" in killed
    assert "c0ffee" in killed
