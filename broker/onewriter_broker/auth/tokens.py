"""Static tokens (JWT), signed with one of the configured keys.

token_review.py verifies tokens of Kubernetes' ServiceAccounts. A token is never written to a log line, an
error text or a traceback.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import jwt
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from onewriter_broker.auth.authentication import (
    Authenticated,
    RefusedByIssuer,
    refused,
    shows_token,
)
from onewriter_core.authorization.principals import SERVICE_ACCOUNT
from onewriter_core.errors import ConfigurationError, Refused
from onewriter_core.ids import Identity

log = structlog.get_logger(__name__)

TOKEN_BYTES_MAX: Final = 16 * 1024
SUBJECT_LENGTH_MAX: Final = 253
KEY_FILE_BYTES_MAX: Final = 64 * 1024
KEY_FILES_MAX: Final = 16

SECRET_BYTES_MIN: Final = 32
"""A shorter HS256 secret can be guessed from one token."""

RSA_BITS_MIN: Final = 2048

CLOCK_SKEW_SECONDS: Final = 30.0
"""How far a token's issuer may be ahead of this machine's clock (``nbf``). There is no tolerance for the
expiry."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What tokens must contain besides their subject."""

    audience: str | None = None
    """Must be among the token's audiences; None accepts any."""
    issuer: str | None = None
    """Must be the token's issuer; None accepts any."""
    expiry_required: bool = False
    """Tokens without an expiry are refused."""
    allows_accounts: bool = True
    """Whether the subject may be a Kubernetes ServiceAccount. If the API server reviews tokens, only it names
    ServiceAccounts."""


ANYTHING: Final = Expected()

WARN_AGAIN_SECONDS: Final = 600.0
"""A warning about tokens without an expiry is written at most once in this time."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """One key, and the only algorithm that it is used with, so that a token cannot choose its algorithm."""

    algorithm: str
    key: bytes | RSAPublicKey | EllipticCurvePublicKey = field(repr=False)


class StaticTokenAuthenticator:
    """Accepts tokens signed with one of the configured keys.

    A client without a token is anonymous unless ``is_required``. A client with an invalid token is refused,
    and never becomes anonymous. ``unix_seconds`` is the wall clock.
    """

    def __init__(
        self,
        keys: Iterable[VerificationKey],
        unix_seconds: Callable[[], float],
        *,
        is_required: bool = False,
        expected: Expected = ANYTHING,
    ) -> None:
        self._keys = tuple(keys)
        self._unix_seconds = unix_seconds
        self._is_required = is_required
        self._expected = expected
        self._warned_at = float("-inf")
        if not self._keys:
            raise ConfigurationError("authentication by token needs a secret or public key file")

    async def authenticate(self, method: str, data: bytes) -> Authenticated:
        if not shows_token(method, is_required=self._is_required):
            return Authenticated(Identity())
        now = self._unix_seconds()
        found = verify(data, self._keys, now, self._expected)
        if found.expires_at is None and now - self._warned_at >= WARN_AGAIN_SECONDS:
            self._warned_at = now
            log.warning("token.without_expiry", subject=found.identity.subject)
        return found


def verify(
    token: bytes,
    keys: Iterable[VerificationKey],
    now: float,
    expected: Expected = ANYTHING,
) -> Authenticated:
    """Check a token's signature, times, audience, issuer and subject; ``now`` in Unix seconds.

    Raises Refused(AUTHENTICATION_ERROR) with a text that contains nothing of the token. It is RefusedByIssuer
    if the token is signed with one of the keys, or claims to be.
    """
    try:
        payload = signed_payload(token, keys, None)
    except Refused as error:
        if _claims_issuer(token, expected.issuer):
            raise RefusedByIssuer(error.message) from None
        raise
    try:
        return _judged(payload, now, expected)
    except Refused as error:
        raise RefusedByIssuer(error.message) from None


def _claims_issuer(token: bytes, issuer: str | None) -> bool:
    """Whether a token that none of the keys has signed claims to be from their issuer: by its issuer, or by
    the kind of its algorithm.

    No cluster signs tokens with a secret key.
    """
    try:
        header, payload = unverified(token)
    except Refused:
        return False
    is_shared = str(header.get("alg", "")).startswith("HS")
    return is_shared or (issuer is not None and payload.get("iss") == issuer)


def _judged(payload: Mapping[str, object], now: float, expected: Expected) -> Authenticated:
    """The identity in a signed token. Raises Refused."""
    if expected.audience is not None and expected.audience not in audiences_in(payload):
        raise refused("the token is for another audience")
    if expected.issuer is not None and payload.get("iss") != expected.issuer:
        raise refused("the token has another issuer")
    expires_at = time_in(payload, "exp")
    if expires_at is None and expected.expiry_required:
        raise refused("the token has no expiry")
    if expires_at is not None and expires_at <= now:
        raise refused("the token has expired")
    not_before = time_in(payload, "nbf")
    if not_before is not None and not_before > now + CLOCK_SKEW_SECONDS:
        raise refused("the token is not valid yet")
    subject = payload.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_LENGTH_MAX:
        raise refused(f"the token needs a subject of 1 to {SUBJECT_LENGTH_MAX} characters")
    if not subject.isprintable():
        raise refused("the token's subject has characters that cannot be printed")
    if not expected.allows_accounts and subject.startswith(SERVICE_ACCOUNT):
        raise refused("only a token of the Kubernetes API server proves a ServiceAccount")
    return Authenticated(Identity(subject), expires_at)


def load_keys(
    secret_key_files: Iterable[Path] = (), public_key_files: Iterable[Path] = ()
) -> tuple[VerificationKey, ...]:
    """Read HS256 secrets, and RSA (RS256) or P-256 (ES256) public keys in PEM.

    Raises ConfigurationError that names the file. Blocks on the file system.
    """
    secrets, publics = tuple(secret_key_files), tuple(public_key_files)
    if len(secrets) + len(publics) > KEY_FILES_MAX:
        raise ConfigurationError(f"at most {KEY_FILES_MAX} token key files are read")
    keys = [key for file in secrets for key in _secret_keys(file)]
    keys += [_public_key(file) for file in publics]
    return tuple(keys)


def signed_payload(
    token: bytes, keys: Iterable[VerificationKey], audience: str | None
) -> Mapping[str, object]:
    """The payload of a token, with only its signature and audience checked.

    Raises Refused(AUTHENTICATION_ERROR) with a text that contains nothing of the token.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise refused(f"a token has at most {TOKEN_BYTES_MAX} bytes")
    try:
        algorithm = jwt.get_unverified_header(token).get("alg")
    except (jwt.PyJWTError, ValueError, RecursionError):
        # "from None" here and below: the cause may contain parts of the token.
        raise refused("not a token (a signed JWT is expected)") from None
    reason = "the token is signed with an algorithm or key that is not accepted here"
    for key in keys:
        if key.algorithm != algorithm:
            continue
        try:
            # verify() checks the times, against a clock that is an argument.
            payload: Mapping[str, object] = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=audience,
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                    "verify_aud": audience is not None,
                },
            )
        except jwt.InvalidSignatureError:
            continue
        except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError):
            reason = "the token is for another audience"
        except (jwt.PyJWTError, ValueError, RecursionError):
            reason = "the token's contents cannot be read"
        else:
            return payload
    raise refused(reason)


