"""Which addresses count as one client."""

from __future__ import annotations

import ipaddress
from typing import Final

_PREFIX: Final = 64
"""One host may have all addresses of such an IPv6 network."""


def address_of(peer: object) -> str:
    """An IPv4 address, an IPv6 /64 network, or nothing for all of a unix socket.

    ``peer`` is what a socket says of its other end.
    """
    return network_of(str(peer[0])) if isinstance(peer, tuple) and peer else ""


def network_of(host: str) -> str:
    """The same of a host's address; of anything else that text."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _PREFIX), strict=False))
