"""The sentences of ``why``: who writes and why, who lost the topic, who is next, what needs attention.

Pure: facts in, sentences out. A sentence says so if a fact is uncertain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onewriter_core.kubernetes_names import FENCE, HANDOVER, PAUSED, UNMANAGED
from onewriter_core.tables import text
from onewriter_kubectl.objects import (
    Document,
    age,
    annotation,
    condition,
    duration,
    is_set,
    metadata,
    name,
    person,
    selects,
    spec,
    status,
)

Json = dict[str, Any]

WAITERS_SHOWN_MAX: Final = 20
FENCED_SHOWN_MAX: Final = 8

CAUSES: Final[Mapping[str, str]] = {
    "Initial": "the topic had no writer before",
    "Released": "{former} released the topic",
    "ConnectionLost": "the connection of {former} broke",
    "Silent": "{former} was silent: no byte came from it although it was pinged",
    "ProgressDeadline": "{former} published nothing within its progress deadline",
    "TakenOver": "the topic was taken over from {former}, which was notified and answered",
    "Forced": "the topic was taken over from {former}, which was notified and did not answer",
    "Handover": "{former} handed the topic over on request",
    "FencedByAdministrator": "a person fenced {former}",
    "BrokerChanged": "the topic moved to another broker and {former} did not resume in time",
    "GrantLost": "the store lost the record of the grant to {former}",
}
"""Why the former writer lost the topic, by the transition's cause."""

UNKNOWN_CAUSE: Final = "{former} lost the topic for a reason that this version does not know"

_SERVING: Final = ("Serving", "No broker serves it")
_APPLIED: Final = ("PolicyApplied", "The brokers do not have its spec")

OPEN: Final = frozenset({"Pending", "BlockedByPDB", "EvictionFailed"})
"""Outcomes of a fenced pod that are not final."""


@dataclass(frozen=True, slots=True)
class Found:
    """The facts about a topic. ``now`` is Unix time.

    ``budgets`` and ``pods`` (by name) are those of its namespace; None if the caller may not see them.
    ``live``: the answer of the broker that serves it, None if it was not asked. ``operator``: why the
    operator does not lead, empty if it does, None if unknown.
    """

    topic: Document
    now: float
    claims: Sequence[Document] = ()
    budgets: Sequence[Document] | None = ()
    pods: Mapping[str, Document] | None = field(default_factory=dict)
    live: Document | None = None
    operator: str | None = None


def why(found: Found) -> list[str]:
    """The sentences; empty ones separate groups."""
    parts = (
        _unserved(found),
        _holder(found),
        _history(found),
        _queue(found),
        _fenced(found),
        _obstacles(found),
    )
    said: list[str] = []
    for part in parts:
        if part:
            said += [*([""] if said else []), *part]
    return said


# ------------------------------------------------------------ whether it can be written


def _unserved(found: Found) -> list[str]:
    """Why no producer can write now, even if the topic has a holder. It comes first."""
    is_known = condition(found.topic, "Serving").get("status") == "False"
    return _failing(found.topic, (_SERVING,)) if is_known else []


# ------------------------------------------------------------ who writes


def _holder(found: Found) -> list[str]:
    topic, title = found.topic, name(found.topic)
    shown = status(topic)
    what = f"{title} ({text(shown['topic'])})" if shown.get("topic") else title
    active = condition(topic, "WriterActive")
    epoch = shown.get("epoch")
    if not active:
        return [f"{title} was not reconciled yet: its status is empty."]
    holder = shown.get("holder") or {}
    if active.get("status") == "Unknown":
        last = f" The last known writer is {person(holder)}, epoch {epoch}." if holder else ""
        return [
            f"The writer of {what} is unknown at the moment: {text(active.get('message'))}.{last}"
        ]
    if active.get("reason") == "Shared":
        return [f"{what} is written by shared producers."]
    if active.get("status") == "True" and holder:
        return [f"{what} is written by {_described(holder, found.now)}, under epoch {epoch}."]
    if active.get("reason") == "TakingOver":
        return [f"{what} is between two writers: the next one is being granted."]
    last_epoch = f"; its last epoch is {epoch}" if epoch is not None else ""
    return [f"{what} has no writer{last_epoch}."]


