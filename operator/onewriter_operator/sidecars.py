"""The settings of injected sidecars, from the configuration, and the webhook that injects them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from onewriter_operator.admission import NATIVE_SIDECARS_SINCE, Injection, NotInjectable
from onewriter_operator.configuration import PORT_PULSAR, PORT_PULSAR_TLS, Configuration
from onewriter_operator.installation import names, pods
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.settings import OperatorSettings
from onewriter_operator.webhook import Webhook

AUTHORITY_SECONDS: Final = 30.0
"""How long the brokers' CA is used before its file is read again."""

log = structlog.get_logger(__name__)


class Sidecars:
    """The webhook of one replica; without a certificate there is no webhook."""

    def __init__(self, settings: OperatorSettings, configuration: Configuration) -> None:
        self._settings = settings
        self._configuration = configuration
        self._authority = ""
        self._read_at = -AUTHORITY_SECONDS
        self._version: tuple[int, int] | None = None
        self._kube: Kube | None = None
        self._webhook: Webhook | None = None
        if settings.webhook_cert_file is not None and settings.webhook_key_file is not None:
            self._webhook = Webhook(
                settings.webhook_cert_file, settings.webhook_key_file, self.injection
            )

    @property
    def problem(self) -> str:
        """Why this replica cannot serve admission; empty if it can or need not."""
        return "" if self._webhook is None else self._webhook.problem

    @property
    def certificate_not_after(self) -> float | None:
        """Unix time at which the webhook's certificate expires; None without one."""
        return None if self._webhook is None else self._webhook.not_after

    async def start(self, kube: Kube) -> None:
        """Listen, if there is a webhook. Raises as ``Webhook.start`` does."""
        self._kube = kube
        if self._webhook is not None:
            await self._webhook.start(self._settings.host, self._settings.webhook_port)

    async def run(self) -> None:
        """Follow the certificate until cancelled."""
        if self._webhook is not None:
            await self._webhook.run()

    async def stop(self) -> None:
        """Stop listening."""
        if self._webhook is not None:
            await self._webhook.stop()

    async def injection(self) -> Injection:
        """The present settings of a sidecar. Raises NotInjectable."""
        await self._check_version()
        configuration = self._configuration
        image, sidecar = configuration.image, configuration.sidecar
        authority = await self._read_authority()
        scheme, port = ("pulsar+ssl", PORT_PULSAR_TLS) if authority else ("pulsar", PORT_PULSAR)
        host = names.host(configuration, names.component(configuration, names.BROKER))
        return Injection(
            image=sidecar.image or image.reference,
            pull_policy=image.pull_policy.value,
            service_url=f"{scheme}://{host}:{port}",
            authority=authority,
            resources=pods.resources(sidecar.resources),
        )

    async def _check_version(self) -> None:
        """Refuse on an API server that would drop the field which makes the container a sidecar."""
        if self._version is None and self._kube is not None:
            try:
                self._version = await self._kube.version()
            except (ApiRefused, ApiUnreachable) as error:
                log.info("version.unknown", reason=str(error))
        if self._version is not None and self._version < NATIVE_SIDECARS_SINCE:
            major, minor = self._version
            raise NotInjectable(f"Kubernetes {major}.{minor} has no native sidecars")

    async def _read_authority(self) -> str:
        file = self._configuration.operator.broker_ca_file
        if not file:
            return ""
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= AUTHORITY_SECONDS:
            try:
                self._authority = await asyncio.to_thread(Path(file).read_text)
            except (OSError, UnicodeDecodeError) as error:
                if not self._authority:
                    raise NotInjectable(
                        f"the brokers' authority cannot be read: {error}"
                    ) from error
                log.warning("authority.unreadable", file=file, reason=str(error))
            self._read_at = now
        return self._authority
