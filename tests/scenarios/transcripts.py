"""Transcripts of the topic machine: read them, play them against ``step``, write them again.

A transcript is a text that is read from top to bottom::

    topic                               the topic at the start
    > ask A Exclusive                   an event
      fence grant A                     the effects that the machine returns, in order
    > stored ledger=1
      grant A epoch 1
    = Held A epoch 1                    the state of the topic now

``> fence`` and ``> handover`` are orders of an administrator. ``fence`` in a line of effects asks the store for a fence.

``A2.1`` is a registration: the second connection of producer A, for partition 1. Each producer authenticates
with an identity of its own. Times are seconds since the start. Lines that begin with ``#`` are comments.

The expectations are in the ``*.txt`` files. ``play`` also checks the invariants (tests/topic_invariants.py) at each line.
"""

from __future__ import annotations

import re
import shlex

from tests.topic_invariants import check, check_step
from tests.violation import Violation

from onewriter_core.ids import Identity
from onewriter_core.topic.effects import (
    NEW_EPOCH,
    Answer,
    Close,
    Effect,
    Fence,
    Grant,
    Probe,
    Queue,
    Record,
    Reject,
    Suspect,
)
from onewriter_core.topic.events import (
    ClockTicked,
    DatasetChanged,
    Event,
    FenceRefused,
    FenceRequested,
    FenceStored,
    HandoverRequested,
    LedgerFull,
    LoadsChanged,
    PartitionsAdded,
    PolicyChanged,
    ProducerGone,
    ProducerRequested,
    Unloaded,
)
from onewriter_core.topic.machine import step
from onewriter_core.topic.model import (
    WHOLE,
    AccessMode,
    Draining,
    Held,
    Ownership,
    Partition,
    PromotionPolicy,
    Request,
    Reserved,
    Shared,
    Tenure,
    Topic,
    TransitionCause,
    Vacant,
)
from onewriter_core.topic.waiters import in_order

MODES = {
    "Shared": AccessMode.SHARED,
    "Exclusive": AccessMode.EXCLUSIVE,
    "Wait": AccessMode.WAIT_FOR_EXCLUSIVE,
    "Fencing": AccessMode.EXCLUSIVE_WITH_FENCING,
}
DEPARTURES = {
    "closed": TransitionCause.CLOSED,
    "lost": TransitionCause.CONNECTION_LOST,
    "silent": TransitionCause.SILENT,
}
_REGISTRATION = re.compile(r"(?P<name>[A-Z][a-z]*)(?P<connection>[0-9]*)(\.(?P<partition>[0-9]+))?")


class UnplayableLine(Exception):
    """A line that cannot be read, or an event that the machine cannot execute. The text names the line."""


def play(transcript: str) -> str:
    """The same transcript with the effects and states that the machine really has.

    Raises Violation if a step breaks an invariant, and UnplayableLine for any other failure. Both name the line.
    """
    lines: list[str] = []
    topic, now = Topic(()), 0.0
    for number, line in enumerate(transcript.splitlines(), 1):
        try:
            topic, now, played = _play_line(line, topic, now)
        except Violation as violation:
            raise Violation(f"line {number}: {line}: {violation}") from violation
        except Exception as error:
            name = type(error).__name__
            raise UnplayableLine(f"line {number}: {line}: {name}: {error}") from error
        lines += played
    return "\n".join(lines) + "\n"


def _play_line(line: str, topic: Topic, now: float) -> tuple[Topic, float, list[str]]:
    """The topic and the time after a line, and the lines that replace it."""
    words = shlex.split(line, comments=True)
    if line.startswith("topic"):
        return _topic(words[1:]), now, [line]
    if line.startswith(">"):
        if words[1] == "tick":
            now = float(words[2])
        event = _event(words[1], words[2:], topic, now)
        after, effects = step(topic, event)
        check(after)
        check_step(topic, event, after, effects)
        return after, now, [line, *(f"  {_effect(effect)}" for effect in effects)]
    if line.startswith("="):
        return topic, now, [f"= {_state(topic)}"]
    return topic, now, [] if line.startswith("  ") else [line]


