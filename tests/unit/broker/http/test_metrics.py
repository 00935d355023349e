"""Distributions, and the collection of metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from onewriter_broker.distribution import Distribution
from onewriter_broker.http.metrics import Metrics
from onewriter_core.ids import Identity
from onewriter_core.topic.effects import Record
from onewriter_core.topic.model import Purpose, Tenure, TransitionCause


def test_values_are_counted_up_to_each_border_and_above_the_last() -> None:
    spread = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        spread.observe(value)
    assert spread.cumulative() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert spread.total == 14.0


def record(cause: TransitionCause, purpose: Purpose = Purpose.GRANT, *, had_holder: bool) -> Record:
    former = Tenure(1, "before", Identity()) if had_holder else None
    return Record((-1,), purpose, 1, 2, 2, None, cause, 0.2, former)


def test_an_epoch_counts_as_fenced_once_and_only_against_its_writers_will() -> None:
    metrics = Metrics(None, lambda: 0.0)  # type: ignore[arg-type]  # not asked for here
    metrics.moved(record(TransitionCause.NONE, had_holder=False))
    metrics.moved(record(TransitionCause.CLOSED, had_holder=True))
    metrics.moved(record(TransitionCause.SILENT, had_holder=True))
    metrics.moved(record(TransitionCause.FENCED, Purpose.DEPOSE, had_holder=True))
    metrics.moved(record(TransitionCause.FENCED, had_holder=False))  # the next one after that order
    metrics.moved(record(TransitionCause.MOVED, Purpose.RESUME, had_holder=True))
    assert metrics.fenced == {"Silent": 1, "FencedByAdministrator": 1}


def test_a_rendering_is_what_prometheus_reads() -> None:
    spread = Distribution((0.1,))
    spread.observe(0.05)
    text = Metrics.render([Metrics.histogram("wait_seconds", "How long.", spread)]).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in families["onewriter_wait_seconds"].samples
    }
    assert samples["onewriter_wait_seconds_bucket", "0.1"] == 1
    assert samples["onewriter_wait_seconds_count", None] == 1
    assert "process_resident_memory_bytes" in families


def test_brokers_with_other_clocks_are_named_once() -> None:
    ahead = {"b-1~old": -86_400_000, "b-1~new": -86_400_000, "b-2~x": 6_000}
    metrics = Metrics(None, lambda: 0.0, clocks_ahead_ms=lambda: ahead)  # type: ignore[arg-type]
    samples = metrics.clocks().samples
    assert {each.labels["member"]: each.value for each in samples} == {"b-1": -86_400.0, "b-2": 6.0}
    assert len(samples) == 2
