"""What a broker reports about itself and its store, as typed values. Pure.

Brokers of an earlier version report nothing. A field that a broker does not send is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_operator.objects import mapping, mappings, optional_number, text


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The store as one broker sees it. ``is_reachable``: None if unknown."""

    url: str = ""
    topology: str = ""
    is_reachable: bool | None = None
    durability: str = ""
    memory_bytes_used: int | None = None
    memory_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """One broker. ``certificates``: name and expiry of each certificate that it uses."""

    version: str = ""
    store: StoreReport = StoreReport()
    certificates: tuple[tuple[str, str], ...] = ()


def parse_report(line: object) -> BrokerReport:
    """A line of type BROKER of a broker's stream."""
    found = mapping(line)
    store = mapping(found.get("store"))
    reachable = store.get("reachable")
    return BrokerReport(
        text(found.get("version")),
        StoreReport(
            text(store.get("url")),
            text(store.get("topology")),
            reachable if isinstance(reachable, bool) else None,
            text(store.get("durability")),
            optional_number(store.get("memoryBytesUsed")),
            optional_number(store.get("memoryBytesMax")),
        ),
        tuple(
            (text(each.get("name")), text(each.get("notAfter")))
            for each in mappings(found.get("certificates"))
            if each.get("name") and each.get("notAfter")
        ),
    )
