"""The page of metrics: names, types, labels and meaning, from running components."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final, cast

from docs.generator.tables import code, page, prose, table
from prometheus_client import CollectorRegistry, Metric

from onewriter.sidecar.metrics import Metrics as SidecarMetrics
from onewriter_broker.http.metrics import Metrics as BrokerMetrics
from onewriter_operator.metrics import Metrics as OperatorMetrics
from onewriter_testing.in_process import InProcessBroker

INTRODUCTION: Final = """
A counter's samples end in `_total`, a histogram's in `_bucket`, `_sum` and `_count`. Brokers serve `/metrics` as
[HTTP API](../http.md#metrics) describes; [operations](../operations.md#watching) says what to watch. Each process also
has the metrics of the Python client for Prometheus that begin with `process_`, where the platform supports them.
"""

Row = tuple[str, str, str, str]
"""Name, type, labels, meaning."""


def text(broker: InProcessBroker) -> str:
    """The whole page."""
    parts = []
    for name, rows in tables(broker).items():
        cells = (
            (code(metric), kind, ", ".join(map(code, labels.split())), prose(meaning))
            for metric, kind, labels, meaning in rows
        )
        parts += [f"## {name}", table(("metric", "type", "labels", "meaning"), cells)]
    return page("Metrics", INTRODUCTION, *parts)


def names(broker: InProcessBroker) -> list[str]:
    """Every metric of every component, with its labels."""
    return sorted(
        {
            f"{name}{{{','.join(labels.split())}}}"
            for rows in tables(broker).values()
            for name, _, labels, _ in rows
        }
    )


def tables(broker: InProcessBroker) -> dict[str, list[Row]]:
    """The metrics of each component."""
    operator = OperatorMetrics()
    operator.certificate(0.0)
    return {
        "Broker": _of_broker(broker),
        "Operator": _of_registry(operator.registry),
        "Sidecar": _of_registry(SidecarMetrics()._registry),
    }


def _of_broker(broker: InProcessBroker) -> list[Row]:
    running = broker._broker
    certificate = cast("Any", SimpleNamespace(not_after=0.0))  # it has a metric of its own
    metrics = BrokerMetrics(running.clients, time.monotonic, certificate, running.compactions)
    snapshot = asyncio.run_coroutine_threadsafe(metrics.snapshot(), broker._loop).result()
    return _rows((family, _labels(family)) for family in snapshot)


def _of_registry(registry: CollectorRegistry) -> list[Row]:
    found = []
    for collector in list(registry._collector_to_names):
        labels = tuple(getattr(collector, "_labelnames", ()))
        found += [(family, labels) for family in collector.collect()]
    return _rows(found)


def _labels(family: Metric) -> tuple[str, ...]:
    """The labels of a family that may have no samples yet."""
    return tuple(getattr(family, "_labelnames", ()))


def _rows(families: Iterable[tuple[Metric, tuple[str, ...]]]) -> list[Row]:
    rows: dict[str, Row] = {}
    for family, labels in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        rows[name] = (name, family.type, " ".join(labels), family.documentation)
    return sorted(rows.values())
