"""Forged tokens cost the API server little, and do not keep out clients with real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.attacks.guarded import address_of
from tests.integration.conftest import RawClients
from tests.integration.http_calls import Http
from tests.integration.raw_connection import RefusedByBroker
from tests.unit.broker.auth.test_token_reviews import AUDIENCE, GOOD, Cluster, made, signed

from onewriter_broker.auth.token_review import (
    ClusterKeys,
    ReviewLimits,
    TokenReviewAuthenticator,
)
from onewriter_broker.kubernetes_api import Answer
from onewriter_testing.in_process import InProcessBroker

TOPICS = "/onewriter/v1/topics"


class ApiServer(Cluster):
    """Takes the tokens that it has signed."""

    async def send(self, method: str, path: str, body: object = None) -> Answer:
        assert isinstance(body, dict)
        self.requests.append(body["spec"])
        is_real = body["spec"]["token"].encode() == signed("real")
        return Answer(201, {"status": GOOD if is_real else {"authenticated": False}})


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def broker(server: ApiServer) -> Iterator[InProcessBroker]:
    keys = ClusterKeys(server)
    found = InProcessBroker(
        settings={"authentication_required": True, "token_review": True, "token_audience": AUDIENCE}
    )
    found._authenticator = TokenReviewAuthenticator(server, keys, AUDIENCE, is_required=True)
    found.start()
    try:
        found._do(keys.refresh())
        yield found
    finally:
        found.stop()


def test_made_up_tokens_cost_few_reviews(
    broker: InProcessBroker, server: ApiServer, raw: RawClients
) -> None:
    for number in range(3 * ReviewLimits().refused_per_address_max):
        token = made(str(number), kid=f"key-{number}").decode()
        status, _ = Http(broker.http_url, token)("GET", TOPICS)
        assert status == (401 if number < ReviewLimits().refused_per_address_max else 503)
        with pytest.raises(RefusedByBroker):
            raw(address_of(broker), token=token)
    assert len(server.requests) == ReviewLimits().refused_per_address_max
    real = signed("real").decode()
    assert Http(broker.http_url, real)("GET", TOPICS)[0] == 200
    raw(address_of(broker), token=real)
    assert len(server.requests) == ReviewLimits().refused_per_address_max + 1


@pytest.mark.parametrize(
    "token",
    [made("x", kid="k1"), made("x", aud="others"), made("x", exp=1), b"word", b"a.b.c"],
    ids=["signature", "audience", "expired", "no token", "no claims"],
)
def test_tokens_that_cannot_be_valid_cost_no_review(
    broker: InProcessBroker, server: ApiServer, token: bytes
) -> None:
    for _ in range(20):
        assert Http(broker.http_url, token.decode())("GET", TOPICS)[0] == 401
    assert server.requests == []