def _described(holder: Document, now: float) -> str:
    known = [f"claim {text(holder['claim'])}"] if holder.get("claim") else []
    known += [f"on node {text(holder['node'])}"] if holder.get("node") else []
    since = f"since {text(holder['since'])}" if holder.get("since") else ""
    ago = age(holder.get("since"), now)
    return ", ".join(
        part for part in (person(holder), *known, since + (f" ({ago})" if ago else "")) if part
    )


# ------------------------------------------------------------ how it came to that


def _history(found: Found) -> list[str]:
    """The last transition, and the ones before."""
    rows = _transitions(found)
    if not rows:
        return ["No transition is recorded."] if status(found.topic).get("epoch") else []
    last = rows[0]
    writes = bool(status(found.topic).get("holder"))
    begins = "This began" if writes else "The last transition was"
    now = "has written since" if writes or not last.get("producerName") else "wrote from then on"
    said = [f"{begins} at {text(last['at'])}: {_cause(last, now)}."]
    said += [_gap(last)] if last.get("cause") != "Initial" else []
    if len(rows) > 1:
        said.append(
            f"Before that, at {text(rows[1]['at'])}: {_cause(rows[1], 'wrote from then on')}."
        )
    if len(rows) > 2:
        oldest, title = rows[-1], name(found.topic)
        said.append(
            f"{len(rows)} transitions are recorded since {text(oldest['at'])}"
            f" (kubectl onewriter history {metadata(found.topic).get('name')} has all of {title})."
        )
    return said


def _transitions(found: Found) -> list[Document]:
    """The transitions, newest first, with the former writer if known."""
    shown = list(status(found.topic).get("transitions") or ())
    reported = (found.live or {}).get("transitions") or ()
    changes = [each for each in reported if each.get("kind") != "resume"]
    former = {each.get("epoch"): each.get("previous") for each in changes}
    fenced = {
        (each.get("at"), each.get("cause")): each
        for each in status(found.topic).get("fencedPods") or ()
    }
    rows: list[Document] = []
    for index, row in enumerate(shown):
        if index and not row.get("producerName") and row.get("cause") == rows[-1].get("cause"):
            continue  # a fence whose successor is the previous sentence
        before: Document = next((e for e in shown[index + 1 :] if e.get("producerName")), {})
        known = former.get(row.get("epoch"))
        pod = fenced.get((row.get("at"), row.get("cause")))
        if known is None and pod is not None and before.get("pod") != pod.get("pod"):
            known = {"pod": pod.get("pod"), "epoch": pod.get("epoch")}
        if known is None and before.get("producerName"):
            known = before
        rows.append({**row, "former": known})
    return rows


def _cause(row: Document, writes: str) -> str:
    cause = str(row.get("cause"))
    words = CAUSES.get(cause, UNKNOWN_CAUSE).format(former=_former(row.get("former") or {}))
    new = person(row) if row.get("producerName") else "no producer"
    return f"{words} ({text(cause)}); {new} {writes}, epoch {row.get('epoch')}"


def _former(found: Document) -> str:
    """A former writer: pod, producer and epoch, as far as known."""
    pod = text(found["pod"]) if found.get("pod") else ""
    producer = f"producer {text(found['producerName'])}" if found.get("producerName") else ""
    known = [pod, producer] if pod else [producer or "the former writer"]
    if found.get("epoch") is not None:
        known.append(f"epoch {found['epoch']}")
    first, *others = filter(None, known)
    return f"{first} ({', '.join(others)})" if others else first


