"""The Secrets that are created once: the passwords of the installed store, and the token for metrics."""

from __future__ import annotations

import base64
import secrets
from typing import Any, Final

from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import names

DIRECTORY: Final = "/run/onewriter/store"
"""Directory in which the passwords are mounted."""

CLUSTER_DIRECTORY: Final = "/run/onewriter/store-cluster"
"""Directory in which the passwords of a cluster's operator and replicas are mounted."""

_PASSWORD_BYTES: Final = 32


def _random_secret(
    configuration: Configuration, name: str, component: str, key: str
) -> dict[str, Any]:
    """A Secret with a random password, whose characters are safe in URLs and in configuration files."""
    password = secrets.token_hex(_PASSWORD_BYTES)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": names.metadata(configuration, name, component),
        "data": {key: base64.b64encode(password.encode()).decode()},
    }


def store_password(configuration: Configuration) -> dict[str, Any] | None:
    """The Secret to create once; None with an external store or a configured password."""
    if configuration.external_store.is_used or configuration.valkey.password_secret.name:
        return None
    name = names.store_secret(configuration)
    return _random_secret(configuration, name, names.VALKEY, names.PASSWORD_KEY)


def cluster_password(configuration: Configuration) -> dict[str, Any] | None:
    """The Secret with the password of the operator and of the replicas; None without a cluster."""
    if not configuration.has_cluster:
        return None
    name = names.store_cluster_secret(configuration)
    return _random_secret(configuration, name, names.VALKEY, names.PASSWORD_KEY)


def cluster_volume(configuration: Configuration) -> dict[str, Any]:
    """The volume ``cluster-password`` of a cluster's pods; its files are those of ``password_volume``."""
    return _volume("cluster-password", names.store_cluster_secret(configuration))


def metrics_token(configuration: Configuration) -> dict[str, Any]:
    """The Secret with the token that Prometheus presents to read the metrics of brokers and operator."""
    name = names.metrics_secret(configuration)
    return _random_secret(configuration, name, names.BROKER, names.METRICS_TOKEN_KEY)


def password_volume(configuration: Configuration) -> dict[str, Any] | None:
    """The volume ``store-password`` with the store's password; None without a password.

    Its files are ``password`` and, during a change of the password, ``previous-password``.
    """
    external = configuration.external_store
    given = external.password_secret if external.is_used else configuration.valkey.password_secret
    if external.is_used and not given.name:
        return None
    secret, key = (given.name, given.key) if given.name else (names.store_secret(configuration), "")
    return _volume("store-password", secret, key)


def _volume(name: str, secret: str, key: str = "") -> dict[str, Any]:
    items = [{"key": key or names.PASSWORD_KEY, "path": names.PASSWORD_KEY}]
    # A projected volume can list the Secret twice; the second entry is optional.
    previous = {"key": names.PREVIOUS_PASSWORD_KEY, "path": names.PREVIOUS_PASSWORD_KEY}
    return {
        "name": name,
        "projected": {
            "defaultMode": 0o440,
            "sources": [
                {"secret": {"name": secret, "items": items}},
                {"secret": {"name": secret, "items": [previous], "optional": True}},
            ],
        },
    }
