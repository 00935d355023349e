"""Reject requests that a web page makes a browser send: foreign origins, and DNS rebinding.

The browser names the page of another site in ``Origin`` or ``Sec-Fetch-Site``. A page whose own name was rebound to
this machine has the same origin, but its ``Host`` is not a name of this server.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from multidict import CIMultiDictProxy

FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listen address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Browsers:
    """Checks the headers of the requests to one server.

    ``names`` are its host names. ``checks_host``: the server listens on loopback, so no other name is valid.
    ``allows_same_origin``: its own pages may use it.
    """

    def __init__(
        self, names: Iterable[str] = (), *, checks_host: bool, allows_same_origin: bool = True
    ) -> None:
        self._names = frozenset(name.lower() for name in names if name)
        self._checks_host = checks_host
        self._allows_same_origin = allows_same_origin

    def refusal(self, headers: CIMultiDictProxy[str], *, checks_host: bool = True) -> str | None:
        """Why a request is rejected; None: it is accepted. Never raises."""
        if headers.get("Sec-Fetch-Site", "").strip().lower() in FOREIGN_SITES:
            return "pages of another site may not use this server"
        hosts = headers.getall("Host", [])
        host = _split(f"//{hosts[0]}") if len(hosts) == 1 else None
        if self._checks_host and checks_host and not self._is_ours(host):
            return "the Host header is not a name of this server"
        origins = headers.getall("Origin", [])
        if origins and not (
            self._allows_same_origin
            and len(origins) == 1
            and host is not None
            and _is_same(_split(origins[0]), host)
        ):
            return "pages of another origin may not use this server"
        return None

    def _is_ours(self, host: _Split | None) -> bool:
        return host is not None and (host[1] in self._names or is_loopback(host[1]))


_Split = tuple[str, str, int | None]
"""Scheme, host in lower case without brackets, port."""


def _split(text: str) -> _Split | None:
    try:
        parts = urlsplit(text)
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.scheme, name.lower(), port


def _is_same(origin: _Split | None, host: _Split) -> bool:
    if origin is None or origin[0] not in _DEFAULT_PORTS or origin[1] != host[1]:
        return False
    default = _DEFAULT_PORTS[origin[0]]
    return (origin[2] or default) == (host[2] or default)
