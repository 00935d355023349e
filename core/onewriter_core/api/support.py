"""What can be declared but is not done yet: said clearly instead of ignored.

A resource may ask for more than this version does. Where ignoring that would break a promise, the
broker refuses the resource with the reason given here; where a field only means something in
Kubernetes (``fencing``, ``leaderService``), nothing needs to be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onewriter_core.api.claim import ProducerClaim
from onewriter_core.api.topic import ExclusiveTopic

NOT_YET: Final[dict[str, str]] = {}
"""Fields of a topic's spec that this version cannot do, with the reason for each; none at present.

A new field stands here from the version whose resources may have it until that which does it.
"""


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
    return {name: value for name, value in spec.items() if name not in NOT_YET}


def _unsupported_topic(topic: ExclusiveTopic) -> tuple[str, ...]:
    asked = topic.spec.model_dump(by_alias=True, exclude_unset=True)
    return tuple(f"spec.{name}: {reason}" for name, reason in NOT_YET.items() if name in asked)


def _unsupported_claim(claim: ProducerClaim) -> tuple[str, ...]:
    if claim.spec.subject.pod_selector is not None:
        return ("spec.subject.podSelector: pods can only be judged in Kubernetes; leave it out",)
    return ()
