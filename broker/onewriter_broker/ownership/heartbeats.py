"""The heartbeat of a broker, as it is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onewriter_broker.anchor.api import Addresses

HOSTS_MAX = 64
"""Hosts whose leaders one heartbeat counts."""

HOST_LENGTH_MAX = 253
"""In characters of JSON, like a domain name; longer names are not reported."""

VALUE_LENGTH_MAX = 1024
"""In characters. Brokers of every version ignore a longer heartbeat, so no broker writes one."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The heartbeat of one broker.

    ``leaving``: the broker must get no buckets, because it stops or cannot serve any yet.
    ``at_ms``: the time on its wall clock; 0 if not reported. It is for users and for the histories of
    topics: no decision depends on it.
    """

    counter: int
    addresses: Addresses
    leaving: bool = False
    at_ms: int = 0
    leads: Mapping[str, int] = field(default_factory=dict)
    """How many topics of this broker each host leads, while a policy asks for it (topic/producers/leader_loads.py)."""
    keeps_floors: bool = True
    """Whether its version lets generations of ownerships begin above floors (own/floors.py)."""

    def encode(self) -> str:
        """As stored: JSON, so that people and other programs can read it.

        ``leads`` is shortened to fit into VALUE_LENGTH_MAX: the hosts that lead least are left out,
        among equal hosts those whose names sort last.
        """
        document: dict[str, object] = {
            "counter": self.counter,
            "leaving": self.leaving,
            "brokerUrl": self.addresses.broker_url,
            "httpUrl": self.addresses.http_url,
            "at": self.at_ms,
            "keepsFloors": self.keeps_floors,
        }
        text = json.dumps(document)
        space = VALUE_LENGTH_MAX - len(text) - len(', "leads": {}')
        leads = self._most_leads(space)
        return json.dumps(document | {"leads": leads}) if leads else text

    def _most_leads(self, space: int) -> dict[str, int]:
        """The hosts that lead most, as many as fit into ``space`` characters of JSON."""
        leads: dict[str, int] = {}
        for host, count in sorted(self.leads.items(), key=lambda each: (-each[1], each[0])):
            written = len(json.dumps(host))
            if written > HOST_LENGTH_MAX + len('""'):
                continue
            space -= written + len(f": {count}, ")
            if space < 0 or len(leads) == HOSTS_MAX:
                break
            leads[host] = count
        return leads

    @classmethod
    def decode(cls, text: str) -> Beat | None:
        """Parse a heartbeat; None for a value that no broker writes."""
        if len(text) > VALUE_LENGTH_MAX:
            return None
        try:
            document = json.loads(text)
            counter = document["counter"]
            leaving = document["leaving"]
            urls = (document["brokerUrl"], document["httpUrl"])
            at_ms = document.get("at", 0)
            leads = document.get("leads", {}).items()
            keeps_floors = document.get("keepsFloors") is True
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if type(counter) is not int or not all(isinstance(url, str) for url in urls):
            return None
        return cls(
            counter,
            Addresses(*urls),
            leaving is True,
            at_ms if type(at_ms) is int else 0,
            {host: count for host, count in leads if type(count) is int and count > 0},
            keeps_floors,
        )


def newest(readings: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The newest heartbeat of each process, of the readings of all shards that answered.

    A broker is alive as long as it reaches one of the shards that the observer reads. So a shard that fails over
    hides no broker, and does not delay that other buckets are taken from a dead one.
    """
    if len(readings) == 1:
        return readings[0]
    found: dict[str, str] = {}
    counters: dict[str, int] = {}
    for reading in readings:
        for member, text in reading.items():
            beat = Beat.decode(text)
            if beat is not None and beat.counter > counters.get(member, -1):
                found[member], counters[member] = text, beat.counter
    return found
