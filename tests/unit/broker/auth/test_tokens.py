"""Static tokens: which are accepted, which are refused, and that no error contains a token."""

from __future__ import annotations

import base64
import hmac
import json
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from onewriter_broker.auth.authentication import AnonymousAuthenticator, Authenticated
from onewriter_broker.auth.authenticators import authenticator
from onewriter_broker.auth.tokens import (
    CLOCK_SKEW_SECONDS,
    KEY_FILE_BYTES_MAX,
    KEY_FILES_MAX,
    TOKEN_BYTES_MAX,
    WARN_AGAIN_SECONDS,
    Expected,
    StaticTokenAuthenticator,
    VerificationKey,
    load_keys,
    verify,
)
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError, Refused, ServerError
from onewriter_core.ids import Identity

NOW = 1_800_000_000.0
SECRET = bytes(range(32))
HS256 = (VerificationKey("HS256", SECRET),)

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def curve_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> bytes:
    return jwt.encode({"sub": "writer", **claims}, key, algorithm).encode()


def encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def handmade(header: dict[str, Any], payload: bytes, secret: bytes = SECRET) -> bytes:
    """A token as no library would write it, signed as HS256 whatever its header says."""
    signed = encoded(json.dumps(header).encode()) + b"." + encoded(payload)
    return signed + b"." + encoded(hmac.digest(secret, signed, "sha256"))


