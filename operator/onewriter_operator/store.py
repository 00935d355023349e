"""The objects of the API server as the operator last saw them, parsed, by key, with indexes.

The watches, the answers to the operator's own writes, and a sweep fill it. The sweep is a listing that
also finds objects that were deleted while a watch was broken, which kopf's indexes miss. Reads cause no
I/O. Listeners receive the key of each change and only put it into queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from onewriter_core.json_values import Json
from onewriter_core.kubernetes.kinds import CLAIM, SERVICE_NAME_LABEL, SLICE, TOPIC, Key
from onewriter_core.kubernetes.objects import (
    ClaimObject,
    DeclaredObject,
    KubeObject,
    PodObject,
    TopicObject,
    parse,
)

Listener = Callable[[Key, bool], None]
"""Takes the key of a change, and whether it was the operator's own write of the status."""

REMOVED_MAX: Final = 10_000
"""Removed objects to remember, so that a late answer to a write does not restore one."""


class ObjectCopy:
    """The operator's copy of the objects in the cluster. Not thread-safe: call it on the event loop that owns it."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, KubeObject]] = {}
        self._claims_of: dict[Key, set[Key]] = {}
        self._owned_by: dict[str, set[Key]] = {}
        self._slices_of: dict[tuple[str, str], set[Key]] = {}
        self._pods: dict[str, Key] = {}
        self._pods_in: dict[str, set[Key]] = {}
        self._listeners: list[Listener] = []
        self._removed: OrderedDict[str, int | None] = OrderedDict()

    def listen(self, listener: Listener) -> None:
        """Call a listener after every change."""
        self._listeners.append(listener)

    # ------------------------------------------------------------ reading

    def get(self, key: Key) -> KubeObject | None:
        """The object; None if the store has none."""
        return self._objects.get(key.kind, {}).get(key)

    def topic(self, key: Key) -> TopicObject | None:
        """An ExclusiveTopic."""
        found = self.get(key)
        return found if isinstance(found, TopicObject) else None

    def claim(self, key: Key) -> ClaimObject | None:
        """A ProducerClaim."""
        found = self.get(key)
        return found if isinstance(found, ClaimObject) else None

    def declared(self, key: Key) -> DeclaredObject | None:
        """An ExclusiveTopic or ProducerClaim."""
        found = self.get(key)
        return found if isinstance(found, TopicObject | ClaimObject) else None

    def topics(self) -> list[TopicObject]:
        """All ExclusiveTopics."""
        found = self._objects.get(TOPIC.kind, {}).values()
        return [each for each in found if isinstance(each, TopicObject)]

    def claims(self) -> list[ClaimObject]:
        """All ProducerClaims."""
        found = self._objects.get(CLAIM.kind, {}).values()
        return [each for each in found if isinstance(each, ClaimObject)]

    def count(self, kind: str) -> int:
        """The number of objects of a kind."""
        return len(self._objects.get(kind, {}))

    def all_declared(self) -> list[DeclaredObject]:
        """All ExclusiveTopics, then all ProducerClaims."""
        return [*self.topics(), *self.claims()]

    def claims_of(self, topic: Key) -> list[ClaimObject]:
        """The claims for an ExclusiveTopic, by name."""
        keys = sorted(self._claims_of.get(topic, ()))
        return [found for key in keys if (found := self.claim(key)) is not None]

    def owned_by(self, uid: str) -> list[KubeObject]:
        """The objects that name the object of that uid as an owner."""
        keys = sorted(self._owned_by.get(uid, ()))
        return [found for key in keys if (found := self.get(key)) is not None]

    def slices_of(self, namespace: str, service: str) -> list[KubeObject]:
        """The watched EndpointSlices of a Service, the operator's and those of others."""
        keys = sorted(self._slices_of.get((namespace, service), ()))
        return [found for key in keys if (found := self.get(key)) is not None]

    def pod(self, uid: str) -> PodObject | None:
        """A watched pod by its uid."""
        key = self._pods.get(uid)
        return None if key is None else self._pod(key)

    def pods_in(self, namespace: str) -> list[PodObject]:
        """The watched pods of a namespace."""
        keys = self._pods_in.get(namespace, ())
        return [found for key in keys if (found := self._pod(key)) is not None]

    def _pod(self, key: Key) -> PodObject | None:
        found = self.get(key)
        return found if isinstance(found, PodObject) else None

    # ------------------------------------------------------------ changes

    def put(self, document: Json, *, is_own: bool = False) -> bool:
        """Store an object. Returns whether it was newer than the known one.

        ``is_own``: it is the answer to the operator's own write of the status.
        """
        found = parse(document)
        known = self.get(found.key)
        if not self._may_exist(found):
            return False
        if known is not None and known.uid == found.uid:
            known_version, found_version = known.version_number, found.version_number
            if (
                known_version is not None
                and found_version is not None
                and found_version <= known_version
            ):
                return False
        self._replace(found.key, found, is_own=is_own)
        return True

    def remove(self, document: Json) -> None:
        """Drop an object that was deleted or is no longer watched. A later object of the same name stays."""
        gone = parse(document)
        self._removed[gone.uid] = gone.version_number
        while len(self._removed) > REMOVED_MAX:
            self._removed.popitem(last=False)
        known = self.get(gone.key)
        if known is not None and known.uid == gone.uid:
            self._replace(gone.key, None)

    def _may_exist(self, found: KubeObject) -> bool:
        """Whether an object may exist: it was never removed, or got its watched label again."""
        uid = found.uid
        if uid not in self._removed:
            return True
        removed_version, version = self._removed[uid], found.version_number
        if removed_version is None or version is None or version <= removed_version:
            return False
        del self._removed[uid]
        return True

    def sweep(self, listed: Iterable[Json], since: Mapping[Key, str]) -> list[Key]:
        """Apply a full listing. Returns the keys of the objects whose changes the watch had missed.

        ``since`` is the result of ``versions`` before the listing: an object that changed since is newer
        than the listing and stays.
        """
        found = {each.key: each for each in map(parse, listed)}
        missed = []
        for key, version in since.items():
            known = self.get(key)
            if key not in found and known is not None and known.resource_version == version:
                self._replace(key, None)
                missed.append(key)
        for key, each in found.items():
            known = self.get(key)
            if known is None and key in since:
                continue  # it was removed during the listing
            if known is not None and known.resource_version != since.get(key):
                continue  # it changed during the listing
            if known is None or known.resource_version != each.resource_version:
                self._replace(key, each)
                missed.append(key)
        return missed

    def versions(self, kind: str) -> dict[Key, str]:
        """The resourceVersion of each object of a kind."""
        objects = self._objects.get(kind, {})
        return {key: found.resource_version for key, found in objects.items()}

    # ------------------------------------------------------------ inside

    def _replace(self, key: Key, found: KubeObject | None, *, is_own: bool = False) -> None:
        objects = self._objects.setdefault(key.kind, {})
        known = objects.pop(key, None)
        if known is not None:
            self._index(key, known, present=False)
        if found is not None:
            objects[key] = found
            self._index(key, found, present=True)
        for listener in self._listeners:
            listener(key, is_own)

    def _index(self, key: Key, found: KubeObject, *, present: bool) -> None:
        for owner in found.owners:
            _mark(self._owned_by, owner.uid, key, present=present)
        if key.kind == SLICE.kind:
            service = (key.namespace, found.labels.get(SERVICE_NAME_LABEL, ""))
            _mark(self._slices_of, service, key, present=present)
        if isinstance(found, ClaimObject):
            _mark(self._claims_of, found.topic_key, key, present=present)
        elif isinstance(found, PodObject):
            _mark(self._pods_in, key.namespace, key, present=present)
            if present:
                self._pods[found.uid] = key
            else:
                self._pods.pop(found.uid, None)


_Place = TypeVar("_Place")


def _mark(index: dict[_Place, set[Key]], at: _Place, value: Key, *, present: bool) -> None:
    if present:
        index.setdefault(at, set()).add(value)
        return
    values = index.get(at)
    if values is not None:
        values.discard(value)
        if not values:
            del index[at]
