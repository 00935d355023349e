"""Settings of one operator process, from ``ONEWRITER_OPERATOR_*`` environment variables.

They may differ between replicas. The configuration file (``configuration``), which all replicas share,
declares what is installed and how the operator behaves.
"""

from __future__ import annotations

import socket
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class OperatorSettings(BaseSettings):
    """The settings of one process."""

    model_config = SettingsConfigDict(env_prefix="ONEWRITER_OPERATOR_", frozen=True, extra="forbid")

    configuration: Path = Field(
        Path("/etc/onewriter/configuration.yaml"), description="the configuration, see there"
    )
    name: str = Field(
        default_factory=socket.gethostname, description="this replica's name: its pod's"
    )
    kubeconfig: Path | None = Field(
        None, description="a kubeconfig; none: the pod's own ServiceAccount"
    )

    # The brokers
    broker_urls: str = Field(
        "",
        description="NAME=URL,... of the brokers' HTTP interfaces; empty: those that it installs",
    )
    token_file: Path | None = Field(
        None, description="the projected token (audience onewriter) that brokers are shown"
    )
    installs: bool = Field(
        True, description="whether it installs store and brokers, or only looks after topics"
    )

    # Addresses of the operator's own servers
    host: str = Field("0.0.0.0", description="address to listen on")
    http_port: int = Field(8080, ge=0, le=65535, description="metrics, /healthz and /readyz")
    metrics_token_file: Path | None = Field(
        None,
        description="token that /metrics asks for, read again every 10 s; none: it asks for no token",
    )
    webhook_port: int = Field(9443, ge=0, le=65535, description="admission webhook, HTTPS")
    webhook_cert_file: Path | None = Field(
        None, description="its certificate, re-read when it changes; none: no webhook"
    )
    webhook_key_file: Path | None = Field(None, description="the key to it")

    def brokers(self) -> dict[str, str]:
        """Name and URL of the brokers that the settings list."""
        pairs = (each.partition("=") for each in self.broker_urls.split(",") if each.strip())
        return {name.strip(): url.strip().rstrip("/") for name, _, url in pairs}
