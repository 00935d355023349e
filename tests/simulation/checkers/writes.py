"""S1 to S7 and S12: conditions on logs, grants and receipts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from tests.simulation.history import NEVER, History, Kind, LogEntry, Operation, Outcome

from onewriter_core.ids import Position

EXCLUSIVE = frozenset({"Exclusive", "WaitForExclusive", "ExclusiveWithFencing"})


def order(history: History) -> list[str]:
    """S1: ledgers and topic epochs never fall along a log; a ledger has one epoch."""
    problems: list[str] = []
    for topic in history.topics:
        log = history.logs[topic]
        for before, after in pairwise(log.entries):
            if after.position.ledger < before.position.ledger or after.epoch < before.epoch:
                problems.append(f"{topic}: {before} before {after}")
        epoch_of: dict[int, int] = {}
        for entry in log.entries:
            known = epoch_of.setdefault(entry.position.ledger, entry.epoch)
            if known != entry.epoch:
                problems.append(f"{topic}: ledger {entry.position.ledger} has two epochs")
    return problems


def one_holder(history: History) -> list[str]:
    """S2: an exclusive epoch has one holder, a grant has its own epoch, a ledger has one broker."""
    problems: list[str] = []
    for topic in history.topics:
        holder_of: dict[int, str] = {}
        for entry in history.logs[topic].entries:
            if entry.is_exclusive:
                known = holder_of.setdefault(entry.epoch, entry.holder)
                if known != entry.holder:
                    problems.append(f"{topic}: {known} and {entry.holder} in epoch {entry.epoch}")
        granted: dict[int, Operation] = {}
        for grant in _exclusive_grants(history, topic):
            assert grant.epoch is not None
            other = granted.setdefault(grant.epoch, grant)
            if other is not grant:
                problems.append(f"{topic}: epoch {grant.epoch} for {other} and for {grant}")
    owner_of: dict[tuple[str, int], str] = {}
    for fence in history.of(Kind.REFENCE):
        if fence.outcome is Outcome.OK:
            known = owner_of.setdefault((fence.topic, fence.ledger), fence.process)
            if known != fence.process:
                problems.append(f"{fence.topic}: ledger {fence.ledger} opened by two brokers")
    return problems


def real_time(history: History) -> list[str]:
    """S3: a later grant has a higher epoch, and a later fence has a higher ledger."""
    problems: list[str] = []
    for topic in history.topics:
        grants = _exclusive_grants(history, topic)
        highest = _Highest((grant.completed, grant.epoch or 0) for grant in grants)
        for grant in grants:
            before = highest.before(grant.invoked)
            if before >= (grant.epoch or 0):
                problems.append(f"{topic}: epoch {grant.epoch} granted after {before}: {grant}")
        for resume in history.of(Kind.RESUME, topic):
            if resume.outcome is Outcome.OK and resume.mode in EXCLUSIVE:
                before = highest.before(resume.invoked)
                if before > (resume.epoch or 0):
                    problems.append(f"{topic}: resumed after {before} was granted: {resume}")
    fences: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for fence in history.of(Kind.REFENCE):
        if fence.outcome is Outcome.OK:
            fences[fence.topic, fence.replid].append(fence)
    for done in fences.values():
        highest = _Highest((fence.completed, fence.ledger) for fence in done)
        problems += [
            f"a later fence has a lower ledger: {fence}"
            for fence in done
            if highest.before(fence.invoked) > fence.ledger
        ]
    return problems


def fence_is_final(history: History) -> list[str]:
    """S4: an operation invoked after a newer epoch (or ledger) was known is neither ok nor stored."""
    problems: list[str] = []
    for topic in history.topics:
        known = [
            (o.completed, o.epoch or 0)
            for o in history.operations
            if o.topic == topic
            and o.outcome is Outcome.OK
            and (
                (o.kind in {Kind.GRANT, Kind.APPEND} and o.mode in EXCLUSIVE)
                or o.kind in {Kind.FENCE, Kind.HANDOVER}
            )
        ]
        highest = _Highest(known)
        stored = {entry.value for entry in history.logs[topic].entries}
        destroyed = history.destroyed.get(topic, {})
        for append in history.of(Kind.APPEND, topic):
            if append.mode not in EXCLUSIVE or append.epoch is None:
                continue
            newer = highest.before(append.invoked)
            if newer <= append.epoch:
                continue
            if append.value in stored:
                problems.append(f"{topic}: stored although {newer} was known: {append}")
            elif append.outcome is Outcome.OK and append.value not in destroyed:
                problems.append(f"{topic}: ok although {newer} was known: {append}")
    fences: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for fence in history.of(Kind.REFENCE):
        if fence.outcome is Outcome.OK:
            fences[fence.topic, fence.replid].append((fence.completed, fence.ledger))
    floors = {key: _Highest(done) for key, done in fences.items()}
    for write in history.of(Kind.WRITE):
        floor = floors.get((write.topic, write.replid))
        if write.outcome is Outcome.OK and floor is not None:
            newer = floor.before(write.invoked)
            if newer > write.ledger and not _was_stored_before(write, history):
                problems.append(f"written under {write.ledger} after {newer} was fenced: {write}")
    return problems


def _was_stored_before(write: Operation, history: History) -> bool:
    """Return whether the write repeats one that is stored. The store answers DONE and changes nothing."""
    return any(
        other.position == write.position
        and other.values == write.values
        and other.invoked < write.invoked
        for other in history.of(Kind.WRITE, write.topic)
    )


def acks(history: History) -> list[str]:
    """S5: an ok send is stored once at its position, a failed one never, an unknown one at most once."""
    problems: list[str] = []
    for topic in history.topics:
        entries = history.logs[topic].entries
        counts = Counter(entry.value for entry in entries)
        places = {entry.value: entry.position for entry in entries}
        destroyed = history.destroyed.get(topic, {})
        for append in history.of(Kind.APPEND, topic):
            count = counts[append.value]
            match append.outcome:
                case Outcome.OK if count == 0:
                    problems += _missing(history, topic, append, destroyed)
                case Outcome.OK if count > 1:
                    problems.append(f"{topic}: {count} times: {append}")
                case Outcome.OK if append.position != places[append.value]:
                    place = places[append.value]
                    if not _is_unknown(append.position) and append.value not in destroyed:
                        problems.append(f"{topic}: is at {place}: {append}")
                case Outcome.FAIL if count > 0:
                    problems.append(f"{topic}: refused, but stored: {append}")
                case Outcome.INFO if count > 1:
                    problems.append(f"{topic}: {count} times: {append}")
                case _:
                    pass
    return problems


def _is_unknown(position: Position | None) -> bool:
    """Return whether a receipt has no position: the broker no longer remembers where the resent message is stored."""
    return position is None or position.ledger == 2**64 - 1


def _missing(
    history: History, topic: str, append: Operation, destroyed: Mapping[str, float]
) -> list[str]:
    """An acknowledged entry may be missing only if its profile does not protect it and a broker reported the loss."""
    if append.value not in destroyed:
        return [f"{topic}: acknowledged, but not stored: {append}"]
    if append.value in history.unreportable or append.position is None:
        return []
    for loss in history.losses:
        # A broker reports the ledgers that it knows. If a whole ledger is lost (``after`` is its marker), older ledgers
        # that the broker never read may be lost, too.
        is_counted = loss.after < append.position or loss.after.entry == 0
        if loss.topic == topic and is_counted and append.position <= loss.last:
            return []
    return [f"{topic}: lost, and no broker reported it: {append}"]


def prefixes(history: History) -> list[str]:
    """S6: a holder's messages are in order, none twice, and without holes before a stored one."""
    problems: list[str] = []
    for topic in history.topics:
        sent: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for append in history.of(Kind.APPEND, topic):
            sent[append.holder, append.epoch or 0][append.number] = append.value
        by_holder: dict[tuple[str, int], list[LogEntry]] = defaultdict(list)
        for entry in history.logs[topic].entries:
            epoch = entry.epoch if entry.is_exclusive else 0
            by_holder[entry.holder, epoch].append(entry)
        destroyed = history.destroyed.get(topic, {})
        stored = {entry.value for entry in history.logs[topic].entries}
        for (holder, epoch), entries in by_holder.items():
            for before, after in pairwise(entries):
                if after.number <= before.number:
                    problems.append(f"{topic}: {holder}: {after.number} after {before.number}")
            there = {entry.number for entry in entries}
            for number, value in _sent_by(sent, holder, epoch).items():
                is_hole = number < max(there) and number not in there and value not in stored
                if is_hole and value not in destroyed:
                    problems.append(f"{topic}: {holder}: {number} is missing before {max(there)}")
    return problems