def _gap(row: Document) -> str:
    outage, leaderless = row.get("outageMs"), row.get("leaderlessMs")
    if not row.get("producerName"):
        return "No producer was granted the topic since."
    if outage is not None:
        return _outage(row, outage)
    if leaderless is None:
        return "The time without a writer is unknown."
    if leaderless == 0 and row.get("cause") in {"Handover", "Released"}:
        return "There was no gap between the two writers."
    return (
        f"The topic had no writer for {leaderless} ms. How long the former writer was silent before is"
        " unknown."
    )


def _outage(row: Document, outage: int) -> str:
    """The outage with its parts, and the first message of the new writer."""
    if outage == 0:
        said = "There was no gap between the two writers."
    else:
        said = (
            f"No producer could write for {outage} ms: {row.get('detectionMs')} ms from the former writer's"
            f" last sign of life to the fence, and {row.get('handoverMs')} ms until the grant."
        )
    first = row.get("firstMessageMs")
    return (
        said if first is None else f"{said} The first message followed {first} ms after the grant."
    )


# ------------------------------------------------------------ who is next


def _queue(found: Found) -> list[str]:
    waiting = int(status(found.topic).get("waiting") or 0)
    if not waiting:
        return ["No producer waits."]
    waiters = _waiters(found)
    said = [f"{waiting} wait{'s' if waiting == 1 else ''}, in this order:"]
    said += [f"  {place}. {words}" for place, words in waiters[:WAITERS_SHOWN_MAX]]
    not_shown = waiting - min(len(waiters), WAITERS_SHOWN_MAX)
    if not_shown > 0:
        named = "without a claim, or too far behind to be listed"
        said.append(f"  and {not_shown} {named}" + ("." if found.live else " (--live knows more)."))
    return said


def _waiters(found: Found) -> list[tuple[int, str]]:
    if found.live is not None:
        rows = [(each, each.get("claim"), each.get("place")) for each in found.live["waiters"]]
    else:
        rows = [
            (each, metadata(claim).get("name"), each.get("queuePosition"))
            for claim in found.claims
            for each in status(claim).get("producers") or ()
            if each.get("state") == "Waiting" and each.get("queuePosition") is not None
        ]
    described = []
    for row, claim, place in rows:
        words = [person(row)]
        words += [f"claim {text(claim)}"] if claim else []
        words += [f"priority {row['priority']}"] if row.get("priority") else []
        waited = row.get("waitingSeconds")
        words += [f"for {duration(waited)}"] if waited is not None else []
        described.append((int(place or 0), ", ".join(words)))
    return sorted(described)


# ------------------------------------------------------------ pods that were fenced


def _fenced(found: Found) -> list[str]:
    pods = list(status(found.topic).get("fencedPods") or ())
    said = [_fenced_pod(found, pod) for pod in pods[:FENCED_SHOWN_MAX]]
    if len(pods) > FENCED_SHOWN_MAX:
        said.append(f"{len(pods) - FENCED_SHOWN_MAX} more pods were fenced before.")
    return said


def _fenced_pod(found: Found, pod: Document) -> str:
    title = text(pod.get("pod") or pod.get("podUID"))
    past = f"Pod {title} wrote under epoch {pod.get('epoch')} and was fenced ({text(pod.get('cause'))})"
    at = f" at {text(pod.get('at'))}"
    message = f": {text(pod['message'])}" if pod.get("message") else ""
    match pod.get("outcome"):
        case "Evicted":
            became = "it was evicted"
        case "PodGone":
            became = "it ended by itself"
        case "CameBack":
            became = "it registered again and stays"
        case "NotRequested":
            became = f"it was not evicted{message}"
        case "BlockedByPDB":
            became = f"it still exists, because {_budgets(found, pod)}"
        case "EvictionFailed":
            became = (
                f"it still exists, its eviction fails{message}; the operator retries each minute"
            )
        case "Pending":
            became = "it will be evicted unless it registers again within ten seconds"
        case _:
            became = text(pod.get("outcome")) + message
    return f"{past}{at}; {became}."


