"""How the broker interprets TokenReviews, field by field; tests/cluster asks a real API server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from tests.unit.broker.auth.test_tokens import rsa_key

from onewriter_broker.auth import token_review
from onewriter_broker.auth.authentication import PEER, EitherAuthenticator
from onewriter_broker.auth.token_review import ClusterKeys, ReviewLimits, TokenReviewAuthenticator
from onewriter_broker.auth.tokens import Expected, StaticTokenAuthenticator, VerificationKey
from onewriter_broker.kubernetes_api import Answer, ApiServer, KubernetesApi
from onewriter_broker.process import reviewing
from onewriter_broker.settings import Settings
from onewriter_core.errors import Refused, Unavailable
from onewriter_core.ids import Identity

LIMITS = ReviewLimits()
SUBJECT = "system:serviceaccount:shop:writer"
GOOD = {
    "authenticated": True,
    "audiences": ["onewriter"],
    "user": {
        "username": SUBJECT,
        "extra": {
            "authentication.kubernetes.io/pod-uid": ["u1"],
            "authentication.kubernetes.io/pod-name": ["p1"],
            "authentication.kubernetes.io/node-name": ["n1"],
        },
    },
}


ISSUER = "https://cluster.local"
AUDIENCE = "onewriter"


def made(name: str, *, kid: str = "made-up", **claims: object) -> bytes:
    """A token that no key has signed."""
    header = {"alg": "RS256", "kid": kid}
    payload = {"iss": ISSUER, "aud": [AUDIENCE], "sub": name} | claims
    parts = [json.dumps(part).encode() for part in (header, payload)]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (*parts, b"signed"))


ABC = made("abc")


class Reviewer(KubernetesApi):
    """Says ``status`` of every token; ``gate`` holds the answers back."""

    def __init__(self) -> None:
        super().__init__(ApiServer("http://nowhere", Path(), Path(), "shop"))
        self.status: object = GOOD
        self.requests: list[Mapping[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        assert body is not None
        self.requests.append(body["spec"])
        await self.gate.wait()
        if isinstance(self.status, Exception):
            raise self.status
        return Answer(201, {"status": self.status})


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


def judge(
    reviewer: Reviewer, *, is_required: bool = True, limits: ReviewLimits = LIMITS
) -> TokenReviewAuthenticator:
    return TokenReviewAuthenticator(
        reviewer, ClusterKeys(reviewer), "onewriter", is_required=is_required, limits=limits
    )


async def test_the_broker_asks_for_its_own_audience(reviewer: Reviewer) -> None:
    proof = await judge(reviewer).authenticate("token", ABC)
    identity = proof.identity
    assert identity == Identity(SUBJECT, "u1")
    assert (identity.pod, identity.node) == ("p1", "n1")
    assert reviewer.requests == [{"token": ABC.decode(), "audiences": ["onewriter"]}]
    assert proof.expires_at is None, "a token that names no end has none"


def changed(**status: object) -> dict[str, object]:
    return GOOD | status


BAD = {
    "not authenticated": changed(authenticated=False, error="token has been invalidated"),
    "authenticated by a word": changed(authenticated="true"),
    "for another audience": changed(audiences=["other"]),
    "by a server that knows no audiences": {k: v for k, v in GOOD.items() if k != "audiences"},
    "audiences that are no list": changed(audiences="onewriter"),
    "no user": changed(user=None),
    "a user without a name": changed(user={"extra": {}}),
    "a name that cannot be printed": changed(user={"username": "a\nb"}),
    "a name without end": changed(user={"username": "a" * 1000}),
}


@pytest.mark.parametrize("status", BAD.values(), ids=BAD)
async def test_an_invalid_proof_is_refused(reviewer: Reviewer, status: object) -> None:
    reviewer.status = status
    with pytest.raises(Refused):
        await judge(reviewer).authenticate("token", ABC)


@pytest.mark.parametrize("status", [None, [], "yes", 7])
async def test_an_invalid_response_is_unavailable(reviewer: Reviewer, status: object) -> None:
    reviewer.status = status
    with pytest.raises(Unavailable):
        await judge(reviewer).authenticate("token", ABC)


ODD_EXTRA: list[object] = [
    None,
    [],
    {"authentication.kubernetes.io/pod-uid": "u1"},
    {"authentication.kubernetes.io/pod-uid": ["u1", "u2"]},
    {"authentication.kubernetes.io/pod-uid": [7]},
]


@pytest.mark.parametrize("extra", ODD_EXTRA)
async def test_a_pod_counts_only_if_it_is_one(reviewer: Reviewer, extra: object) -> None:
    reviewer.status = changed(user={"username": SUBJECT, "extra": extra})
    proof = await judge(reviewer).authenticate("token", ABC)
    assert proof.identity == Identity(SUBJECT)


async def test_an_error_that_quotes_the_token_is_not_passed_on(reviewer: Reviewer) -> None:
    reviewer.status = changed(authenticated=False, error=f"no: {ABC.decode()}")
    with pytest.raises(Refused) as found:
        await judge(reviewer).authenticate("token", ABC)
    assert ABC.decode() not in found.value.message


async def test_a_client_without_a_token_is_anonymous_or_refused(reviewer: Reviewer) -> None:
    assert (await judge(reviewer, is_required=False).authenticate("none", b"")).identity == (
        Identity()
    )
    with pytest.raises(Refused, match="required"):
        await judge(reviewer).authenticate("none", b"")
    with pytest.raises(Refused):
        await judge(reviewer).authenticate("token", b"x" * 20_000)
    assert reviewer.requests == []


async def test_answers_are_remembered_up_to_a_bound(reviewer: Reviewer) -> None:
    authenticator = judge(reviewer, limits=ReviewLimits(answers_max=3))
    for name in "abcada":  # d: b was unused for the longest
        await authenticator.authenticate("token", made(name))
    assert [each["token"].encode() for each in reviewer.requests] == [made(name) for name in "abcd"]
    await authenticator.authenticate("token", made("b"))
    assert len(reviewer.requests) == 5


async def test_reviews_under_way_are_bounded(reviewer: Reviewer) -> None:
    authenticator = judge(reviewer, limits=ReviewLimits(reviews_max=2))
    reviewer.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        let_in = [
            tasks.create_task(authenticator.authenticate("token", made(name))) for name in "ab"
        ]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="being reviewed"):
            await authenticator.authenticate("token", made("c"))
        reviewer.gate.set()
    assert [each.result().identity.pod_uid for each in let_in] == ["u1", "u1"]


async def test_requests_that_wait_for_a_cancelled_review_may_retry(
    reviewer: Reviewer,
) -> None:
    authenticator = judge(reviewer)
    reviewer.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        asks = tasks.create_task(authenticator.authenticate("token", made("a")))
        await asyncio.sleep(0)
        waits = tasks.create_task(_outcome(authenticator, made("a")))
        await asyncio.sleep(0)
        asks.cancel()
    assert isinstance(waits.result(), Unavailable)
    reviewer.gate.set()
    assert (await authenticator.authenticate("token", made("a"))).identity.pod_uid == "u1"


async def _outcome(authenticator: TokenReviewAuthenticator, token: bytes) -> object:
    try:
        return await authenticator.authenticate("token", token)
    except Unavailable as error:
        return error


async def test_tokens_of_both_kinds_are_taken_side_by_side(reviewer: Reviewer) -> None:
    secret = bytes(range(32))
    static = StaticTokenAuthenticator(
        [VerificationKey("HS256", secret)], lambda: 0.0, is_required=True
    )
    either = EitherAuthenticator(static, judge(reviewer))
    person = jwt.encode({"sub": "person"}, secret, algorithm="HS256").encode()
    assert (await either.authenticate("token", person)).identity == Identity("person")
    assert reviewer.requests == []
    assert (await either.authenticate("token", ABC)).identity.pod_uid == "u1"
    reviewer.status = changed(authenticated=False)
    with pytest.raises(Refused, match="API server"):
        await either.authenticate("token", made("abcd"))
    with pytest.raises(Refused, match="required"):
        await either.authenticate("none", b"")


# What costs no review.


class Cluster(Reviewer):
    """Also tells its keys."""

    async def get(self, path: str) -> Answer:
        if path == token_review.KEYS:
            key = jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key().public_key(), as_dict=True)
            return Answer(200, {"keys": [key | {"kid": "k1", "alg": "RS256", "use": "sig"}]})
        return Answer(200, {"issuer": ISSUER})


def signed(name: str, **claims: object) -> bytes:
    payload = {"iss": ISSUER, "aud": [AUDIENCE], "sub": name} | claims
    return jwt.encode(payload, rsa_key(), algorithm="RS256", headers={"kid": "k1"}).encode()


async def knowing() -> tuple[Cluster, TokenReviewAuthenticator]:
    """An authenticator that has read the cluster's keys."""
    cluster = Cluster()
    keys = ClusterKeys(cluster)
    await keys.refresh()
    return cluster, TokenReviewAuthenticator(
        cluster, keys, AUDIENCE, is_required=True, unix_seconds=lambda: 1_000.0
    )


