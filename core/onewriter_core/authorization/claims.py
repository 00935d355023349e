"""The match of ProducerClaims and identities."""

from __future__ import annotations

from collections.abc import Callable, Container

from onewriter_core.api.claim import ProducerClaim
from onewriter_core.ids import Identity

PodsOf = Callable[[ProducerClaim], Container[str]]
"""The known uids of the pods that a claim's podSelector selects."""


def no_pods(_claim: ProducerClaim) -> Container[str]:
    """For a broker that knows no pods."""
    return ()


def matches(
    claim: ProducerClaim,
    identity: Identity,
    pods_of: PodsOf = no_pods,
    *,
    with_bare_names: bool = True,
) -> bool:
    """Whether the claim matches the identity. No claim matches an anonymous client.

    A ServiceAccount matches by its full subject and, ``with_bare_names``, also by its name alone. A podSelector
    matches the uids of the pods that it is known to select.
    """
    subject = claim.spec.subject
    if identity.is_anonymous:
        return False
    if subject.token_subject is not None:
        return identity.subject == subject.token_subject
    if subject.pod_selector is not None and identity.pod_uid not in pods_of(claim):
        return False
    return _is_account(claim, identity, with_bare_names=with_bare_names)


def may_match_later(
    claim: ProducerClaim, identity: Identity, *, with_bare_names: bool = True
) -> bool:
    """Whether the claim's podSelector may select the pod after the operator has reported it to the broker.

    The operator learns of a pod before its containers start, but the operator itself may be down.
    """
    is_open = claim.spec.subject.pod_selector is not None and bool(identity.pod_uid)
    return is_open and _is_account(claim, identity, with_bare_names=with_bare_names)


def _is_account(claim: ProducerClaim, identity: Identity, *, with_bare_names: bool) -> bool:
    """Whether the identity is the claim's ServiceAccount, or one of its namespace if the claim names none."""
    account = f"system:serviceaccount:{claim.metadata.namespace}:"
    name = claim.spec.subject.service_account_name
    if name is None:
        return identity.subject.startswith(account)
    return identity.subject == account + name or (with_bare_names and identity.subject == name)
