"""The anchor in Kubernetes: one BucketAnchor object holds the records of a shard's buckets.

What lives here: which requests are made of reads and compare-and-sets, and what their answers mean.
What does not: who may own what (ownership/), how the API server is reached (kubernetes_api.py), what
the object looks like (onewriter_core.api.anchor).

The API server replaces an object only if it still has the resourceVersion that the request names,
so a PUT is a compare-and-set over all records of the shard at once. Two things make it one over each
record:

* **Every record has a version of its own.** A change names the version of its bucket's record. A
  PUT that is refused because *another* bucket's record changed (409) is made again from what is
  there now; a change is lost only when its own record has another version.
* **Changes that come together share a PUT.** One request is under way at a time; what is asked for
  meanwhile is gathered into the next. So a broker that takes over another's buckets writes once.

A read is one GET without a resourceVersion, which the API server answers from a quorum of etcd.
Readers share a GET only if it goes out after each of them asked: it cannot be older than any of
them. What an earlier request brought (``_known``) is used as the base of a PUT alone, where being
out of date costs a 409 and nothing else, and to refuse a change: versions rise, so a record that had
a later version once never has the one that the change names.

No answer, or a server's fault, leaves open whether a PUT happened: its changes end in Unavailable.
"""

from __future__ import annotations

import asyncio
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

WRITE_ATTEMPTS_MAX: Final = 10
"""PUTs of one batch before it is given up: each refused one means that another process succeeded."""

CHANGES_MAX: Final = 4_096
"""Compare-and-sets that may wait for their PUT; more are refused."""

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


@dataclass(frozen=True, slots=True)
class _Seen:
    """The object as one answer had it; without ``metadata`` there was none."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    records: Mapping[int, BucketRecord] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return bool(self.metadata)

    def version(self, bucket: int) -> int:
        found = self.records.get(bucket)
        return 0 if found is None else found.version


NOTHING: Final = _Seen()


@dataclass(slots=True, eq=False)
class _Change:
    """One compare-and-set that waits: its answer is the new version, or None."""

    bucket: int
    version: int
    record: BucketRecord
    answer: asyncio.Future[int | None]


class KubernetesAnchor:
    """The records of one shard, in the object ``name`` of ``namespace``.

    Its owner needs the verbs get, create and update on ``bucketanchors`` there. The last granted
    ledger is recorded when a bucket is given back in order (Record.clean), not with each grant.
    """

    records_every_grant = False

    def __init__(
        self,
        api: KubernetesApi,
        name: str,
        namespace: str = "",
        *,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        self._changes_max = changes_max
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
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._asked = 0
        self._covered = 0
        self._read: _Seen | Exception = NOTHING

    async def read(self, bucket: int) -> Versioned:
        """The newest record of a bucket.

        Raises Unavailable when the API server does not say, ConfigurationError naming the object
        when its content is not a record.
        """
        self._asked += 1
        mine = self._asked
        async with self._reading:
            if self._covered < mine:
                await asyncio.sleep(0)  # callers of the same tick share the request
                await self._read_once()
            found = self._read
        if isinstance(found, Exception):
            raise type(found)(*found.args) from found
        return _versioned(found, bucket)

    async def compare_and_set(self, bucket: int, version: int, record: Record) -> int | None:
        """Write version ``version + 1``; None if another process was first.

        Raises Unavailable when the API server gives no answer; it may then have been written.
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
            self._changes.pop(change, None)  # cancelled: it must not be made some time later
        return await answer

    async def close(self) -> None:
        """End the connections; later calls raise Unavailable."""
        await self._api.close()

    # ------------------------------------------------------------ reading

    async def _read_once(self) -> None:
        """One GET for all who have asked by now; they share a failure, too."""
        covers = self._asked
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
        if writes == self._writes:  # else a PUT of ours brought something newer, perhaps
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
        """Decide all changes that wait now, in one PUT if any of them can be made."""
        changes = list(self._changes)
        self._changes.clear()
        try:
            await self._write(changes)
        except (Unavailable, ConfigurationError) as error:
            for change in changes:
                _fail(change, error)
        finally:  # cancelled: the result is unknown
            for change in changes:
                _fail(change, Unavailable("the change of the anchor was broken off"))

    async def _write(self, changes: list[_Change]) -> None:
        for _ in range(WRITE_ATTEMPTS_MAX):
            seen = self._known
            if seen is None or any(seen.version(each.bucket) < each.version for each in changes):
                seen = await self._get()
            records, made = _applied(seen, changes)
            answered = None
            if made:
                answered = await self._put(seen, records)
                if answered is None:
                    continue
                self._known = answered
                self._writes += 1
            for change in changes:
                if not change.answer.done():
                    change.answer.set_result(change.version + 1 if change in made else None)
            return
        raise Unavailable(f"BucketAnchor {self._namespace}/{self._name} keeps changing")

    async def _put(self, seen: _Seen, records: Mapping[int, BucketRecord]) -> _Seen | None:
        """Replace the object as it was seen, or make it; None: it has changed since."""
        self._known = None  # whatever happens to the request, until its answer is here
        document = self._document(seen, records)
        if seen.exists:
            answer = await self._api.send("PUT", self._path, document)
        else:
            answer = await self._api.send("POST", self._collection, document)
        if answer.status == _CONFLICT:
            return None
        if answer.status == _NOT_FOUND and _is_about(answer, self._name):
            return None  # deleted meanwhile
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


def _applied(seen: _Seen, changes: list[_Change]) -> tuple[dict[int, BucketRecord], list[_Change]]:
    """The records with every change that names its record's version, and these changes."""
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
        change.answer.exception()  # its asker may have gone


def _is_about(answer: Answer, name: str) -> bool:
    """Whether a Status speaks of the object, not of a kind that the server does not know."""
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
    """A record as the object holds it. Raises ConfigurationError for what it cannot hold."""
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