def _options(words: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _person(name: str) -> Identity:
    return Identity(name.lower(), f"pod of {name}")


def _topic(words: list[str]) -> Topic:
    given = _options(words)
    epoch, ledger = int(given.get("epoch", "0")), int(given.get("ledger", "0"))
    ownership: Ownership = Vacant()
    if "left-by" in given:
        ownership = Vacant(Tenure(epoch, given["left-by"], _person(given["left-by"])))
    elif "reserved-for" in given:
        tenure = Tenure(epoch, given["reserved-for"], _person(given["reserved-for"]))
        ownership = Reserved(tenure, float(given["until"]))
    count = int(given.get("partitions", "0"))
    numbers = range(count) if count else (WHOLE,)
    partitions = tuple(Partition(n, epoch, ledger, ownership=ownership) for n in numbers)
    return Topic(partitions, PromotionPolicy(given.get("policy", "Priority")))


def _event(verb: str, words: list[str], topic: Topic, now: float) -> Event:
    given = _options(words)
    match verb:
        case "ask":
            return ProducerRequested(_request(words[0], words[1], _options(words[2:])), now)
        case "gone":
            return ProducerGone(words[0], DEPARTURES[words[1]], now)
        case "stored":
            assured_at = float(given["assured"]) if "assured" in given else None
            return FenceStored(topic.fences_started, int(given["ledger"]), now, assured_at)
        case "refused":
            return FenceRefused(topic.fences_started, words[0], now)
        case "tick":
            return ClockTicked(now, float(given.get("resumable-until", "0")))
        case "handover":
            if_epoch = _number(given.get("if-epoch"))
            return HandoverRequested("admin", given.get("to", ""), now, if_epoch)
        case "fence":
            return FenceRequested("admin", _number(given.get("if-epoch")), now)
        case "full":
            return LedgerFull(int(given.get("partition", WHOLE)), now)
        case "failover":
            return DatasetChanged(grants_known=words[0] == "grants-known", now=now)
        case "add":
            return PartitionsAdded((Partition(int(given["partition"])),), now)
        case "loads":
            return LoadsChanged(tuple((host, int(load)) for host, load in given.items()), now)
        case "policy":
            return PolicyChanged(PromotionPolicy(words[0]), now)
        case "unload":
            return Unloaded(words[0], now)
        case _:
            raise ValueError(f"nothing is called {verb!r}")


def _request(registration: str, mode: str, given: dict[str, str]) -> Request:
    match = _REGISTRATION.fullmatch(registration)
    if match is None:
        raise ValueError(f"not a registration: {registration!r}")
    name = match["name"]
    return Request(
        registration,
        connection=name + match["connection"],
        producer_name=given.get("name", f"invented-{registration}" if "unnamed" in given else name),
        mode=MODES[mode],
        partition=WHOLE if match["partition"] is None else int(match["partition"]),
        alone="alone" in given,
        name_given="unnamed" not in given,
        identity=Identity() if "anonymous" in given else _person(given.get("who", name)),
        priority=int(given.get("priority", "0")),
        topic_epoch=_number(given.get("epoch")),
        reconnects=int(given.get("reconnects", "0")),
        admitted_by=given.get("claim", ""),
        may_take_over="may-not-take-over" not in given,
        if_epoch=_number(given.get("if-epoch")),
        host=given.get("host", ""),
        serve_seconds=float(given.get("serves", "0")),
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _effect(effect: Effect) -> str:
    match effect:
        case Fence():
            return _fence(effect)
        case Grant(registration, _, _, epoch, resumed):
            return f"{'resume' if resumed else 'grant'} {registration} epoch {epoch or 'none'}"
        case Queue(registration):
            return f"queue {registration}"
        case Reject(registration, code, message):
            return f'reject {registration} {code.name} "{message}"'
        case Close(registration, cause):
            return f"close {registration} {cause.value}"
        case Probe(registration):
            return f"probe {registration}"
        case Suspect(registration, claimed, stored):
            return f"suspect {registration}: claims epoch {claimed}, stored is {stored}"
        case Record(partitions, purpose, old, epoch, ledger, holder, cause, gap):
            who = "nobody" if holder is None else holder.producer_name
            what = f"record {purpose.value}{_where(partitions)} {who}, epoch {old} -> {epoch}"
            without = "" if gap is None else f", {gap:g} s without a writer"
            return f"{what}, ledger {ledger}, after {cause.value}{without}"
        case Answer(_, epoch, refusal):
            return f"answer: {refusal or 'done'} (epoch {epoch})"


def _fence(fence: Fence) -> str:
    words = [f"fence {fence.purpose.value}{_where(fence.partitions)}"]
    if fence.group is not None:
        words.append(fence.group.producer_name)
    if fence.stops:
        words.append("stops " + " ".join(fence.stops))
    if (kept := {tenure for _, tenure in fence.tenures if tenure is not None}) and all(
        tenure.epoch != NEW_EPOCH for tenure in kept
    ):
        words.append("keeps " + " ".join(f"{t.producer_name}@{t.epoch}" for t in kept))
    if deposed := {str(who) for _, names in fence.deposed for who in names}:
        words.append("deposed " + " ".join(sorted(name.partition(" ")[0] for name in deposed)))
    if fence.best_loser is not None:
        words.append(f"next {fence.best_loser.producer_name}")
    return ", ".join(words)


def _where(partitions: tuple[int, ...]) -> str:
    return "" if partitions == (WHOLE,) else f" [{' '.join(map(str, partitions))}]"


def _state(topic: Topic) -> str:
    parts = []
    for partition in topic.partitions:
        number = "" if partition.number == WHOLE else f"[{partition.number}] "
        parts.append(f"{number}{_ownership(partition.ownership)} epoch {partition.epoch}")
    if topic.pending_fence is not None:
        waits = f", told at {topic.phase.until:g}" if isinstance(topic.phase, Draining) else ""
        parts.append(
            f"fence pending for {topic.pending_fence.purpose.value}{_where(topic.pending_fence.partitions)}{waits}"
        )
    if topic.queue:
        order = in_order(topic.queue, topic)
        parts.append("waiting " + " ".join(w.producer_name for w in order))
    if topic.deferred:
        parts.append("deferred " + " ".join(r.registration for r in topic.deferred))
    if topic.held_back:
        parts.append("held back " + " ".join(h.request.registration for h in topic.held_back))
    return "; ".join([*parts, *(["closed"] if topic.is_closed else [])])


def _ownership(ownership: Ownership) -> str:
    match ownership:
        case Vacant(tenure):
            return "Vacant" if tenure is None else f"Vacant, {tenure.producer_name} may come back,"
        case Reserved(tenure, until):
            return f"Reserved for {tenure.producer_name} until {until:g},"
        case Shared(producers):
            return "Shared " + " ".join(p.registration for p in producers)
        case Held(tenure):
            return f"Held {tenure.producer_name}"