def of_shape(header: object, payload: object) -> bytes:
    parts = [json.dumps(part).encode() for part in (header, payload)]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (*parts, b"signed"))


CLAIMS = {"iss": ISSUER, "aud": [AUDIENCE], "sub": "x"}

HOPELESS = {
    "a word": b"abc",
    "three words": b"a.b.c",
    "more parts": ABC + b".x",
    "no signature": ABC.rpartition(b".")[0] + b".",
    "bytes": b"\xff.\xff.\xff",
    "nested": b"[" * 9_000,
    "a shared key": of_shape({"alg": "HS256", "kid": "k1"}, CLAIMS),
    "no key": of_shape({"alg": "none"}, CLAIMS),
    "an algorithm that is a list": of_shape({"alg": ["RS256"]}, CLAIMS),
    "claims that are a list": of_shape({"alg": "RS256"}, [CLAIMS]),
    "another audience": made("x", aud=["other"]),
    "another audience, alone": made("x", aud="other"),
    "no audience at all": made("x", aud=[]),
    "an audience that is a number": made("x", aud=7),
    "an end that has come": made("x", exp=1_000),
    "an end that is none": made("x", exp="soon"),
}


@pytest.mark.parametrize("token", HOPELESS.values(), ids=HOPELESS)
async def test_tokens_that_cannot_be_valid_cost_no_review(reviewer: Reviewer, token: bytes) -> None:
    authenticator = TokenReviewAuthenticator(
        reviewer, ClusterKeys(reviewer), AUDIENCE, is_required=True, unix_seconds=lambda: 1_000.0
    )
    with pytest.raises(Refused) as found:
        await authenticator.authenticate("token", token)
    assert token.decode(errors="replace") not in found.value.message
    assert reviewer.requests == []


