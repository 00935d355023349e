"""The Grafana dashboard: writers, transitions, and the health of publishing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

_COLUMNS: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WHERE: Final = 'namespace="$namespace", container="broker"'
_OPERATOR: Final = 'namespace="$namespace", container="operator"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its title, queries and unit."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    columns: int = 8
    text: str = ""


def _p99(metric: str, by: str = "") -> str:
    grouped = f"le, {by}" if by else "le"
    series = f"rate(onewriter_{metric}_bucket{{{_WHERE}}}[$__rate_interval])"
    return f"histogram_quantile(0.99, sum by ({grouped}) ({series}))"


def _sum(metric: str, by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (onewriter_{metric}{{{_WHERE}}})"


def _rate(metric: str, by: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate(onewriter_{metric}{{{_WHERE}}}[$__rate_interval]))"


def _shard(metric: str, function: str) -> str:
    return f"{function} by (shard) (onewriter_store_shard_{metric}{{{_WHERE}}})"


ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Who writes",
        (
            Panel("Topics served", ((_sum("topics_loaded"), "served"),), kind="stat", columns=4),
            Panel("With a writer", ((_sum("topics_held"), "held"),), kind="stat", columns=4),
            Panel("Waiting producers", ((_sum("waiters"), "waiting"),), kind="stat", columns=4),
            Panel(
                "Buckets without a broker",
                ((_sum("buckets_waiting"), "waiting"),),
                kind="stat",
                columns=4,
                text="Buckets that no broker could take. /readyz of the brokers has the reasons.",
            ),
            Panel(
                "Lost entries",
                ((_sum("lost_entries_total"), "lost"),),
                kind="stat",
                columns=4,
                text="Acknowledged entries that the store has lost. Each one is an incident.",
            ),
            Panel(
                "Store is full",
                ((f"max(onewriter_store_is_full{{{_WHERE}}})", "full"),),
                kind="stat",
                columns=4,
            ),
            Panel(
                "Writers",
                ((f"onewriter_topic_holder_info{{{_WHERE}}} == 1", "{{topic}}"),),
                kind="table",
                columns=12,
            ),
            Panel(
                "Epochs",
                ((f"onewriter_topic_epoch{{{_WHERE}}}", "{{topic}}"),),
                columns=12,
                text="Each step is a transition.",
            ),
        ),
    ),
    (
        "Transitions",
        (
            Panel("By cause", ((_rate("transitions_total", "kind, cause"), "{{kind}} {{cause}}"),)),
            Panel(
                "Fenced",
                ((_rate("fenced_total", "reason"), "{{reason}}"),),
                text="Epochs that ended without a release by the writer.",
            ),
            Panel(
                "Outage, p99",
                ((_p99("outage_seconds", "cause"), "{{cause}}"),),
                unit="s",
                text="Time in which no producer could write: from the former writer's last sign of life to the grant.",
            ),
            Panel(
                "Parts of an outage, p99",
                (
                    (_p99("detection_seconds", "cause"), "detection {{cause}}"),
                    (_p99("handover_seconds", "cause"), "handover {{cause}}"),
                    (_p99("first_message_seconds", "cause"), "first message {{cause}}"),
                ),
                unit="s",
                text="The first message of the new writer follows the outage.",
            ),
        ),
    ),
    (
        "Publishing",
        (
            Panel("Published entries", ((_rate("published_entries_total"), "entries/s"),)),
            Panel("Published bytes", ((_rate("published_bytes_total"), "bytes"),), unit="Bps"),
            Panel(
                "Publish, p99",
                ((_p99("publish_seconds"), "publish"), (_p99("append_seconds"), "append")),
                unit="s",
            ),
            Panel("Store writes", ((_rate("store_writes_total", "kind"), "{{kind}}"),)),
            Panel("Undecided", ((_rate("store_undecided_total"), "undecided/s"),)),
            Panel("Event loop, p99", ((_p99("event_loop_lag_seconds"), "late"),), unit="s"),
            Panel("Connections", ((_sum("connections", "pod"), "{{pod}}"),)),
            Panel("Producers", ((_sum("producers", "pod"), "{{pod}}"),)),
            Panel("Buckets", ((_sum("buckets_owned", "pod"), "{{pod}}"),)),
        ),
    ),
    (
        "The store",
        (
            Panel(
                "Shards that answer",
                ((_shard("up", "max"), "shard {{shard}}"),),
                text="0: no broker reaches the primary of the shard. Its topics wait.",
            ),
            Panel("Replicas", ((_shard("replicas", "max"), "shard {{shard}}"),)),
            Panel(
                "Replication lag",
                ((_shard("replication_lag_bytes", "max"), "shard {{shard}}"),),
                unit="bytes",
                text="What the slowest connected replica is behind: a promotion may lose it under durability Local.",
            ),
            Panel(
                "Memory",
                (
                    (_shard("memory_used_bytes", "max"), "shard {{shard}}"),
                    (_shard("memory_max_bytes", "max"), "limit of shard {{shard}}"),
                ),
                unit="bytes",
            ),
            Panel(
                "Time for syncs",
                (
                    (
                        (
                            "max by (shard) (rate(onewriter_store_shard_sync_seconds_total"
                            f"{{{_WHERE}}}[$__rate_interval]))"
                        ),
                        "shard {{shard}}",
                    ),
                ),
                unit="percentunit",
                text="The part of the time in which the primary writes and syncs its append-only file.",
            ),
            Panel("Buckets of shards", ((_shard("buckets", "max"), "shard {{shard}}"),)),
            Panel(
                "Failovers",
                (
                    (
                        (
                            "max by (shard) (increase(onewriter_store_shard_failovers_total"
                            f"{{{_WHERE}}}[1h]))"
                        ),
                        "shard {{shard}}",
                    ),
                ),
                text="Within an hour, as one broker sees them.",
            ),
            Panel("Faults of files", ((_shard("faults", "max"), "shard {{shard}}"),)),
            Panel(
                "Logs at risk",
                ((_sum("ranges_at_risk_total"), "logs"),),
                text="Logs in which entries may have been acknowledged and lost.",
            ),
        ),
    ),
    (
        "The operator",
        (
            Panel(
                "Leading",
                ((f"sum(onewriter_leader{{{_OPERATOR}}})", "leading"),),
                kind="stat",
                columns=4,
                text="Must be 1. Otherwise no operator manages topics; writing continues.",
            ),
            Panel(
                "Topics not ready",
                (
                    (
                        (
                            f'count(onewriter_topic_condition{{{_OPERATOR}, condition="Ready"}} < 1)'
                            " or vector(0)"
                        ),
                        "not ready",
                    ),
                ),
                kind="stat",
                columns=4,
            ),
            Panel(
                "Queue",
                ((f"max(onewriter_workqueue_depth{{{_OPERATOR}}})", "objects"),),
                kind="stat",
                columns=4,
            ),
            Panel(
                "Claims",
                ((f"sum by (state) (onewriter_claims{{{_OPERATOR}}})", "{{state}}"),),
                columns=12,
            ),
            Panel(
                "Pods of fenced writers",
                (
                    (
                        (
                            "sum by (outcome) (rate(onewriter_fenced_pods_total"
                            f"{{{_OPERATOR}}}[$__rate_interval]))"
                        ),
                        "{{outcome}}",
                    ),
                ),
                columns=12,
            ),
            Panel(
                "Reconciles, p99",
                (
                    (
                        (
                            "histogram_quantile(0.99, sum by (le, kind) (rate("
                            f"onewriter_reconcile_seconds_bucket{{{_OPERATOR}}}[$__rate_interval])))"
                        ),
                        "{{kind}}",
                    ),
                ),
                unit="s",
                columns=12,
            ),
        ),
    ),
)


def queries() -> list[str]:
    """Every query of the dashboard."""
    return [query for _, panels in ROWS for panel in panels for query, _ in panel.queries]


def text() -> str:
    """The dashboard as Grafana imports it."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> Json:
    panels: list[Json] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top += 1
        left = height = 0
        for panel in row:
            if left + panel.columns > _COLUMNS:
                left, top = 0, top + height
            height = 4 if panel.kind == "stat" else _HEIGHT
            place = {"x": left, "y": top, "w": panel.columns, "h": height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += panel.columns
        top += height
    return {
        "uid": "onewriter",
        "title": "onewriter",
        "tags": ["onewriter"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[Json]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "namespace",
            "type": "query",
            "label": "Namespace",
            "datasource": _SOURCE,
            "query": "label_values(onewriter_buckets_owned, namespace)",
            "refresh": 2,
        },
    ]


def _panel(panel: Panel, number: int, place: Json) -> Json:
    is_table = panel.kind == "table"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": is_table,
                **({"format": "table"} if is_table else {}),
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }
