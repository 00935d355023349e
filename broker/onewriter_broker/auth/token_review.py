"""Tokens of Kubernetes' ServiceAccounts, verified by the API server.

The broker asks for a TokenReview with its own audience, so tokens for the API server or for other services
are not accepted. The review names the pod to which the token is bound. Two pods of one ServiceAccount are two
identities. The token of a deleted pod is refused, even if it has not expired. Only the API server knows that,
so the broker limits what it accepts without asking:

* **It remembers an accepted token for ANSWER_SECONDS**, and a refused one for REFUSAL_SECONDS. (The API
  server itself caches its result for another ten seconds.)
* **While the API server is unavailable**, the broker verifies tokens with the cluster's public keys that it
  fetched last. It cannot check whether the pod still exists. Such a proof therefore only allows a pod to
  return to what it already holds (Authenticated.may_only_resume), and the session soon asks for the token
  again.

**A token that cannot be valid causes no review**: one that is not a signed JWT, that has expired or is for
others, or whose signature is wrong. A token that is not signed with a known key of the cluster may be forged.
Such reviews are limited, in total and per address (``Reviews``), and an address whose tokens were often
refused has to wait. Clients with a token that the cluster signed are not affected.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from onewriter_broker.auth.authentication import (
    PEER,
    Authenticated,
    refused,
    shows_token,
)
from onewriter_broker.auth.tokens import (
    CLOCK_SKEW_SECONDS,
    TOKEN_BYTES_MAX,
    VerificationKey,
    audiences_in,
    signed_payload,
    time_in,
    unverified,
)
from onewriter_broker.kubernetes_api import KubernetesApi
from onewriter_core.errors import Refused, Unavailable
from onewriter_core.ids import Identity

ANSWER_SECONDS: Final = 60.0
"""Time for which an accepted token is remembered. The token of a deleted pod is accepted for this time."""

REFUSAL_SECONDS: Final = 2.0
"""Time for which a refused token is remembered, so that a client that retries quickly does not cause reviews."""

ADDRESS_SECONDS: Final = 60.0
"""The period in which refusals of one address are counted."""


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """Bounds of what the broker remembers about tokens, and of the reviews under way."""

    answers_max: int = 10_000
    """Accepted tokens that are remembered. The least recently used is dropped first."""
    refusals_max: int = 1_000
    """Refused tokens that are remembered. The oldest is dropped first."""
    reviews_max: int = 64
    """Reviews under way; beyond them, clients retry later."""
    reviews_per_address_max: int = 16
    unproved_max: int = 32
    """Reviews under way of tokens that no known key has signed."""
    unproved_per_address_max: int = 2
    refused_per_address_max: int = 10
    """Unproved tokens of one address that the API server refuses in ADDRESS_SECONDS; after that, the broker
    sends it no more of them."""
    addresses_max: int = 10_000
    """Addresses whose refusals are counted. The oldest is dropped first."""


RENEW_SECONDS: Final = 20.0
"""A session that was accepted without the API server is asked for its token again after this time."""

KEYS_SECONDS: Final = 300.0
"""Interval between two reads of the cluster's public keys."""

KEYS_RETRY_SECONDS: Final = 5.0
"""The same before the first successful read, and after a failed one."""

KEYS_MAX: Final = 64

WORD_LENGTH_MAX: Final = 512
"""Characters of a subject, a uid, or the name of a pod or node."""

REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ISSUER: Final = "/.well-known/openid-configuration"
KEYS: Final = "/openid/v1/jwks"

_Answer = TypeVar("_Answer", Authenticated, Refused)

_EXTRA: Final = "authentication.kubernetes.io/"
_ALGORITHMS: Final = frozenset({"RS256", "ES256", "ES384", "ES512"})

log = structlog.get_logger(__name__)


