"""Which Kubernetes namespace declared a topic first. The topic stays with it, also without an object.

The broker notes the namespace in the topic's catalog entry at the first declaration. The note is valid until
the log is deleted or an administrator reassigns the topic. A declaration by another namespace has no effect: it
causes no service, no reads and no deletion of the topic. If ``tenancy_enforced`` is off, as on one machine,
nothing is noted and nothing refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol

import structlog

from onewriter_broker.topic.registry.catalog import CatalogEntry
from onewriter_core.api import ExclusiveTopic
from onewriter_core.api.manifests import DesiredState
from onewriter_core.errors import OnewriterError
from onewriter_core.ids import TopicName

RETRY_SECONDS: Final = 1.0
"""Time between two attempts to write a note that the store did not accept."""

TOPICS_PER_TICK: Final = 64
"""Topics processed between two yields to the event loop."""

log = structlog.get_logger(__name__)


class Catalog(Protocol):
    """The methods of this broker's topics that the rule uses."""

    def is_owned(self, name: TopicName) -> bool:
        """Whether this broker serves the topic's bucket."""
        ...

    def change_entry(
        self, base: TopicName, change: Callable[[CatalogEntry | None], CatalogEntry]
    ) -> Awaitable[None]:
        """Change a topic's entry. See Topics."""
        ...

    def known_entry(self, name: TopicName) -> Awaitable[CatalogEntry | None]:
        """A topic's stored entry, of a bucket that this broker serves."""
        ...


class FirstDeclarations:
    """The rule for one broker. ``changed`` is called when other declarations apply than before."""

    def __init__(self, catalog: Catalog, changed: Callable[[], None], *, is_enforced: bool) -> None:
        self._catalog = catalog
        self._changed = changed
        self._is_enforced = is_enforced
        self._first: dict[TopicName, str] = {}
        self._wanted = DesiredState()
        self._woken = asyncio.Event()

    # ------------------------------------------------------------ what counts

    def counting(self, desired: DesiredState) -> DesiredState:
        """The declarations that apply, among all declarations."""
        self._wanted = desired
        self._woken.set()
        if not self._is_enforced:
            return desired
        return desired.without(
            topic.topic_name for topic in desired.topics if self._is_foreign(topic)
        )

    def _is_foreign(self, declared: ExclusiveTopic) -> bool:
        first = self._first.get(declared.topic_name, "")
        return first not in {"", declared.metadata.namespace}

    def with_first(
        self, base: TopicName, entry: CatalogEntry, declared: ExclusiveTopic | None
    ) -> CatalogEntry:
        """The entry with the namespace that declares the topic, if no namespace did before."""
        self.seen(base, entry)
        if not self._is_enforced or declared is None or entry.declared_by:
            return entry
        return replace(entry, declared_by=declared.metadata.namespace)

    def seen(self, base: TopicName, entry: CatalogEntry | None) -> None:
        """Note a topic's entry after a read or write: its first declaration is valid."""
        if not self._is_enforced:
            return
        first = "" if entry is None else entry.declared_by
        if first == self._first.get(base, ""):
            return
        if first:
            self._first[base] = first
        else:
            del self._first[base]
        declared = self._wanted.topic(base)
        if declared is not None:
            if first not in {"", declared.metadata.namespace}:
                log.warning(
                    "declaration.foreign",
                    topic=str(base),
                    object=str(declared.metadata),
                    declared_by=first,
                )
            self._changed()

    def is_foreign(self, base: TopicName) -> bool:
        """Whether the topic is declared by another namespace than the one that declared it first."""
        declared = self._wanted.topic(base)
        return declared is not None and self._is_foreign(declared)

    def forget(self, is_concerned: Callable[[TopicName], bool]) -> None:
        """Forget topics of buckets that other brokers serve, because their entries may change there."""
        for base in [each for each in self._first if is_concerned(each)]:
            del self._first[base]
        self._woken.set()

    def check_again(self) -> None:
        """Check the topics again, because this broker serves further buckets."""
        self._woken.set()

    # ------------------------------------------------------------ noting

    async def run(self) -> None:
        """Note the namespaces of topics that are declared and exist, until cancelled."""
        while self._is_enforced:
            await self._woken.wait()
            self._woken.clear()
            if not await self._note_all():
                await asyncio.sleep(RETRY_SECONDS)
                self._woken.set()

    async def _note_all(self) -> bool:
        """Note all namespaces. Returns whether that is complete."""
        is_complete = True
        for number, declared in enumerate(self._wanted.topics):
            if number % TOPICS_PER_TICK == 0:
                await asyncio.sleep(0)
            base = declared.topic_name
            if base in self._first or not self._catalog.is_owned(base):
                continue
            try:
                entry = await self._catalog.known_entry(base)
                if entry is None:
                    continue
                self.seen(base, entry)
                if not entry.declared_by:
                    await self._catalog.change_entry(base, self._noting(declared))
            except OnewriterError as error:
                log.info("declaration.not_noted", topic=str(base), reason=str(error))
                is_complete = False
        return is_complete

    def _noting(self, declared: ExclusiveTopic) -> Callable[[CatalogEntry | None], CatalogEntry]:
        def noted(known: CatalogEntry | None) -> CatalogEntry:
            if known is None:  # deleted meanwhile: the next creation notes it
                return CatalogEntry(is_deleted=True)
            return self.with_first(declared.topic_name, known, declared)

        return noted
