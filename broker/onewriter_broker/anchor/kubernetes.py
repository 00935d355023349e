"""The anchor in Kubernetes: one BucketAnchor object holds the records of a shard's buckets.

This module converts reads and compare-and-sets to requests, and interprets the answers. Elsewhere:
who may own a bucket (ownership/), the connection to the API server (kubernetes_api.py), the format
of the object (onewriter_core.api.anchor).

The API server replaces an object only if it still has the resourceVersion that the request names,
so a PUT is a compare-and-set over all records of the shard. Two rules make it a compare-and-set over
each record:

* **Every record has its own version.** A change names the version of its bucket's record. A PUT that
  is refused because *another* bucket's record changed (409) is repeated with the present object; a
  change fails only if its own record has another version, or if other processes are first for
  WRITE_SECONDS_MAX. Pauses grow with the refusals, with jitter, so that many writers do not refuse
  each other's PUTs.
* **Concurrent changes share a PUT.** One request is under way at a time; changes that arrive meanwhile
  are combined in the next one, also if that repeats a refused one. So a broker that takes over another
  broker's buckets writes once.

A read is one GET without a resourceVersion, which the API server answers from a quorum of etcd.
Readers share a GET only if it is sent after each of their calls: its answer is not older than any of
them. The object of an earlier answer (``_known``) is used only as the base of a PUT, where an outdated
object only costs a 409, and to refuse a change: versions rise, so a record that had a later version
never has the version that the change names.

Without an answer, or after a server error, it is unknown whether a PUT was executed: its changes end
with Unavailable.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from onewriter_broker.anchor.api import Addresses, Record, Versioned
from onewriter_broker.kubernetes_api import Answer, KubernetesApi
from onewriter_core.api.anchor import (
    BUCKETS_PER_OBJECT_MAX,
    AnchorSummary,
    BucketAnchor,
    BucketRecord,
)
from onewriter_core.api.common import API_VERSION
from onewriter_core.errors import ConfigurationError, Unavailable
from onewriter_core.ids import NUMBER_MAX

WRITE_SECONDS_MAX: Final = 5.0
"""Time in which a refused PUT is repeated: as long as one request may take, so callers wait no longer than for an API
server that does not answer."""

PAUSE_SECONDS_MAX: Final = 0.5
"""The longest pause before a refused PUT is repeated."""

ATTEMPT_SECONDS_MIN: Final = 0.005
"""An attempt that took less time counts as this long in the calculation of a pause."""

CHANGES_MAX: Final = 4_096
"""Largest number of compare-and-sets that wait for their result; more are refused."""

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


@dataclass(frozen=True, slots=True)
class _Seen:
    """The object in an answer; without ``metadata`` it does not exist."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    records: Mapping[int, BucketRecord] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return bool(self.metadata)

    def version(self, bucket: int) -> int:
        found = self.records.get(bucket)
        return 0 if found is None else found.version