class ClusterKeys:
    """The public keys with which the cluster signs tokens. ``run`` is the caller's task."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self.issuer = ""
        self._keys: dict[str, VerificationKey] = {}

    def of(self, token: bytes) -> VerificationKey | None:
        """The key that the token names; None if it is not known."""
        try:
            return self._keys.get(str(jwt.get_unverified_header(token).get("kid")))
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None

    async def run(self) -> None:
        """Update the keys until cancelled. While the API server is unavailable, the last ones stay."""
        is_away = False
        while True:
            try:
                await self.refresh()
            except Unavailable as error:
                if not is_away:
                    log.warning("cluster_keys.unread", reason=str(error))
                is_away = True
                await asyncio.sleep(KEYS_RETRY_SECONDS)
            else:
                is_away = False
                await asyncio.sleep(KEYS_SECONDS)

    async def refresh(self) -> None:
        """Read the keys now. Raises Unavailable."""
        about, found = await self._api.get(ISSUER), await self._api.get(KEYS)
        if not about.is_done or not found.is_done:
            raise Unavailable(f"{KEYS}: {found.reason}; {ISSUER}: {about.reason}")
        listed = found.document.get("keys")
        keys = _public_keys(listed if isinstance(listed, list) else [])
        if not keys:
            raise Unavailable(f"{KEYS}: holds no key of a kind known here")
        self.issuer, self._keys = _word(about.document.get("issuer")), keys


class Reviews:
    """Counts the reviews under way, and limits them.

    A token is *proved* if a known key of the cluster has signed it. Other tokens may be forged.
    """

    def __init__(self, now: Callable[[], float], limits: ReviewLimits) -> None:
        self._now = now
        self._limits = limits
        self._all: Counter[str] = Counter()
        self._unproved: Counter[str] = Counter()
        """By address, as ``_all``."""
        self._refused: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By address: the end of the counting period, and the number of refusals."""

    @contextmanager
    def begun(self, address: str, *, is_proved: bool) -> Iterator[None]:
        """Count a review of a token from that address while the context is open. Raises Unavailable at a
        limit.
        """
        if not is_proved and self._refusals_of(address) >= self._limits.refused_per_address_max:
            raise Unavailable("too many tokens from this address were refused; retry in a minute")
        self._check(
            self._all, address, self._limits.reviews_max, self._limits.reviews_per_address_max
        )
        if not is_proved:
            self._check(
                self._unproved,
                address,
                self._limits.unproved_max,
                self._limits.unproved_per_address_max,
            )
        counters = [self._all] if is_proved else [self._all, self._unproved]
        for counter in counters:
            counter[address] += 1
        try:
            yield
        except Refused:
            if not is_proved:
                self._count_refusal(address)
            raise
        finally:
            for counter in counters:
                counter[address] -= 1
                if not counter[address]:
                    del counter[address]

    def _check(self, counter: Counter[str], address: str, most: int, each: int) -> None:
        if counter.total() >= most or counter[address] >= each:
            raise Unavailable("too many tokens are being reviewed; retry later")

    def _refusals_of(self, address: str) -> int:
        until, count = self._refused.get(address, (0.0, 0))
        return count if until > self._now() else 0

    def _count_refusal(self, address: str) -> None:
        count = self._refusals_of(address) + 1
        until = self._now() + ADDRESS_SECONDS if count == 1 else self._refused[address][0]
        self._refused[address] = until, count
        self._refused.move_to_end(address)
        while len(self._refused) > self._limits.addresses_max:
            self._refused.popitem(last=False)
        if count == self._limits.refused_per_address_max:
            log.warning("token_review.address_limited", address=address)


