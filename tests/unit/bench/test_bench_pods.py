"""Takeover through pods, its pure parts: notes, who leads, what a round says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.pod_takeover import Candidate, Contest, Verified, measured
from bench.pods.notes import Notes, stamps

MILLISECOND = 1_000_000


def write(folder: Path, name: str, *events: tuple[str, int]) -> Candidate:
    file = folder / name
    file.write_text("".join(f"{event} {at * MILLISECOND}\n" for event, at in events))
    return Candidate(file)


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    with Notes(tmp_path / "a.0") as notes:
        for event in ("asking", "appended", "appended"):
            notes.add(event)
    text = (tmp_path / "a.0").read_text()
    first, second = stamps(text, "appended")
    assert stamps(text, "asking")[0] <= first <= second
    assert stamps(text, "granted") == []


def test_an_incomplete_line_of_notes_is_ignored() -> None:
    assert stamps("appended 5\nappended 61", "appended") == [5]
    assert stamps("appended 5\nappe", "appended") == [5]


def test_the_leader_is_the_running_candidate_that_was_granted_last(tmp_path: Path) -> None:
    write(tmp_path, "a.0", ("asking", 1), ("granted", 2), ("appended", 3))
    contest = Contest(tmp_path)
    assert not contest.is_settled(), "no candidate waits"
    waiter = write(tmp_path, "b.0", ("asking", 4))
    assert contest.leader() == Candidate(tmp_path / "a.0")
    assert contest.is_settled()

    again = write(tmp_path, "a.1", ("asking", 6))
    write(tmp_path, "b.0", ("asking", 4), ("granted", 5), ("appended", 7))
    assert contest.leader() == waiter, "the former candidate of pod a has ended"
    assert contest.is_settled()
    assert {candidate.file.name for candidate in contest.candidates()} == {"a.1", "b.0"}
    assert again.pod == "a"


def test_a_contest_is_not_settled_before_the_leader_has_written(tmp_path: Path) -> None:
    write(tmp_path, "a.0", ("asking", 1), ("granted", 2))
    write(tmp_path, "b.0", ("asking", 1))
    assert not Contest(tmp_path).is_settled()


def test_candidates_of_a_pod_are_compared_by_number(tmp_path: Path) -> None:
    for number in (9, 10):
        write(tmp_path, f"writers-6c9-x2.{number}", ("asking", number))
    (candidate,) = Contest(tmp_path).candidates()
    assert (candidate.pod, candidate.number) == ("writers-6c9-x2", 10)


def test_the_successor_wrote_after_the_fault(tmp_path: Path) -> None:
    former = write(tmp_path, "a.0", ("asking", 1), ("granted", 2), ("appended", 3))
    contest = Contest(tmp_path)
    write(tmp_path, "b.0", ("asking", 4), ("granted", 9), ("appended", 10))
    assert contest.successor(former, 11 * MILLISECOND) is None
    assert contest.successor(former, 8 * MILLISECOND) == Candidate(tmp_path / "b.0")


def test_the_same_pods_next_life_may_be_the_successor(tmp_path: Path) -> None:
    former = write(tmp_path, "a.0", ("asking", 1), ("granted", 2), ("appended", 3))
    write(tmp_path, "a.1", ("asking", 5), ("granted", 6), ("appended", 7))
    assert Contest(tmp_path).successor(former, 4 * MILLISECOND) == Candidate(tmp_path / "a.1")


def test_a_round_runs_from_the_last_write_to_the_first(tmp_path: Path) -> None:
    former = write(tmp_path, "a.0", ("granted", 1), ("appended", 10), ("appended", 20))
    successor = write(tmp_path, "b.0", ("granted", 30), ("appended", 33), ("appended", 40))
    found = measured(former, successor, 25 * MILLISECOND)
    assert (found.leaderless, found.fault_to_granted, found.fault_to_append) == (13, 5, 8)
    with pytest.raises(RuntimeError, match=r"b\.0 wrote while a\.0 was still there"):
        measured(former, successor, 35 * MILLISECOND)


def test_forgotten_candidates_and_pods_are_not_listed(tmp_path: Path) -> None:
    contest = Contest(tmp_path)
    former = write(tmp_path, "a.0", ("granted", 1))
    write(tmp_path, "a.1", ("asking", 2))
    write(tmp_path, "ab.0", ("asking", 2))
    contest.forget(former)
    assert {candidate.file.name for candidate in contest.candidates()} == {"a.1", "ab.0"}
    contest.forget_pod("a")
    write(tmp_path, "a.2", ("asking", 3))  # written by a pod on its way out
    assert {candidate.file.name for candidate in contest.candidates()} == {"ab.0"}


def test_violations_are_counted_over_all_logs_and_beyond_those_listed() -> None:
    logs = [
        {"entries": 7, "violations": [], "furtherViolations": 0},
        {"entries": 3, "violations": [{"predicate": "S1"}], "furtherViolations": 2},
    ]
    assert Verified.of(json.dumps({"logs": logs})) == Verified(entries=10, violations=3)


def test_a_supervisor_starts_a_candidate_again_when_it_ends(tmp_path: Path) -> None:
    """Played with candidates that end by themselves, and one that asks it to leave."""
    (tmp_path / "contest").mkdir()
    module = tmp_path / "candidate_that_ends.py"
    module.write_text(
        "import os, pathlib, signal, sys\n"
        "file = pathlib.Path(sys.argv[3])\n"
        "file.write_text(' '.join(sys.argv[1:2] + sys.argv[4:]))\n"
        "if file.name.endswith('.2'): os.kill(os.getppid(), signal.SIGTERM)\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import os;"
        f"os.environ['PYTHONPATH'] = {str(tmp_path)!r};"
        "from pathlib import Path; from bench.pods.supervisor import Supervisor;"
        f"Supervisor('candidate_that_ends', ['contest'], Path({str(tmp_path)!r}), ['--x=1']).run()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    found = sorted(file.name.rpartition(".")[2] for file in (tmp_path / "contest").iterdir())
    assert found[:3] == ["0", "1", "2"]
    (first,) = (tmp_path / "contest").glob("*.0")
    assert first.read_text() == "contest --x=1"
