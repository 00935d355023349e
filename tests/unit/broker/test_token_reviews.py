"""What an API server's word for a token is worth, word by word; tests/cluster asks a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onewriter_broker import token_review
from onewriter_broker.authentication import EitherAuthenticator
from onewriter_broker.kubernetes_api import Answer, ApiServer, KubernetesApi
from onewriter_broker.token_review import ClusterKeys, TokenReviewAuthenticator
from onewriter_broker.tokens import StaticTokenAuthenticator, VerificationKey
from onewriter_core.errors import Refused, Unavailable
from onewriter_core.ids import Identity

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


class Reviewer(KubernetesApi):
    """Says ``status`` of every token; ``gate`` holds the answers back."""

    def __init__(self) -> None:
        super().__init__(ApiServer("http://nowhere", Path(), Path(), "shop"))
        self.status: object = GOOD
        self.asked: list[Mapping[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        assert body is not None
        self.asked.append(body["spec"])
        await self.gate.wait()
        if isinstance(self.status, Exception):
            raise self.status
        return Answer(201, {"status": self.status})


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


def judge(reviewer: Reviewer, *, is_required: bool = True) -> TokenReviewAuthenticator:
    return TokenReviewAuthenticator(
        reviewer, ClusterKeys(reviewer), "onewriter", is_required=is_required
    )


async def test_the_broker_asks_for_its_own_audience(reviewer: Reviewer) -> None:
    proof = await judge(reviewer).authenticate("token", b"abc")
    identity = proof.identity
    assert identity == Identity(SUBJECT, "u1")
    assert (identity.pod, identity.node) == ("p1", "n1")
    assert reviewer.asked == [{"token": "abc", "audiences": ["onewriter"]}]
    assert proof.expires_at is None, "what is no JWT names no end"


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
async def test_what_is_no_proof_is_refused(reviewer: Reviewer, status: object) -> None:
    reviewer.status = status
    with pytest.raises(Refused):
        await judge(reviewer).authenticate("token", b"abc")


@pytest.mark.parametrize("status", [None, [], "yes", 7])
async def test_what_is_no_answer_is_unavailable(reviewer: Reviewer, status: object) -> None:
    reviewer.status = status
    with pytest.raises(Unavailable):
        await judge(reviewer).authenticate("token", b"abc")


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
    proof = await judge(reviewer).authenticate("token", b"abc")
    assert proof.identity == Identity(SUBJECT)


async def test_an_error_that_quotes_the_token_is_not_passed_on(reviewer: Reviewer) -> None:
    reviewer.status = changed(authenticated=False, error="no: secret-token")
    with pytest.raises(Refused) as found:
        await judge(reviewer).authenticate("token", b"secret-token")
    assert "secret-token" not in found.value.message


async def test_who_brings_no_token(reviewer: Reviewer) -> None:
    assert (await judge(reviewer, is_required=False).authenticate("none", b"")).identity == (
        Identity()
    )
    with pytest.raises(Refused, match="required"):
        await judge(reviewer).authenticate("none", b"")
    with pytest.raises(Refused):
        await judge(reviewer).authenticate("token", b"x" * 20_000)
    assert reviewer.asked == []


async def test_answers_are_remembered_up_to_a_bound(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_review, "ANSWERS_MAX", 3)
    authenticator = judge(reviewer)
    for token in (b"a", b"b", b"c", b"a", b"d", b"a"):  # d: b was unused for the longest
        await authenticator.authenticate("token", token)
    assert [each["token"] for each in reviewer.asked] == ["a", "b", "c", "d"]
    await authenticator.authenticate("token", b"b")
    assert len(reviewer.asked) == 5


async def test_reviews_under_way_are_bounded(
    reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_review, "REVIEWS_MAX", 2)
    authenticator = judge(reviewer)
    reviewer.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        let_in = [tasks.create_task(authenticator.authenticate("token", t)) for t in (b"a", b"b")]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="being reviewed"):
            await authenticator.authenticate("token", b"c")
        reviewer.gate.set()
    assert [each.result().identity.pod_uid for each in let_in] == ["u1", "u1"]


async def test_who_waits_for_a_review_that_is_broken_off_may_come_again(
    reviewer: Reviewer,
) -> None:
    authenticator = judge(reviewer)
    reviewer.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        asks = tasks.create_task(authenticator.authenticate("token", b"a"))
        await asyncio.sleep(0)
        waits = tasks.create_task(_outcome(authenticator, b"a"))
        await asyncio.sleep(0)
        asks.cancel()
    assert isinstance(waits.result(), Unavailable)
    reviewer.gate.set()
    assert (await authenticator.authenticate("token", b"a")).identity.pod_uid == "u1"


async def _outcome(authenticator: TokenReviewAuthenticator, token: bytes) -> object:
    try:
        return await authenticator.authenticate("token", token)
    except Unavailable as error:
        return error


async def test_tokens_of_both_kinds_are_taken_side_by_side(reviewer: Reviewer) -> None:
    import jwt

    secret = bytes(range(32))
    static = StaticTokenAuthenticator(
        [VerificationKey("HS256", secret)], lambda: 0.0, is_required=True
    )
    either = EitherAuthenticator(static, judge(reviewer))
    person = jwt.encode({"sub": "person"}, secret, algorithm="HS256").encode()
    assert (await either.authenticate("token", person)).identity == Identity("person")
    assert reviewer.asked == []
    assert (await either.authenticate("token", b"abc")).identity.pod_uid == "u1"
    reviewer.status = changed(authenticated=False)
    with pytest.raises(Refused, match="API server"):
        await either.authenticate("token", b"abcd")
    with pytest.raises(Refused, match="required"):
        await either.authenticate("none", b"")