@pytest.mark.parametrize(
    "token",
    [
        made("x", kid="k1"),
        signed("x")[:-8] + b"AAAAAAAA",
        made("x", iss="https://other"),
        signed("x", exp=999),
        signed("x", aud=["other"]),
    ],
    ids=["a wrong signature", "a changed one", "another issuer", "over", "for others"],
)
async def test_where_the_clusters_keys_are_known_more_costs_no_review(token: bytes) -> None:
    cluster, authenticator = await knowing()
    with pytest.raises(Refused):
        await authenticator.authenticate("token", token)
    assert cluster.requests == []
    await authenticator.authenticate("token", signed("x", exp=1_001))
    await authenticator.authenticate("token", signed("x", iss="https://former-issuer"))
    await authenticator.authenticate("token", made("x", kid="new"))
    assert len(cluster.requests) == 3, "a key may be newer than those that are known"


async def test_made_up_tokens_push_no_good_answer_out(reviewer: Reviewer) -> None:
    authenticator = judge(
        reviewer, limits=ReviewLimits(answers_max=3, refusals_max=3, refused_per_address_max=1_000)
    )
    await authenticator.authenticate("token", ABC)
    reviewer.status = changed(authenticated=False)
    for number in range(20):
        with pytest.raises(Refused):
            await authenticator.authenticate("token", made(str(number)))
    assert len(reviewer.requests) == 21
    assert (await authenticator.authenticate("token", ABC)).identity.pod_uid == "u1"
    assert len(reviewer.requests) == 21
    assert len(authenticator._refusals) == 3


async def refusals(authenticator: TokenReviewAuthenticator, address: str, count: int) -> int:
    """How many of so many made-up tokens of an address are refused; the others have to wait."""
    PEER.set(address)
    refused = 0
    for number in range(count):
        try:
            await authenticator.authenticate("token", made(f"{address}-{number}"))
        except Refused:
            refused += 1
        except Unavailable as error:
            assert "retry" in str(error)  # noqa: PT017 - some are told so
    return refused


