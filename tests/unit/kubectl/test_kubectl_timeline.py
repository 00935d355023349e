"""The bars of ``kubectl onewriter timeline``."""

from __future__ import annotations

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.objects import TopicStatus, parse_topic_status
from onewriter_kubectl.timeline import BAR_COLUMNS_MIN, documents, lines, spans

NOON = 1_767_268_800.0
"""2026-01-01T12:00:00Z."""


def status(*transitions: Json) -> TopicStatus:
    return parse_topic_status({"transitions": list(transitions)})


ORDERS = status(
    {"epoch": 7, "cause": "Silent", "at": "2026-01-01T12:01:30Z", "pod": "w-1", "outageMs": 2620},
    {"epoch": 6, "cause": "Released", "at": "2026-01-01T12:01:00Z"},
    {"epoch": 5, "cause": "Initial", "at": "2026-01-01T12:00:00Z", "producerName": "p"},
)


def test_each_epoch_has_a_bar_of_its_time() -> None:
    assert lines(spans(ORDERS, NOON + 120), 80) == [
        "EPOCH  HOLDER  FOR  OUTAGE   CAUSE     12:00:00                         12:02:00",
        "5      p       1m   -        Initial   ====================",
        "6      -       30s  -        Released                      ..........",
        "7      w-1     30s  2620 ms  Silent                                  ===========",
    ]


def test_lines_fit_the_terminal() -> None:
    for width in (70, 80, 200):
        assert max(map(len, lines(spans(ORDERS, NOON + 120), width))) == width
    narrow = lines(spans(ORDERS, NOON + 120), 10)
    assert max(map(len, narrow)) == len(narrow[0])
    assert len(narrow[1].rpartition("  ")[2]) <= BAR_COLUMNS_MIN


def test_short_epochs_and_odd_entries_are_drawn_too() -> None:
    odd = status(
        {"epoch": 3, "at": "2026-01-01T12:00:00Z", "pod": "a"},
        {"epoch": 2, "at": "2026-01-01T12:00:00Z", "pod": "b"},
        {"epoch": 1, "at": "nonsense"},
    )
    drawn = lines(spans(odd, NOON - 5), 80)  # this machine's clock is late
    assert [line.split()[0] for line in drawn[1:]] == ["2", "3"]
    assert all("=" in line for line in drawn[1:])
    assert lines(spans(status(), NOON), 80) == ["no change of the holder is known"]


def test_programs_get_the_same_as_documents() -> None:
    found = documents(spans(ORDERS, NOON + 120))
    assert found[-1] == {
        "epoch": 7,
        "holder": "w-1",
        "cause": "Silent",
        "begins": "2026-01-01T12:01:30Z",
        "ends": "2026-01-01T12:02:00Z",
        "outageMs": 2620,
    }
    assert found[1]["holder"] is None
