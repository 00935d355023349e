"""Rights to own, with tokens: claims, administrators, and generation 0."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import forked_brokers
from tests.integration.owners import DeniedByBroker, lost, own
from tests.integration.raw import RawClient, full

from onewriter_core.errors import ServerError
from onewriter_testing.processes import LocalBrokers

SECRET = secrets.token_hex(32)
CLAIMED, FREE = full("claimed"), full("free")

MANIFESTS = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: claimed}
spec: {access: {requireClaim: true}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: free}
spec: {access: {requireClaim: false}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: writers}
spec: {topicRef: {name: claimed}, subject: {tokenSubject: writer}}
---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: repairers}
spec:
  topicRef: {name: claimed}
  subject: {tokenSubject: repairer}
  allow: [lead, resetOwnership]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBrokers]:
    key: Path = tmp_path_factory.mktemp("keys") / "secret"
    key.write_text(SECRET)
    settings = {
        "authentication_required": True,
        "token_secret_file": key,
        "admin_subjects": "boss",
    }
    with forked_brokers(manifests=MANIFESTS, settings=settings) as brokers:
        yield brokers


def client_of(brokers: LocalBrokers, raw: RawClients, subject: str) -> RawClient:
    token = jwt.encode({"sub": subject}, SECRET, algorithm="HS256")
    return raw(brokers.address(), token=token)


def code(client: RawClient, resource: str, generation: int = 1, **options: str) -> ServerError:
    with pytest.raises(DeniedByBroker) as found:
        own(client, resource, generation, **options)  # type: ignore[arg-type]  # names and texts
    return found.value.code


def test_a_topic_that_needs_a_claim_to_write_needs_one_to_own(
    guarded: LocalBrokers, raw: RawClients
) -> None:
    unauthorized = client_of(guarded, raw, "stranger")
    for resource in (CLAIMED, CLAIMED + "-partition-0"):
        assert code(unauthorized, resource, 5) is ServerError.AUTHORIZATION_ERROR
    assert own(unauthorized, FREE) == 1
    assert own(unauthorized, "any text") == 1
    assert own(client_of(guarded, raw, "writer"), CLAIMED) == 1


def test_generation_0_needs_a_permission(guarded: LocalBrokers, raw: RawClients) -> None:
    writer = client_of(guarded, raw, "writer")
    current = own(writer, CLAIMED, 20, group="reset", nonce="n")
    assert code(writer, CLAIMED, 0, group="reset") is ServerError.AUTHORIZATION_ERROR
    assert code(writer, FREE, 0) is ServerError.AUTHORIZATION_ERROR
    repairer = client_of(guarded, raw, "repairer")
    assert own(repairer, CLAIMED, 0, group="reset") == current + 1
    assert lost(writer).current_generation == current + 1
    assert code(repairer, FREE, 0) is ServerError.AUTHORIZATION_ERROR, "no claim of that topic"
    assert code(repairer, "any text", 0) is ServerError.AUTHORIZATION_ERROR
    administrator = client_of(guarded, raw, "boss")
    assert own(administrator, "any text", 0, group="reset") == 1
    assert own(administrator, CLAIMED, 0, group="reset") == current + 2


def test_an_identity_is_the_tokens_and_no_other_names_it(
    guarded: LocalBrokers, raw: RawClients
) -> None:
    own(client_of(guarded, raw, "one"), "named", identity="task")
    other = client_of(guarded, raw, "two")
    assert code(other, "named", 1, identity="task") is ServerError.AUTHORIZATION_ERROR
    assert own(client_of(guarded, raw, "one"), "named", 1, identity="task") == 2
    owner = client_of(guarded, raw, "one")
    generation = own(owner, "guessed", nonce="known to all")
    intruder = client_of(guarded, raw, "two")
    assert (
        code(intruder, "guessed", generation, nonce="known to all")
        is ServerError.AUTHORIZATION_ERROR
    )
