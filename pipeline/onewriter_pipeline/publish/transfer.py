"""Transfers a batch to its logs: tasks route and stage rows, and the driver publishes them, log by log.

Each log receives its rows atomically and once. Several logs receive theirs one after the other. If a batch was
published to some of them only, repeating it completes it; the other logs answer that they have it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from onewriter_core.ids import TopicName
from onewriter_core.log_format.limits import (
    PUBLISH_BYTES_MAX,
    PUBLISH_ENTRIES_MAX,
    PUBLISH_VERSION_MAX,
)
from onewriter_pipeline.brokers.connection import Access, Connection, understood
from onewriter_pipeline.brokers.names import log_name
from onewriter_pipeline.errors import Away, Conflict, Invalid, MissingPart
from onewriter_pipeline.lead.requests import Grant
from onewriter_pipeline.publish.hashing import JAVA
from onewriter_pipeline.publish.parts import ENTRY_HEAD_BYTES, FRAME_ROWS
from onewriter_pipeline.publish.router import LOGS_MAX, Router, check_topics
from onewriter_pipeline.publish.staging import (
    DISCARD_SECONDS,
    OVERTAKEN,
    Part,
    Publication,
    Stager,
    Staging,
    discard_all,
    staged_path,
)

if TYPE_CHECKING:
    import pyarrow as pa

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
GUARANTEES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE)

PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Rows for all logs that one task keeps in memory before it stages some of them."""

PUBLISHES_AT_ONCE: Final = 4
"""Logs to which one batch is published concurrently."""

_MAY_PASS: Final = (Away, Conflict, MissingPart)
"""Errors that may not occur again when a batch is repeated."""

_Found = TypeVar("_Found")

VERSIONS_TRIED_MAX: Final = 10
"""Attempts to find a free version for a batch that is published at least once, because others may use the same app.
"""

_AGAIN_SUFFIX: Final = ":at-least-once"
"""Suffix of the app for at-least-once publishes, whose versions are not those of batches."""

_RANDOM: Final = 2**20
"""Maximum of the random step between versions, so that concurrent publishers do not choose the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """Limits of one task and of one publish. Tests pass smaller ones."""

    pending_bytes_max: int = PENDING_BYTES_MAX
    entries_max: int = PUBLISH_ENTRIES_MAX
    discard_seconds: float = DISCARD_SECONDS
    """How long a failed task tries to drop what it has staged."""


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """The target of batches, and how to publish to it; can be pickled.

    ``topic`` empty: each row names its own. ``grants``: the epochs that lead, by full names of topics or of single
    partitions. Rows can be staged for topics without a grant, but not published.
    """

    access: Access
    topic: str = ""
    grants: Mapping[str, Grant] = field(default_factory=dict)
    is_led: bool = False
    """Whether a user's program leads; then rows for topics without its epoch are refused."""
    scheme: str = JAVA
    guarantee: str = EXACTLY_ONCE
    frame_rows: int = FRAME_ROWS
    limits: TransferLimits = TransferLimits()

    def app(self, app: str) -> str:
        """The name under which an app's batches are staged and published."""
        return app + _AGAIN_SUFFIX if self.guarantee == AT_LEAST_ONCE else app

    def grant(self, log: str) -> Grant | None:
        """The epoch under which a log is written, if it is known. Raises Invalid."""
        topic = str(log_name(log).base)
        found = self.grants.get(log, self.grants.get(topic))
        if found is None and self.is_led:
            raise Invalid(f"epoch: rows are for {topic}, whose epoch is not given")
        return found


@dataclass(frozen=True, slots=True)
class StagedLog:
    """What one task has staged for one log: at least one part."""

    log: str
    parts: tuple[Part, ...]


