"""What the API server was last seen to hold: objects by key, and the ways to find them.

Filled by the watches, by the answers to our own writes, and by a sweep: a listing that also finds
what was deleted while a watch was broken, which kopf's own indexes never hear of. Reading is free
of I/O. Listeners are told the key of whatever changed; they only put it into queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from onewriter_operator.documents import (
    CLAIM,
    POD,
    TOPIC,
    Json,
    Key,
    key_of,
    metadata,
    uid_of,
    version_number,
)

Listener = Callable[[Key, bool], None]
"""Takes the key of what changed, and whether it was our own writing of its status."""

REMOVED_MAX: Final = 10_000
"""Removed objects that are remembered, so that a late answer to a write does not bring one back."""


class Store:
    """The operator's memory of the cluster. Not for threads: call it on the loop that owns it."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Json]] = {}
        self._claims_of: dict[Key, set[Key]] = {}
        self._owned_by: dict[str, set[Key]] = {}
        self._pods: dict[str, Key] = {}
        self._pods_in: dict[str, set[Key]] = {}
        self._listeners: list[Listener] = []
        self._removed: OrderedDict[str, int | None] = OrderedDict()

    def listen(self, listener: Listener) -> None:
        """Have it told of every change, after the change."""
        self._listeners.append(listener)

    # ------------------------------------------------------------ reading

    def get(self, key: Key) -> Json | None:
        """The object, None when there is none."""
        return self._objects.get(key.kind, {}).get(key)

    def all(self, kind: str) -> Iterator[Json]:
        """Every object of a kind."""
        return iter(list(self._objects.get(kind, {}).values()))

    def count(self, kind: str) -> int:
        return len(self._objects.get(kind, {}))

    def claims_of(self, topic: Key) -> list[Json]:
        """The claims for an ExclusiveTopic, by name."""
        keys = sorted(self._claims_of.get(topic, ()))
        return [found for key in keys if (found := self.get(key)) is not None]

    def owned_by(self, uid: str) -> list[Json]:
        """The objects that name the object of that uid as an owner."""
        keys = sorted(self._owned_by.get(uid, ()))
        return [found for key in keys if (found := self.get(key)) is not None]

    def pod(self, uid: str) -> Json | None:
        """A watched pod by its uid."""
        key = self._pods.get(uid)
        return None if key is None else self.get(key)

    def pods_in(self, namespace: str) -> list[Json]:
        """The watched pods of a namespace."""
        keys = self._pods_in.get(namespace, ())
        return [found for key in keys if (found := self.get(key)) is not None]

    # ------------------------------------------------------------ filling

    def put(self, document: Json, *, is_own: bool = False) -> bool:
        """An object as it is now; older news about the same object is ignored. Whether it counted.

        ``is_own``: it answers our own writing of its status.
        """
        key = key_of(document)
        known = self.get(key)
        if not self._is_back(document):
            return False
        if known is not None and uid_of(known) == uid_of(document):
            mine, theirs = version_number(known), version_number(document)
            if mine is not None and theirs is not None and theirs <= mine:
                return False
        self._replace(key, document, is_own=is_own)
        return True

    def remove(self, document: Json) -> None:
        """An object is gone, or out of what is watched; a later one of the same name stays."""
        key = key_of(document)
        self._removed[uid_of(document)] = version_number(document)
        while len(self._removed) > REMOVED_MAX:
            self._removed.popitem(last=False)
        known = self.get(key)
        if known is not None and uid_of(known) == uid_of(document):
            self._replace(key, None)

    def _is_back(self, document: Json) -> bool:
        """Whether an object may be there: it never went, or got its watched label again since."""
        uid = uid_of(document)
        if uid not in self._removed:
            return True
        then, now = self._removed[uid], version_number(document)
        if then is None or now is None or now <= then:
            return False
        del self._removed[uid]
        return True

    def sweep(self, listed: Iterable[Json], since: Mapping[Key, str]) -> list[Key]:
        """Put right what the watch missed, by a full listing; the keys of what it had missed.

        ``since`` is what ``versions`` said before the listing was asked for: what changed in the
        meantime is newer than the listing and stays.
        """
        found = {key_of(document): document for document in listed}
        missed = []
        for key, version in since.items():
            known = self.get(key)
            if key not in found and known is not None and _version(known) == version:
                self._replace(key, None)
                missed.append(key)
        for key, document in found.items():
            known = self.get(key)
            if known is None and key in since:
                continue  # it went while the listing was under way
            if known is not None and _version(known) != since.get(key):
                continue  # it changed meanwhile
            if known is None or _version(known) != _version(document):
                self._replace(key, document)
                missed.append(key)
        return missed

    def versions(self, kind: str) -> dict[Key, str]:
        """The resourceVersion of each object of a kind."""
        return {key: _version(document) for key, document in self._objects.get(kind, {}).items()}

    # ------------------------------------------------------------ inside

    def _replace(self, key: Key, document: Json | None, *, is_own: bool = False) -> None:
        objects = self._objects.setdefault(key.kind, {})
        known = objects.pop(key, None)
        if known is not None:
            self._index(key, known, present=False)
        if document is not None:
            objects[key] = document
            self._index(key, document, present=True)
        for listener in self._listeners:
            listener(key, is_own)

    def _index(self, key: Key, document: Mapping[str, Any], *, present: bool) -> None:
        for owner in metadata(document).get("ownerReferences") or ():
            _mark(self._owned_by, str(owner.get("uid", "")), key, present=present)
        if key.kind == CLAIM.kind:
            name = ((document.get("spec") or {}).get("topicRef") or {}).get("name", "")
            topic = Key(TOPIC.kind, key.namespace, str(name))
            _mark(self._claims_of, topic, key, present=present)
        elif key.kind == POD.kind:
            _mark(self._pods_in, key.namespace, key, present=present)
            if present:
                self._pods[uid_of(document)] = key
            else:
                self._pods.pop(uid_of(document), None)


def _version(document: Mapping[str, Any]) -> str:
    return str(metadata(document).get("resourceVersion", ""))


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
