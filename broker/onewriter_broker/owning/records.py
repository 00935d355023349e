"""One record of an ownership in memory, as JSON in the store, and as a line of the audit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from onewriter_broker.log.api import OwnedRecord
from onewriter_core.ids import Identity
from onewriter_core.own.names import split_field
from onewriter_core.own.table import SERVE_SECONDS_MAX, Granted, Owner, Ownership, floor_of


class OwnerEnd(Protocol):
    """The connection of an owner."""

    @property
    def is_gone(self) -> bool:
        """Whether it was lost."""
        ...

    def ownership_lost(
        self, field: str, generation: int, message: str, *, current: int | None, is_moving: bool
    ) -> None:
        """Tell the client at once; ``is_moving``: it may go on at another broker by its nonce."""
        ...


@dataclass(slots=True, eq=False)
class Entry:
    """A record in memory. ``end`` is None when its owner is not connected.

    ``reserved_until``: until then one that a former broker left is waited for. ``registration``
    numbers the registration of the dataset under which it was written last.
    """

    ownership: Ownership
    since_ms: int = 0
    registration: int = 0
    end: OwnerEnd | None = None
    reserved_until: float = 0.0
    waits_seconds: float = 0.0
    """For so long its owner's predecessor may have served when the grant was decided."""
    answer_at: float = 0.0
    """The owner hears that it is one no earlier: until then its predecessor may serve."""

    def current(self, now: float) -> Ownership:
        """The record as the decision table understands it."""
        is_owned = self.end is not None or now < self.reserved_until
        return replace(self.ownership, is_owned=is_owned and self.ownership.owner is not None)

    def encode(self, registration: int) -> OwnedRecord:
        """What the store keeps of it."""
        owner = self.ownership.owner
        fields: dict[str, object] = {"since": self.since_ms, "registration": registration}
        if owner is not None:
            fields["owner"] = {
                "subject": owner.identity.subject,
                "podUID": owner.identity.pod_uid,
                "pod": owner.identity.pod,
                "node": owner.identity.node,
                "identity": owner.name,
                "nonce": owner.nonce,
                "serve": owner.serve_seconds,
            }
            fields["present"] = self.ownership.is_owned
            fields["waits"] = self.waits_seconds
        return OwnedRecord(self.ownership.generation, json.dumps(fields, separators=(",", ":")))


def decode(
    record: OwnedRecord, *, known_since: int, reserved_until: float, now: float = 0.0
) -> Entry:
    """The entry that a stored record makes at a broker that takes its bucket over.

    Whether its owner was answered before is not known: if it had to wait, it waits again.

    What cannot be read counts as nobody's: the generation is what matters, and it has no JSON.
    """
    fields = _object(record.owner)
    kept = fields.get("owner")
    owner = _owner(kept) if isinstance(kept, dict) else None
    registration = _number(fields.get("registration"))
    is_present = owner is not None and fields.get("present") is True
    stored = Ownership(record.generation, owner, is_owned=is_present)
    ownership = floor_of(stored, registration=registration, known_since=known_since)
    return Entry(
        ownership,
        since_ms=_number(fields.get("since")),
        registration=registration,
        reserved_until=reserved_until if ownership.is_owned else 0.0,
        waits_seconds=_seconds(fields.get("waits")),
        answer_at=now + _seconds(fields.get("waits")),
    )


def audit_fields(
    field: str, granted: Granted, former: Ownership, *, broker: str, time_ms: int
) -> Mapping[str, str]:
    """The audit record of a grant."""
    group, resource = split_field(field)
    owner = granted.after.owner
    fields = {
        "kind": "own",
        "resource": resource,
        "group": group,
        "generation": str(granted.after.generation),
        "oldGeneration": str(former.generation),
        "cause": granted.cause.value,
        "broker": broker,
        "t": str(time_ms),
    }
    if owner is not None:
        fields |= _who(owner)
    if granted.deposed is not None:
        fields["former"] = json.dumps(_who(granted.deposed), separators=(",", ":"))
    return {name: value for name, value in fields.items() if value}


def _who(owner: Owner) -> dict[str, str]:
    found = {
        "subject": owner.identity.subject,
        "podUID": owner.identity.pod_uid,
        "pod": owner.identity.pod,
        "node": owner.identity.node,
        "identity": owner.name,
    }
    return {name: value for name, value in found.items() if value}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _seconds(value: object) -> float:
    return min(float(value), SERVE_SECONDS_MAX) if isinstance(value, int | float) else 0.0


def _owner(fields: Mapping[str, object]) -> Owner:
    def text(name: str) -> str:
        value = fields.get(name)
        return value if isinstance(value, str) else ""

    identity = Identity(text("subject"), text("podUID"), text("pod"), text("node"))
    serve_seconds = _seconds(fields.get("serve"))
    return Owner(identity, text("identity"), text("nonce"), serve_seconds)