def stage(
    target: PublishTarget,
    app: str,
    version: int,
    task: tuple[int, int],
    batches: Iterable[pa.RecordBatch],
) -> tuple[StagedLog, ...]:
    """Route and stage the rows of one task, its partition and attempt. Raises PipelineError.

    If the rows end in an error, what was staged is dropped.
    """
    name = target.app(app)
    stagers: dict[str, Stager] = {}
    with contextlib.closing(Connection(target.access)) as connection:
        count = partial(_partitions, connection, target, name, version)
        router = Router(target.topic, app, version, target.scheme, count)

        def opened(log: str) -> Stager:
            staging = Staging(target.access, log, name, version, target.grant(log), connection)
            return staging.stager(*task, frame_rows=target.frame_rows)

        try:
            for batch in batches:
                for log, rows in router.route(batch):
                    if log not in stagers:
                        stagers[log] = opened(log)
                        _check_logs(stagers)
                    stagers[log].add(rows)
                _make_space(stagers.values(), target.limits.pending_bytes_max)
            for stager in stagers.values():
                stager.flush()
        except Exception as error:
            discard_all(stagers.values(), error, seconds=target.limits.discard_seconds)
            raise
    return tuple(StagedLog(log, tuple(stagers[log].parts)) for log in sorted(stagers))


def publish(
    target: PublishTarget, app: str, version: int, staged: Iterable[StagedLog]
) -> dict[str, Publication]:
    """Publish what all tasks have staged, in their order, log by log. May be repeated.

    Raises the errors of ``Staging.publish``. If there are several logs, all of them are asked first whether they
    would accept the publish. If a later log fails nevertheless, some logs have the batch; a note on the error says
    so.
    """
    parts = _parts_by_log(staged)
    if not parts and target.topic:  # no task has rows: check whether this driver still leads
        parts = {_first_log(target, app, version): []}
    _check_bounds(parts, target.app(app), target.limits.entries_max)

    def one(log: str) -> Publication:
        return _publish_one(target, app, version, log, parts[log])

    if len(parts) <= 1:
        return {log: one(log) for log in parts}
    _ask_all(target, app, version, sorted(parts))
    return _published_side_by_side(one, sorted(parts))


def discard(target: PublishTarget, app: str, version: int, staged: Iterable[StagedLog]) -> None:
    """Drop what these tasks have staged. Published rows and rows of others stay. May be repeated."""
    for log, parts in _parts_by_log(staged).items():
        with Staging(target.access, log, target.app(app), version, target.grant(log)) as staging:
            staging.discard(parts)


def _make_space(stagers: Iterable[Stager], bytes_max: int) -> None:
    stagers = list(stagers)
    while sum(stager.pending for stager in stagers) > bytes_max:
        max(stagers, key=lambda stager: stager.pending).flush()


def _parts_by_log(staged: Iterable[StagedLog]) -> dict[str, list[Part]]:
    parts: dict[str, list[Part]] = {}
    for each in staged:
        parts.setdefault(each.log, []).extend(each.parts)
    return parts


def _check_bounds(parts: Mapping[str, Sequence[Part]], app: str, entries_max: int) -> None:
    """Raise Invalid for logs whose part is too large, before others are published."""
    check_topics({log_name(log).base for log in parts})
    _check_logs(parts)
    for log, of_log in parts.items():
        entries = sum(part.entries for part in of_log)
        if entries > entries_max:
            raise Invalid(
                f"{entries} entries of one batch are for {log}, and at most {entries_max} are"
                " published as a whole: put more rows into each (rowsPerEntry), or make the batches smaller"
            )
        heads = entries * (ENTRY_HEAD_BYTES + len(app))
        size = max(
            sum(part.bytes for part in of_log), sum(part.entry_bytes for part in of_log) + heads
        )
        if size > PUBLISH_BYTES_MAX:
            raise Invalid(
                f"{size} bytes of one batch are for {log}, and at most {PUBLISH_BYTES_MAX} are published"
                " as a whole: make the batches smaller"
            )


def _check_logs(logs: Sized) -> None:
    if len(logs) > LOGS_MAX:
        raise Invalid(
            f"rows of one batch are for more than {LOGS_MAX} partitions: write it in several"
        )