NOTHING: Final = _Seen()


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The API server did not replace the object, because another process changed it first."""

    status: int
    reason: str


@dataclass(slots=True, eq=False)
class _Change:
    """A waiting compare-and-set: its result is the new version, or None."""

    bucket: int
    version: int
    record: BucketRecord
    answer: asyncio.Future[int | None]


class KubernetesAnchor:
    """The records of one shard, in the object ``name`` of ``namespace``.

    Brokers need the verbs get, create and update on ``bucketanchors`` there. The last granted
    ledger is recorded when a bucket is released in order (Record.clean), not with each grant.
    """

    records_every_grant = False

    def __init__(
        self,
        api: KubernetesApi,
        name: str,
        namespace: str = "",
        *,
        changes_max: int = CHANGES_MAX,
        randomness: random.Random | None = None,
    ) -> None:
        self._changes_max = changes_max
        self._randomness = random.Random() if randomness is None else randomness  # noqa: S311 - jitter needs no secrecy
        self._api = api
        self._name = name
        self._namespace = namespace or api.server.namespace
        group = API_VERSION.partition("/")[0]
        version = API_VERSION.partition("/")[2]
        self._collection = f"/apis/{group}/{version}/namespaces/{self._namespace}/bucketanchors"
        self._path = f"{self._collection}/{name}"
        self._known: _Seen | None = None
        self._writes = 0
        self._changes: dict[_Change, None] = {}
        self._sent: list[_Change] = []
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._requests = 0
        self._covered = 0
        self._read: _Seen | Exception = NOTHING

    async def read(self, bucket: int) -> Versioned:
        """The newest record of a bucket.

        Raises Unavailable if the API server does not answer, ConfigurationError with the object's name
        if its content is not a record.
        """
        self._requests += 1
        request_number = self._requests
        async with self._reading:
            if self._covered < request_number:
                await asyncio.sleep(0)  # callers of the same tick share the request
                await self._read_once()
            found = self._read
        if isinstance(found, Exception):
            raise type(found)(*found.args) from found
        return _versioned(found, bucket)

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        """Write version ``version + 1``; None if another process was first.

        Raises Unavailable if the API server gives no answer; then the record may have been written. Also
        raises it if other processes change the object again and again; then it was not written.
        """
        desired = _encoded(bucket, version + 1, record)
        if len(self._changes) >= self._changes_max:
            raise Unavailable(f"{self._changes_max} changes of the anchor wait for the API server")
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        change = _Change(bucket, version, desired, answer)
        self._changes[change] = None
        try:
            async with self._writing:
                if not answer.done():
                    await asyncio.sleep(0)  # callers of the same tick share the request
                    await self._write_waiting()
        finally:
            self._changes.pop(change, None)  # cancelled: the change must not be made later
        return await answer

    async def close(self) -> None:
        """Close the connections; later calls raise Unavailable."""
        await self._api.close()

    # ------------------------------------------------------------ reading

    async def _read_once(self) -> None:
        """Send one GET for all callers so far; they also share a failure."""
        covers = self._requests
        try:
            found: _Seen | Exception = await self._get()
        except (Unavailable, ConfigurationError) as error:
            found = error
        self._covered, self._read = covers, found

    async def _get(self) -> _Seen:
        writes = self._writes
        answer = await self._api.get(self._path)
        if answer.status == _NOT_FOUND and _is_about(answer, self._name):
            found = NOTHING
        else:
            found = self._seen(answer)
        if (
            writes == self._writes
        ):  # otherwise a PUT of this broker may have returned a newer object
            self._known = found
        return found

    def _seen(self, answer: Answer) -> _Seen:
        """The object in an answer. Raises Unavailable, ConfigurationError."""
        if answer.status == _NOT_FOUND:
            raise Unavailable(
                f"the API server knows no bucketanchors ({answer.reason}): are onewriter's"
                " CustomResourceDefinitions installed?"
            )
        if not answer.is_done:
            raise Unavailable(f"{self._path}: {answer.status}, {answer.reason}")
        try:
            found = BucketAnchor.from_document(answer.document)
        except ValidationError as error:
            raise ConfigurationError(
                f"BucketAnchor {self._namespace}/{self._name} is not an anchor's record"
                f" ({error.error_count()} faults, the first at {_place(error)}). Put it back from a"
                " backup; do not delete it, or epochs may be given out twice."
            ) from None
        metadata = {
            key: value
            for key, value in answer.document["metadata"].items()
            if key != "managedFields"
        }
        return _Seen(metadata, {record.bucket: record for record in found.buckets})

    # ------------------------------------------------------------ writing

    async def _write_waiting(self) -> None:
        """Decide all waiting changes, in one PUT if any of them can be made."""
        try:
            await self._write()
        except (Unavailable, ConfigurationError) as error:
            for change in self._sent:
                _fail(change, error)
        finally:  # cancelled: the result is unknown
            for change in self._sent:
                _fail(change, Unavailable("the change of the anchor was cancelled"))
            self._sent = []

    async def _write(self) -> None:
        began_at, refusals = _now(), 0
        while True:
            attempt_at = _now()
            changes = self._sent = [each for each in self._changes if not each.answer.done()]
            answered = await self._write_once(changes)
            if not isinstance(answered, _Refusal):
                return
            refusals += 1
            pause = pause_seconds(refusals, _now() - attempt_at, self._randomness)
            if _now() + pause - began_at > WRITE_SECONDS_MAX:
                raise Unavailable(
                    f"BucketAnchor {self._namespace}/{self._name} keeps changing: {refusals} writes in"
                    f" {_now() - began_at:.1f} s were refused, the last with {answered.status},"
                    f" {answered.reason}. Brokers try again. If it lasts, find out what else writes this"
                    " object."
                )
            self._sent = []  # none is under way: if this caller is cancelled, the next one continues
            await asyncio.sleep(pause)

    async def _write_once(self, changes: list[_Change]) -> _Refusal | None:
        """Decide the changes, unless the PUT that some of them need is refused."""
        seen = self._known
        if seen is None or any(seen.version(each.bucket) < each.version for each in changes):
            seen = await self._get()
        records, made = _applied(seen, changes)
        if made:
            answered = await self._put(seen, records)
            if isinstance(answered, _Refusal):
                return answered
            self._known = answered
            self._writes += 1
        for change in changes:
            if not change.answer.done():
                change.answer.set_result(change.version + 1 if change in made else None)
        return None

    async def _put(self, seen: _Seen, records: Mapping[int, BucketRecord]) -> _Seen | _Refusal:
        """Replace or create the object, unless it has changed since it was read."""
        self._known = None  # unknown until the answer arrives
        document = self._document(seen, records)
        if seen.exists:
            answer = await self._api.send("PUT", self._path, document)
        else:
            answer = await self._api.send("POST", self._collection, document)
        is_deleted = answer.status == _NOT_FOUND and _is_about(answer, self._name)
        if answer.status == _CONFLICT or is_deleted:
            return _Refusal(answer.status, answer.reason)
        return self._seen(answer)

    def _document(self, seen: _Seen, records: Mapping[int, BucketRecord]) -> dict[str, Any]:
        ordered = [records[bucket] for bucket in sorted(records)]
        summary = AnchorSummary(
            buckets=len(ordered),
            owners=len({record.owner for record in ordered} - {""}),
            generation=max((record.generation for record in ordered), default=0),
        )
        return {
            "apiVersion": API_VERSION,
            "kind": "BucketAnchor",
            "metadata": dict(seen.metadata) or {"name": self._name, "namespace": self._namespace},
            "buckets": [record.model_dump(mode="json") for record in ordered],
            "summary": summary.model_dump(mode="json"),
        }


def pause_seconds(refusals: int, attempt_seconds: float, randomness: random.Random) -> float:
    """The pause after this many refusals in a row (from 1), of which the last took ``attempt_seconds``.

    After the first refusal there is no pause: the refusal may only show that this broker knew an outdated object. After
    the second the pause is at most half of an attempt. Each further refusal doubles this limit, up to PAUSE_SECONDS_MAX.
    """
    if refusals == 1:
        return 0.0
    longest = max(attempt_seconds, ATTEMPT_SECONDS_MIN) * 2.0 ** min(refusals - 3, 30)
    return randomness.uniform(0.0, min(longest, PAUSE_SECONDS_MAX))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _applied(seen: _Seen, changes: list[_Change]) -> tuple[dict[int, BucketRecord], list[_Change]]:
    """Apply every change that names its record's version. Returns the records and these changes."""
    records = dict(seen.records)
    made = []
    for change in changes:
        known = records.get(change.bucket)
        if (0 if known is None else known.version) == change.version:
            records[change.bucket] = change.record
            made.append(change)
    return records, made


