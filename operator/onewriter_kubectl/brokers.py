"""The brokers' HTTP interface (docs/http.md), from the machine that runs kubectl.

A broker redirects a request about a topic to the broker that serves it, by its DNS name in the cluster;
the plugin replaces that name by a port-forward to the pod. It authenticates with a short-lived token of
a ServiceAccount for the brokers' audience, or with the token of an option.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from onewriter_core.broker_http import Broker
from onewriter_core.errors import Refused, ServerError, Unavailable
from onewriter_core.json_values import Json
from onewriter_kubectl.installation import Installation, pods
from onewriter_kubectl.kubectl import Kubectl
from onewriter_kubectl.tunnel import Tunnel

AUDIENCE: Final = "onewriter"
TOKEN_SECONDS: Final = 600
"""Shortest lifetime of a token in Kubernetes."""

PORT_HTTP: Final = 8080


class Brokers:
    """All brokers of an installation, through any of them. Close it at the end.

    ``url``: a broker that can be reached directly. ``token``: a JWT for it; without one, the plugin
    requests a token for the ServiceAccount ``account`` ([NAMESPACE/]NAME). ``installation`` is called
    only if needed. ``ca_file``: the CAs for an https:// ``url``.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        installation: Callable[[], Installation],
        *,
        url: str = "",
        token: str = "",
        account: str = "",
        ca_file: Path | None = None,
    ) -> None:
        self._kubectl = kubectl
        self._find = installation
        self._url = url
        self._token = token
        self._account = account
        self._ca_file = ca_file
        self._no_token = ""
        self._ports: dict[str, int] = {}
        self._tunnels: dict[str, Tunnel] = {}
        self._urls: dict[str, str] = {}
        self._broker: Broker | None = None

    def get(self, path: str, **query: str | int | None) -> Json:
        """Send a read; see onewriter_core.broker_http.Broker."""
        return self._with_token_error(lambda broker: broker.get(path, **query))

    def post(self, path: str, body: Json) -> Json:
        """Send a change; see onewriter_core.broker_http.Broker."""
        return self._with_token_error(lambda broker: broker.post(path, body))

    def close(self) -> None:
        """End all port-forwards."""
        for tunnel in self._tunnels.values():
            tunnel.close()
        self._tunnels.clear()
        self._urls.clear()
        self._broker = None

    def _with_token_error(self, ask: Callable[[Broker], Json]) -> Json:
        if self._broker is None:
            self._broker = self._connected()
        try:
            return ask(self._broker)
        except Refused as refused:
            if refused.code is ServerError.AUTHENTICATION_ERROR and self._no_token:
                raise Refused(
                    refused.code, f"{refused.message}; no token was obtained: {self._no_token}"
                ) from refused
            raise

    def _connected(self) -> Broker:
        token = self._token or self._made_token()
        if self._url:
            return Broker(self._url, token, ca_file=self._ca_file)
        installation = self._find()
        for pod in pods(self._kubectl, installation, "broker"):
            self._ports[pod.key.name] = pod.port("http") or PORT_HTTP
        if not self._ports:
            raise Unavailable(f"{installation} has no broker pods")
        problems = []
        for name in self._ports:  # the ready ones first
            try:
                return Broker(self._reached(name), token, self._routed)
            except Unavailable as error:
                problems.append(str(error))
        raise Unavailable("; ".join(problems))

    def _made_token(self) -> str:
        """A token by TokenRequest; empty, and the reason, if the caller lacks the right."""
        namespace, _, name = self._account.rpartition("/")
        try:
            if not namespace:
                installation = self._find()
                namespace = installation.namespace
                name = name or installation.component("operator")
            return self._kubectl.text(
                "create",
                "token",
                name,
                f"--audience={AUDIENCE}",
                f"--duration={TOKEN_SECONDS}s",
                namespace=namespace,
            ).strip()
        except Refused as refused:
            self._no_token = str(refused)
            return ""

    def _reached(self, pod: str) -> str:
        """A pod's URL on this machine."""
        if pod not in self._urls:
            namespace = self._find().namespace
            tunnel = Tunnel(self._kubectl, namespace, pod, self._ports[pod])
            self._urls[pod] = tunnel.open()
            self._tunnels[pod] = tunnel
        return self._urls[pod]

    def _routed(self, url: str) -> str:
        """The local URL for a broker's address; raises Unavailable for any other address."""
        parts = urlsplit(url)
        if parts.hostname in {"127.0.0.1", "localhost"}:
            return url  # of the tunnel that it came through
        pod = (parts.hostname or "").partition(".")[0]
        if pod not in self._ports:
            raise Unavailable(
                f"the topic is served at {parts.netloc}, which is not the pod of a broker"
            )
        here = urlsplit(self._reached(pod))
        return urlunsplit((here.scheme, here.netloc, parts.path, parts.query, ""))
