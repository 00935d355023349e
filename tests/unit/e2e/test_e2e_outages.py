"""The judge of ``make trust`` sees a report that contradicts the writers."""

from __future__ import annotations

import pytest
from e2e.log import acknowledged_ms
from e2e.outages import BEGIN, END, Outage, Sample, table, written
from e2e.trust import PAGE

REPORTED = {"cause": "Silent", "detectionMs": 2500, "handoverMs": 40, "outageMs": 2540}


def test_the_gap_is_the_longest_one_that_ends_after_the_fault() -> None:
    outage = Outage("x", 5_000, [0, 4_000, 4_900, 7_600, 7_620], None)
    assert outage.gap_ms == 2_700
    assert outage.contradictions() == []


def test_a_report_that_covers_the_gap_is_no_contradiction() -> None:
    reported = REPORTED | {"firstMessageMs": 100}
    assert Outage("x", 0, [0, 2_700, 2_720], reported).contradictions() == []


def test_a_report_that_leaves_out_the_detection_is_a_contradiction() -> None:
    (said,) = Outage("x", 0, [0, 2_700], REPORTED | {"outageMs": 3}).contradictions()
    assert said == "x: writers saw 2700 ms without a write, and 3 ms are reported"


def test_a_change_of_holder_without_an_outage_is_a_contradiction() -> None:
    (said,) = Outage("x", 0, [0, 2_700], {"cause": "Silent", "outageMs": None}).contradictions()
    assert "is not reported" in said


def test_ready_while_no_write_is_possible_is_a_contradiction() -> None:
    samples = [Sample(5_000, "True"), Sample(30_000, "False")]
    assert Outage("x", 0, [0, 60_000], None, samples).contradictions() == []
    samples.append(Sample(40_000, "True"))
    (said,) = Outage("x", 0, [0, 60_000], None, samples).contradictions()
    assert "Ready was True 40000 ms after the last write" in said


def test_the_table_is_written_between_its_lines() -> None:
    rows = table([Outage("SIGSTOP", 0, [0, 2_700], REPORTED)])
    assert rows.splitlines()[-1] == "| SIGSTOP | 2700 ms | Silent | 2500 ms | 40 ms | 2540 ms |  |"
    assert written(f"a\n{BEGIN}\nold\n{END}\nb", rows) == f"a\n{BEGIN}\n\n{rows}\n\n{END}\nb"
    with pytest.raises(ValueError, match="needs the lines"):
        written("a", rows)
    assert written(PAGE.read_text(), rows)


def test_the_times_of_acknowledgements_are_read_from_a_writers_output() -> None:
    printed = '{"event": "wrote", "atMs": 7}\n{"event": "leads"}\n{"event": "wrote", "atMs": 9'
    assert acknowledged_ms(printed) == [7]
