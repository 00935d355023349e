"""What can be declared but is not done yet: said clearly instead of ignored.

A resource may ask for more than this version does. Where ignoring that would break a promise, the
broker refuses the resource with the reason given here; where a field only means something in
Kubernetes (``fencing``, ``leaderService``), nothing needs to be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onewriter_core.api.claim import ProducerClaim
from onewriter_core.api.topic import ExclusiveTopic, PromotionPolicy


def unsupported(
    resource: ExclusiveTopic | ProducerClaim, *, knows_pods: bool = False
) -> tuple[str, ...]:
    """Why this version cannot do what the resource asks for; empty when it can.

    ``knows_pods``: somebody says which pods a podSelector selects (the operator does).
    """
    if isinstance(resource, ExclusiveTopic):
        return _unsupported_topic(resource)
    return () if knows_pods else _unsupported_claim(resource)


def without_unsupported(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A topic's spec, as it is written, less what ``unsupported`` objects to; defaults count there."""
    found = {name: value for name, value in spec.items() if name != "compaction"}
    promotion = dict(found.pop("promotion", None) or {})
    if promotion.get("policy") == PromotionPolicy.BALANCED.value:
        del promotion["policy"]
    return found | ({"promotion": promotion} if promotion else {})


def _unsupported_topic(topic: ExclusiveTopic) -> tuple[str, ...]:
    reasons = []
    if topic.spec.promotion.policy is PromotionPolicy.BALANCED:
        reasons.append(
            "spec.promotion.policy: Balanced is not available yet; write Priority or Fifo"
        )
    if topic.spec.compaction.enabled:
        reasons.append("spec.compaction.enabled: compaction is not available yet; leave it out")
    return tuple(reasons)


def _unsupported_claim(claim: ProducerClaim) -> tuple[str, ...]:
    if claim.spec.subject.pod_selector is not None:
        return ("spec.subject.podSelector: pods can only be judged in Kubernetes; leave it out",)
    return ()
