"""The authenticator of the settings.

tokens.py is imported only if there are keys: its library for cryptography takes a noticeable part of a
broker's start.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from onewriter_broker.auth.authentication import Authenticator
from onewriter_broker.settings import Settings
from onewriter_core.errors import ConfigurationError


def authenticator(
    settings: Settings, unix_seconds: Callable[[], float] = lambda: time.time_ns() / 1e9
) -> Authenticator | None:
    """The authenticator that verifies tokens by keys; None without keys. Raises ConfigurationError.

    ``unix_seconds``: the clock by which tokens expire.
    """
    secrets = [settings.token_secret_file] if settings.token_secret_file else []
    publics = [settings.token_public_key_file] if settings.token_public_key_file else []
    if not secrets and not publics:
        if settings.authentication_required and not settings.token_review:
            raise ConfigurationError(
                "authentication by token needs a secret or public key file, or token_review"
            )
        return None
    if publics and not settings.token_audience:
        # The key of an identity provider signs tokens for every service; tokens for other services must not
        # be accepted.
        raise ConfigurationError(
            "token_public_key_file needs token_audience: without it, tokens that the key's owner"
            " issued for other services would be accepted"
        )
    from onewriter_broker.auth import tokens  # noqa: PLC0415 - see above

    return tokens.StaticTokenAuthenticator(
        tokens.load_keys(secrets, publics),
        unix_seconds,
        is_required=settings.authentication_required,
        expected=tokens.Expected(
            settings.token_audience or None,
            settings.token_issuer or None,
            expiry_required=settings.token_expiry_required,
            allows_accounts=not settings.token_review,
        ),
    )
