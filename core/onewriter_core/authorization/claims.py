"""Which ProducerClaims are for an identity."""

from __future__ import annotations

from collections.abc import Callable, Container

from onewriter_core.api.claim import ProducerClaim
from onewriter_core.ids import Identity

PodsOf = Callable[[ProducerClaim], Container[str]]
"""The uids of the pods that a claim's podSelector selects, as far as they are known."""


def no_pods(_claim: ProducerClaim) -> Container[str]:
    """No pod is known."""
    return ()


def matches(
    claim: ProducerClaim,
    identity: Identity,
    pods_of: PodsOf = no_pods,
    *,
    with_bare_names: bool = True,
) -> bool:
    """Whether the claim is for that identity; no claim is for an anonymous client.

    A ServiceAccount is recognised by its full subject and, ``with_bare_names``, by its name alone. A
    podSelector selects the pods that it is known to select, by their uids.
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
    """Whether the claim's podSelector may select the pod once the broker is told of it.

    The operator hears of a pod before its containers start, but it may be away itself.
    """
    is_open = claim.spec.subject.pod_selector is not None and bool(identity.pod_uid)
    return is_open and _is_account(claim, identity, with_bare_names=with_bare_names)


def _is_account(claim: ProducerClaim, identity: Identity, *, with_bare_names: bool) -> bool:
    """Whether the identity is the claim's ServiceAccount, or one of its namespace if it names none."""
    account = f"system:serviceaccount:{claim.metadata.namespace}:"
    name = claim.spec.subject.service_account_name
    if name is None:
        return identity.subject.startswith(account)
    return identity.subject == account + name or (with_bare_names and identity.subject == name)
