"""The guarded writes as commands: a function for each Lua file that builds its arguments.

The functions are pure: they convert a write to the arguments of one EVALSHA, and its reply to
Outcomes. The store sends them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain as flatten

from onewriter_broker.log.store import blocks
from onewriter_broker.log.store.api import (
    Append,
    Binding,
    BrokenKey,
    EpochStatus,
    Fence,
    Guard,
    GuardKind,
    Outcome,
    OwnWrite,
)
from onewriter_broker.log.store.keys import SETTINGS, Keys, LogKeys
from onewriter_core.errors import Undecided
from onewriter_core.ids import Position, TopicName
from onewriter_core.log_format.integers import pack_u32
from onewriter_core.log_format.limits import FORMAT_VERSION

Word = bytes | str | int
"""One argument of a command; str is sent as UTF-8."""

FIELDS_MAX = 1000
"""Largest number of fields that one write sets and removes. The state that a fence sets may have more (for a
lost log it is the whole state): fence.lua processes it in parts. Lua's stack holds about 8000 values."""

TRIM_BLOCKS_MAX = 1000
"""Largest number of blocks dropped by one trim: 0.4 to 0.7 ms of the server's time."""

_OUTCOMES = {
    b"OK": Outcome.DONE,
    b"REFENCE": Outcome.REFENCE,
    b"FENCED": Outcome.FENCED,
    b"LOST": Outcome.LOST,
    b"UNKNOWN": Outcome.UNKNOWN,
    b"STALE": Outcome.STALE,
    b"AHEAD": Outcome.AHEAD,
    b"HELD": Outcome.HELD,
}

_BROKEN = b"BROKEN "


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua file after the common guard, and its digest, by which the server finds it."""

    source: bytes
    digest: str

    def call(self, keys: Sequence[str], arguments: Sequence[Word]) -> list[Word]:
        """The arguments of one EVALSHA."""
        return ["EVALSHA", self.digest, len(keys), *keys, *arguments]


def _load(*names: str) -> Script:
    """The last name is the script; guard.lua and the other names are its includes."""
    folder = resources.files("onewriter_broker.log.store") / "scripts"
    source = b"\n".join((folder / f"{name}.lua").read_bytes() for name in ("guard", *names))
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


STAMP = _load("stamp")
NOTE_REPLID = _load("note_replid")
FENCE = _load("publish", "fence")
APPEND = _load("publish", "blocks", "append")
TOGETHER = _load("publish", "blocks", "together")
SET_STATE = _load("set_state")
SWAP_STATE = _load("swap_state")
TRIM = _load("trim")
AUDIT = _load("audit")
CATALOG = _load("catalog")
COMPACT_BEGIN = _load("compact_begin")
COMPACT_WRITE = _load("compact_write")
COMPACT_FINISH = _load("compact_finish")
COMPACT_DROP = _load("compact_drop")
CHECK = _load("check")
OWN = _load("own")
OWN_DROP = _load("own_drop")
SETTLE_SETTING = _load("settle_setting")
ALL_SCRIPTS = (
    STAMP,
    NOTE_REPLID,
    FENCE,
    APPEND,
    TOGETHER,
    SET_STATE,
    SWAP_STATE,
    TRIM,
    AUDIT,
    CATALOG,
    CHECK,
    OWN,
    OWN_DROP,
    COMPACT_BEGIN,
    COMPACT_WRITE,
    COMPACT_FINISH,
    COMPACT_DROP,
    SETTLE_SETTING,
)


def outcome(reply: object) -> Outcome:
    """The outcome for a script's code. Raises BrokenKey, and Undecided for anything that is not a code."""
    answer = _answer(reply)
    if isinstance(answer, BrokenKey):
        raise answer
    return answer


def _answer(reply: object) -> Outcome | BrokenKey:
    if isinstance(reply, bytes) and reply in _OUTCOMES:
        return _OUTCOMES[reply]
    error = _broken_or_undecided(reply)
    if isinstance(error, BrokenKey):
        return error
    raise error


def _broken_or_undecided(reply: object) -> BrokenKey | Undecided:
    if isinstance(reply, bytes) and reply.startswith(_BROKEN):
        return BrokenKey(reply.removeprefix(_BROKEN).decode(errors="replace"))
    return Undecided(f"the store answered {reply!r} to a guarded write")


def _guard(binding: Binding) -> list[Word]:
    return [binding.replid, binding.generation, binding.owner, binding.version]


def _pairs(fields: Mapping[str, str]) -> list[Word]:
    return [2 * len(fields), *flatten.from_iterable(fields.items())]


def _changes(fields: Mapping[str, str], remove: Sequence[str]) -> list[Word]:
    if len(fields) + len(remove) > FIELDS_MAX:
        raise ValueError(f"one write changes at most {FIELDS_MAX} fields")
    return [*_pairs(fields), *remove]


def stamp(keys: Keys, binding: Binding, *, birthmark: str) -> list[Word]:
    """stamp.lua: name the bucket's owner."""
    arguments = [*_guard(binding), birthmark, FORMAT_VERSION]
    return STAMP.call([keys.unit(binding.bucket)], arguments)


