"""The judge of e2e's logs sees what it is there for."""

from __future__ import annotations

import json

from e2e.log import Line, acknowledged, holes, lost, refused, stale, stored

A, B = ("a", 1), ("b", 1)


def line(term: tuple[str, int], number: int, epoch: int, position: str = "") -> Line:
    grant = f"{term[0]}-{term[1]}"
    return Line(position or f"{epoch}-{number}", grant, term, number, epoch)


def test_writers_one_after_the_other_are_fine() -> None:
    log = [line(A, 1, 1), line(A, 2, 1), line(B, 1, 2), line(("a", 2), 1, 3)]
    assert stale(log) == []
    assert holes(log) == []


def test_a_line_after_a_later_epoch_is_stale() -> None:
    late = line(A, 2, 1)
    assert stale([line(A, 1, 1), line(B, 1, 2), late]) == [late]


def test_a_deposed_writers_line_in_its_successors_epoch_is_stale() -> None:
    late = line(A, 2, 2)
    assert stale([line(A, 1, 1), line(B, 1, 2), late]) == [late]


def test_two_writers_of_one_epoch_are_one_too_many() -> None:
    second = line(B, 1, 1)
    assert stale([line(A, 1, 1), second]) == [second]


def test_an_application_that_starts_again_continues_under_its_sidecars_session() -> None:
    log = [Line("1-1", "7-x", A, 1, 1), Line("1-2", "7-x", B, 1, 1)]
    assert stale(log) == []
    assert holes(log) == []


def test_missing_and_repeated_lines_are_detected() -> None:
    assert holes([line(A, 1, 1), line(A, 3, 1)]) == [line(A, 3, 1)]
    assert holes([line(A, 1, 1), line(A, 1, 1)]) == [line(A, 1, 1)]
    assert holes([line(A, 2, 1)]) == [line(A, 2, 1)]


def test_an_acknowledged_line_must_be_at_its_acknowledged_position() -> None:
    log = [line(A, 1, 1, "5-1")]
    assert lost(log, {Line("5-1", "a-1", A, 1)}) == []
    assert lost(log, {Line("5-2", "a-1", A, 1)}) == [Line("5-2", "a-1", A, 1)]
    assert lost([], {Line("5-1", "a-1", A, 1)}) == [Line("5-1", "a-1", A, 1)]


def test_output_of_writers_is_parsed_up_to_its_last_complete_line() -> None:
    wrote = {"event": "wrote", "process": "a", "term": 1, "grant": "a-1", "number": 1}
    wrote["position"] = "5-1"
    message = "\n".join(
        [
            "2026-11-22 WARN ClientConnection:1100 | lost",
            json.dumps({"event": "leads", "process": "a", "term": 1}),
            json.dumps(wrote),
            json.dumps({"event": "refused", "process": "a", "term": 1}),
            json.dumps(wrote)[:-20],
        ]
    )
    assert acknowledged(message) == {Line("5-1", "a-1", A, 1)}
    assert refused(message) == 1
    (slow,) = acknowledged(json.dumps(wrote | {"tookMs": 1500}))
    assert slow.took_ms == 1500
    text = json.dumps({"process": "a", "term": 1, "grant": "a-1", "number": 1})
    entry = {"position": "5-1", "epoch": 5, "text": text}
    document = {"topic": "t", "verdict": {"holds": True}, "entries": [entry]}
    found = stored(json.dumps(document))["t"]
    assert found.verdict == {"holds": True}
    assert found.lines == [Line("5-1", "a-1", A, 1, 5)]
