"""An ownership record in memory, as JSON in the store, and as an audit record."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from onewriter_broker.log.store.api import OwnedRecord
from onewriter_core.ids import Identity
from onewriter_core.own.names import split_field
from onewriter_core.own.table import SERVE_SECONDS_MAX, Owner, Ownership, OwnershipGranted, floor_of


class OwnerEnd(Protocol):
    """The connection of an owner."""

    @property
    def is_gone(self) -> bool:
        """Whether the connection is lost."""
        ...

    def ownership_lost(
        self, field: str, generation: int, message: str, *, current: int | None, is_moving: bool
    ) -> None:
        """Notify the client. ``is_moving``: it may continue at another broker with its nonce."""
        ...


@dataclass(slots=True, eq=False)
class OwnershipRecord:
    """A record in memory. ``end`` is None if the owner is not connected.

    ``reserved_until``: until when the resource is reserved for an owner that was connected to the former broker.
    ``registration``: the registration number of the dataset at the last write.
    """

    ownership: Ownership
    since_ms: int = 0
    registration: int = 0
    end: OwnerEnd | None = None
    reserved_until: float = 0.0
    waits_seconds: float = 0.0
    """How long the former owner could still act when the grant was decided."""
    answer_at: float = 0.0
    """Earliest time of the answer to the owner. The former owner may act until then."""
    left_ms: int = 0
    """When the owner left, on the wall clock. Undefined while it is connected."""
    left_at: float = 0.0
    """The same time on this broker's monotonic clock."""

    def current(self, now: float) -> Ownership:
        """The record in the form that the decision table uses."""
        is_owned = self.end is not None or now < self.reserved_until
        return replace(self.ownership, is_owned=is_owned and self.ownership.owner is not None)

    def encode(self, registration: int) -> OwnedRecord:
        """The stored form."""
        owner = self.ownership.owner
        fields: dict[str, object] = {"since": self.since_ms, "registration": registration}
        if self.end is None:
            fields["left"] = self.left_ms
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
    record: OwnedRecord,
    *,
    known_since: int,
    reserved_until: float,
    now: float = 0.0,
    wall_ms: int = 0,
) -> OwnershipRecord:
    """The record in memory of a broker that acquired the bucket, from the stored record.

    It is unknown whether the owner was answered, so an owner that had to wait waits again.

    A malformed owner counts as no owner. The generation is separate from the JSON, and stays valid.
    """
    fields = _object(record.owner)
    kept = fields.get("owner")
    owner = _owner(kept) if isinstance(kept, dict) else None
    registration = _number(fields.get("registration"))
    is_present = owner is not None and fields.get("present") is True
    left_ms = _number(fields.get("left"))
    stored = Ownership(record.generation, owner, is_owned=is_present)
    ownership = floor_of(stored, registration=registration, known_since=known_since)
    return OwnershipRecord(
        ownership,
        since_ms=_number(fields.get("since")),
        registration=registration,
        reserved_until=reserved_until if ownership.is_owned else 0.0,
        waits_seconds=_seconds(fields.get("waits")),
        answer_at=now + _seconds(fields.get("waits")),
        left_ms=left_ms if left_ms > 0 and not is_present else wall_ms,
        left_at=now,
    )


def unanswered_in(
    stored: Mapping[str, OwnedRecord],
    known: Mapping[str, OwnershipRecord],
    dropped: Container[str],
    *,
    now: float,
    wall_ms: int,
) -> dict[str, OwnershipRecord]:
    """Stored records with a higher generation than in memory, without dropped ones.

    They are grants of this broker whose writes seemed to fail. The broker writes them again, because the anchor
    may not know their ledgers. Memory has all earlier grants.
    """
    found: dict[str, OwnershipRecord] = {}
    for field, record in stored.items():
        entry = known.get(field)
        if field in dropped or (entry and record.generation <= entry.ownership.generation):
            continue
        found[field] = decode(record, known_since=0, reserved_until=0.0, now=now, wall_ms=wall_ms)
        found[field].ownership = found[field].ownership.left()
    return found


def audit_fields(
    field: str, granted: OwnershipGranted, former: Ownership, *, broker: str, time_ms: int
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