class TokenReviewAuthenticator:
    """Accepts ServiceAccount tokens for ``audience`` that the API server accepts.

    A client without a token is anonymous unless ``is_required``. A client with an invalid token is refused.
    ``now`` is a monotonic clock, ``unix_seconds`` the wall clock.
    """

    def __init__(
        self,
        api: KubernetesApi,
        keys: ClusterKeys,
        audience: str,
        *,
        is_required: bool,
        limits: ReviewLimits = ReviewLimits(),
        now: Callable[[], float] = time.monotonic,
        unix_seconds: Callable[[], float] = lambda: time.time_ns() / 1e9,
    ) -> None:
        self._api = api
        self._keys = keys
        self._audience = audience
        self._is_required = is_required
        self._now = now
        self._unix_seconds = unix_seconds
        self._answers: OrderedDict[bytes, tuple[float, Authenticated]] = OrderedDict()
        self._refusals: OrderedDict[bytes, tuple[float, Refused]] = OrderedDict()
        self._limits = limits
        self._reviews = Reviews(now, limits)
        self._asking: dict[bytes, asyncio.Future[Authenticated]] = {}
        self._is_away = False

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        if not shows_token(method, is_required=self._is_required):
            return Authenticated(Identity())
        if not data or len(data) > TOKEN_BYTES_MAX:
            raise refused(f"a token has 1 to {TOKEN_BYTES_MAX} bytes")
        token = data.strip()
        digest = hashlib.sha256(token).digest()
        known = self._remembered(digest)
        if known is not None:
            return known
        asking = self._asking.get(digest)
        if asking is not None:
            return await asyncio.shield(asking)
        return await self._ask(digest, token, is_proved=self._check(token))

    def _remembered(self, digest: bytes) -> Authenticated | None:
        """The remembered result for a token. Raises Refused."""
        until, no = self._refusals.get(digest, (0.0, None))
        if no is not None and until > self._now():
            raise Refused(no.code, no.message)
        until, answer = self._answers.get(digest, (0.0, None))
        if answer is None or until <= self._now():
            return None
        self._answers.move_to_end(digest)
        is_over = answer.expires_at is not None and answer.expires_at <= self._unix_seconds()
        return None if is_over else answer

    def _check(self, token: bytes) -> bool:
        """Whether a known key of the cluster has signed the token.

        Raises Refused for a token that the API server would refuse, and Unavailable for an expired one while
        the API server is unavailable.
        """
        header, payload = unverified(token)
        if str(header.get("alg")) not in _ALGORITHMS:
            raise refused("the token is signed with an algorithm that no cluster uses")
        named = audiences_in(payload)
        if "aud" in payload and self._audience not in named:
            raise refused(f"the token is not for the audience {self._audience}")
        expires_at = time_in(payload, "exp")
        if expires_at is not None and expires_at <= self._unix_seconds():
            if self._is_away:
                raise Unavailable(
                    "the Kubernetes API server is not available, and the token has expired; retry later"
                )
            raise refused("the token has expired")
        key = self._keys.of(token)
        if key is not None:
            signed_payload(token, (key,), None)
            return True
        if self._keys.issuer and payload.get("iss") != self._keys.issuer:
            raise refused("the token was not issued by this cluster")
        return False

    async def _ask(self, digest: bytes, token: bytes, *, is_proved: bool) -> Authenticated:
        """Check a token once for all concurrent requests with it."""
        asking = self._asking[digest] = asyncio.get_running_loop().create_future()
        try:
            with self._reviews.begun(PEER.get(), is_proved=is_proved):
                proof = await self._judge(digest, token)
        except (Refused, Unavailable) as error:
            asking.set_exception(type(error)(*_arguments(error)))
            raise
        except BaseException:  # cancelled
            asking.set_exception(Unavailable("the review was broken off"))
            raise
        else:
            asking.set_result(proof)
            return proof
        finally:
            asking.exception()  # perhaps no other request waits
            del self._asking[digest]

    async def _judge(self, digest: bytes, token: bytes) -> Authenticated:
        try:
            proof = await self._review(token)
        except Refused as no:
            _remember(
                self._refusals,
                digest,
                (self._now() + REFUSAL_SECONDS, no),
                self._limits.refusals_max,
            )
            raise
        except Unavailable as error:
            if not self._is_away:
                log.warning("token_review.away", reason=str(error))
            self._is_away = True
            return self._offline(token)
        if self._is_away:
            log.info("token_review.back")
        self._is_away = False
        _remember(
            self._answers, digest, (self._now() + ANSWER_SECONDS, proof), self._limits.answers_max
        )
        return proof

    async def _review(self, token: bytes) -> Authenticated:
        """Ask the API server. Raises Refused, Unavailable."""
        text = token.decode("ascii")
        answer = await self._api.send(
            "POST",
            REVIEWS,
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": {"token": text, "audiences": [self._audience]},
            },
        )
        status = answer.document.get("status")
        if not answer.is_done or not isinstance(status, Mapping):
            raise Unavailable(f"TokenReview: {answer.reason}")
        if status.get("authenticated") is not True:
            raise refused("the API server does not take the token" + _reason(status, text))
        # A server that does not know audiences leaves them out: then the token may be for any service.
        if self._audience not in _list(status.get("audiences")):
            raise refused(f"the token is not for the audience {self._audience}")
        return Authenticated(_reviewed(status.get("user")), _expiry(token))

    def _offline(self, token: bytes) -> Authenticated:
        """Check a token without the API server. Raises Refused, Unavailable."""
        key = self._keys.of(token)
        if key is None:
            raise Unavailable("the API server is away, and the key of this token is not known")
        payload = signed_payload(token, (key,), self._audience)
        now = self._unix_seconds()
        if payload.get("iss") != self._keys.issuer:
            raise refused("the token was not issued by this cluster")
        if (time_in(payload, "nbf") or 0.0) > now + CLOCK_SKEW_SECONDS:
            raise refused("the token is not valid yet")
        expires_at = time_in(payload, "exp")
        if expires_at is None or expires_at <= now:
            raise Unavailable(
                "the Kubernetes API server is not available, and the token has expired; retry later"
            )
        identity = _claimed(payload)
        if not identity.pod_uid:
            raise Unavailable("the API server is away, and the token is bound to no pod")
        return Authenticated(identity, expires_at, now + RENEW_SECONDS, may_only_resume=True)


