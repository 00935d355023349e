"""What a broker reports about itself and its store, as typed values. Pure.

Brokers of an earlier version report nothing. A field that a broker does not send is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from onewriter_core.json_values import mapping, mappings, optional_number, text


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The store as one broker sees it; None: unknown.

    ``is_full``: whether the broker refuses new producers because the store is almost full. ``faults``: what the
    store reports as failed. ``refuses_writes``: whether one of these makes it refuse every write. ``problem``: why it
    is not reachable.
    """

    url: str = ""
    topology: str = ""
    is_reachable: bool | None = None
    durability: str = ""
    memory_bytes_used: int | None = None
    memory_bytes_max: int | None = None
    is_full: bool | None = None
    faults: tuple[str, ...] | None = None
    refuses_writes: bool = False
    problem: str = ""


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
    faults = store.get("faults")
    return BrokerReport(
        text(found.get("version")),
        StoreReport(
            text(store.get("url")),
            text(store.get("topology")),
            _truth(store.get("reachable")),
            text(store.get("durability")),
            optional_number(store.get("memoryBytesUsed")),
            optional_number(store.get("memoryBytesMax")),
            _truth(store.get("full")),
            tuple(map(text, faults)) if isinstance(faults, list) else None,
            refuses_writes=store.get("refusesWrites") is True,
            problem=text(store.get("problem")),
        ),
        tuple(
            (text(each.get("name")), text(each.get("notAfter")))
            for each in mappings(found.get("certificates"))
            if each.get("name") and each.get("notAfter")
        ),
    )


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
