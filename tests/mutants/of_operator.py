"""Bugs in the operator's planning: whom it evicts, and what its status and Services show."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

KUBE = "tests/unit/kube"

MUTANTS = (
    Mutant(
        "a-pod-that-came-back-is-evicted",
        ("S13",),
        "onewriter_operator.plan.fenced:came_back",
        "A pod that has registered again is evicted all the same.",
        "if any(each.pod_uid == pod_uid for each in view.producers):",
        "if False:",
        (KUBE,),
    ),
    Mutant(
        "a-clean-departure-is-evicted",
        ("S13",),
        "onewriter_operator.plan.fenced:STALE_CAUSES",
        "A pod that gave its topic back is evicted.",
        '"Silent",',
        '"Silent", "Released", "Closed", "HandedOver", "ConnectionLost",',
        (KUBE,),
    ),
    Mutant(
        "a-pod-is-evicted-without-grace",
        ("S13",),
        "onewriter_operator.plan.fenced:_Judge._remove_or_wait",
        "A fenced pod gets no time to register again.",
        "if grace > 0:",
        "if grace > 10:",
        (KUBE,),
    ),
    Mutant(
        "a-pod-that-lost-its-broker-is-evicted-soon",
        ("S13",),
        "onewriter_operator.plan.fenced:_Judge._waits_for_return",
        "A pod on a ready node is evicted before its client can have noticed that its broker is lost.",
        "if left <= 0:",
        "if True:",
        (KUBE,),
    ),
    Mutant(
        "all-fenced-pods-are-evicted-at-once",
        ("S13",),
        "onewriter_operator.plan.fenced:_Judge._remove_or_wait",
        "Several pods of a topic are removed at the same time.",
        "self._wait = self._facts.limits.grace_seconds",
        "pass",
        (KUBE,),
    ),
    Mutant(
        "an-unknown-view-does-not-stop-an-eviction",
        ("S13",),
        "onewriter_operator.plan.fenced:_Judge.judged",
        "A pod is evicted although no broker can say whether it has registered again.",
        "if self._facts.view is None and not self._facts.brokers.all_synced:",
        "if False:",
        (KUBE,),
    ),
    Mutant(
        "a-long-queue-hides-the-pod",
        ("S13",),
        "onewriter_operator.plan.fenced:_shows_all",
        "A pod is evicted although it may be among the waiters that the view leaves out.",
        "return view is None or not (view.waiters_omitted or view.holders_omitted)",
        "return True",
        (KUBE,),
    ),
    Mutant(
        "the-shown-epoch-falls",
        ("S13", "S12"),
        "onewriter_operator.plan.topic:epoch_of",
        "The status shows a lower epoch when a broker that lags behind is asked.",
        "found.append(shown)",
        "found.append(0)",
        (KUBE,),
    ),
    Mutant(
        "a-service-leads-to-a-pod-that-is-gone",
        ("S13",),
        "onewriter_operator.plan.leader:endpoints",
        "The leader's Service names a pod that does not exist any more.",
        'ip = pod.ip if pod is not None and pod.exists else ""',
        'ip = pod.ip if pod is not None else ""',
        (KUBE,),
    ),
    Mutant(
        "an-older-operator-overwrites-a-newer-leader",
        ("S13",),
        "onewriter_operator.plan.leader:is_ahead",
        "An operator that lags overwrites the Service of a later epoch.",
        "return any(epoch_of(each) > epoch for each in found)",
        "return False",
        (KUBE,),
    ),
)