def _sent_by(
    sent: dict[tuple[str, int], dict[int, str]], holder: str, epoch: int
) -> dict[int, str]:
    if epoch:
        return sent.get((holder, epoch), {})
    found: dict[int, str] = {}  # of a Shared producer, under all its epochs
    for (name, _), values in sent.items():
        if name == holder:
            found |= values
    return found


def reads_agree(history: History) -> list[str]:
    """S7: all readers see one value at one position; a read is a prefix of the log."""
    problems: list[str] = []
    for topic in history.topics:
        entries = history.logs[topic].entries
        destroyed = history.destroyed.get(topic, {})
        value_at = {entry.position: entry.value for entry in entries}
        for operation in history.operations:
            if operation.topic != topic or operation.outcome is not Outcome.OK:
                continue
            seen = list(operation.values) if operation.kind is Kind.READ else []
            if operation.kind is Kind.DELIVER and operation.position is not None:
                seen = [(operation.position, operation.value)]
            for position, value in seen:
                present = value_at.get(position)
                if present is None and value in destroyed:
                    continue
                if present != value:
                    problems.append(
                        f"{topic}: {position} is {present}, but a reader received {value}"
                    )
            if operation.kind is Kind.READ and seen:
                there = {position for position, _ in seen}
                last = max(there)
                problems += [
                    f"{topic}: a read left out {entry.position}: {entry.value}"
                    for entry in entries
                    if entry.position <= last
                    and entry.position not in there
                    # The entry was destroyed before the read, and restored later by a restart from an older file.
                    and destroyed.get(entry.value, NEVER) > operation.completed_at
                ]
                if [position for position, _ in seen] != sorted(there):
                    problems.append(f"{topic}: a read is out of order or repeats")
    return problems


