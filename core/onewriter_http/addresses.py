"""The addresses that belong to one client."""

from __future__ import annotations

import ipaddress
from typing import Final

_PREFIX: Final = 64
"""One host may use all addresses of an IPv6 network with this prefix."""


def address_of(peer: object) -> str:
    """An IPv4 address, an IPv6 /64 network, or the empty text for all peers of a unix socket.

    ``peer`` is the peer address of a socket.
    """
    return network_of(str(peer[0])) if isinstance(peer, tuple) and peer else ""


def network_of(host: str) -> str:
    """The same for the address of a host; any other text is returned unchanged."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _PREFIX), strict=False))