def _budgets(found: Found, pod: Document) -> str:
    """The PodDisruptionBudgets that protect a pod, as far as the caller may see them."""
    if found.budgets is None or found.pods is None:
        return "a PodDisruptionBudget forbids it (you may not see which one)"
    labels = metadata(found.pods.get(str(pod.get("pod"))) or {}).get("labels") or {}
    named = [
        f"PodDisruptionBudget {text(metadata(budget).get('name'))} allows"
        f" {status(budget).get('disruptionsAllowed', 0)} disruptions"
        f" ({status(budget).get('currentHealthy', '?')} pods are healthy,"
        f" {status(budget).get('desiredHealthy', '?')} must be)"
        for budget in found.budgets
        if selects(spec(budget).get("selector") or {}, labels)
    ]
    return " and ".join(named) or f"a PodDisruptionBudget forbids it ({text(pod.get('message'))})"


# ------------------------------------------------------------ what is in the way


def _obstacles(found: Found) -> list[str]:
    topic = found.topic
    said = [*_switches(found), *_conditions(topic)]
    if int(status(topic).get("observedGeneration") or -1) < int(
        metadata(topic).get("generation") or 0
    ):
        said.append("Its newest manifest was not reconciled yet.")
    for claim in found.claims:
        ready = condition(claim, "Ready")
        if ready.get("status") == "False":
            title = text(metadata(claim).get("name"))
            said.append(
                f"Claim {title} admits no producer ({ready.get('reason')}): {text(ready.get('message'))}."
            )
    if found.operator:
        said.append(
            f"This may be outdated: {text(found.operator)}. Writing and fencing continue without it."
        )
    return said or ([] if _unserved(found) else ["Nothing needs attention."])


def _failing(topic: Document, kinds: Sequence[tuple[str, str]]) -> list[str]:
    """A sentence for each condition that is not True."""
    said = []
    for kind, words in kinds:
        now = condition(topic, kind)
        if now and now.get("status") != "True":
            doubt = "" if now.get("status") == "False" else " as far as is known"
            said.append(f"{words}{doubt} ({now.get('reason')}): {text(now.get('message'))}.")
    return said


def _conditions(topic: Document) -> list[str]:
    is_unknown = condition(topic, "Serving").get("status") == "Unknown"
    said = _failing(topic, (_SERVING, _APPLIED) if is_unknown else (_APPLIED,))
    for kind, words in (
        ("Conflict", "Another object has the topic"),
        ("Stalled", "It cannot continue until a user changes something"),
        ("Drifted", "An object that the operator manages was changed"),
    ):
        now = condition(topic, kind)
        if now.get("status") == "True":
            said.append(f"{words} ({now.get('reason')}): {text(now.get('message'))}.")
    return said


def _switches(found: Found) -> list[str]:
    topic, said = found.topic, []
    if metadata(topic).get("deletionTimestamp"):
        left = ", ".join(map(text, metadata(topic).get("finalizers") or ()))
        said.append(f"It is being deleted; held by {left or 'nothing'}.")
    if is_set(topic, UNMANAGED):
        said.append(f"Annotation {UNMANAGED}: the operator leaves it alone, its status rests.")
    elif is_set(topic, PAUSED):
        said.append(
            f"Annotation {PAUSED}: brokers keep the spec that they have, no pod is evicted."
        )
    for order, words in ((FENCE, "fenced"), (HANDOVER, "handed over")):
        head, _, name = annotation(topic, order).strip().partition(" ")
        number = head.partition("#")[0]
        if number == str(status(topic).get("epoch")):
            to = f" to {text(name)}" if name else ""
            said.append(
                f"Epoch {number} is ordered to be {words}{to} (annotation) and has not been."
            )
    return said
