"""Leader election between the operator's replicas: a Lease, and this process's monotonic clock.

The election is not a fence, and the operator needs none: two operators at the same time do no harm,
because the log fences every takeover, and without an operator writers and fencing continue. The
election saves work and writes.

``judge`` decides without I/O. A record counts as held until it has been seen *unchanged* for its whole
duration; ``renewTime`` is compared for equality, never for order, because it is another machine's
clock. A leader stops by itself when it could not renew for ``renew_seconds``, which is less than
any other replica waits. It gives the Lease back when it stops in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import structlog

from onewriter_core.json_values import Json, mapping
from onewriter_core.kubernetes.kinds import LEASE, Key, micro_timestamp
from onewriter_core.kubernetes.objects import LeaseRecord, parse_lease
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube

JITTER: Final = 1.2
"""Candidates ask after retry_seconds to retry_seconds times (1 + this)."""

Decision = Literal["Take", "Renew", "Wait"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Lengths of the election, in seconds; configuration.Lease checks how they fit together."""

    duration_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Observation:
    """A record, and since when (own clock) it is unchanged."""

    record: LeaseRecord
    since: float


def observe(known: Observation | None, record: LeaseRecord, now: float) -> Observation:
    """Note the record that was just read; a changed one restarts the time."""
    if known is not None and known.record == record:
        return known
    return Observation(record, now)


def judge(me: str, seen: Observation | None, now: float, timing: Timing) -> Decision:
    """What a replica may do with the Lease; ``seen`` None: there is no Lease."""
    if seen is None or not seen.record.holder:
        return "Take"
    if seen.record.holder == me:
        return "Renew"
    # The holder's own duration counts too: it may have been started with a longer one.
    duration = max(timing.duration_seconds, seen.record.duration_seconds)
    return "Take" if now - seen.since >= duration else "Wait"


class LeadershipLost(Exception):
    """Another replica may lead: the process must stop at once."""


class Election:
    """One replica's part in the election. ``wall_clock`` only fills in times for people."""

    def __init__(
        self,
        kube: Kube,
        lease: Key,
        me: str,
        timing: Timing,
        wall_clock: Callable[[], float],
        randomness: random.Random | None = None,
    ) -> None:
        self._kube = kube
        self._lease = lease
        self._me = me
        self._timing = timing
        self._wall_clock = wall_clock
        self._random = randomness or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._seen: Observation | None = None
        self._renewed_at = 0.0
        self.is_leader = False

    async def win(self) -> None:
        """Wait until this replica leads."""
        while not await self._attempt():
            spread = 1 + JITTER * self._random.random()
            await asyncio.sleep(self._timing.retry_seconds * spread)
        self.is_leader = True
        log.info("election.won", lease=str(self._lease), name=self._me)

    async def keep(self) -> None:
        """Renew the Lease until cancelled. Raises LeadershipLost."""
        while True:
            left = self._renewed_at + self._timing.renew_seconds - self._now()
            await asyncio.sleep(min(self._timing.retry_seconds, max(0.0, left)))
            left = self._renewed_at + self._timing.renew_seconds - self._now()
            if left <= 0:
                self._stop("could not renew in time")
            try:
                async with asyncio.timeout(left):
                    is_mine = await self._attempt()
            except TimeoutError:
                is_mine = False
            if not is_mine and self._seen is not None and self._seen.record.holder != self._me:
                self._stop(f"{self._seen.record.holder or 'nobody'} holds it")

    async def give_back(self) -> None:
        """Stop leading in order, so that another replica need not wait. Never raises."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            document = await self._kube.get(LEASE, self._lease.namespace, self._lease.name)
            if document is None or parse_lease(document).holder != self._me:
                return
            document["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._kube.replace(LEASE, document)
        except (ApiRefused, ApiUnreachable) as error:
            log.warning("election.not_given_back", reason=str(error))
        else:
            log.info("election.given_back", lease=str(self._lease))

    # ------------------------------------------------------------ inside

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _stop(self, reason: str) -> None:
        self.is_leader = False
        raise LeadershipLost(f"Lease {self._lease}: {reason}")

    async def _attempt(self) -> bool:
        """Read, judge and write once; whether this replica leads now."""
        try:
            # Counted from before the request: other replicas may count from the time of the write.
            started = self._now()
            document = await self._kube.get(LEASE, self._lease.namespace, self._lease.name)
            if document is None:
                self._seen = None
            else:
                self._seen = observe(self._seen, parse_lease(document), self._now())
            if judge(self._me, self._seen, self._now(), self._timing) == "Wait":
                return False
            await self._write(document)
        except (ApiRefused, ApiUnreachable) as error:
            log.info("election.attempt_failed", reason=str(error))
            return False
        self._renewed_at = started
        return True

    async def _write(self, document: Json | None) -> None:
        now = micro_timestamp(self._wall_clock())
        spec: dict[str, Any] = {
            "holderIdentity": self._me,
            "leaseDurationSeconds": max(1, round(self._timing.duration_seconds)),
            "renewTime": now,
        }
        if document is None:
            name = {"name": self._lease.name, "namespace": self._lease.namespace}
            fresh = {"acquireTime": now, "leaseTransitions": 0}
            written = await self._kube.create(
                LEASE,
                {
                    "apiVersion": LEASE.api_version,
                    "kind": LEASE.kind,
                    "metadata": name,
                    "spec": spec | fresh,
                },
            )
        else:
            former = parse_lease(document)
            if former.holder != self._me:
                spec |= {"acquireTime": now, "leaseTransitions": former.transitions + 1}
            changed = document | {"spec": mapping(document.get("spec")) | spec}
            # The resourceVersion that was read makes this a compare-and-set.
            changed["metadata"] = dict(document["metadata"])
            written = await self._kube.replace(LEASE, changed)
        self._seen = observe(self._seen, parse_lease(written), self._now())