def _fail(change: _Change, error: Exception) -> None:
    if not change.answer.done():
        change.answer.set_exception(type(error)(*error.args))
        change.answer.exception()  # its caller may have been cancelled


def _is_about(answer: Answer, name: str) -> bool:
    """Whether a Status is about the object, and not about a kind that the server does not know."""
    details = answer.document.get("details")
    return isinstance(details, Mapping) and details.get("name") == name


def _place(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]) or "the top"


def _versioned(seen: _Seen, bucket: int) -> Versioned:
    found = seen.records.get(bucket)
    if found is None:
        return Versioned(0, Record())
    numbers = (found.generation, found.ledger_high_water, found.last_ledger, found.known_since)
    if max(numbers) > NUMBER_MAX:
        raise ConfigurationError(f"bucket {bucket} of the anchor has a number above {NUMBER_MAX}")
    return Versioned(
        found.version,
        Record(
            generation=found.generation,
            replid=found.replid,
            past_replids=found.past_replids,
            owner=found.owner,
            addresses=Addresses(found.broker_url, found.http_url),
            ledger_high_water=found.ledger_high_water,
            last_ledger=found.last_ledger,
            clean=found.clean,
            known_since=found.known_since,
        ),
    )


def _encoded(bucket: int, version: int, record: Record) -> BucketRecord:
    """A record in the form of the object. Raises ConfigurationError if the object cannot contain it."""
    if not 0 <= bucket < BUCKETS_PER_OBJECT_MAX:
        raise ConfigurationError(
            f"bucket {bucket}: the anchor in Kubernetes holds {BUCKETS_PER_OBJECT_MAX} buckets at"
            " most (setting buckets)"
        )
    try:
        return BucketRecord(
            bucket=bucket,
            version=version,
            generation=record.generation,
            replid=record.replid,
            past_replids=record.past_replids,
            owner=record.owner,
            broker_url=record.addresses.broker_url,
            http_url=record.addresses.http_url,
            ledger_high_water=record.ledger_high_water,
            last_ledger=record.last_ledger,
            clean=record.clean,
            known_since=record.known_since,
        )
    except ValidationError as error:
        raise ConfigurationError(
            f"bucket {bucket}: {_place(error)} does not fit into the anchor in Kubernetes"
        ) from None