def refusal(data: bytes, keys: tuple[VerificationKey, ...] = HS256, **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        verify(data, keys, NOW, **more)
    assert caught.value.code is ServerError.AUTHENTICATION_ERROR
    names = [error.name.title().replace("_", "") for error in ServerError]
    assert not [name for name in names if name in caught.value.message]
    if len(data) > 20:
        shown = "".join(traceback.format_exception(caught.value))
        pieces = [piece for piece in data.decode("latin-1").split(".") if len(piece) > 5]
        assert not [piece for piece in pieces if piece in shown]
    return caught.value.message


# Tokens


def test_a_signed_token_names_its_subject_and_its_end() -> None:
    assert verify(token(), HS256, NOW) == Authenticated(Identity("writer"))
    ending = verify(token(exp=int(NOW) + 60), HS256, NOW)
    assert ending == Authenticated(Identity("writer"), NOW + 60)


def test_all_three_algorithms_are_verified_with_their_own_keys(tmp_path: Path) -> None:
    secret, of_rsa, of_curve = tmp_path / "secret", tmp_path / "rsa.pem", tmp_path / "ec.pem"
    secret.write_bytes(SECRET)
    of_rsa.write_bytes(public_pem(rsa_key()))
    of_curve.write_bytes(public_pem(curve_key()))
    keys = load_keys([secret], [of_rsa, of_curve])
    for signed in (token(), token(rsa_key(), "RS256"), token(curve_key(), "ES256")):
        assert verify(signed, keys, NOW).identity == Identity("writer")
    refusal(token(rsa_key(), "RS512"), keys)
    refusal(handmade({"alg": "HS512"}, b'{"sub":"writer"}'), keys)
    refusal(token(rsa.generate_private_key(65537, 2048), "RS256"), keys)


def test_a_token_cannot_choose_how_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rsa.pem"
    file.write_bytes(public_pem(rsa_key()))
    keys = load_keys(public_key_files=[file])
    # The public key is known to all; it must not pass for a shared secret.
    forged = handmade({"alg": "HS256"}, b'{"sub":"admin"}', public_pem(rsa_key()))
    refusal(forged, keys)
    unsigned = jwt.encode({"sub": "admin"}, "", "none").encode()
    refusal(unsigned, keys)
    refusal(unsigned)


def test_an_expired_token_is_refused_from_its_last_second_on() -> None:
    verify(token(exp=int(NOW) + 1), HS256, NOW)
    for expired in (int(NOW), int(NOW) - 1, 0, NOW - 0.5):
        assert refusal(token(exp=expired)) == "the token has expired"


def test_a_token_of_the_future_is_refused_beyond_the_clocks_skew() -> None:
    verify(token(nbf=NOW + CLOCK_SKEW_SECONDS), HS256, NOW)
    refusal(token(nbf=NOW + CLOCK_SKEW_SECONDS + 1))


@pytest.mark.parametrize("time", ["soon", True, -1, 2**60, [1]])
def test_a_time_must_be_one(time: Any) -> None:
    payload = json.dumps({"sub": "writer", "exp": time}).encode()
    refusal(handmade({"alg": "HS256"}, payload))


@pytest.mark.parametrize("time", ["NaN", "Infinity", "1e400", "1" * 5000])
def test_a_time_beyond_numbers_is_refused(time: str) -> None:
    refusal(handmade({"alg": "HS256"}, b'{"sub":"writer","exp":' + time.encode() + b"}"))


@pytest.mark.parametrize("subject", [None, "", 5, ["a"], "x" * 254, "two\nlines", "\x1b[2J"])
def test_a_subject_is_a_line_of_text(subject: Any) -> None:
    refusal(handmade({"alg": "HS256"}, json.dumps({"sub": subject}).encode()))


def test_a_token_without_a_subject_has_no_identity() -> None:
    refusal(handmade({"alg": "HS256"}, b"{}"))


def test_an_audience_counts_where_one_is_configured() -> None:
    verify(token(aud="anything"), HS256, NOW)
    verify(token(aud=["other", "onewriter"]), HS256, NOW, Expected("onewriter"))
    assert (
        refusal(token(aud="other"), expected=Expected("onewriter"))
        == "the token is for another audience"
    )
    assert refusal(token(), expected=Expected("onewriter")) == "the token is for another audience"


def test_a_token_for_a_retired_key_is_refused_and_for_any_current_one_accepted() -> None:
    old, new = bytes(32), bytes([1]) * 32
    keys = (VerificationKey("HS256", old), VerificationKey("HS256", new))
    verify(token(old), keys, NOW)
    verify(token(new), keys, NOW)
    refusal(token(old), keys[1:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"...",
        b"a.b.c",
        b"token",
        b"\xff\xfe.\xff.\xff",
        b"x" * (TOKEN_BYTES_MAX + 1),
        handmade({"alg": "HS256"}, b"[1]"),
        handmade({"alg": "HS256"}, b"{"),
        handmade({"alg": "HS256"}, b"[" * 9_000),
        handmade({"alg": ["HS256"]}, b"{}"),
        handmade({"alg": "HS256", "crit": ["x"]}, b'{"sub":"writer"}'),
        handmade({}, b'{"sub":"writer"}'),
    ],
)
def test_garbage_is_refused(data: bytes) -> None:
    refusal(data)


@given(data=st.binary(max_size=200))
def test_no_bytes_get_past_the_refusal(data: bytes) -> None:
    with pytest.raises(Refused):
        verify(data, HS256, NOW)


@given(at=st.integers(0, 200), letter=st.sampled_from("ABCdef012-_.="))
def test_no_changed_letter_gets_past_the_signature(at: int, letter: str) -> None:
    genuine = token(exp=int(NOW) + 60)
    # Base64 ignores the last bits of the signature's last letter; those are no part of the token.
    at %= len(genuine) - 1
    changed = genuine[:at] + letter.encode() + genuine[at + 1 :]
    if changed != genuine:
        with pytest.raises(Refused):
            verify(changed, HS256, NOW)


# Authenticators


def clock() -> float:
    return NOW


async def test_without_a_token_a_client_is_anonymous_unless_one_is_required() -> None:
    lenient = StaticTokenAuthenticator(HS256, clock)
    for method, data in (("", b""), ("none", b""), ("none", b"none")):
        assert (await lenient.authenticate(method, data)).identity.is_anonymous
    strict = StaticTokenAuthenticator(HS256, clock, is_required=True)
    for method in ("", "none"):
        with pytest.raises(Refused, match="a token is required"):
            await strict.authenticate(method, b"")
    assert (await strict.authenticate("token", token())).identity == Identity("writer")


async def test_a_bad_token_never_makes_a_client_anonymous() -> None:
    lenient = StaticTokenAuthenticator(HS256, clock)
    for data in (b"", b"garbage", token(bytes(32)), token(exp=1)):
        with pytest.raises(Refused):
            await lenient.authenticate("token", data)


async def test_other_methods_are_refused() -> None:
    for method in ("tls", "basic", "TOKEN", "sasl"):
        with pytest.raises(Refused) as caught:
            await StaticTokenAuthenticator(HS256, clock).authenticate(method, token())
        assert caught.value.code is ServerError.AUTHENTICATION_ERROR


def test_an_issuer_counts_where_one_is_configured() -> None:
    expected = Expected(issuer="https://ours")
    verify(token(iss="https://ours"), HS256, NOW, expected)
    verify(token(iss="anybody"), HS256, NOW)
    listed = handmade({"alg": "HS256"}, b'{"sub": "writer", "iss": ["https://ours"]}')
    for other in (token(), token(iss="https://theirs"), listed):
        assert refusal(other, expected=expected) == "the token has another issuer"


def test_an_expiry_can_be_required() -> None:
    expected = Expected(expiry_required=True)
    verify(token(exp=int(NOW) + 60), HS256, NOW, expected)
    assert refusal(token(), expected=expected) == "the token has no expiry"


async def test_tokens_without_an_expiry_are_warned_about_now_and_then() -> None:
    time = [NOW]
    judge = StaticTokenAuthenticator(HS256, lambda: time[0])
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            await judge.authenticate("token", token())
        await judge.authenticate("token", token(exp=int(NOW) + 60_000))
        time[0] += WARN_AGAIN_SECONDS
        await judge.authenticate("token", token())
    assert [line["event"] for line in lines] == ["token.without_expiry"] * 2


def test_a_public_key_needs_an_audience(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="token_audience"):
        authenticator(Settings(token_public_key_file=tmp_path / "key.pem"))


async def test_the_audience_of_the_settings_is_checked() -> None:
    checking = StaticTokenAuthenticator(HS256, clock, expected=Expected("onewriter"))
    await checking.authenticate("token", token(aud="onewriter"))
    with pytest.raises(Refused):
        await checking.authenticate("token", token())


async def test_without_authentication_everybody_is_anonymous() -> None:
    for method, data in (("none", b""), ("token", token())):
        assert (await AnonymousAuthenticator().authenticate(method, data)).identity.is_anonymous


def test_tokens_cannot_be_asked_for_without_a_key() -> None:
    with pytest.raises(ConfigurationError):
        StaticTokenAuthenticator((), clock)


# Key files


@pytest.mark.parametrize(
    "content",
    [
        SECRET,
        SECRET + b"\n",
        base64.b64encode(SECRET),
        base64.b64encode(SECRET) + b"\r\n",
    ],
)
def test_a_secret_is_read_raw_or_from_base64(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(content)
    verify(token(SECRET), load_keys([file]), NOW)


def test_a_text_secret_that_looks_like_base64_is_still_itself(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(b"deadbeef" * 8)
    verify(token(b"deadbeef" * 8), load_keys([file]), NOW)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "at least 32 bytes"),
        (b"short", "at least 32 bytes"),
        (base64.b64encode(bytes(20)), "at least 32 bytes"),
        (public_pem(curve_key()), "holds a PEM key"),
        (bytes(KEY_FILE_BYTES_MAX + 1), "larger than"),
    ],
)
def test_an_invalid_secret_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_keys([file])
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a key", "not a public key in PEM"),
        (private_pem(curve_key()), "not a public key in PEM"),
        (public_pem(rsa_key(1024)), "at least 2048 bits"),
        (public_pem(ec.generate_private_key(ec.SECP384R1())), "RSA or P-256"),
        (public_pem(ed25519.Ed25519PrivateKey.generate()), "RSA or P-256"),
    ],
)
def test_an_invalid_public_key_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "public.pem"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_keys(public_key_files=[file])
    assert str(caught.value).startswith(f"{file}: ")


def test_missing_and_too_many_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load_keys([tmp_path / "gone"])
    with pytest.raises(ConfigurationError, match="at most"):
        load_keys([tmp_path / "gone"] * (KEY_FILES_MAX + 1))


def test_a_key_is_not_shown() -> None:
    assert repr(SECRET) not in repr(HS256)
    assert repr(HS256) == "(VerificationKey(algorithm='HS256'),)"
