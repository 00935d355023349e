"""The alerts in Prometheus: each fires on its fault, and none without a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import commands, promtool
from tests.cluster.control_plane import COMMAND_SECONDS
from tests.unit.charts.rendering import of_kind, rendered

Json = dict[str, Any]

NAMESPACE = "system"
TOPIC = "persistent://shop/default/orders"


def alerts() -> list[Json]:
    enabled = {"monitoring": {"prometheusRule": {"enabled": True}}}
    (rule,) = of_kind(rendered(enabled), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    found: list[Json] = group["rules"]
    return found


def broker(metric: str, values: str, number: int = 0, **labels: str) -> Json:
    return _series(metric, values, "broker", f"onewriter-broker-{number}", labels)


def operator(metric: str, values: str, number: int = 0, **labels: str) -> Json:
    return _series(metric, values, "operator", f"onewriter-operator-{number}", labels)


def _series(metric: str, values: str, container: str, pod: str, labels: dict[str, str]) -> Json:
    whole = {"namespace": NAMESPACE, "container": container, "pod": pod, **labels}
    text = ",".join(f'{name}="{value}"' for name, value in whole.items())
    return {"series": f"onewriter_{metric}{{{text}}}", "values": values}


def failed_jobs(values: str) -> Json:
    """Failed pods of a verification, as kube-state-metrics reports them."""
    labels = f'namespace="{NAMESPACE}",job_name="onewriter-verify-29411693"'
    return {"series": f"kube_job_status_failed{{{labels}}}", "values": values}


WELL: tuple[Json, ...] = (
    *(broker("buckets_owned", "21+0x120", number) for number in range(3)),
    *(broker("buckets_waiting", "0+0x120", number) for number in range(3)),
    *(broker("store_reachable", "1+0x120", number) for number in range(3)),
    broker("lost_entries_total", "0+0x120"),
    broker("ranges_at_risk_total", "0+0x120"),
    *(broker("store_shard_up", "1+0x120", shard=str(n)) for n in range(3)),
    *(broker("store_shard_replicas", "1+0x120", shard=str(n)) for n in range(3)),
    *(broker("store_shard_replication_lag_bytes", "100+0x120", shard=str(n)) for n in range(3)),
    *(broker("store_shard_faults", "0+0x120", shard=str(n)) for n in range(3)),
    *(broker("store_shard_failovers_total", "0+0x120", shard=str(n)) for n in range(3)),
    operator("store_cluster_state", "1+0x120", state="Complete"),
    operator("store_cluster_state", "0+0x120", state="Degraded"),
    operator("store_cluster_state", "0+0x120", state="Stuck"),
    broker("store_is_full", "0+0x120"),
    broker("retention_held_back", "0+0x120"),
    broker("topics_broken", "0+0x120"),
    broker("tls_certificate_not_after_seconds", f"{365 * 86_400}+0x120"),
    broker("desired_known", "1+0x120"),
    broker("store_undecided_total", "3+0x120"),
    broker("topic_waiters", "2+0x120", topic=TOPIC),
    broker("topic_holder_info", "1+0x120", topic=TOPIC, producer="a"),
    broker("fenced_total", "0+1x120", reason="ConnectionLost"),
    broker("outage_seconds_bucket", "0+1x120", le="30.0", cause="Silent"),
    broker("outage_seconds_count", "0+1x120", cause="Silent"),
    broker("publish_seconds_bucket", "0+100x120", le="0.01"),
    broker("publish_seconds_bucket", "0+100x120", le="1"),
    broker("publish_seconds_bucket", "0+100x120", le="+Inf"),
    broker("event_loop_lag_last_seconds", "0.01+0x120"),
    operator("leader", "1+0x120"),
    operator("leader", "0+0x120", 1),
    operator("workqueue_depth", "3+0x120"),
    operator("watch_last_event_seconds", "60+0x120", kind="ExclusiveTopic"),
    operator("watch_last_event_seconds", "9999+0x120", 1, kind="ExclusiveTopic"),
    operator("reconcile_seconds_count", "0+10x120", kind="ExclusiveTopic", result="ok"),
    operator("topic_condition", "1+0x120", exported_namespace="shop", name="a", condition="Ready"),
    operator("drift_repaired_total", "1+0x120", kind="Topic"),
    failed_jobs("0+0x120"),
)
"""Three brokers, two operators of which one leads, a topic with writer and waiters."""

FAULTS: dict[str, Json | tuple[Json, ...]] = {
    "OnewriterEntriesLost": broker("lost_entries_total", "0 0 7+0x120"),
    "OnewriterEntriesAtRisk": broker("ranges_at_risk_total", "0 0 7+0x120"),
    "OnewriterStoreShardAway": broker("store_shard_up", "0+0x120", shard="1"),
    "OnewriterStoreShardUnreplicated": broker("store_shard_replicas", "0+0x120", shard="1"),
    "OnewriterStoreShardLags": broker(
        "store_shard_replication_lag_bytes", "100000000+0x120", shard="1"
    ),
    "OnewriterStoreFault": broker("store_shard_faults", "1+0x120", shard="1"),
    "OnewriterStoreFailovers": broker("store_shard_failovers_total", "0+1x120", shard="1"),
    "OnewriterStoreStuck": (
        operator("store_cluster_state", "0+0x120", state="Complete"),
        operator("store_cluster_state", "1+0x120", state="Stuck"),
    ),
    "OnewriterStoreIncomplete": (
        operator("store_cluster_state", "0+0x120", state="Complete"),
        operator("store_cluster_state", "1+0x120", state="Degraded"),
    ),
    "OnewriterBucketsWaiting": broker("buckets_waiting", "4+0x120"),
    "OnewriterStoreAway": tuple(broker("store_reachable", "0+0x120", n) for n in range(3)),
    "OnewriterBrokerLostStore": broker("store_reachable", "0+0x120", 2),
    "OnewriterClocksDiffer": broker("clock_ahead_seconds", "-86400+0x120", member="b-1"),
    "OnewriterStoreFull": broker("store_is_full", "1+0x120"),
    "OnewriterRetentionHeldBack": broker("retention_held_back", "2+0x120"),
    "OnewriterTopicBroken": broker("topics_broken", "1+0x120"),
    "OnewriterCertificateExpires": broker(
        "tls_certificate_not_after_seconds", f"{13 * 86_400}+0x120"
    ),
    "OnewriterBrokerUntold": broker("desired_known", "0+0x120"),
    "OnewriterStoreUndecided": broker("store_undecided_total", "0+5x120"),
    "OnewriterBrokersMissing": broker("buckets_owned", "21+0x3 _x117", 2),
    "OnewriterTopicWithoutWriter": broker("topic_holder_info", "_x120", topic=TOPIC, producer="a"),
    "OnewriterWritersFencedOften": broker("fenced_total", "0+9x120", reason="ConnectionLost"),
    "OnewriterOutageLong": broker("outage_seconds_count", "0+1x60 61+2x60", cause="Silent"),
    "OnewriterPublishSlow": broker("publish_seconds_bucket", "0+1x120", le="0.01"),
    "OnewriterEventLoopLate": broker("event_loop_lag_last_seconds", "0.6+0x120"),
    "OnewriterOperatorNotLeading": operator("leader", "0+0x120"),
    "OnewriterOperatorBehind": operator("workqueue_depth", "5000+0x120"),
    "OnewriterWatchStale": operator("watch_last_event_seconds", "0+60x120", kind="ExclusiveTopic"),
    "OnewriterOperatorFails": operator(
        "reconcile_seconds_count", "0+5x120", kind="ExclusiveTopic", result="error"
    ),
    "OnewriterTopicNotReady": operator(
        "topic_condition", "0+0x120", exported_namespace="shop", name="a", condition="Ready"
    ),
    "OnewriterDriftRepaired": operator("drift_repaired_total", "1+1x120", kind="Topic"),
    "OnewriterVerificationFailed": failed_jobs("1+0x120"),
}
"""For each fault, the series among the above that show it."""

WORLD_ENDS = {
    "OnewriterEntriesLost": "5m",
    "OnewriterEntriesAtRisk": "5m",
    "OnewriterBrokersMissing": "60m",
}
"""The time of evaluation, if an hour and a half is too late."""


def firing(series: list[Json], name: str, at: str, *, is_expected: bool) -> Json:
    query = f'count(ALERTS{{alertname=~"{name}", alertstate="firing"}})'
    return {
        "name": name,
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}] if is_expected else [],
            }
        ],
    }


def check(directory: Path, *tests: Json) -> str:
    """Run the tests with promtool; return its errors, empty if there are none."""
    rules = {"groups": [{"name": "onewriter", "rules": alerts()}]}
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
    whole = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": list(tests)}
    (directory / "tests.yaml").write_text(yaml.safe_dump(whole))
    for verb in (["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]):
        command = [str(promtool.program()), *verb]
        done = commands.run(command, directory=directory, seconds=COMMAND_SECONDS)
        if done.returncode != 0:
            return done.stdout + done.stderr
    return ""


def replaced(fault: Json | tuple[Json, ...]) -> list[Json]:
    faults = fault if isinstance(fault, tuple) else (fault,)
    names = {each["series"] for each in faults}
    return [*(each for each in WELL if each["series"] not in names), *faults]


def test_every_alert_has_a_fault_a_severity_and_a_runbook() -> None:
    assert {each["alert"] for each in alerts()} == set(FAULTS)
    for each in alerts():
        assert each["labels"]["severity"] in {"critical", "warning", "info"}
        assert len(each["annotations"]["runbook"]) > 80
        assert "$namespace" not in str(each)
        assert "$brokers" not in str(each)


@pytest.mark.parametrize("name", FAULTS)
def test_an_alert_fires_on_its_fault(tmp_path: Path, name: str) -> None:
    at = WORLD_ENDS.get(name, "90m")
    assert check(tmp_path, firing(replaced(FAULTS[name]), name, at, is_expected=True)) == ""


def test_no_alert_fires_when_all_is_well(tmp_path: Path) -> None:
    assert check(tmp_path, firing(list(WELL), "Onewriter.*", "90m", is_expected=False)) == ""


def test_a_store_that_no_broker_reaches_is_not_reported_for_each_broker(tmp_path: Path) -> None:
    gone = replaced(FAULTS["OnewriterStoreAway"])
    name = "OnewriterBrokerLostStore"
    assert check(tmp_path, firing(gone, name, "90m", is_expected=False)) == ""


def test_alerts_fire_without_brokers_and_operators(tmp_path: Path) -> None:
    for name in ("OnewriterBrokersMissing", "OnewriterOperatorNotLeading"):
        nothing = [{"series": "up", "values": "0+0x120"}]
        assert check(tmp_path, firing(nothing, name, "90m", is_expected=True)) == ""


def test_single_alerts_can_be_left_out() -> None:
    some = {"enabled": True, "disabled": ["OnewriterDriftRepaired"]}
    (rule,) = of_kind(rendered({"monitoring": {"prometheusRule": some}}), "PrometheusRule")
    names = {each["alert"] for each in rule["spec"]["groups"][0]["rules"]}
    assert names == set(FAULTS) - {"OnewriterDriftRepaired"}
