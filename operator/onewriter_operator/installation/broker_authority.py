"""The ConfigMap with the CA of the brokers' certificate, for clients in other namespaces."""

from __future__ import annotations

import re
from typing import Any, Final

from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import names

AUTHORITY_KEY: Final = "ca.crt"

AUTHORITY_BYTES_MAX: Final = 256 * 1024
"""Largest part of the file to publish; a ConfigMap can contain 1 MiB."""

_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII
)


def config_map(configuration: Configuration, authority: str) -> dict[str, Any] | None:
    """The ConfigMap for ``authority``, the text of a PEM file; None without TLS or a certificate.

    Only certificates are published, no other content of the file.
    """
    found = _CERTIFICATE.findall(authority)
    if not configuration.brokers.tls.enabled or not found:
        return None
    name = names.broker_authority(configuration)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(configuration, name, names.BROKER),
        "data": {AUTHORITY_KEY: "".join(f"{each}\n" for each in found)},
    }