def fence_is_remembered(history: History) -> list[str]:
    """S12: the stored epoch and ledger are not below the highest that was ever granted."""
    problems: list[str] = []
    for topic in history.topics:
        log = history.logs[topic]
        granted = max((g.epoch or 0 for g in _exclusive_grants(history, topic)), default=0)
        if log.epoch < granted:
            problems.append(f"{topic}: epoch {log.epoch} is stored, {granted} was granted")
        if log.ledger < granted:
            problems.append(f"{topic}: ledger {log.ledger} is stored, {granted} was granted")
    return problems


def _exclusive_grants(history: History, topic: str) -> list[Operation]:
    return [
        grant
        for grant in history.of(Kind.GRANT, topic)
        if grant.outcome is Outcome.OK and grant.mode in EXCLUSIVE
    ]


class _Highest:
    """The highest number among those known before a moment. Moments are places in the order of events."""

    def __init__(self, known: Iterable[tuple[int, int]]) -> None:
        pairs = sorted(known)
        self._moments: list[int] = []
        self._highest: list[int] = []
        highest = 0
        for moment, number in pairs:
            if moment < NEVER:
                highest = max(highest, number)
                self._moments.append(moment)
                self._highest.append(highest)

    def before(self, moment: int) -> int:
        """Return 0 if nothing was known yet."""
        index = bisect_left(self._moments, moment)
        return self._highest[index - 1] if index else 0