def note_replid(
    keys: Keys, bucket: int, replid: str, observed: int, registered: int, *, lacks: bool
) -> list[Word]:
    """note_replid.lua: note a registration of the dataset in a bucket's record."""
    return NOTE_REPLID.call([keys.unit(bucket)], [replid, observed, registered, int(lacks)])


def fence(
    keys: Keys, fences: Sequence[Fence], audit_records_max: int
) -> tuple[list[Word], list[int]]:
    """fence.lua: the call, and for each of its answers the index of the fence."""
    buckets: dict[Binding, list[int]] = {}
    for index, each in enumerate(fences):
        buckets.setdefault(each.binding, []).append(index)
    key_words: list[str] = []
    arguments: list[Word] = [audit_records_max, len(buckets)]
    order: list[int] = []
    for binding, indexes in buckets.items():
        key_words += [keys.unit(binding.bucket), keys.audit(binding.bucket)]
        arguments += [*_guard(binding), len(indexes)]
        for each in (fences[index] for index in indexes):
            arguments += [each.ledger, *_pairs(each.audit), len(each.logs)]
            for log in each.logs:
                if len(log.marker) > FIELDS_MAX:
                    raise ValueError(f"a marker has at most {FIELDS_MAX} fields")
                key_words += [keys.log(log.topic), keys.state(log.topic)]
                arguments += [int(log.create), *_pairs(log.marker), *_pairs(log.state)]
        order += indexes
    return FENCE.call(key_words, arguments), order


def append(keys: Keys, appends: Sequence[Append]) -> tuple[list[Word], list[int]]:
    """append.lua: the call, and for each of its answers the index of the append."""
    buckets: dict[Binding, dict[tuple[LogKeys, str], list[int]]] = {}
    for index, item in enumerate(appends):
        logs = buckets.setdefault(item.binding, {})
        logs.setdefault((keys.of(item.topic), item.token), []).append(index)
    key_words: list[str] = []
    arguments: list[Word] = [len(buckets)]
    order: list[int] = []
    for binding, logs in buckets.items():
        key_words.append(keys.unit(binding.bucket))
        arguments += [*_guard(binding), len(logs)]
        for (log_keys, token), indexes in logs.items():
            key_words += log_keys
            arguments += [token, len(indexes)]
            for index in indexes:
                guard = appends[index].guard
                arguments += _block_arguments(appends[index])
                if guard is None:
                    arguments.append(b"")
                else:
                    key_words += _guard_keys(keys, binding, guard)
                    arguments += _guard_arguments(guard)
                arguments += _publish_arguments(appends[index])
            order += indexes
    return APPEND.call(key_words, arguments), order


def together(keys: Keys, appends: Sequence[Append]) -> list[Word]:
    """together.lua: blocks of several logs of one bucket, all or none."""
    binding = appends[0].binding
    key_words = [keys.unit(binding.bucket)]
    arguments: list[Word] = [*_guard(binding), len(appends)]
    for item in appends:
        key_words += keys.of(item.topic)
        arguments += [item.token, *_block_arguments(item)]
        if item.guard is None:
            arguments.append(b"")
        else:
            key_words += _guard_keys(keys, binding, item.guard)
            arguments += _guard_arguments(item.guard)
        arguments += _publish_arguments(item)
    return TOGETHER.call(key_words, arguments)


def _block_arguments(item: Append) -> list[Word]:
    block = item.block
    return [
        str(block.position),
        int(item.never_sent),
        pack_u32(block.lengths),
        block.payload,
        block.time_ms,
        block.chain,
        b"" if block.counts is None else pack_u32(block.counts),
    ]


def _guard_keys(keys: Keys, binding: Binding, guard: Guard) -> list[str]:
    """The hash that a guard names, if it is not the log's own state."""
    match guard.kind:
        case GuardKind.EPOCH:
            return [keys.state(TopicName.parse(guard.name))]
        case GuardKind.OWNERSHIP:
            return [keys.own(binding.bucket)]
        case GuardKind.FLOOR:
            return []


def _guard_arguments(guard: Guard) -> list[Word]:
    field = guard.floor_field if guard.kind is GuardKind.FLOOR else guard.name
    return [guard.kind.value, field, guard.number]


def _publish_arguments(item: Append) -> list[Word]:
    if not item.block.publish:
        return [b""]
    app, version = blocks.publish_of(item.block.publish)
    opens = " ".join(str(each.entry) for each in item.opens)
    if opens:
        opens = f"{item.opens[0].ledger} {opens}"
    return [app, version, opens, int(item.block.commits), item.owner, item.block.by]


def outcomes(reply: object, order: Sequence[int]) -> list[Outcome | BrokenKey]:
    """The answers to the writes of one call, in the order in which they were requested."""
    if not isinstance(reply, list) or len(reply) != len(order):
        raise Undecided(f"the store answered {str(reply)[:200]} to guarded writes")
    answers: list[Outcome | BrokenKey] = [Outcome.UNKNOWN] * len(order)
    for index, code in zip(order, reply, strict=True):
        answers[index] = _answer(code)
    return answers


