"""The settings of the sidecar, with their units and defaults.

Precedence: the command line, ``ONEWRITER_SIDECAR_*`` environment variables, these defaults.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ENVIRONMENT_PREFIX = "ONEWRITER_SIDECAR_"

PRIORITY_MAX = 2**31 - 1


class Endpoint(BaseSettings):
    """The address of the sidecar's API and the key of a release, which is all that ``release`` and ``status`` need."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="loopback address of the API")
    port: int = Field(6680, ge=0, le=65535, description="port of the API on that address; 0: none")
    socket: Path | None = Field(None, description="unix socket of the API, in addition to the port")
    release_key_file: Path | None = Field(
        None,
        description="file for the key that a release over the port needs; the sidecar writes it at its start",
    )

    @field_validator("host")
    @classmethod
    def _is_loopback(cls, host: str) -> str:
        # Except for a release, the API has no credentials: every process that reaches it may publish.
        if host != "localhost" and not _is_loopback_address(host):
            raise ValueError(
                f"{host} is not a loopback address; use health_port for probes and metrics"
            )
        return host


class Settings(Endpoint):
    """The sidecar's configuration."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, frozen=True, extra="forbid")

    # Topic and identity
    service_url: str = Field(
        "pulsar://127.0.0.1:6650",
        description="URL of the brokers: pulsar://HOST:PORT,... or pulsar+ssl://...",
    )
    relay_port: int = Field(
        0, ge=0, le=65535, description="port on loopback for stock Pulsar clients; 0: no relay"
    )
    topic: str = Field(
        "", validate_default=True, description="the topic to lead; empty: the sidecar only relays"
    )
    identity: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=253,
        description="name of this candidate, as published at a takeover; in a pod the host name is the pod's name",
    )
    producer_name: str = Field(
        "", max_length=253, description="name of the producer; empty: the identity and a nonce"
    )
    priority: int = Field(
        0,
        ge=-PRIORITY_MAX - 1,
        le=PRIORITY_MAX,
        description="priority in the queue, higher first (PIP-440)",
    )
    announce: bool = Field(
        False, description="publish who leads at each takeover even without resume info"
    )

    # Credentials
    token_file: Path | None = Field(
        None, description="file with the client's token (a JWT); read again at each use"
    )
    tls_ca_file: Path | None = Field(
        None, description="CA certificates that verify the brokers; none: the system's"
    )
    tls_certificate_file: Path | None = Field(
        None, description="client certificate, if the brokers require one"
    )
    tls_key_file: Path | None = Field(None, description="private key of the client certificate")

    release_without_key: bool = Field(
        False,
        description="accept a release over the port without a key; this setting is removed in 0.3",
    )

    # Further addresses
    health_host: str = Field(
        "0.0.0.0", description="address of the separate port for probes and metrics"
    )
    health_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="separate port for probes and metrics; 0: they are only on the API",
    )
    ready_when: Literal["standing-by", "leading"] = Field(
        "standing-by",
        description="when /readyz answers 200: in the queue or leading (standing-by), or only while leading",
    )

    # Time limits
    publish_timeout_seconds: float = Field(
        10.0, gt=0, description="timeout for one message, from the request to its receipt"
    )
    stop_seconds: float = Field(
        10.0,
        gt=0,
        description="time for releasing the topic at a stop; then the sidecar ends without it",
    )

    # Sizes and numbers
    message_bytes_max: int = Field(
        5 * 1024 * 1024, gt=0, description="largest content of a message"
    )
    resume_info_bytes_max: int = Field(
        64 * 1024, gt=0, description="largest body of PUT /resume-info"
    )
    requests_max: int = Field(
        256,
        gt=0,
        description="largest number of publish requests that are handled at the same time",
    )
    streams_max: int = Field(16, gt=0, description="largest number of open publish streams")
    event_streams_max: int = Field(32, gt=0, description="largest number of open event streams")
    maps_max: int = Field(16, gt=0, description="largest number of open shared maps")
    pending_messages_max: int = Field(
        1_000, gt=0, description="largest number of messages without a receipt"
    )
    pending_bytes_max: int = Field(
        16 * 1024 * 1024, gt=0, description="largest size of all messages without a receipt"
    )

    @field_validator("topic")
    @classmethod
    def _has_work(cls, topic: str, known: ValidationInfo) -> str:
        if not topic and not known.data.get("relay_port"):
            raise ValueError("name a topic, or set relay_port for a sidecar that only relays")
        return topic

    @model_validator(mode="after")
    def _is_reachable(self) -> Settings:
        if self.port == 0 and self.socket is None:
            raise ValueError("neither a port nor a socket: the sidecar could not be reached")
        return self

    @property
    def name(self) -> str:
        """The producer's name: the configured one, else a unique one."""
        return self.producer_name or f"{self.identity}-{_NONCE}"


_NONCE = secrets.token_hex(4)


def _is_loopback_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
