"""PodDisruptionBudgets: how many pods a drain may take away at once."""

from __future__ import annotations

from typing import Any

from onewriter_operator.configuration import Budget, Configuration
from onewriter_operator.installation import names


def budgets(configuration: Configuration) -> list[dict[str, Any]]:
    """The budgets of brokers and of our own store."""
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
            # A pod that does not work must never hold up a drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