def set_state(
    keys: Keys,
    binding: Binding,
    topic: TopicName,
    token: str,
    fields: Mapping[str, str],
    remove: Sequence[str],
) -> list[Word]:
    """set_state.lua: change a log's state."""
    arguments = [*_guard(binding), token, *_changes(fields, remove)]
    return SET_STATE.call([keys.unit(binding.bucket), keys.state(topic)], arguments)


def swap_state(
    keys: Keys,
    binding: Binding,
    topic: TopicName,
    token: str,
    field: str,
    expected: str | None,
    value: str | None,
) -> list[Word]:
    """swap_state.lua: change a field of a log's state that has the expected value."""
    arguments: list[Word] = [*_guard(binding), token, field]
    for each in (expected, value):
        arguments += [int(each is not None), each or ""]
    return SWAP_STATE.call([keys.unit(binding.bucket), keys.state(topic)], arguments)


def trim(
    keys: Keys,
    binding: Binding,
    topic: TopicName,
    token: str,
    before: Position,
    fields: Mapping[str, str],
    remove: Sequence[str],
) -> list[Word]:
    """trim.lua: drop a log's oldest blocks."""
    arguments = [*_guard(binding), token, str(before), TRIM_BLOCKS_MAX]
    arguments += _changes(fields, remove)
    key_words = [keys.unit(binding.bucket), keys.log(topic), keys.state(topic)]
    return TRIM.call(key_words, arguments)


def write_audit(
    keys: Keys, binding: Binding, record: Mapping[str, str], audit_records_max: int
) -> list[Word]:
    """audit.lua: add an audit record."""
    if not 0 < len(record) <= FIELDS_MAX:
        raise ValueError(f"an audit record has 1 to {FIELDS_MAX} fields")
    arguments = [*_guard(binding), audit_records_max, *flatten.from_iterable(record.items())]
    return AUDIT.call([keys.unit(binding.bucket), keys.audit(binding.bucket)], arguments)


def set_catalog(
    keys: Keys, binding: Binding, fields: Mapping[str, str], remove: Sequence[str]
) -> list[Word]:
    """catalog.lua: change a bucket's catalog."""
    arguments = [*_guard(binding), *_changes(fields, remove)]
    return CATALOG.call([keys.unit(binding.bucket), keys.topics(binding.bucket)], arguments)


def settle_setting(name: str, value: str) -> list[Word]:
    """settle_setting.lua: create a setting once."""
    return SETTLE_SETTING.call([SETTINGS], [name, value])


def settled(reply: object) -> str:
    """The stored setting. Raises like ``outcome``."""
    if isinstance(reply, bytes) and not reply.startswith(_BROKEN):
        return reply.decode(errors="replace")
    raise _broken_or_undecided(reply)


def own(keys: Keys, write: OwnWrite, audit_records_max: int) -> list[Word]:
    """own.lua, own_drop.lua: set records of ownerships, or drop them."""
    if 3 * len(write.records) > FIELDS_MAX:
        raise ValueError(f"one write sets at most {FIELDS_MAX // 3} records of ownerships")
    bucket = write.binding.bucket
    key_words = [keys.unit(bucket), keys.own(bucket), keys.owners(bucket), keys.audit(bucket)]
    if write.dropped or write.floors:
        return OWN_DROP.call(key_words, _dropping(write, audit_records_max))
    arguments = [*_guard(write.binding), write.ledger, audit_records_max, len(write.records)]
    for name, record in write.records.items():
        arguments += [name, record.generation, record.owner]
    for audit in write.audits:
        arguments += _pairs(audit)
    if write.settles and not write.records:
        arguments.append("settle")
    return OWN.call(key_words, arguments)


def _dropping(write: OwnWrite, audit_records_max: int) -> list[Word]:
    """own_drop.lua: drop records of ownerships, and keep their floors."""
    if 2 * len(write.dropped) + 2 * len(write.floors) + len(write.floors_removed) > FIELDS_MAX:
        raise ValueError(f"one write drops and changes at most {FIELDS_MAX} fields")
    if write.records or len(write.audits) != 1:
        raise ValueError("records are dropped by a write of their own, with one audit record")
    arguments: list[Word] = [*_guard(write.binding), audit_records_max, len(write.floors)]
    arguments += flatten.from_iterable(write.floors.items())
    arguments += [len(write.floors_removed), *write.floors_removed, len(write.dropped)]
    arguments += flatten.from_iterable(write.dropped.items())
    return [*arguments, *_pairs(write.audits[0])]


def check(keys: Keys, binding: Binding, topic: TopicName, token: str, *, marks: bool) -> list[Word]:
    """check.lua: prove that a log is served by this binding."""
    arguments = [*_guard(binding), token, int(marks)]
    return CHECK.call([keys.unit(binding.bucket), keys.state(topic)], arguments)


def epoch_status(reply: object) -> EpochStatus | Outcome:
    """The answer of check.lua. Raises like ``outcome``."""
    match reply:
        case [bytes(epoch), bytes(leads)]:
            return EpochStatus(int(epoch), int(leads))
        case _:
            return outcome(reply)
