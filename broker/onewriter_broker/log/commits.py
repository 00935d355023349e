"""Stored items that wait until they are durable enough: blocks, fences, and proofs.

All items that wait for one durability of one dataset share each question to the store, because a
question delays the connection that appends use. Topics with a weaker durability do not wait for the
replicas of others. An item that arrives while a question is under way is part of the next one.

A *proof* belongs to a reader: its result is valid only if the store that it read from still has its
replicas. A proof is never written again. It ends with Undecided, and the reader retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from onewriter_broker.log.limits import LogLimits
from onewriter_broker.log.store.api import LogStore
from onewriter_core.api.topic import Durability
from onewriter_core.errors import Undecided

RETRY_SECONDS = 0.01
RETRY_SECONDS_MAX = 0.25
"""Pause before asking again whether replicas have caught up; doubles up to the second."""

PROOF_ATTEMPTS_MAX = 3
"""Number of "not yet" answers after which a proof ends with Undecided."""

Kind = tuple[Durability, str]
"""Items that are committed together: those of one durability and one dataset."""

_Item = TypeVar("_Item")

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Proof:
    done: asyncio.Future[None]
    attempts: int = 0


class Commits(Generic[_Item]):
    """See the module. ``check`` must be called by one task, whenever ``pause_seconds`` is over.

    ``pass_on`` receives the items that are durable enough. ``wake`` is called when a proof arrives.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        now: Callable[[], float],
        wake: Callable[[], None],
        pass_on: Callable[[Sequence[_Item]], None],
        limits: LogLimits = LogLimits(),
    ) -> None:
        self._store = store
        self._limits = limits
        self._now = now
        self._wake = wake
        self._pass_on = pass_on
        self._items: dict[Kind, list[_Item]] = {}
        self._proofs: dict[Kind, dict[_Proof, None]] = {}
        self._not_yet: dict[Kind, tuple[float, float]] = {}  # the pause, and its end

    @property
    def pause_seconds(self) -> float | None:
        """Seconds until the next question; None: no item waits."""
        if not self._items and not self._proofs:
            return None
        now = self._now()
        return max(0.0, min(self._paused_until(kind) - now for kind in self._kinds()))

    def later(self, kind: Kind, item: _Item) -> None:
        """Add a stored item; it is passed on when it has this durability."""
        self._items.setdefault(kind, []).append(item)

    def forget(self, is_meant: Callable[[_Item], bool]) -> list[_Item]:
        """Remove these items without a request to the store, and return them."""
        forgotten: list[_Item] = []
        for kind, items in list(self._items.items()):
            forgotten += [item for item in items if is_meant(item)]
            self._items[kind] = [item for item in items if not is_meant(item)]
            if not self._items[kind]:
                del self._items[kind]
        return forgotten

    async def prove(self, durability: Durability, replid: str) -> None:
        """Wait until everything that was written to the dataset before this call has the durability.

        Raises Undecided, ask again: the connection or the dataset was lost, its replicas do not
        answer, or ``proofs_max`` wait already.
        """
        if sum(map(len, self._proofs.values())) >= self._limits.proofs_max:
            raise Undecided(f"{self._limits.proofs_max} proofs wait for replicas already")
        kind, proof = (durability, replid), _Proof(asyncio.get_running_loop().create_future())
        self._proofs.setdefault(kind, {})[proof] = None
        self._wake()
        try:
            async with asyncio.timeout(self._limits.proof_seconds_max):
                await proof.done
        except TimeoutError as error:
            raise Undecided("the store did not answer in time") from error
        finally:
            self._forget(kind, proof)

    async def check(self) -> list[_Item]:
        """Ask the store about the items that are not pausing, and pass on those that are durable enough.

        Returns the items whose connection was lost, so that the store cannot be asked about them. The
        caller writes them again at the same positions, which decides their result.
        """
        lost: list[_Item] = []
        for kind in self._kinds():
            if self._now() < self._paused_until(kind):
                continue
            covered = list(self._proofs.get(kind, ()))
            durability, replid = kind
            try:
                is_durable = await self._store.commit(durability, replid=replid)
            except Undecided as undecided:
                log.warning("commit.undecided", reason=str(undecided))
                lost += self._items.pop(kind, [])
                for proof in covered:
                    self._settle(kind, proof, undecided)
                continue
            if is_durable:
                self._not_yet.pop(kind, None)
                self._pass_on(self._items.pop(kind, []))
                for proof in covered:
                    self._settle(kind, proof)
            else:
                self._pause(kind)
                for proof in covered:
                    proof.attempts += 1
                    if proof.attempts >= PROOF_ATTEMPTS_MAX:
                        self._settle(kind, proof, Undecided("the replicas do not answer"))
        return lost

    def close(self) -> None:
        """Stop: ``check`` is not called any more, and waiting proofs end with Undecided."""
        for kind, proofs in list(self._proofs.items()):
            for proof in list(proofs):
                self._settle(kind, proof, Undecided("the broker stops"))

    def _kinds(self) -> list[Kind]:
        """Weaker durabilities come first: they do not wait for the replicas of stronger ones."""
        order = list(Durability)
        kinds = self._items.keys() | self._proofs.keys()
        return sorted(kinds, key=lambda kind: (order.index(kind[0]), kind[1]))

    def _paused_until(self, kind: Kind) -> float:
        return self._not_yet.get(kind, (0.0, 0.0))[1]

    def _pause(self, kind: Kind) -> None:
        pause, _ = self._not_yet.get(kind, (0.0, 0.0))
        pause = min(max(2 * pause, RETRY_SECONDS), RETRY_SECONDS_MAX)
        for other in [other for other in self._not_yet if other[1] != kind[1]]:
            del self._not_yet[other]  # of a former dataset
        self._not_yet[kind] = (pause, self._now() + pause)

    def _settle(self, kind: Kind, proof: _Proof, error: Undecided | None = None) -> None:
        self._forget(kind, proof)
        if proof.done.done():
            return
        if error is None:
            proof.done.set_result(None)
        else:
            proof.done.set_exception(Undecided(str(error)))

    def _forget(self, kind: Kind, proof: _Proof) -> None:
        proofs = self._proofs.get(kind)
        if proofs is not None:
            proofs.pop(proof, None)
            if not proofs:
                del self._proofs[kind]
