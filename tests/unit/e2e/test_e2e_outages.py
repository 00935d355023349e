"""The judge of ``make trust`` sees a report that contradicts the writers, or another report."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from e2e.injected import FAULTS, KINDS
from e2e.log import acknowledged_ms
from e2e.outages import (
    BEGIN,
    END,
    HEAD,
    Measurement,
    Outage,
    Reports,
    Sample,
    Span,
    at_ms,
    parsed,
    rows,
    table,
    uncounted,
    unshifted,
    written,
)
from e2e.trust import PAGE, grown

Json = dict[str, Any]

START = 1_700_000_000_000


def transition(at: int, **changed: Any) -> Json:
    """A transition of epoch 7 at this time after the start."""
    moment = datetime.fromtimestamp((START + at) / 1000, UTC).isoformat(timespec="milliseconds")
    found = {"epoch": 7, "kind": "grant", "cause": "Silent", "at": moment, "holder": {"pod": "w"}}
    times = {"detectionMs": 2_500, "handoverMs": 40, "outageMs": 2_540, "firstMessageMs": 20}
    return found | times | changed


def said(*transitions: Json, **changed: Any) -> Reports:
    """Reports that agree, with these fields changed."""
    outage = transitions[0]["outageMs"] if transitions else 0
    fields: Json = {
        "transitions": transitions,
        "shown": transitions,
        "history": [{**each, "kind": "ready"} for each in transitions],
        "why": f"No producer could write for {outage} ms: and so on.",
    }
    return Reports(**(fields | changed))


def outage(times: list[int], reports: Reports | None = None, **fields: Any) -> Outage:
    """An outage with acknowledgements at these times after the start; the fault began at 1,000."""
    acknowledged = [START + each for each in times]
    return Outage("x", "stock", START + 1_000, acknowledged, reports or Reports(), **fields)


def contradictions(times: list[int], *reported: Json, **changed: Any) -> list[str]:
    return outage(times, said(*reported, **changed)).contradictions()


def test_gaps_end_after_the_fault() -> None:
    found = outage([0, 900, 950, 3_600, 3_620])
    assert [each.ms for each in found.gaps] == [2_650, 20]
    assert found.contradictions() == []


def test_reports_that_cover_the_gap_and_agree_are_no_contradiction() -> None:
    assert contradictions([1_000, 3_600, 3_620], transition(3_500)) == []


def test_a_report_that_leaves_out_the_detection_is_a_contradiction() -> None:
    short = transition(3_500, detectionMs=0, outageMs=40)
    (found,) = contradictions([1_000, 3_600], short)
    assert found == "x, stock: writers saw 2600 ms without a write, and 60 ms are reported"


def test_a_report_that_is_longer_than_the_gap_is_a_contradiction() -> None:
    (found,) = contradictions([1_000, 1_100], transition(1_050))
    assert found == "x, stock: 2560 ms are reported, and writers saw only 100 ms without a write"


def test_a_change_of_the_holder_without_an_outage_is_a_contradiction() -> None:
    unknown = transition(3_500, detectionMs=None, handoverMs=None, outageMs=None)
    (found,) = contradictions([1_000, 3_600], unknown)
    assert found == "x, stock: the holder changed (Silent), and the outage is not reported"


def test_each_gap_is_compared_with_its_own_transition() -> None:
    first, second = transition(3_500), transition(9_500, epoch=8)
    times = [1_000, 3_600, 4_000, 9_600]
    long = [each for each in contradictions(times, first, second) if "without a write" in each]
    assert long == ["x, stock: writers saw 5600 ms without a write, and 2560 ms are reported"]


def test_a_transition_belongs_to_the_long_gap_that_contains_it() -> None:
    first, second = transition(80_500), transition(82_500, epoch=8)
    long = replace(outage([1_000, 81_000, 83_500, 83_520], said(first, second)), samples=())
    assert [long.reported(each) for each in long.gaps[:2]] == [first, second]


def test_a_transition_of_another_time_belongs_to_no_gap() -> None:
    found = outage([1_000, 3_600, 3_700], said(transition(9_000)))
    assert found.reported(found.gap) is None


def test_status_and_history_must_show_what_the_broker_shows() -> None:
    reported = transition(3_500)
    other = transition(3_500, handoverMs=4)
    times = [1_000, 3_600]
    assert "the status shows" in contradictions(times, reported, shown=[other])[0]
    assert "the status does not show epoch 7" in contradictions(times, reported, shown=[])[0]
    history = [{**other, "kind": "ready"}]
    assert "the history has" in contradictions(times, reported, history=history)[0]
    assert "the history has no times" in contradictions(times, reported, history=[])[0]


def test_the_history_may_have_numbers_as_text() -> None:
    reported = transition(3_500)
    record = {"kind": "ready", "epoch": "7"} | {
        name: str(value) for name, value in reported.items() if name.endswith("Ms")
    }
    assert contradictions([1_000, 3_600], reported, history=[record]) == []


def test_why_must_name_the_outage() -> None:
    (found,) = contradictions([1_000, 3_600], transition(3_500), why="3 ms")
    assert found == "x, stock: `why` does not say 'No producer could write for 2540 ms'"


def test_ready_while_no_write_is_possible_is_a_contradiction() -> None:
    def judged(*samples: Sample, is_served: bool = False) -> list[str]:
        found = outage([1_000, 60_000], samples=samples, is_served=is_served)
        return found.contradictions()

    early, late = Sample(START + 5_000, "True"), Sample(START + 30_000, "False")
    assert judged(early, late) == []
    (found,) = judged(early, Sample(START + 41_000, "True"))
    assert "Ready was True 40000 ms after the last write" in found
    assert judged(Sample(START + 41_000, "True", "False"), is_served=True) == []
    (found,) = judged(Sample(START + 41_000, "True", "True"), is_served=True)
    assert "WriterActive was True" in found


def test_the_metric_must_contain_the_outages() -> None:
    found = [outage([1_000, 3_600], said(transition(3_500), transition(500, epoch=6)))]
    assert uncounted({"Silent": 2_540}, found) == []
    assert uncounted(None, found) == [], "another process leads: its metric began at 0"
    (contradiction,) = uncounted({"Released": 3}, found)
    assert "outages of 2540 ms for Silent, and the metric grew by 0 ms" in contradiction


def test_the_metric_of_another_process_is_not_compared() -> None:
    assert grown(("a", {"Silent": 5}), ("a", {"Silent": 7, "Handover": 1})) == {
        "Silent": 2,
        "Handover": 1,
    }
    assert grown(("a", {}), ("b", {})) is None


def test_the_table_is_written_between_its_lines() -> None:
    rows = table([outage([1_000, 3_600], said(transition(3_500)), outcomes=["Evicted"])])
    row = "| x | stock | 2.60 s | Silent | 2.50 s | 0.04 s | 0.02 s | Evicted |"
    assert rows.splitlines()[-1] == row
    assert written(f"a\n{BEGIN}\nold\n{END}\nb", rows) == f"a\n{BEGIN}\n\n{rows}\n\n{END}\nb"
    with pytest.raises(ValueError, match="needs the lines"):
        written("a", rows)
    assert written(PAGE.read_text(), rows)


def test_single_faults_are_measured_again() -> None:
    first, second = table([outage([1_000, 3_600])]), table([outage([1_000, 2_600])])
    other = HEAD[1] + "\n| y | stock | 1.00 s |\n| y | sidecar | 2.00 s |\n\nand | x | not"
    found = rows(first) | rows(other)
    assert found["y"] == ["| y | stock | 1.00 s |", "| y | sidecar | 2.00 s |"]
    assert (found | rows(second))["x"] == second.splitlines()[2:]
    assert rows("no table") == {}


def test_every_row_of_the_page_is_of_a_fault() -> None:
    titles = [fault.title for fault in FAULTS.values()]
    assert len(set(titles)) == len(titles)
    assert set(rows(PAGE.read_text())) <= set(titles)


def test_the_page_states_the_days_and_loads_of_all_rows() -> None:
    one = Span().wider([("2026-01-02", 3.4)])
    assert (one.days, one.loads) == ("2026-01-02", "3 to 3")
    page = f"Measured on {one.days} on a machine with 2 cores and a load of {one.loads}: and so on"
    assert Span.of(page) == one
    more = Span.of(page).wider([("2025-12-31", 9.0), ("2026-01-01", 1.6)])
    assert (more.days, more.loads) == ("2025-12-31 to 2026-01-02", "2 to 9")
    assert Span.of(page.replace(one.days, more.days)).days == more.days
    assert Span.of("nothing") == Span()
    assert Span.of(PAGE.read_text()).days


@pytest.mark.parametrize("day_ms", [86_400_000, -86_400_000])
def test_times_of_a_broker_with_a_shifted_clock_are_those_of_the_machine(day_ms: int) -> None:
    shifted, right = transition(2_000 + day_ms, epoch=8), transition(1_000)
    corrected = unshifted([shifted, right], START, day_ms)
    assert [at_ms(each) for each in corrected] == [START + 2_000, START + 1_000]
    assert [each["epoch"] for each in corrected] == [8, 7]
    assert unshifted([right], START, 0) == [right]


def test_a_stored_measurement_is_read_back() -> None:
    found = outage([1_000, 3_600], said(transition(3_500)), samples=[Sample(5, "True", "True")])
    read = parsed(Measurement("2026-01-01", 1.5, [found]).text())
    assert (read.measured_at, read.load) == ("2026-01-01", 1.5)
    assert table(read.outages) == table([found])
    assert read.outages[0].contradictions() == found.contradictions()
    assert read.outages[0].samples == [Sample(5, "True", "True")]


def test_a_holder_that_stays_or_resumes_is_shown_as_such() -> None:
    resumed = said(transition(3_500, kind="resume", cause="BrokerChanged"))
    rows = table([outage([1_000, 3_600]), outage([1_000, 3_600], resumed)]).splitlines()
    assert "| the holder stays |" in rows[-2]
    assert "| the holder resumes |" in rows[-1]


def test_the_fault_that_loses_all_messages_is_the_last_one() -> None:
    assert list(FAULTS)[-1] == "volume-lost"
    assert all(set(each.kinds) <= set(KINDS) for each in FAULTS.values())


def test_the_times_of_acknowledgements_are_read_from_a_writers_output() -> None:
    printed = '{"event": "wrote", "atMs": 7}\n{"event": "leads"}\n{"event": "wrote", "atMs": 9'
    assert acknowledged_ms(printed) == [7]
