"""Settings of one operator process, from ``ONEWRITER_OPERATOR_*`` environment variables.

They may differ between replicas. The configuration file (``configuration``), which all replicas share,
declares what is installed and how the operator behaves.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

ENVIRONMENT_PREFIX: Final = "ONEWRITER_OPERATOR_"
"""Start of the names of the environment variables."""


class OperatorSettings(BaseSettings):
    """The settings of one process."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid")

    configuration: Path = Field(
        Path("/etc/onewriter/configuration.yaml"),
        description="file with the configuration, which the chart writes",
    )
    name: str = Field(
        default_factory=socket.gethostname,
        description="name of this replica; in a pod the host name is the pod's name",
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig file; none: the ServiceAccount of the pod"
    )

    # The brokers
    broker_urls: str = Field(
        "",
        description="NAME=URL,... of the brokers' HTTP interfaces; empty: the brokers that the operator installs",
    )
    token_file: Path | None = Field(
        None, description="projected token (audience onewriter) that the operator sends to brokers"
    )
    installs: bool = Field(
        True,
        description="whether the operator installs store and brokers; false: it only reconciles topics and claims",
    )

    # Addresses of the operator's own servers
    host: str = Field("0.0.0.0", description="address to listen on")
    http_port: int = Field(
        8080, ge=0, le=65535, description="port of metrics, /healthz and /readyz"
    )
    metrics_token_file: Path | None = Field(
        None,
        description="file with the token that /metrics requires; read again every 10 s; none: /metrics requires no token",
    )
    webhook_port: int = Field(
        9443, ge=0, le=65535, description="HTTPS port of the admission webhook"
    )
    webhook_cert_file: Path | None = Field(
        None,
        description="certificate of the admission webhook; read again when the file changes; none: no webhook",
    )
    webhook_key_file: Path | None = Field(
        None, description="private key of the webhook's certificate"
    )

    def brokers(self) -> dict[str, str]:
        """Name and URL of the brokers that the settings list."""
        pairs = (each.partition("=") for each in self.broker_urls.split(",") if each.strip())
        return {name.strip(): url.strip().rstrip("/") for name, _, url in pairs}
