"""Publishing under an epoch: what proves the right, and what never does."""

from __future__ import annotations

import pytest

from onewriter_core.authorization import (
    Action,
    Denied,
    EpochResource,
    Granted,
    Principal,
    Proof,
    Role,
    TopicResource,
    may,
)
from onewriter_core.ids import Identity, TopicName

ORDERS = TopicName.parse("orders")
HOLDER = Identity("writer", "uid-1")
OTHERS = [Identity(), Identity("writer", "uid-2"), Identity("standby", "uid-1")]


def epoch(proof: Proof, holder: Identity | None = HOLDER) -> EpochResource:
    return EpochResource(ORDERS, "app", 7, holder, proof)


def test_the_holder_shows_its_registration() -> None:
    resource = epoch(Proof.REGISTRATION)
    assert isinstance(may(Principal(HOLDER), Action.PUBLISH_UNDER_EPOCH, resource), Granted)


@pytest.mark.parametrize("identity", OTHERS)
def test_the_registration_of_another_producer_is_refused(identity: Identity) -> None:
    for holder in (HOLDER, None):
        found = may(
            Principal(identity), Action.PUBLISH_UNDER_EPOCH, epoch(Proof.REGISTRATION, holder)
        )
        assert isinstance(found, Denied)
        assert "another identity" in found.reason


@pytest.mark.parametrize("identity", [HOLDER, *OTHERS])
def test_a_capability_counts_for_its_bearer(identity: Identity) -> None:
    resource = epoch(Proof.CAPABILITY)
    assert isinstance(may(Principal(identity), Action.PUBLISH_UNDER_EPOCH, resource), Granted)


@pytest.mark.parametrize("proof", [Proof.NONE, Proof.INVALID, Proof.EXPIRED])
@pytest.mark.parametrize("identity", [HOLDER, *OTHERS])
def test_without_a_proof_no_role_and_no_claim_is_enough(proof: Proof, identity: Identity) -> None:
    principal = Principal(identity, frozenset(Role))
    found = may(principal, Action.PUBLISH_UNDER_EPOCH, epoch(proof))
    assert isinstance(found, Denied)
    assert found.right is Action.PUBLISH_UNDER_EPOCH
    assert "epoch 7 of persistent://public/default/orders" in found.reason
    topic = may(principal, Action.PUBLISH_UNDER_EPOCH, TopicResource(ORDERS))
    assert isinstance(topic, Denied)


def test_a_task_of_the_holders_program_prepares_a_publish() -> None:
    """It may have another pod than the driver that holds the topic, and the same token's subject."""
    task, other = Principal(OTHERS[1]), Principal(OTHERS[2])
    assert isinstance(may(task, Action.STAGE, epoch(Proof.NONE)), Granted)
    assert isinstance(may(other, Action.STAGE, epoch(Proof.CAPABILITY)), Granted)
    assert isinstance(may(other, Action.STAGE, epoch(Proof.NONE)), Denied)
    assert isinstance(may(task, Action.STAGE, epoch(Proof.NONE, None)), Denied)


def test_an_epoch_grants_no_other_right() -> None:
    unknown = EpochResource(ORDERS, "app", None, None, Proof.CAPABILITY)
    found = may(Principal(HOLDER), Action.CONSUME, unknown)
    assert isinstance(found, Denied)
    assert "an epoch of persistent" in found.reason