def _remember(
    answers: OrderedDict[bytes, tuple[float, _Answer]],
    digest: bytes,
    answer: tuple[float, _Answer],
    most: int,
) -> None:
    answers[digest] = answer
    answers.move_to_end(digest)
    while len(answers) > most:
        answers.popitem(last=False)


def _public_keys(documents: list[Any]) -> dict[str, VerificationKey]:
    keys: dict[str, VerificationKey] = {}
    for document in documents[:KEYS_MAX]:
        try:
            found = jwt.PyJWK.from_dict(document)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            continue  # a later Kubernetes may know this kind
        key = found.key
        is_public = isinstance(key, RSAPublicKey | EllipticCurvePublicKey)
        if is_public and found.key_id and found.algorithm_name in _ALGORITHMS:
            keys[found.key_id] = VerificationKey(found.algorithm_name, key)
    return keys


def _reviewed(user: object) -> Identity:
    """The identity in a TokenReview. Raises Refused."""
    if not isinstance(user, Mapping):
        raise refused("the API server names no user")
    extra = user.get("extra")
    more = extra if isinstance(extra, Mapping) else {}

    def only(name: str) -> str:
        values = _list(more.get(_EXTRA + name))
        return _word(values[0]) if len(values) == 1 else ""

    subject = _word(user.get("username"))
    if not subject:
        raise refused("the API server names no user")
    return Identity(subject, only("pod-uid"), only("pod-name"), only("node-name"))


def _claimed(payload: Mapping[str, object]) -> Identity:
    """The identity in a verified token. Raises Refused."""
    subject = _word(payload.get("sub"))
    if not subject:
        raise refused("the token names no subject")
    bound = payload.get("kubernetes.io")

    def about(kind: str, name: str) -> str:
        found = bound.get(kind) if isinstance(bound, Mapping) else None
        return _word(found.get(name)) if isinstance(found, Mapping) else ""

    return Identity(subject, about("pod", "uid"), about("pod", "name"), about("node", "name"))


def _expiry(token: bytes) -> float | None:
    """The expiry of a token that the API server accepted."""
    try:
        payload = jwt.decode(token, options={"verify_signature": False})
        return time_in(payload, "exp")
    except (jwt.PyJWTError, ValueError, RecursionError, Refused):
        return None  # not every token is a JWT


def _reason(status: Mapping[str, object], token: str) -> str:
    """The reason of the API server, without the token."""
    text = str(status.get("error") or "")
    is_fit = text.isprintable() and token not in text
    return f": {text[:200]}" if text and is_fit else ""


def _word(value: object) -> str:
    is_fit = isinstance(value, str) and len(value) <= WORD_LENGTH_MAX and value.isprintable()
    return str(value) if is_fit else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _arguments(error: Refused | Unavailable) -> tuple[Any, ...]:
    return (error.code, error.message) if isinstance(error, Refused) else error.args
