"""Counting what the operator writes, out of the API server's own metrics; the command's options."""

from __future__ import annotations

import pytest
from bench import operator_run, pod_lab
from bench.operator_scale import changing_requests, difference

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="exclusivetopics",subresource="status",verb="APPLY"} 12
apiserver_request_total{code="409",resource="exclusivetopics",subresource="status",verb="APPLY"} 3
apiserver_request_total{code="201",resource="exclusivetopics",subresource="",verb="POST"} 10
apiserver_request_total{code="200",resource="exclusivetopics",subresource="",verb="WATCH"} 40
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 1.5e+02
apiserver_request_total{code="201",dry_run="All",resource="pods",subresource="",verb="POST"} 9
apiserver_request_duration_seconds_count{resource="leases",verb="PUT"} 7
"""


def test_requests_that_change_something_are_counted_by_resource() -> None:
    assert changing_requests(METRICS) == {
        "exclusivetopics/status": 15,
        "exclusivetopics": 10,
        "leases": 150,
    }


def test_leases_are_distinguished_and_new_resources_count_from_nothing() -> None:
    before = {"leases": 10, "exclusivetopics/status": 5}
    after = {"leases": 15, "exclusivetopics/status": 5, "events": 2}
    assert difference(before, after) == (2, 5)


def test_defaults_are_the_full_length() -> None:
    given = operator_run.parser().parse_args([])
    assert given.parts == ["scale", "idle", "takeover", "sidecar", "lease"]
    assert given.topics == [10, 100, 500, 1000]
    assert (given.crash_rounds, given.planned_rounds, given.silent_rounds) == (200, 200, 50)
    assert given.lease_crash_rounds == given.lease_silent_rounds == given.lease_planned_rounds == 50
    assert given.sidecar_planned_rounds == 200
    assert given.idle_seconds == 600


@pytest.mark.parametrize("words", [["--parts", "scale,nonsense"], ["--topics", "0"]])
def test_nonsense_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        operator_run.parser().parse_args(words)
    assert "argument" in capsys.readouterr().err


def test_a_missing_tool_is_reported_for_the_tiers_that_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_lab, "missing", lambda: ["root, for containers"])
    monkeypatch.setattr(pod_lab, "missing_programs", lambda names: [])
    assert operator_run.missing(["scale", "idle"]) == []
    (answer,) = operator_run.missing(["scale", "lease"])
    assert answer.startswith("root, for containers")
    assert "--parts scale,idle" in answer
