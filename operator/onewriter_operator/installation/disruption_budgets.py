"""PodDisruptionBudgets: how many pods a drain may evict at the same time."""

from __future__ import annotations

from typing import Any

from onewriter_operator.configuration import Budget, Configuration
from onewriter_operator.installation import names


def budgets(configuration: Configuration) -> list[dict[str, Any]]:
    """The budgets of the brokers and of the installed store."""
    wanted = {names.BROKER: configuration.brokers.pod_disruption_budget}
    if not configuration.external_store.is_used:
        wanted[names.VALKEY] = configuration.valkey.pod_disruption_budget
    return [_budget(configuration, part, each) for part, each in wanted.items() if each.enabled]


def _budget(configuration: Configuration, part: str, budget: Budget) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(configuration, names.component(configuration, part), part),
        "spec": {
            "maxUnavailable": budget.max_unavailable,
            "selector": {"matchLabels": names.selector(configuration, part)},
            # An unhealthy pod must never block a drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