async def test_an_address_that_makes_tokens_up_costs_few_reviews_and_harms_no_other() -> None:
    now = 100.0
    cluster = Cluster()
    keys = ClusterKeys(cluster)
    await keys.refresh()
    authenticator = TokenReviewAuthenticator(
        cluster, keys, AUDIENCE, is_required=True, now=lambda: now
    )
    cluster.status = changed(authenticated=False)
    most = LIMITS.refused_per_address_max
    assert await refusals(authenticator, "10.0.0.1", 5 * most) == most
    assert len(cluster.requests) == most
    assert await refusals(authenticator, "10.0.0.2", 1) == 1
    cluster.status = GOOD
    PEER.set("10.0.0.1")
    await authenticator.authenticate("token", signed("x"))  # who has a real one does not notice
    with pytest.raises(Unavailable, match="from this address were refused"):
        await authenticator.authenticate("token", made("x"))
    now += token_review.ADDRESS_SECONDS
    await authenticator.authenticate("token", made("x"))


async def test_an_address_does_not_take_all_reviews_under_way() -> None:
    cluster, authenticator = await knowing()
    cluster.gate.clear()
    async with asyncio.TaskGroup() as tasks:

        def begin(address: str, token: bytes) -> asyncio.Task[object]:
            PEER.set(address)
            return tasks.create_task(_outcome(authenticator, token))

        made_up = [begin("10.0.0.1", made(str(number))) for number in range(10)]
        real = [begin("10.0.0.1", signed(str(number))) for number in range(50)]
        others = [begin(f"10.0.1.{number}", signed(f"o{number}")) for number in range(20)]
        await asyncio.sleep(0)
        cluster.gate.set()
    assert _let_in(made_up) == LIMITS.unproved_per_address_max
    assert _let_in(real) == LIMITS.reviews_per_address_max - _let_in(made_up)
    assert _let_in(others) == len(others)


def _let_in(tasks: list[asyncio.Task[object]]) -> int:
    return sum(not isinstance(task.result(), Unavailable) for task in tasks)


async def test_the_addresses_that_are_remembered_are_bounded(reviewer: Reviewer) -> None:
    reviewer.status = changed(authenticated=False)
    authenticator = judge(reviewer, limits=ReviewLimits(addresses_max=3))
    for number in range(9):
        assert await refusals(authenticator, f"10.0.0.{number}", 1) == 1
    assert len(authenticator._reviews._refused) == 3
    assert not authenticator._reviews._all


async def test_a_token_that_its_issuer_refuses_is_not_passed_on(reviewer: Reviewer) -> None:
    secret = bytes(range(32))
    expected = Expected("onewriter", "https://ours", expiry_required=True, allows_accounts=False)
    static = StaticTokenAuthenticator(
        [VerificationKey("HS256", secret), VerificationKey("RS256", rsa_key().public_key())],
        lambda: 1_000.0,
        expected=expected,
    )
    either = EitherAuthenticator(static, judge(reviewer))
    fine = {"sub": "person", "aud": "onewriter", "iss": "https://ours", "exp": 1_100}
    for change in (
        {"exp": 1_000},
        {"aud": "other"},
        {"iss": "https://other"},
        {"sub": SUBJECT},
        {"sub": ""},
        {"nbf": 2_000},
    ):
        token = jwt.encode(fine | change, secret, algorithm="HS256").encode()
        with pytest.raises(Refused):
            await either.authenticate("token", token)
    for token in (
        jwt.encode(fine, bytes(32), algorithm="HS256").encode(),  # another secret
        made("x", iss="https://ours"),  # another key, though it says that it is from there
    ):
        with pytest.raises(Refused):
            await either.authenticate("token", token)
    assert reviewer.requests == []
    assert (await either.authenticate("token", ABC)).identity.subject == SUBJECT
    assert len(reviewer.requests) == 1


async def test_tokens_expire_by_the_clock_of_the_api_server(tmp_path: Path) -> None:
    """The clock of the broker's machine is decades ahead of it."""
    reviewer = Reviewer()
    reviewer.unix_seconds = lambda: 1_000.0  # type: ignore[method-assign]
    settings = Settings(
        data_dir=tmp_path, authentication_required=True, token_review=True, token_audience=AUDIENCE
    )
    verifier, _ = reviewing(settings, reviewer)
    found = await verifier.authenticate("token", made("abc", exp=1_060))
    assert (found.identity.subject, found.expires_at) == (SUBJECT, 1_060.0)
    with pytest.raises(Refused, match="the token has expired"):
        await verifier.authenticate("token", made("abc", exp=1_000))