def _side_by_side(
    one: Callable[[str], _Found], logs: Sequence[str]
) -> tuple[dict[str, _Found], dict[str, BaseException]]:
    """The results of the logs, and the errors of the others."""
    with ThreadPoolExecutor(PUBLISHES_AT_ONCE, thread_name_prefix="onewriter-publish") as pool:
        futures = {log: pool.submit(one, log) for log in logs}
    errors = {
        log: error for log, each in futures.items() if (error := each.exception()) is not None
    }
    return {log: each.result() for log, each in futures.items() if log not in errors}, errors


def _telling(errors: Mapping[str, BaseException]) -> tuple[str, BaseException]:
    """The most informative of several errors: one that a retry would repeat."""
    return max(errors.items(), key=lambda each: not isinstance(each[1], _MAY_PASS))


def _ask_all(target: PublishTarget, app: str, version: int, logs: Sequence[str]) -> None:
    """Ask all logs before publishing to the first one. Raises PipelineError if one refuses."""
    # At-least-once publishes choose their versions later, so none of them can be a duplicate.
    number = version if target.guarantee == EXACTLY_ONCE else PUBLISH_VERSION_MAX - 1

    def ask(log: str) -> None:
        with Staging(target.access, log, target.app(app), number, target.grant(log)) as staging:
            staging.ask()

    _, errors = _side_by_side(ask, logs)
    if errors:
        log, error = _telling(errors)
        error.add_note(f"That was {log}, asked before the first of the batch's {len(logs)} logs")
        raise error


def _published_side_by_side(
    one: Callable[[str], Publication], logs: Sequence[str]
) -> dict[str, Publication]:
    found, errors = _side_by_side(one, logs)
    if not errors:
        return found
    log, error = _telling(errors)
    text = f"That was {log}. Of the batch's {len(logs)} logs {len(found)} have their rows"
    match error:
        case Conflict():
            error.add_note(f"{text}: written again when that is over, it is finished")
        case Away() | MissingPart():
            error.add_note(f"{text}: written again, it is finished")
        case Invalid():
            error.add_note(f"{text}: written again as it is, it is refused again")
        case _:
            error.add_note(f"{text}: written again, it may be refused again")
    raise error


def _publish_one(
    target: PublishTarget, app: str, version: int, log: str, parts: Sequence[Part]
) -> Publication:
    access, grant = target.access, target.grant(log)
    if target.guarantee == EXACTLY_ONCE:
        with Staging(access, log, app, version, grant) as staging:
            return staging.publish(parts)

    def attempt(version: int, parts: Sequence[Part]) -> Publication:
        with Staging(access, log, target.app(app), version, grant) as staging:
            return staging.try_to_publish(parts)

    held = attempt(0, ()).held or 0  # no rows: only reads the newest version
    for _ in range(VERSIONS_TRIED_MAX):
        version = held + 1 + secrets.randbelow(_RANDOM)
        found = attempt(version, parts)
        if (
            found.held is None or found.held == version
        ):  # otherwise another publisher has added versions meanwhile
            return found
        held = found.held
    raise Conflict(
        f"{log} receives publishes of others as {app} without a pause; nothing was published"
    )


def _first_log(target: PublishTarget, app: str, version: int) -> str:
    name = log_name(target.topic)
    with contextlib.closing(Connection(target.access)) as connection:
        count = 0
        if name.partition is None:
            count = _partitions(connection, target, target.app(app), version, name)
    return str(name.with_partition(0) if count else name)


def _partitions(
    connection: Connection, target: PublishTarget, app: str, version: int, topic: TopicName
) -> int:
    """The number of partitions for routing the rows of a version: the number when it was first requested."""
    path, owner = f"{staged_path(topic, app, version)}/layout", str(topic)
    is_noted, grant = target.guarantee == EXACTLY_ONCE, target.grant(owner)
    body: dict[str, object] = {"noted": is_noted}
    if grant is not None:
        body["epoch"] = grant.epoch
    headers = {} if grant is None else grant.headers()
    try:
        answer = connection.ask("POST", path, owner=owner, body=body, headers=headers)
    except Conflict as error:
        raise Conflict(f"{error}. {OVERTAKEN}") from error
    with understood():
        return int(answer["partitions"])
