"""Translates a topic's ownership to markers, state fields and audit records, and back.

The functions are pure. docs/log-format.md describes the fields. Every fence writes them, and every load of a topic
reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from onewriter_broker.log.topic_log.log import LedgerSummary
from onewriter_broker.topic.history.transitions import LEADERLESS_MS, former_fields, identity_fields
from onewriter_core.ids import Identity
from onewriter_core.topic.effects import NEW_EPOCH, Fence
from onewriter_core.topic.lookups import tenure_of as tenure_of_partition
from onewriter_core.topic.model import (
    WHOLE,
    Absence,
    Partition,
    ProducerGroup,
    PromotionPolicy,
    Purpose,
    Reserved,
    Tenure,
    TransitionCause,
    Vacant,
)

PRESENT: Final = "present"
"""State field: 1 if the holder was connected at the last record."""

ABSENT_SINCE: Final = "absentSince"
"""State field: since when the holder is disconnected, in milliseconds of the wall clock. Empty: it is connected, or
the time is unknown."""


ABSENT_CAUSE: Final = "absentCause"
"""State field: the value of ``absentSince``, a space, and why the holder is disconnected since then (a
TransitionCause). If the value is another one, the cause is unknown."""


PRESENT_SINCE: Final = "presentSince"
"""State field: since when the holder is connected, at the last record, in milliseconds of the wall clock."""


LEADS: Final = "leads"
"""State field: the epoch of the tenure in ``holder``, or 0 without one. Guarded writes depend on it."""


SINCE: Final = "since"
"""State field: when the epoch was granted, or ended by an administrator, in milliseconds of the wall clock."""


HEARD_AT: Final = "heardAt"
"""State field: the last sign of life of the holder that is disconnected since ``absentSince``, in milliseconds of the
wall clock. Empty or absent: unknown."""


SERVES: Final = "serves"
"""State field: for how many milliseconds a holder may act as the leader after an assurance. It is the longest time
of all holders whose time may not have passed when the field was written."""


def marker_fields(fence: Fence, partition: int, ledger: int, time_ms: int) -> dict[str, str]:
    """The fields of the marker that opens ``ledger`` in one partition."""
    tenure = dict(fence.tenures)[partition]
    epoch = ledger if tenure is None or tenure.epoch == NEW_EPOCH else tenure.epoch
    fields = {"cause": fence.purpose.value, "t": str(time_ms)}
    if tenure is not None:
        fields |= {
            "mode": "exclusive",
            "epoch": str(epoch),
            "producer": tenure.producer_name,
            "subject": str(tenure.identity),
        }
    else:
        fields["mode"] = "none" if fence.purpose is Purpose.DEPOSE else "shared"
    return fields


def state_fields(fence: Fence, partition: Partition, ledger: int, time_ms: int) -> dict[str, str]:
    """The state fields that a fence writes to a log."""
    tenure = dict(fence.tenures)[partition.number]
    begins_epoch = fence.purpose in {Purpose.GRANT, Purpose.DEPOSE}
    fields = {"epoch": str(ledger if begins_epoch else partition.epoch)}
    if tenure is None:
        fields |= {"holder": "", LEADS: "0"}
    else:
        epoch = ledger if tenure.epoch == NEW_EPOCH else tenure.epoch
        fields[LEADS] = str(epoch)
        fields["holder"] = json.dumps(
            {
                "epoch": epoch,
                "producer": tenure.producer_name,
                "subject": tenure.identity.subject,
                "podUID": tenure.identity.pod_uid,
                "pod": tenure.identity.pod,
                "node": tenure.identity.node,
                "claim": tenure.admitted_by,
            }
        )
    winner = fence.group if fence.purpose is Purpose.GRANT else None
    serve_seconds = max(partition.serve_seconds, 0.0 if winner is None else winner.serve_seconds)
    fields[SERVES] = str(round(serve_seconds * 1000))
    if fence.purpose is Purpose.SHARE:
        fields[ABSENT_SINCE] = ""  # there are writers, and their times are not recorded
    if begins_epoch:
        fields[SINCE] = str(time_ms)
        is_granted = fence.purpose is Purpose.GRANT
        fields |= {
            PRESENT: "1" if is_granted else "0",
            PRESENT_SINCE: str(time_ms) if is_granted else "",
            ABSENT_SINCE: "" if is_granted else str(time_ms),
            HEARD_AT: "",
        }
        deposed = dict(fence.deposed)[partition.number]
        fields["deposed"] = json.dumps([[name.subject, name.pod_uid] for name in deposed])
    return fields


def audit_fields(
    fence: Fence,
    topic: str,
    ledger: int,
    first: Partition,
    incarnation: str,
    previous: Mapping[int, LedgerSummary],
    time_ms: int,
) -> dict[str, str]:
    """The audit record of a fence: the winner, the cause, the former holder, and the next waiter.

    ``first`` is the first partition of the fence, as it was before the fence.
    """
    old_epoch = first.epoch
    tenures = dict(fence.tenures)
    tenure = tenures[fence.partitions[0]]
    begins_epoch = fence.purpose in {Purpose.GRANT, Purpose.DEPOSE}
    kept = old_epoch if tenure is None else tenure.epoch
    fields = {
        "kind": fence.purpose.value,
        "topic": topic,
        "partitions": ",".join(
            str(partition) for partition in fence.partitions if partition != WHOLE
        ),
        "ledger": str(ledger),
        "epoch": str(ledger if begins_epoch else kept),
        "oldEpoch": str(old_epoch),
        "cause": _cause(fence, first).value,
        "broker": incarnation,
        "t": str(time_ms),
        "previous": json.dumps(
            {
                str(partition): [str(summary.last), summary.entries, summary.bytes]
                for partition, summary in previous.items()
            }
        ),
    }
    if fence.purpose is Purpose.GRANT and fence.stops and not first.serve_seconds:
        fields[LEADERLESS_MS] = "0"  # a longer gap is recorded when it is over
    if tenure is not None:
        fields |= {"producer": tenure.producer_name, "subject": str(tenure.identity)}
    former = tenure_of_partition(first)
    if begins_epoch and former is not None:
        fields |= former_fields(former)
    if fence.group is not None:
        fields |= group_fields(fence.group) | {"policy": fence.policy.value}
    is_balanced = fence.policy is PromotionPolicy.BALANCED
    if fence.group is not None and is_balanced:
        fields |= {"host": fence.group.host, "load": str(fence.load)}
    if fence.best_loser is not None:
        loser = fence.best_loser
        chosen_by = {"host": loser.host, "load": fence.best_loser_load} if is_balanced else {}
        fields["nextWaiter"] = json.dumps(
            {
                "producer": loser.producer_name,
                "priority": loser.priority,
                "arrival": loser.arrival,
                "slots": loser.partitions,
            }
            | chosen_by
        )
    return fields


def _cause(fence: Fence, first: Partition) -> TransitionCause:
    """Why the last writer stopped: this fence deposed it, or it had left before."""
    if fence.purpose is Purpose.GRANT and first.absence is not None:
        return first.absence.cause
    return fence.cause


def group_fields(group: ProducerGroup) -> dict[str, str]:
    """The fields of a producer group in the audit."""
    return {
        "producer": group.producer_name,
        "subject": str(group.identity),
        "mode": group.mode.name,
        "priority": str(group.priority),
        "arrival": str(group.arrival),
        "claim": group.admitted_by,
        "address": group.address,
        "incarnation": group.group_id,
    } | identity_fields(group.identity)


def partition_of(
    number: int,
    state: Mapping[str, str],
    *,
    may_resume: bool,
    reserved_until: float | None,
    vacant_since: float | None = None,
) -> Partition:
    """A partition from the state of its log, before this broker fences it.

    ``may_resume``: whether the store has all grants, so that its last holder may return (Holding.may_resume).
    ``reserved_until``: until when the topic is reserved for the returning holder. None: it is not reserved.
    ``vacant_since``: since when there is no writer, on this broker's clock. None: unknown.
    """
    epoch = int(state.get("epoch", "0"))
    deposed = tuple(
        Identity(subject, pod_uid) for subject, pod_uid in json.loads(state.get("deposed", "[]"))
    )
    tenure = tenure_of(state) if may_resume else None
    left = None if tenure is None else _left_by(state)
    if tenure is not None:
        cause = left or TransitionCause.MOVED
    else:
        cause = TransitionCause.GRANT_LOST if state.get("holder") else TransitionCause.NONE
    absence = Absence(cause, vacant_since, is_recalled=left is not None)
    ownership: Vacant | Reserved = Vacant(tenure, absence)
    if tenure is not None and reserved_until is not None and state.get(PRESENT) == "1":
        ownership = Reserved(tenure, reserved_until, absence)
    return Partition(
        number,
        epoch=epoch,
        ownership=ownership,
        deposed=deposed,
        serve_seconds=int(state.get(SERVES, "0")) / 1000,
    )


def _left_by(state: Mapping[str, str]) -> TransitionCause | None:
    """Why the holder had left before this broker served the log. None: it had not, or it is unknown."""
    since, _, cause = state.get(ABSENT_CAUSE, "").partition(" ")
    if state.get(PRESENT) != "0" or not since or since != state.get(ABSENT_SINCE):
        return None
    try:
        return TransitionCause(cause)
    except ValueError:
        return None


def tenure_of(state: Mapping[str, str]) -> Tenure | None:
    """The tenure in the state. None: no producer may resume."""
    if not state.get("holder"):
        return None
    holder = json.loads(state["holder"])
    identity = Identity(
        holder["subject"], holder["podUID"], holder.get("pod", ""), holder.get("node", "")
    )
    return Tenure(holder["epoch"], holder["producer"], identity, holder.get("claim", ""))