def unverified(token: bytes) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Header and payload of a token; the signature is not checked. Raises Refused if it is not a JWT."""
    text = "not a token (a signed JWT is expected)"
    if len(token) > TOKEN_BYTES_MAX or not token.isascii() or token.count(b".") != 2:
        raise refused(text)
    try:
        found = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise refused(text) from None
    header, payload = found["header"], found["payload"]
    if not found["signature"]:
        raise refused(text)
    return header, payload


def audiences_in(payload: Mapping[str, object]) -> list[object]:
    """The audiences that a token names."""
    named = payload.get("aud")
    return named if isinstance(named, list) else [named]


def time_in(payload: Mapping[str, object], name: str) -> float | None:
    """A time in a token, in Unix seconds; None if it is missing. Raises Refused."""
    value = payload.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_time(value):
        raise refused(f"the token's {name} is not a time")
    return float(value)


def _is_time(value: float) -> bool:
    return 0 <= value < 2**53  # false for NaN, too


def _secret_keys(file: Path) -> list[VerificationKey]:
    """The secret as in the file, without a final line break, and decoded if it is base64.

    All readings are accepted: each is as hard to guess as the file, and none has to be configured.
    """
    content = _read(file)
    if b"-----BEGIN" in content:
        raise ConfigurationError(f"{file}: holds a PEM key; an HS256 secret is expected")
    readings = {content, content.rstrip(b"\r\n")}
    with contextlib.suppress(binascii.Error):  # not base64: the file is the secret itself
        readings.add(base64.b64decode(content.strip(), validate=True))
    secrets = sorted(reading for reading in readings if len(reading) >= SECRET_BYTES_MIN)
    if not secrets:
        raise ConfigurationError(f"{file}: an HS256 secret has at least {SECRET_BYTES_MIN} bytes")
    return [VerificationKey("HS256", secret) for secret in secrets]


def _public_key(file: Path) -> VerificationKey:
    try:
        key = load_pem_public_key(_read(file))
    except (ValueError, UnsupportedAlgorithm):
        # The cause is left out: it may quote a private key that was put here by mistake.
        raise ConfigurationError(f"{file}: not a public key in PEM") from None
    if isinstance(key, RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise ConfigurationError(f"{file}: an RSA key has at least {RSA_BITS_MIN} bits")
        return VerificationKey("RS256", key)
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return VerificationKey("ES256", key)
    raise ConfigurationError(f"{file}: an RSA or P-256 public key is expected")


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(KEY_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > KEY_FILE_BYTES_MAX:
        raise ConfigurationError(f"{file}: larger than {KEY_FILE_BYTES_MAX} bytes")
    return content
